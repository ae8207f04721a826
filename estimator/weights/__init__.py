"""Headers of weight files, safetensors and GGUF: every tensor's name, type, shape and bytes, without reading the weights."""

from estimator.weights.checkpoint import Checkpoint, Tensor
from estimator.weights.read import read_checkpoint

__all__ = ["Checkpoint", "Tensor", "read_checkpoint"]
