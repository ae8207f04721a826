"""Tensors without numbers, and the events of their storages: operations as torch runs them, autograd, replay."""
