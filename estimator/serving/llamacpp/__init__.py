"""llama.cpp: where a GGUF file's tensors, the cache and the graph's buffers lie."""
