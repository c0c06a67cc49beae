"""What the runs of a real model on a text have in common."""

from __future__ import annotations

from abc import ABC
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from joma.experiments.base import Experiment
from joma.runs.job import setting


@dataclass(frozen=True, kw_only=True)
class TextRun(Experiment, ABC):
    """A run directory of a model that reads a text; subclasses measure something on it."""

    cost: ClassVar[Mapping[str, str]] = {}
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"quick": {}}

    model: str = setting("", "folder, .gguf file or hub name (id@revision)")
    text: str = setting("", "text file, table with a column, .npy of token ids, or a named corpus")
    column: str | None = setting(None, "column of the table that holds the texts")
    tokenizer: str | None = setting(None, "name or folder of a tokenizer, in place of the model's own")
    device: str = setting("auto", "auto, cpu, cuda or cuda:i")
    dtype: str | None = setting(None, "float32, bfloat16 or float16")

    def command(self) -> str:
        """As a user typed it, apart from further settings."""
        return f"joma {self.name()} {self.model} --text {self.text}"

    def reading(self) -> dict[str, Any]:
        """The arguments that say which model reads which text, and where."""
        from joma.data.corpora import named_text

        return {
            "model": self.model,
            "text": named_text(self.text),
            "tokenizer": self.tokenizer,
            "column": self.column,
            "device": self.device,
            "dtype": self.dtype,
        }
