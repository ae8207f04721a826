"""transformers: prefill and decoding as its `generate` runs them."""
