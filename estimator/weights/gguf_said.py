"""What a GGUF file's metadata says of its architecture, by llama.cpp's keys (gguf-py/gguf/constants.py, 0024aa741)."""

from __future__ import annotations

import math
from typing import Any

from estimator.weights.checkpoint import Checkpoint


class UnsaidError(Exception):
    """Something that the architecture needs stands nowhere in the file."""


class Said:
    """What a GGUF file says under the keys of its architecture, and which tensors it has."""

    def __init__(self, checkpoint: Checkpoint):
        self.metadata = checkpoint.metadata
        self.prefix = f"{checkpoint.metadata.get('general.architecture')}."
        self.shapes = {tensor.name: tensor.shape for tensor in checkpoint.tensors}

    def get(self, key: str) -> Any:
        """The value of a key, one value where every layer has the same, or None."""
        found = self.metadata.get(self.prefix + key)
        return found[0] if isinstance(found, tuple) and len(set(map(str, found))) == 1 else found

    def size(self, *keys: str) -> int:
        """A whole number from 0, that of the first of the keys that the file has."""
        found = next((self.get(key) for key in keys if self.get(key) is not None), None)
        if type(found) is not int or found < 0:
            raise UnsaidError(keys[0])
        return found

    def head(self) -> int:
        """Size of an attention head."""
        if self.get("attention.key_length") is not None:
            return self.size("attention.key_length")
        return self.size("embedding_length") // max(self.size("attention.head_count"), 1)

    def optional(self, **keys: str) -> dict[str, Any]:
        """The value for each name whose key the file has; `keys`: name = key of the file."""
        return {name: self.get(key) for name, key in keys.items() if self.get(key) is not None}

    def has(self, tensor: str) -> bool:
        """Whether there is such a tensor; those of a layer are looked for in the first."""
        return tensor in self.shapes or f"blk.0.{tensor}" in self.shapes

    def has_in(self, tensor: str, layer: int) -> bool:
        """Whether a layer has such a tensor."""
        return f"blk.{layer}.{tensor}" in self.shapes

    def rows(self, tensor: str) -> int:
        """Rows of a matrix outside the layers; a single one is often written as a vector."""
        shape = self.shapes.get(tensor, ())
        if len(shape) not in (1, 2):
            raise UnsaidError(tensor)
        return shape[0] if len(shape) == 2 else 1

    def each(self, key: str, layers: int) -> list[Any]:
        """A number of each layer, or whether it is so, of a key that has one for all of them or one for each."""
        found = self.metadata.get(self.prefix + key)
        values = list(found) if isinstance(found, tuple) else [found] * min(layers, len(self.shapes))
        if len(values) != layers or not all(isinstance(value, int) and value >= 0 for value in values):
            raise UnsaidError(key)
        return values

    def share(self) -> float:
        """The part of each head that is rotated; the head's size times it, cut to a whole number, is what the file says."""
        head, rotated = self.head(), self.size("rope.dimension_count")
        if not 0 < rotated <= head:
            raise UnsaidError("rope.dimension_count")
        exact = rotated / head
        return exact if int(head * exact) == rotated else math.nextafter(exact, 1)


def body(said: Said) -> dict[str, Any]:
    """What every architecture has."""
    shape = said.shapes.get("token_embd.weight", ())
    layers = said.size("block_count")
    if len(shape) != 2 or layers > len(said.shapes):
        raise UnsaidError("token_embd.weight and tensors of every layer")
    return {
        "hidden_size": said.size("embedding_length"),
        "num_hidden_layers": layers,
        "vocab_size": shape[0],
        "tie_word_embeddings": not said.has("output.weight"),
    }


def decoder(said: Said, wide: str = "feed_forward_length") -> dict[str, Any]:
    """What every decoder of attention and feed-forward layers has; `wide`: the key that says how wide the latter are."""
    return {
        **body(said),
        "intermediate_size": said.size(wide),
        "num_attention_heads": said.size("attention.head_count"),
        "max_position_embeddings": said.size("context_length"),
        **said.optional(num_key_value_heads="attention.head_count_kv", head_dim="attention.key_length"),
    }
