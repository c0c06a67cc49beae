from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joma.cli.words.arguments import Grammar
from joma.core.errors import InputError
from joma.core.settings import Settings, Value, as_text, setting
from joma.experiments import catalog
from joma.instruments.neurons import NeuronsSettings
from joma.instruments.probe import ProbeSettings
from joma.runs.job import Job


@dataclass(frozen=True, kw_only=True)
class Inner(Settings):
    place: str = setting("here", "where", positional=True)
    length: int | None = setting(None, "how long", at_least=2)


_INNER = Inner(length=9)


@dataclass(frozen=True, kw_only=True)
class Outer(Settings):
    rate: float = setting(0.5, "a rate", above=0)
    inner: Inner = _INNER
    sizes: tuple[int, ...] | None = setting((1,), "sizes", short="-s")
    words: tuple[str, ...] = setting((), "words")
    order: Literal["up", "down"] = setting("up", "an order", choices=("up", "down"))
    flag: bool = setting(False, "a switch", short="-f")


GRAMMAR = Grammar("outer", "A test.", Outer.fields())


def test_nested_settings_are_flat_to_a_user() -> None:
    made = Outer.of(length=4, rate=2, words=("a",))
    assert made == Outer(rate=2, inner=Inner(length=4), words=("a",))
    assert Outer().flat()["length"] == 9
    assert Outer.fields()["length"].default == 9
    assert Outer.of(**made.flat()) == made
    with pytest.raises(InputError, match="inner: setting length = 1 is out of range"):
        Outer.of(length=1)
    with pytest.raises(InputError, match="outer has no setting 'lenght'; did you mean 'length'"):
        Outer.of(lenght=1)


@pytest.mark.parametrize(
    ("words", "values"),
    [
        (["--rate", "2"], {"rate": 2.0}),
        (["--rate=2e-1", "x"], {"rate": 0.2, "place": "x"}),
        (["--sizes", "-1,2"], {"sizes": (-1, 2)}),
        (["-s", "[3, 4]", "--words", "a,b"], {"sizes": (3, 4), "words": ("a", "b")}),
        (["--sizes", "none", "--length=NONE"], {"sizes": None, "length": None}),
        (["-f", "x"], {"flag": True, "place": "x"}),
        (["--flag", "false", "x"], {"flag": False, "place": "x"}),
        (["--no-flag"], {"flag": False}),
        (["--flag=yes", "--rate", "-3"], {"flag": True, "rate": -3.0}),
        (["--words", "a=b,c"], {"words": ("a=b", "c")}),
        ([], {}),
    ],
)
def test_words_as_people_type_them(words: list[str], values: dict[str, Value]) -> None:
    assert GRAMMAR.values(words) == values


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--rate"], "expected one argument"),
        (["--rate", "--flag"], "expected one argument"),
        (["--sizes", "²"], "--sizes ² is not a list of numbers"),
        (["--sizes", "9" * 5000], r"--sizes 9{40}\.\.\.9{10} is not a list of numbers"),
        (["--length", "1.5"], "--length 1.5 is not of the type int or none"),
        (["--flag=perhaps"], "--flag perhaps is not of the type bool"),
        (["a", "stray"], "unknown argument 'stray'; see: joma outer --help"),
        (["--ratte", "1"], "unknown argument '--ratte'; did you mean '--rate'"),
    ],
)
def test_words_that_cannot_be_understood(words: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        GRAMMAR.values(words)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"sizes": 3}, "sizes = 3 has the wrong type; give list of int or none"),
        ({"rate": (1.0,)}, "has the wrong type; give float"),
        ({"rate": 10**400}, "has the wrong type|not a finite|out of range"),
        ({"length": 2**63}, "out of range; give a number of at most 63 bits"),
        ({"place": "a\0b"}, "holds a null character"),
        ({"order": "sideways"}, "'sideways' is unknown"),
        ({"place": "x" * 3000 + "\0"}, r"x\.\.\.x"),
    ],
)
def test_values_that_make_no_sense(values: dict[str, Value], message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        Outer.of(**values)
    assert len(str(caught.value)) < 300


JOBS: list[type[Job]] = [*map(catalog.find, catalog.names()), ProbeSettings, NeuronsSettings]


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.name())
def test_what_a_run_writes_as_its_command_is_read_back(job: type[Job]) -> None:
    """Every setting of every job survives the way through text, whatever its type."""
    grammar = Grammar(job.name(), "", job.fields())
    for name, field in job.fields().items():
        assert field.help
        if field.positional:
            continue
        assert grammar.values([f"--{name.replace('_', '-')}", as_text(field.default)]) == {
            name: field.default
        }


@given(
    st.floats(min_value=1e-300, max_value=1e300),
    st.none() | st.integers(2, 2**62),
    st.none() | st.lists(st.integers(-(2**62), 2**62), unique=True, min_size=1, max_size=4).map(tuple),
    st.booleans(),
    st.text(st.characters(exclude_characters="\0", codec="utf-8"), min_size=1).filter(
        lambda text: not text.startswith("-")
    ),
)
def test_settings_as_words_and_back(
    rate: float, length: int | None, sizes: tuple[int, ...] | None, flag: bool, place: str
) -> None:
    import shlex

    settings = Outer.of(rate=rate, length=length, sizes=sizes, flag=flag, place=place)
    values = GRAMMAR.values(shlex.split(settings.as_words({})))
    assert values is not None
    assert Outer.of(**values) == settings


def test_help_names_every_setting_and_the_presets_defaults() -> None:
    text = GRAMMAR.help({"rate": 0.25})
    assert "(default: 0.25)" in text
    assert all(f"--{name}" in text for name in ("length", "sizes", "words", "order", "flag"))
    assert GRAMMAR.values(["x", "--rate", "oops", "--help"]) is None
