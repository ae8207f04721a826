"""What a process takes outside torch's tensors: its context, communicators, and the caching allocator's segments."""
