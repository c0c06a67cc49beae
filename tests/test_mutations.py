"""The changes fit the source: each text is there once, each is another program, and all kinds are drawn."""

from __future__ import annotations

import ast
import random

import pytest

import mutations


def test_the_listed_changes_apply_and_are_tested_by_something() -> None:
    changes = list(mutations.listed())
    assert len(changes) >= 40
    check(changes)


@pytest.mark.slow  # parsing every module takes a minute
@pytest.mark.parametrize("seed", [mutations.MENDED, mutations.JUDGED])
def test_the_drawn_changes_apply_and_are_tested_by_something(seed: int) -> None:
    changes = mutations.drawn(seed)
    assert len(changes) >= mutations.DRAWN
    assert {change.module.split("/")[0] for change in changes} <= set(mutations.ROOMS)
    check(changes)


def check(changes: list[mutations.Change]) -> None:
    """Each text is at its place, the change makes another program, and tests look at it."""
    for change in changes:
        text = (mutations.SOURCE / change.module).read_text()
        end = change.offset + len(change.old)
        assert text[change.offset : end] == change.old
        changed = text[: change.offset] + change.new + text[end:]
        assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse(text)), str(change)
        assert change.tests
        assert all((mutations.ROOT / test.partition("::")[0]).exists() for test in change.tests)


@pytest.mark.slow
def test_the_same_changes_are_drawn_again_and_others_by_another_seed() -> None:
    assert mutations.drawn(1) == mutations.drawn(1)
    assert len(set(map(str, mutations.drawn(1))) & set(map(str, mutations.drawn(2)))) < 30


@pytest.mark.parametrize(
    ("formula", "wrong"),
    [
        ("a - b", {"sign": "(a) + (b)", "dropped term": "a"}),
        ("a / b", {"dropped factor": "a", "swapped": "(b) / (a)"}),
        ("x.max(axis=0)", {"extreme": "x.min"}),
        ("np.sqrt(x)", {"root": "x"}),
        ("np.sum(x)", {"mean": "np.mean"}),
        ("a @ b", {"transposed": "(a).T"}),
        ("a.T", {"transposed": "a"}),
        ("f(a, b, c=1)", {"swapped": "f(b, a, c=1)"}),
        ("a < b", {"comparison": "a >= b"}),
        ("14", {"constant": "7"}),
        ("-a", {"sign": "a"}),
    ],
)
def test_kinds(formula: str, wrong: dict[str, str]) -> None:
    node = ast.parse(formula, mode="eval").body
    assert mutations._computes(node)
    found = {kind: new for kind, _, new in mutations.wrong(node, random.Random(0)) if kind != "factor"}
    assert found == wrong
