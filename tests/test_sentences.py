"""What a reader is told of bad input and on pages: whole sentences in the field's words."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import joma
from joma.core.errors import InputError, RunDirectoryError

DOCS = Path(__file__).parents[1] / "docs"


class TwoTexts(nn.Module):
    """A model that is called with something beside its tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(8, 4)
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, tokens: Tensor, pictures: Tensor) -> Tensor:
        x = self.embedding(tokens) + pictures
        found: Tensor = self.attention(x, x, x)[0]
        return found


def test_a_folder_that_does_not_exist_is_said_to() -> None:
    with pytest.raises(RunDirectoryError, match=r"^nope is not a run directory: it does not exist\.$"):
        joma.read("nope")


def test_a_model_that_wants_something_else_is_answered_in_its_words() -> None:
    with pytest.raises(InputError, match="missing 1 required positional argument: 'pictures'") as said:
        joma.probe(TwoTexts(), [torch.arange(8).tolist()])
    assert "\n" not in str(said.value)


@pytest.mark.parametrize(
    "words",
    [
        "fails by a hair",
        "is told after",
        "no role is known by its name",
        "is no monitor's folder",
        "on it is told",
    ],
)
def test_pages_and_messages_have_no_private_words(words: str) -> None:
    places = [*DOCS.rglob("*.md"), *(DOCS.parent / "src").rglob("*.py"), DOCS.parent / "README.md"]
    assert [str(place) for place in places if words in " ".join(place.read_text("utf-8").split())] == []


def test_one_seed_that_misses_is_said_to_fall_short() -> None:
    assert "one seed falls just short (0.1" in " ".join((DOCS / "findings.md").read_text("utf-8").split())
