"""Headers of weight files, safetensors and GGUF: every tensor's name, type, shape and bytes, without reading the weights."""
