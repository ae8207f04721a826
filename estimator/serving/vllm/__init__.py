"""vLLM's rules: what its engine sets aside on a GPU when it starts, and how many tokens its cache then holds."""
