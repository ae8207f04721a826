"""What engines hold while they serve: weights, caches, a prompt and a decoding step."""
