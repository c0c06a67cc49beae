"""Text to run a model on: read from where it lies, cut into windows, batched by length."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from joma.core.errors import InputError, foreign, nearest
from joma.core.files import parse_json, regular
from joma.data.corpora import read_text
from joma.instruments.reading.settings import BATCH_TOKENS, TOKENS, WINDOW

if TYPE_CHECKING:
    from transformers import PretrainedConfig
    from transformers import PreTrainedTokenizerBase as Tokenizer

Ids = Tensor | NDArray[np.integer] | Sequence[int]
Document = str | NDArray[np.int64]
Text = str | Path | Ids | Sequence[str | Ids] | Sequence[Mapping[str, str | Sequence[int]]] | Iterable[str]
"""A text itself, a file, token ids, a list of texts or of ids, or rows of a data set."""

_TABLES = (".parquet", ".csv", ".jsonl", ".json")
_LONGEST_NORMALISED = 100
"""Characters that a tokenizer may make of one; Unicode makes 18 of one at most."""
TOKEN_INPUTS = ("input_ids", "inputs", "tokens", "decoder_input_ids")
"""What a model may call its main input that takes tokens; by default it is ``input_ids``."""
_POSITION_SETTINGS = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "max_seq_length")
# Their first positions are taken by padding.
_OFFSET_POSITIONS = ("roberta", "camembert", "xlm-roberta", "longformer", "xmod", "data2vec-text", "mpnet")


class TokenBatch(NamedTuple):
    """Windows of about one length, padded on the right."""

    tokens: Tensor
    """(batch, length) int64"""
    mask: Tensor
    """(batch, length) bool, False for padding"""


@dataclass(frozen=True)
class Windows:
    """Pieces of text as token ids; iterating gives them in batches of similar length."""

    pieces: tuple[NDArray[np.int64], ...]
    padding: int
    """The token that fills batches; it is masked."""
    batch_tokens: int = BATCH_TOKENS

    @property
    def tokens(self) -> int:
        """How many tokens there are, padding left out."""
        return sum(len(piece) for piece in self.pieces)

    @property
    def length(self) -> int:
        """Tokens of the longest window."""
        return max(len(piece) for piece in self.pieces)

    @property
    def samples(self) -> int:
        """How many windows there are."""
        return len(self.pieces)

    def _groups(self) -> list[list[int]]:
        order = sorted(range(len(self.pieces)), key=lambda i: (-len(self.pieces[i]), i))
        groups: list[list[int]] = []
        for i in order:
            longest = len(self.pieces[groups[-1][0]]) if groups else 0
            if groups and (len(groups[-1]) + 1) * longest <= self.batch_tokens:
                groups[-1].append(i)
            else:
                groups.append([i])
        return groups

    def __len__(self) -> int:
        return len(self._groups())

    def __iter__(self) -> Iterator[TokenBatch]:
        for group in self._groups():
            longest = len(self.pieces[group[0]])
            tokens = np.full((len(group), longest), self.padding, dtype=np.int64)
            mask = np.zeros((len(group), longest), dtype=bool)
            for row, i in enumerate(group):
                tokens[row, : len(self.pieces[i])] = self.pieces[i]
                mask[row, : len(self.pieces[i])] = True
            yield TokenBatch(torch.from_numpy(tokens), torch.from_numpy(mask))


def windows(
    text: Text,
    *,
    model: nn.Module | None = None,
    tokenizer: Tokenizer | None = None,
    column: str | None = None,
    length: int | None = None,
    tokens: int | None = None,
    batch_tokens: int = BATCH_TOKENS,
    at_most: int = TOKENS,
) -> Windows:
    """Cut a text into windows of tokens.

    Each document is cut into windows of ``length`` tokens, none crosses from one document into another,
    and what the tokenizer puts around a text (a first token, [CLS], [SEP]) stands around each window. Of a
    longer text, windows spread evenly over it are taken.

    Args:
        text: a string, or a ``Path`` of a text file or table (Parquet, CSV, JSON lines, with
            ``column``), token ids (a list, a 1- or 2-dimensional tensor or array, a ``.npy`` file), a list of
            texts or of token ids, or a data set with ``column``.
        model: the model they are for: its vocabulary and number of positions are respected.
        tokenizer: turns text into ids; token ids need none.
        column: the column of a table or data set that holds the texts or token ids.
        length: tokens of a window; by default 512, or the model's positions if those are fewer.
        tokens: how many tokens to take in all; by default about ``at_most``, 8,192 (whole windows).
        batch_tokens: tokens of a batch, padding included (a single window may be longer).

    Raises:
        InputError: an empty text, one with fewer tokens than asked for, windows longer than the model's
            positions, ids outside its vocabulary, text without a tokenizer.
    """
    config = _language_settings(getattr(model, "config", None))
    positions = maximal_length(config)
    if length is None:
        length = min(WINDOW, positions or WINDOW)
    if length < 2:
        raise InputError(f"length = {length} leaves no context; give windows of at least 2 tokens.")
    if positions is not None and length > positions:
        raise InputError(
            f"windows of {length} tokens are longer than the model's {positions} positions; "
            f"give a length of at most {positions}."
        )
    for name, value in (("tokens", tokens), ("batch_tokens", batch_tokens)):
        if value is not None and value < 2:
            raise InputError(f"{name} = {value} is too few; give at least 2.")
    parts = _documents(text, column)
    kind = getattr(model, "main_input_name", "input_ids")
    if tokenizer is None and kind not in TOKEN_INPUTS and any(isinstance(part, str) for part in parts):
        raise InputError(
            f"{type(model).__name__} reads {kind} and no text; give its inputs ready: "
            f"joma.probe(model, batches=[{{{kind!r}: ...}}]), or measure weights only (--weights)."
        )
    documents = [_ids(part, tokenizer) for part in parts]
    before, after = _around(tokenizer if any(isinstance(part, str) for part in parts) else None)
    room = length - len(before) - len(after)
    if room < 1:
        raise InputError(
            f"length = {length} has no room beside the tokenizer's own tokens; give a larger one."
        )
    pieces = [
        np.concatenate([before, document[start : start + room], after])
        for document in documents
        for start in range(0, len(document), room)
        # The rest of a long text is left out where it is shorter than half a window.
        if start == 0 or len(document) - start >= room / 2
    ]
    pieces = [piece for piece in pieces if len(piece) >= 2]
    if not pieces:
        raise InputError("the text has no two tokens in a row; give a longer text.")
    _check_vocabulary(pieces, model, config)
    pieces = _limit(pieces, tokens, at_most)
    padding = next((p for p in (_padding_of(tokenizer), getattr(config, "pad_token_id", None)) if p), 0)
    vocabulary = _vocabulary(model, config)
    if vocabulary is not None and not 0 <= padding < vocabulary:
        padding = 0
    return Windows(tuple(pieces), int(padding), batch_tokens)


def maximal_length(config: PretrainedConfig | None) -> int | None:
    """The number of positions that a model's settings allow, or None if they set no limit."""
    for name in _POSITION_SETTINGS:
        value = getattr(config, name, None)
        if isinstance(value, int) and value > 0:
            offset = getattr(config, "model_type", "") in _OFFSET_POSITIONS
            return value - (int(getattr(config, "pad_token_id", None) or 1) + 1) * offset
    return None


