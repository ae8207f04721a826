"""Language models that hear: their parts, and what a job asks of them.

After the `...ForConditionalGeneration` classes of transformers' modeling_voxtral.py and modeling_qwen2_audio.py (5.23).
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import SerializeAsAny

from estimator.families.audio_towers import AudioTowerSpec
from estimator.families.image_text import ImageTextToText, compare
from estimator.families.parts import SpeakingSpec
from estimator.tape import dtypes
from estimator.tape.pointwise import to
from estimator.tape.scatter import masked_scatter
from estimator.tape.tensor import Tensor, empty
from estimator.tape.views import unsqueeze


class HearingSpec(SpeakingSpec):
    """A language model that hears through a tower."""

    hears = True
    beside = {"audio_config": AudioTowerSpec}
    tower_field = "audio_config"
    ears = ("model",)
    one_clip: ClassVar[bool] = False
    """Whether its processor takes one clip for each text."""

    audio_config: SerializeAsAny[AudioTowerSpec]


class AudioTextToText(ImageTextToText):
    """What is heard takes the places of tokens (`VoxtralModel.forward`)."""

    def _read(self, ids: Tensor, pixels: Tensor | None = None, types: Tensor | None = None) -> tuple[Tensor, ...]:
        """Last hidden states, and what was heard; `pixels`: spectrograms."""
        tape = ids.tape
        embeds = self.body.embed_tokens(ids)
        if pixels is None:
            return (self.body.decode(ids, embeds),)
        assert self.sight is not None
        (heard,) = self.sight(pixels)
        places = empty(tape, ids.shape, dtypes.bool_, "eq")
        number = empty(tape, (), dtypes.int64, "sum")
        compare(embeds, heard)
        del number
        embeds = masked_scatter(embeds, unsqueeze(places, 2), to(heard, embeds.dtype))
        hidden = self.body.decode(ids, embeds)
        del places
        return hidden, heard
