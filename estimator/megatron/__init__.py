"""Megatron-Core's own modules: a published model as Megatron trains it, on one rank of one pipeline stage."""