def _language_settings(config: PretrainedConfig | None) -> PretrainedConfig | None:
    inner = getattr(config, "text_config", None)
    return config if inner is None or isinstance(inner, dict) else inner


def _documents(text: Any, column: str | None) -> list[Document]:
    """What was given as a list of texts (str) or token ids (arrays)."""
    found: list[Any]
    if isinstance(text, Path):
        return _from_file(text, column)
    if isinstance(text, str):
        found = [text]
    elif isinstance(text, Tensor | np.ndarray):
        array = text.detach().cpu().numpy() if isinstance(text, Tensor) else text
        if array.ndim not in (1, 2):
            raise InputError(f"token ids of shape {array.shape}; give one or two dimensions.")
        found = [array] if array.ndim == 1 else list(array)
    elif hasattr(text, "column_names") or hasattr(text, "columns"):
        names = list(text.column_names if hasattr(text, "column_names") else text.columns)
        return _texts_of(text[_column(column, names, "the data set")], "the data set")
    elif isinstance(text, Iterable):
        found = list(text)
        if found and isinstance(found[0], dict):
            name = _column(column, list(found[0]), "the data set")
            return _texts_of([row.get(name, "") for row in found], "the data set")
        if found and isinstance(found[0], int | np.integer):
            found = [np.asarray(found)]
    else:
        raise InputError(
            f"text is a {type(text).__name__}; give a str, a Path, token ids, or a list of them."
        )
    if column is not None:
        raise InputError(f"column = {column!r} belongs to a table or data set; this text has no columns.")
    return _texts_of(found, "the text")


