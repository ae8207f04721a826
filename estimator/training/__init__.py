"""A training step: precision, optimizers, adapters, what is recomputed, objectives."""
