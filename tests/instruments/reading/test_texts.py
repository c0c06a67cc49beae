from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from joma.core.errors import InputError
from joma.instruments.reading.texts import maximal_length, windows


class Letters:
    """A tokenizer of letters, with a first token before and a last one after every text."""

    pad_token_id = 30

    def __call__(self, text: str, add_special_tokens: bool = True, verbose: bool = True) -> dict[str, Any]:
        ids = [ord(letter) - ord("a") for letter in text if letter.isalpha()]
        return {"input_ids": [28, *ids, 29] if add_special_tokens else ids}


@given(
    st.lists(st.integers(1, 60), min_size=1, max_size=8),
    st.integers(2, 17),
    st.integers(2, 64),
)
def test_every_token_is_in_one_batch_once(lengths: list[int], length: int, batch_tokens: int) -> None:
    first = 0
    documents = []
    for size in lengths:
        documents.append(list(range(first, first + size)))
        first += size
    if max(lengths) < 2:
        return
    found = windows(documents, length=length, tokens=None, batch_tokens=batch_tokens)
    seen: list[int] = []
    for tokens, mask in found:
        assert tokens.shape == mask.shape
        assert tokens.shape[0] == 1 or tokens.numel() <= batch_tokens
        for row, kept in zip(tokens, mask, strict=True):
            piece = row[kept].tolist()
            assert piece == list(range(piece[0], piece[0] + len(piece)))  # of one document, in order
            assert len(piece) <= length
            seen += piece
    assert len(seen) == len(set(seen)) == found.tokens
    # Only the rests of documents that are shorter than half a window, and single tokens, are left out.
    for document in documents:
        missing = set(document) - set(seen)
        assert len(missing) <= max(1, length / 2)


def test_what_the_tokenizer_puts_around_a_text_stands_around_each_window() -> None:
    found = windows("abcdefgh", tokenizer=Letters(), length=6)
    assert [piece.tolist() for piece in found.pieces] == [[28, 0, 1, 2, 3, 29], [28, 4, 5, 6, 7, 29]]
    ids = windows([[0, 1, 2]], tokenizer=Letters())
    assert ids.pieces[0].tolist() == [0, 1, 2]
    assert next(iter(windows(["abc", "a"], tokenizer=Letters()))).tokens[1].tolist() == [28, 0, 29, 30, 30]


def test_windows_of_a_long_text_are_spread_over_it() -> None:
    found = windows(np.arange(10_000), length=100, tokens=1_000)
    starts = [int(piece[0]) for piece in found.pieces]
    assert found.tokens == 1_000
    assert starts[0] == 0
    assert starts[-1] == 9_900


def test_texts_are_read_from_where_they_lie(tmp_path: Path) -> None:
    rows = [{"text": "abc", "n": 1}, {"text": "", "n": 2}, {"text": "de", "n": 3}]
    table = pandas.DataFrame(rows)
    table.to_parquet(tmp_path / "t.parquet")
    table.to_csv(tmp_path / "t.csv")
    (tmp_path / "t.jsonl").write_text("\n".join(json.dumps(row) for row in rows[::2]))
    (tmp_path / "t.txt").write_text("abc de")
    np.save(tmp_path / "t.npy", np.array([[0, 1, 2], [3, 4, 5]]))
    wanted = [[28, 0, 1, 2, 29], [28, 3, 4, 29]]
    for name, column in (("t.parquet", None), ("t.csv", "text"), ("t.jsonl", "text")):
        found = windows(tmp_path / name, tokenizer=Letters(), column=column)
        assert [piece.tolist() for piece in found.pieces] == wanted
    assert len(windows(tmp_path / "t.txt", tokenizer=Letters()).pieces) == 1
    assert windows(tmp_path / "t.npy").tokens == 6
    assert windows(rows, column="text", tokenizer=Letters()).tokens == 9
    assert windows(table, column="text", tokenizer=Letters()).tokens == 9
    assert windows(torch.arange(5)).tokens == 5


def test_bad_texts_are_refused_in_a_sentence(tmp_path: Path) -> None:
    model = nn.Module()
    model.config = SimpleNamespace(vocab_size=10, max_position_embeddings=8)  # type: ignore[assignment]
    pandas.DataFrame({"a": ["x"], "b": ["y"]}).to_parquet(tmp_path / "t.parquet")
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "bad.npy").write_text("no array")
    cases: list[tuple[str, dict[str, Any]]] = [
        ("is empty", {"text": "  "}),
        ("is empty", {"text": tmp_path / "empty.txt"}),
        ("is empty", {"text": []}),
        ("cannot be read", {"text": tmp_path / "none.txt"}),
        ("not an array of token ids", {"text": tmp_path / "bad.npy"}),
        ("has the columns a, b", {"text": tmp_path / "t.parquet"}),
        ("no column 'c'", {"text": tmp_path / "t.parquet", "column": "c"}),
        ("has no columns", {"text": "abc", "column": "text"}),
        ("no tokenizer", {"text": "abc"}),
        ("token id 11 .window 0, position 1.", {"text": [[1, 11]], "model": model}),
        ("longer than the model's 8 positions", {"text": [[1, 2]], "model": model, "length": 9}),
        ("fewer than the 50 asked for", {"text": [[1, 2, 3]], "tokens": 50}),
        ("no two tokens", {"text": [[1], [2]]}),
        ("length = 1", {"text": [[1, 2]], "length": 1}),
        ("batch_tokens = 0", {"text": [[1, 2]], "batch_tokens": 0}),
        ("negative", {"text": [[1, -100]]}),
        ("neither text nor a list", {"text": [[0.5, 1.0]]}),
        ("shape", {"text": torch.zeros(1, 2, 3, dtype=torch.int64)}),
        ("no room", {"text": "abc", "tokenizer": Letters(), "length": 2}),
    ]
    for message, given_ in cases:
        arguments = {"tokenizer": None, **given_}
        if arguments["tokenizer"] is None:
            arguments.pop("tokenizer")
        with pytest.raises(InputError, match=message):
            windows(arguments.pop("text"), **arguments)


def test_a_tokenizer_that_fills_the_memory_is_refused() -> None:
    pytest.importorskip("transformers")
    from tokenizers import Tokenizer, models, normalizers
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.WordLevel({"<unk>": 0, "a": 1}, unk_token="<unk>"))
    for pattern, refused in (("e", True), ("q", False)):
        made.normalizer = normalizers.Replace(pattern, "x" * 1000)
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=made, unk_token="<unk>")
        if refused:
            with pytest.raises(InputError, match="makes 1,000 characters of 'e'"):
                windows(["here", "and there"], tokenizer=tokenizer)
        else:
            with pytest.raises(InputError, match="no two tokens"):
                windows("here", tokenizer=tokenizer)


def test_positions_are_those_of_the_model() -> None:
    assert maximal_length(SimpleNamespace(n_positions=1024)) == 1024
    assert (
        maximal_length(SimpleNamespace(max_position_embeddings=514, model_type="roberta", pad_token_id=1))
        == 512
    )
    assert maximal_length(SimpleNamespace()) is None