def _from_file(path: Path, column: str | None) -> list[Document]:
    regular(path)
    if path.suffix == ".npy":
        try:
            return _documents(np.load(path, allow_pickle=False), column)
        except (OSError, ValueError) as error:
            raise InputError(
                f"{path} is not an array of token ids ({error}); save one with numpy.save."
            ) from error
    if column is None and path.suffix not in (".parquet", ".jsonl"):
        return [read_text(path)]
    if path.suffix not in _TABLES:
        raise InputError(f"column = {column!r} belongs to a table ({', '.join(_TABLES)}); {path} is none.")
    import pandas

    try:
        if path.suffix == ".parquet":
            table = pandas.read_parquet(path)
        elif path.suffix == ".csv":
            table = pandas.read_csv(path)
        else:
            lines = read_text(path)
            documents = [lines] if path.suffix == ".json" else lines.splitlines()
            read = [parse_json(document, finite=False) for document in documents]
            found = read[0] if path.suffix == ".json" else read
            if not isinstance(found, list) or not all(isinstance(row, dict) for row in found):
                raise ValueError('a row is no object of the form {"text": ...}')
            table = pandas.DataFrame(found)
    except InputError:
        raise
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read as a table ({str(error).splitlines()[0]}).") from error
    return _texts_of(list(table[_column(column, [str(c) for c in table.columns], str(path))]), str(path))


def _column(column: str | None, names: list[str], where: str) -> str:
    if column is None:
        if "text" in names:
            return "text"
        raise InputError(f"{where} has the columns {', '.join(names)}; say which holds the text (column).")
    if column not in names:
        raise InputError(f"{where} has no column {column!r}; {nearest(column, names)}")
    return column


def _texts_of(found: Sequence[str | Ids | None], where: str) -> list[Document]:
    documents: list[Document] = []
    for number, one in enumerate(found):
        if isinstance(one, Tensor):
            one = one.detach().cpu().numpy()
        if isinstance(one, str):
            if one.strip():
                documents.append(one)
            continue
        if one is None or (isinstance(one, float) and math.isnan(one)):
            continue  # an empty cell of a table
        ids = np.asarray(one)
        if ids.ndim != 1 or not (np.issubdtype(ids.dtype, np.integer) or ids.size == 0):
            raise InputError(
                f"{where}: entry {number} is neither text nor a list of token ids ({type(one).__name__})."
            )
        if ids.size:
            documents.append(ids)
    if not documents:
        raise InputError(f"{where} is empty; give a text with words in it.")
    return documents


