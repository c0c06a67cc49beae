"""What is said whenever a model reads a text: which, how long, where; light, for every command that asks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from joma.core.errors import InputError, abbreviate
from joma.core.settings import Settings, setting
from joma.data.corpora import named_text

TOKENS = 8_192
"""Tokens that are run where nobody asks for more or fewer."""
WINDOW = 512
"""Tokens of a window, by default."""
BATCH_TOKENS = 2_048
"""Tokens of a batch, padding included."""


class ReadingArguments(TypedDict):
    """The keywords that ``joma.probe`` and its like have in common."""

    model: str
    text: Path | str
    column: str | None
    tokenizer: str | None
    length: int | None
    tokens: int | None
    batch_tokens: int
    device: str
    dtype: str | None
    trust_remote_code: bool


@dataclass(frozen=True, kw_only=True)
class ReadingSettings(Settings):
    """A model reads a text."""

    model: str = setting(
        "", "folder, .gguf file or name on the Hugging Face hub (id@revision)", positional=True
    )
    text: str = setting(
        "", "text file, table with a column, .npy of token ids, a named corpus, or - for standard input"
    )
    string: str = setting("", "the text itself, in quotes, in place of --text")
    column: str | None = setting(None, "column of the table that holds the texts")
    tokenizer: str | None = setting(None, "name or folder of a tokenizer, in place of the model's own")
    length: int | None = setting(
        None, f"tokens of a window (none: {WINDOW}, or the model's positions)", at_least=2
    )
    tokens: int | None = setting(None, f"tokens to read, in whole windows (none: about {TOKENS})", at_least=2)
    batch_tokens: int = setting(BATCH_TOKENS, "tokens of a batch, padding included", at_least=2)
    device: str = setting("auto", "auto, cpu, cuda or cuda:i")
    dtype: str | None = setting(None, "float32, bfloat16 or float16 (none: float32 on a CPU)")
    trust_remote_code: bool = setting(False, "run the Python code that lies with the model")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.text and self.string:
            raise InputError("a text and a string are both given; a model reads one of them.")

    @property
    def reads(self) -> bool:
        """Whether there is something to read."""
        return bool(self.text or self.string)

    def source(self) -> str:
        """What is read, for a heading: a file's name, or the string's beginning."""
        return Path(self.text).name or abbreviate(self.string, 40)

    def arguments(self) -> ReadingArguments:
        """As keywords; the text is a path, or the text of a corpus that is named."""
        return {
            "model": self.model,
            "text": self.string or named_text(self.text),
            "column": self.column,
            "tokenizer": self.tokenizer,
            "length": self.length,
            "tokens": self.tokens,
            "batch_tokens": self.batch_tokens,
            "device": self.device,
            "dtype": self.dtype,
            "trust_remote_code": self.trust_remote_code,
        }
