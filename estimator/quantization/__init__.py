"""Formats of weights in few bits: which tensor is stored in which type."""
