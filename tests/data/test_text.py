from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from joma.core.errors import InputError
from joma.data.corpora import Corpus
from joma.data.text import UNKNOWN, Batches, basic_english, tokenize, validation_windows


def corpus(training: str, validation: str = "b a z") -> Corpus:
    return Corpus("test", training, validation, "")


def test_basic_english() -> None:
    words = basic_english("It's (nearly) 5; isn't it: yes, it is! <br /> Really?")
    assert " ".join(words) == "it ' s ( nearly ) 5 isn ' t it yes , it is ! really ?"
    assert basic_english('a <unk> "quoted" word') == ["a", "<unk>", "quoted", "word"]


def test_vocabulary_is_ranked_cut_and_reversible() -> None:
    text = tokenize(corpus("c c c b b a a d"), vocabulary_size=4)
    assert text.words == (UNKNOWN, "c", "a", "b")
    assert [text.words[i] for i in text.training] == ["c", "c", "c", "b", "b", "a", "a", UNKNOWN]
    assert text.validation.tolist() == [3, 2, 0]
    assert tokenize(corpus("c b a <unk>")).vocabulary_size == 4


def test_vocabulary_too_small() -> None:
    with pytest.raises(InputError, match="vocabulary_size = 1"):
        tokenize(corpus("a b"), vocabulary_size=1)


@given(st.integers(2, 6), st.integers(2, 9), st.integers(100, 400), st.integers(0, 2**31))
def test_random_windows_are_windows_of_the_text(batch: int, length: int, size: int, seed: int) -> None:
    tokens = np.arange(size)
    batches = Batches(tokens, batch, length, "random", seed)
    for step in (0, 1, 17):
        inputs, targets = batches[step]
        assert inputs.shape == targets.shape == (batch, length)
        assert (targets == inputs + 1).all()
        assert int(targets.max()) < size
    again = Batches(tokens, batch, length, "random", seed)[17]
    assert (again[0] == inputs).all()


def test_random_windows_reach_both_ends() -> None:
    batches = Batches(np.arange(30), 5, 5, "random", 0)
    starts = Counter(int(start) for step in range(400) for start in batches[step][0][:, 0])
    assert set(starts) == set(range(25))


def test_sequential_batches_read_each_column_once_an_epoch() -> None:
    batches = Batches(np.arange(103), 4, 7, "sequential", 0)  # columns of 25: 24 targets, in 7 + 7 + 7 + 3
    assert batches.per_epoch == 4
    columns = [np.concatenate([batches[step][1][row] for step in range(4)]) for row in range(4)]
    for row, column in enumerate(columns):
        assert column.tolist() == list(range(25 * row + 1, 25 * row + 25))
    assert (batches[4][0] == batches[0][0]).all()


def test_batches_refuse_a_text_shorter_than_one() -> None:
    with pytest.raises(InputError, match="11 tokens, but a batch of 4 windows of 6 needs 24"):
        Batches(np.arange(11), 4, 5, "random", 0)
    with pytest.raises(InputError, match="order 'shuffled'"):
        Batches(np.arange(100), 4, 5, "shuffled", 0)


def test_validation_windows_do_not_overlap_and_spread() -> None:
    inputs, targets = validation_windows(np.arange(101), length=10)
    assert inputs.flatten().tolist() == list(range(100))
    assert (targets == inputs + 1).all()
    few, _ = validation_windows(np.arange(101), length=10, most=3)
    assert few[:, 0].tolist() == [0, 40, 90]
    with pytest.raises(InputError, match="held-out text has 5 tokens"):
        validation_windows(np.arange(5), length=10)


def test_any_hugging_face_tokenizer(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is not installed")
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    model = tokenizers.models.WordLevel({"a": 0, "b": 1, "?": 2}, unk_token="?")
    plain = tokenizers.Tokenizer(model)
    plain.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(tokenizer_object=plain, unk_token="?").save_pretrained(tmp_path)
    text = tokenize(corpus("a b a", "b c"), tokenizer=str(tmp_path))
    assert (text.training.tolist(), text.validation.tolist()) == ([0, 1, 0], [1, 2])
    assert text.words == ("a", "b", "?")
    with pytest.raises(InputError, match="belongs to word tokens"):
        tokenize(corpus("a"), tokenizer=str(tmp_path), vocabulary_size=3)
    with pytest.raises(InputError, match="could not be loaded"):
        tokenize(corpus("a"), tokenizer=str(tmp_path / "nowhere"))
