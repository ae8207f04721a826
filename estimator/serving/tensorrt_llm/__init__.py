"""TensorRT-LLM's rules: what its PyTorch backend leaves free for its cache, and how many tokens that holds."""
