"""Accelerators and nodes: what is known of them, and how people write them."""
