"""R6: a number in a name is read whole or not at all; names that differ in another part are other lines."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from drawn_names import assert_unheard_of, pairs, words
from joma.checkpoints.series.members import Member, counted_alike, in_lines, lines
from joma.checkpoints.series.names import place_of
from joma.checkpoints.series.sources.local import LocalSeries

STEPS = st.integers(0, 10**7)


def members(names: list[str]) -> list[Member]:
    placed = [(name, place_of(name)) for name in names]
    return in_lines([Member(name, place, 1, 0.0) for name, place in placed if place is not None])


WRITINGS = (
    ("{:d}", 1),
    ("{:,d}", 1),
    ("{:_d}", 1),
    ("{:08d}", 1),
    ("{:d}.0", 1),
    ("{:d}k", 10**3),
    ("{:d}M", 10**6),
    ("{:d}e3", 10**3),
)


@given(
    STEPS,
    st.sampled_from(WRITINGS),
    st.sampled_from(["step", "iter", "checkpoint"]),
    st.sampled_from("-_=:. "),
)
def test_right_or_refused(number: int, writing: tuple[str, int], word: str, between: str) -> None:
    text, times = writing
    place = place_of(f"{word}{between}{text.format(number)}")
    assert place is None or place.step == number * times or place.epoch is not None
    if "_" not in text and number * times < 10**15:
        assert place is not None


@given(words, pairs(), st.lists(STEPS, min_size=2, max_size=6, unique=True))
def test_one_other_part_is_a_line(model: str, phases: list[str], steps: list[int]) -> None:
    assert_unheard_of(model, *phases)
    names = [f"{model}-{phase}-step{step}" for phase in phases for step in steps]
    found = lines(members(names))
    assert [one.name for line in found for one in line] == [
        f"{model}-{phase}-step{step}" for phase in sorted(phases) for step in sorted(steps)
    ]
    assert {one.place.line_name for one in found[0]} == {sorted(phases)[0]}
    single = lines(members([f"{model}-step{step}" for step in steps]))
    assert [one.place.line_name for line in single for one in line] == [""] * len(steps)


@given(st.lists(STEPS, min_size=3, max_size=6, unique=True), st.data())
def test_losses_in_names_are_no_lines(steps: list[int], data: st.DataObject) -> None:
    losses = data.draw(st.lists(st.integers(0, 99), min_size=len(steps), max_size=len(steps), unique=True))
    names = [f"step={step}-loss=0.{loss:02d}.ckpt" for step, loss in zip(steps, losses, strict=True)]
    (line,) = lines(members(names))
    assert [one.place.step for one in line] == sorted(steps)


@given(st.integers(1, 500), st.integers(2, 4), st.integers(1, 3))
def test_epochs_and_steps(every: int, epochs: int, each: int) -> None:
    restart = [f"epoch_{e}_step_{every * (s + 1)}.pt" for e in range(epochs) for s in range(each)]
    found = members(restart)
    assert [one.name for one in found] == restart
    assert len({(one.place.line, one.place.step) for one in found}) == len(restart)
    goes_on = [
        f"checkpoint_{e + 1}_{1000 * (each * e + s + 1)}.pt" for e in range(epochs) for s in range(each)
    ]
    (line,) = lines(members(goes_on))
    assert [one.place.step for one in line] == [1000 * (i + 1) for i in range(epochs * each)]


@given(words, st.lists(st.integers(0, 10**6), min_size=2, max_size=6, unique=True))
def test_one_pattern_with_one_number(word: str, numbers: list[int]) -> None:
    assert_unheard_of(word)
    names = [f"{word}3_{number}.pt" for number in numbers]
    assert {name: place.step for name, place in counted_alike(names).items()} == dict(
        zip(names, numbers, strict=True)
    )
    assert counted_alike([*names, "else.pt"]) == {}


@given(
    words,
    st.lists(st.integers(1, 900), min_size=2, max_size=6, unique=True),
    st.sampled_from(["{}k", "{}K", "{}_000", "{},000", "{}.5k", "{}M", "{}_000_000"]),
)
def test_the_one_number_is_read_whole(word: str, numbers: list[int], writing: str) -> None:
    assert_unheard_of(word)
    names = [f"{word}-{writing.format(number)}" for number in numbers]
    shift, times = (
        (500, 1000) if ".5k" in writing else (0, 10**6 if "M" in writing or "_000_000" in writing else 1000)
    )
    assert [place.step for place in counted_alike(names).values()] == [n * times + shift for n in numbers]


@given(words, st.lists(st.integers(1, 900), min_size=2, max_size=6, unique=True), st.integers(1, 999))
def test_one_number_or_two_is_not_guessed(word: str, numbers: list[int], behind: int) -> None:
    assert counted_alike([f"{word}-{number}_{behind:03d}" for number in numbers]) == {}
    days = [f"{word}-2024-{1 + n % 12:02d}-{1 + n % 28:02d}" for n in numbers]
    assert counted_alike(days) == {}


def test_tokens_that_do_not_grow_are_none() -> None:
    assert [one.place.tokens for one in members([f"step{i}-7B" for i in (1, 2, 3)])] == [None] * 3
    assert [one.place.tokens for one in members([f"step{i}-{i}B" for i in (1, 2, 3)])] == [1e9, 2e9, 3e9]


@settings(max_examples=10, deadline=None)
@given(pairs(), st.sampled_from(["iter_num", "global_step", "step"]), st.booleans())
def test_the_step_that_a_file_tells(names: list[str], key: str, tensor: bool) -> None:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for i, name in enumerate(names):
            told = torch.tensor(100 * (2 - i)) if tensor else 100 * (2 - i)
            torch.save(
                {"model": {"layers.0.mlp.up_proj.weight": torch.eye(4) + i}, key: told}, folder / f"{name}.pt"
            )
        found = LocalSeries.of_folder(folder).members
        assert [(one.name, one.place.step) for one in found] == [
            (f"{names[1]}.pt", 100),
            (f"{names[0]}.pt", 200),
        ]


@settings(max_examples=5, deadline=None)
@given(pairs())
def test_the_step_of_trainer_state(names: list[str]) -> None:
    with tempfile.TemporaryDirectory() as place:
        for i, name in enumerate(names):
            folder = Path(place, name)
            folder.mkdir()
            torch.save({"layers.0.mlp.up_proj.weight": torch.eye(4) + i}, folder / "model.pt")
            (folder / "trainer_state.json").write_text(json.dumps({"global_step": 10 * (i + 1)}))
        assert [one.place.step for one in LocalSeries.of_folder(Path(place)).members] == [10, 20]


@settings(max_examples=10, deadline=None)
@given(words)
def test_a_suffix_that_no_list_has(suffix: str) -> None:
    assert_unheard_of(suffix)
    with tempfile.TemporaryDirectory() as place:
        for i in range(3):
            torch.save({"layers.0.mlp.up_proj.weight": torch.eye(4) + i}, Path(place, f"step_{i}.{suffix}"))
        assert [one.place.step for one in LocalSeries.of_folder(Path(place)).members] == [0, 1, 2]
        for i in range(3):
            Path(place, f"step_{i}.{suffix}").write_text("no weights")
        series = LocalSeries.of_folder(Path(place))
        assert not series.members
        assert f"the suffix '.{suffix}'" in series.notes[0].text