def _ids(document: Document, tokenizer: Tokenizer | None) -> NDArray[np.int64]:
    if not isinstance(document, str):
        ids = np.asarray(document).astype(np.int64)
        if (ids < 0).any():
            raise InputError(f"token id {int(ids.min())} is negative; mask what is padding, or leave it out.")
        return ids
    if tokenizer is None:
        raise InputError(
            "this model has no tokenizer; give one (--tokenizer NAME, in Python tokenizer=...), or token ids "
            "as the text."
        )
    _check_normaliser(tokenizer, document)
    with foreign("the tokenizer cannot read the text; give another as tokenizer"):
        encoded = tokenizer(document, add_special_tokens=False, verbose=False)
    return np.asarray(encoded["input_ids"], dtype=np.int64)


def _check_normaliser(tokenizer: Tokenizer, document: str) -> None:
    """Refuse a tokenizer whose rules make of one character a text that fills the memory."""
    normaliser = getattr(getattr(tokenizer, "backend_tokenizer", None), "normalizer", None)
    if normaliser is None:
        return
    with foreign("the tokenizer cannot read the text; give another as tokenizer"):
        for character in sorted(set(document)):
            if (count := len(normaliser.normalize_str(character))) > _LONGEST_NORMALISED:
                raise InputError(
                    f"the tokenizer makes {count:,} characters of {character!r}, far too many; "
                    "give another as tokenizer."
                )


def _around(tokenizer: Tokenizer | None) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The ids that the tokenizer puts before and after a text."""
    none = np.empty(0, dtype=np.int64)
    if tokenizer is None:
        return none, none
    with foreign("the tokenizer cannot read the text; give another as tokenizer"):
        bare = list(tokenizer("a", add_special_tokens=False, verbose=False)["input_ids"])
        whole = list(tokenizer("a", verbose=False)["input_ids"])
    for start in range(len(whole) - len(bare) + 1):
        if bare and whole[start : start + len(bare)] == bare:
            before, after = whole[:start], whole[start + len(bare) :]
            return np.asarray(before, dtype=np.int64), np.asarray(after, dtype=np.int64)
    return none, none


def _limit(pieces: list[NDArray[np.int64]], tokens: int | None, at_most: int) -> list[NDArray[np.int64]]:
    available = sum(len(piece) for piece in pieces)
    if tokens is not None and available < tokens:
        raise InputError(
            f"the text has {available} tokens in windows, fewer than the {tokens} asked for; "
            "give a longer text, or ask for fewer tokens."
        )
    wanted = at_most if tokens is None else tokens
    if available <= wanted:
        return pieces
    for count in range(max(1, int(len(pieces) * wanted / available)), len(pieces) + 1):
        chosen = np.linspace(0, len(pieces) - 1, count).round().astype(np.int64)
        found = [pieces[i] for i in chosen]
        if sum(len(piece) for piece in found) >= wanted:
            break
    return found


def _vocabulary(model: nn.Module | None, config: PretrainedConfig | None) -> int | None:
    embedding = None
    find = getattr(model, "get_input_embeddings", None)
    if find is not None:
        with contextlib.suppress(NotImplementedError, AttributeError):
            embedding = find()
    if isinstance(embedding, nn.Embedding):
        return embedding.num_embeddings
    size = getattr(config, "vocab_size", None)
    return size if isinstance(size, int) else None


def _check_vocabulary(
    pieces: Sequence[NDArray[np.int64]], model: nn.Module | None, config: PretrainedConfig | None
) -> None:
    vocabulary = _vocabulary(model, config)
    if vocabulary is None:
        return
    for number, piece in enumerate(pieces):
        if int(piece.max()) >= vocabulary:
            place = int((piece >= vocabulary).argmax())
            raise InputError(
                f"token id {int(piece[place])} (window {number}, position {place}) is outside the model's "
                f"vocabulary of {vocabulary}; this tokenizer or these ids belong to another model."
            )


def _padding_of(tokenizer: Tokenizer | None) -> int | None:
    value = getattr(tokenizer, "pad_token_id", None)
    return value if isinstance(value, int) else None
