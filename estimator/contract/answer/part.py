"""The bases of every model of an answer."""

from __future__ import annotations

import json

from pydantic import BaseModel, ConfigDict

IN_RAM = "CPU"
"""How a model is spread where there is no GPU."""


class AnswerPart(BaseModel):
    """The base of every model of an answer: unknown fields are refused, and nothing can be changed."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class WholeAnswer(AnswerPart):
    """The base of what a question is answered with: as JSON, and as notebooks show it."""

    def to_json(self) -> str:
        """The one text form: what the command line prints and REST sends, byte for byte."""
        return json.dumps(self.model_dump(mode="json"), indent=2, ensure_ascii=False) + "\n"

    def __repr__(self) -> str:
        """In a line: the sentences of the answer, without its numbers."""
        said = (f"{name}={value!r}" for name, value in self if isinstance(value, str | bool) or value is None)
        return f"{type(self).__name__}({', '.join(said)})"

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        from estimator.contract.answer.notebook import html

        return html(self)

    def _repr_markdown_(self) -> str:
        """The same for a notebook, a chat or an issue that shows Markdown."""
        from estimator.contract.answer.notebook import markdown

        return markdown(self)


class Versions(AnswerPart):
    software: str
    data: str
