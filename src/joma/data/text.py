"""From text to batches of tokens: words or any Hugging Face tokenizer, random windows or in sequence."""

from __future__ import annotations

import dataclasses
import importlib.util
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from joma.core.errors import InputError, foreign
from joma.data.corpora import Corpus

UNKNOWN = "<unk>"
# The rules of torchtext's "basic_english", which the paper's authors used.
_DROPPED = re.compile(r'["]|<br />')
_SPACED = re.compile(r"([.,()!?'])")
_BLANKED = re.compile(r"[;:]")


def basic_english(text: str) -> list[str]:
    """Words by basic English rules: lower case, punctuation apart, quotes and colons dropped.

    >>> basic_english('"Let there be light," he said: it\\'s so.')
    ['let', 'there', 'be', 'light', ',', 'he', 'said', 'it', "'", 's', 'so', '.']
    """
    text = _DROPPED.sub("", text.lower())
    return _BLANKED.sub(" ", _SPACED.sub(r" \1 ", text)).split()


_SPLITS: dict[str, Callable[[str], list[str]]] = {"words": basic_english, "characters": list}


@dataclass(frozen=True)
class TokenText:
    """A corpus as token ids (int64), with the vocabulary that made them."""

    name: str
    training: NDArray[np.int64]
    validation: NDArray[np.int64]
    words: tuple[str, ...]
    """Token id -> what it stands for."""

    @property
    def vocabulary_size(self) -> int:
        """The number of distinct token ids."""
        return len(self.words)

    def shuffle(self, seed: int) -> TokenText:
        """The same tokens in random order: nothing but their frequencies is left to learn."""
        random = np.random.default_rng([seed, 7])
        training, validation = random.permutation(self.training), random.permutation(self.validation)
        return dataclasses.replace(self, training=training, validation=validation)


def tokenize(corpus: Corpus, *, tokenizer: str = "words", vocabulary_size: int | None = None) -> TokenText:
    """Turn a corpus into token ids.

    With ``tokenizer="words"``: ``basic_english``; the vocabulary is the ``vocabulary_size``
    most frequent training words (all, if None), ties in alphabetical order, ``<unk>`` first and for
    all others. ``"characters"``: likewise of single characters as they are. Any other value names a
    Hugging Face tokenizer: a hub id or a local folder.

    Raises:
        InputError: for a vocabulary below 2 words, or a tokenizer that cannot be loaded.
    """
    if tokenizer not in _SPLITS:
        return _tokenize_with_hugging_face(corpus, tokenizer, vocabulary_size)
    if vocabulary_size is not None and vocabulary_size < 2:
        raise InputError(f"vocabulary_size = {vocabulary_size} must be at least 2 (or none for all words).")
    split = _SPLITS[tokenizer]
    training, validation = split(corpus.training), split(corpus.validation)
    counts = Counter(training)
    counts.pop(UNKNOWN, None)
    ranked = sorted(counts, key=lambda word: (-counts[word], word))
    keep = None if vocabulary_size is None else vocabulary_size - 1
    words = (UNKNOWN, *ranked[:keep])
    return TokenText(corpus.name, _ids(training, words), _ids(validation, words), words)


def encode_like(text: str, like: TokenText) -> NDArray[np.int64]:
    """Another text in the characters of ``like``, which ``tokenize`` made of characters."""
    return _ids(text, like.words)


def _ids(tokens: Sequence[str], words: Sequence[str]) -> NDArray[np.int64]:
    index = {word: i for i, word in enumerate(words)}
    return np.fromiter((index.get(token, 0) for token in tokens), dtype=np.int64, count=len(tokens))


def _tokenize_with_hugging_face(corpus: Corpus, name: str, vocabulary_size: int | None) -> TokenText:
    if vocabulary_size is not None:
        raise InputError("vocabulary_size belongs to word tokens; a Hugging Face tokenizer has its own.")
    if importlib.util.find_spec("transformers") is None:
        raise InputError(f"tokenizer {name!r} needs the package transformers: pip install 'joma[hf]'.")
    from transformers import AutoTokenizer

    # Hub and file errors of many kinds, all of one meaning here. Code that lies with it is not run.
    with foreign(f"tokenizer {name!r} could not be loaded; give 'words', a hub id, or a local folder"):
        tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=False)

    def ids(text: str) -> NDArray[np.int64]:
        with foreign(f"tokenizer {name!r} cannot read the text; give 'words', or another"):
            found = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        return np.asarray(found, dtype=np.int64)

    words = tuple(str(word) for word in tokenizer.convert_ids_to_tokens(list(range(len(tokenizer)))))
    return TokenText(corpus.name, ids(corpus.training), ids(corpus.validation), words)


@dataclass(frozen=True)
class Batches:
    """The training batches of a text: step -> (inputs, targets), each (batch, length) of int64.

    ``order="random"``: windows that start anywhere, drawn anew for each step. ``"sequential"``: the
    text is cut into ``batch`` equally long columns that are read side by side, ``length`` tokens at
    a time, as the authors do; the last batch of an epoch may be shorter. A batch depends on the seed
    and the step alone, so a resumed run needs no state of the data.
    """

    tokens: NDArray[np.int64]
    batch: int
    length: int
    order: str
    seed: int

    def __post_init__(self) -> None:
        if self.order not in ("random", "sequential"):
            raise InputError(f"batch order {self.order!r} is neither 'random' nor 'sequential'.")
        needed = self.batch * (self.length + 1)
        if len(self.tokens) < needed:
            raise InputError(
                f"the training text has {len(self.tokens)} tokens, but a batch of {self.batch} "
                f"windows of {self.length + 1} needs {needed}; give a longer text or a smaller batch."
            )

    @property
    def per_epoch(self) -> int:
        """Batches after which (about) the whole text has been seen once."""
        rows = len(self.tokens) // self.batch
        return -(-(rows - 1) // self.length)

    def __getitem__(self, step: int) -> tuple[Tensor, Tensor]:
        if self.order == "random":
            random = np.random.default_rng((self.seed, step))
            starts = random.integers(0, len(self.tokens) - self.length, size=self.batch)
            windows = self.tokens[starts[:, None] + np.arange(self.length + 1)]
        else:
            rows = len(self.tokens) // self.batch
            columns = self.tokens[: rows * self.batch].reshape(self.batch, rows)
            begin = (step % self.per_epoch) * self.length
            windows = columns[:, begin : begin + self.length + 1]
        data = torch.from_numpy(np.ascontiguousarray(windows))
        return data[:, :-1], data[:, 1:]


def validation_windows(
    tokens: NDArray[np.int64], *, length: int, most: int | None = None
) -> tuple[Tensor, Tensor]:
    """Non-overlapping windows of a held-out text, spread evenly over it: (windows, length) twice.

    ``most`` bounds their number. Raises InputError if the text does not fill one window.
    """
    count = (len(tokens) - 1) // length
    if count < 1:
        raise InputError(
            f"the held-out text has {len(tokens)} tokens, fewer than one window of {length + 1}; "
            "give a longer text or hold out a larger share."
        )
    chosen = np.arange(count)
    if most is not None and most < count:
        chosen = np.linspace(0, count - 1, most).round().astype(np.int64)
    windows = torch.from_numpy(tokens[chosen[:, None] * length + np.arange(length + 1)])
    return windows[:, :-1], windows[:, 1:]
