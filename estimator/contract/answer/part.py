"""The base of every model of an answer."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class AnswerPart(BaseModel):
    """The base of every model of an answer: unknown fields are refused, and nothing can be changed."""

    model_config = ConfigDict(extra="forbid", frozen=True)
