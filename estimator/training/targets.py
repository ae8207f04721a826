"""Which modules PEFT adapts, and of which it trains a copy (peft 0.21, tuners/tuners_utils.py, `check_target_module_exists`)."""

from __future__ import annotations

from dataclasses import dataclass

from estimator.contract.errors import NotModelled
from estimator.contract.patterns import fits_whole

Names = tuple[str, ...] | str
"""Names of modules, or the ends of their paths; or a pattern that fits the whole path."""

STACKS = ("model.layers.", "transformer.h.", "gpt_neox.layers.", "model.decoder.layers.", "roberta.encoder.layer.")
NUMBERS = ("0", "2", "9", "13", "27")
PATHS = tuple(f"{stack}{number}." for stack in STACKS for number in NUMBERS)
"""Paths that a layer may have in a model. The tape knows a module's path within its layer only, so that a pattern must not
depend on what stands before it. In a model of several parts it is the whole path, with a star for the layer's number."""
TOP = frozenset(
    (
        "lm_head",
        "lm_head.dense",
        "embed_out",
        "decoder",
        "head.dense",
        "score",
        "dense",
        "classifier",
        "classifier.dense",
        "classifier.out_proj",
        "pre_classifier",
        "classification_head.dense",
        "classification_head.out_proj",
        "vocab_transform",
        "vocab_projector",
        "cls.predictions.transform.dense",
        "generator_predictions.dense",
        "generator_lm_head",
        "visual_projection",
        "text_projection",
        "shared",
    )
)
"""Modules that stand beside a model's body, or at the top of it: their name is their path."""


def matches(asked: Names, name: str) -> bool:
    """Whether a module is named. Raises `NotModelled` for a pattern that asks for more than the path within a layer."""
    if not isinstance(asked, str):
        return any(name == end or name.endswith("." + end) for end in asked)
    if name in TOP:
        return fits_whole(asked, name)
    paths = [name.replace("*", number) for number in NUMBERS] if "*" in name else [path + name for path in PATHS]
    found = {fits_whole(asked, path) for path in paths}
    if len(found) > 1:
        raise NotModelled(
            rf"the pattern {asked} depends on the path above the layer, which is not modelled yet; begin it with .*\.",
            "training.adapter.targets",
        )
    return found.pop()


@dataclass(frozen=True, slots=True)
class Targets:
    """`names`: None for all linear layers but the output layer. `saved`: modules of which a copy is trained as a whole.

    `hidden`: names that stand for parameters, which are no layers of their own. `layers`: numbers of the adapted layers; None:
    all of them, and what lies outside.
    """

    names: Names | None
    excluded: Names = ()
    hidden: frozenset[str] = frozenset()
    saved: tuple[str, ...] = ()
    layers: frozenset[int] | None = None

    def chooses(self, name: str) -> bool:
        """Whether a linear layer is adapted."""
        if name.rpartition(".")[2] in self.hidden or matches(self.excluded, name) or self._within_saved(name):
            return False
        return self.names is None or matches(self.names, name)

    def names_outside(self, name: str) -> bool:
        """Whether a module is adapted that `all-linear` leaves out: an embedding, or the output layer."""
        return self.names is not None and self.layers is None and self.chooses(name)

    def saves(self, name: str) -> bool:
        """Whether a copy of a module is trained (`_set_trainable`, utils/other.py)."""
        return name.endswith(self.saved) if self.saved else False

    def _within_saved(self, name: str) -> bool:
        return any(fits_whole(rf"(^|.*\.){saved}($|\..*)", name) for saved in self.saved)
