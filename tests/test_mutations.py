"""The list of mutations fits the source: each text is there once, and there are enough of them."""

from __future__ import annotations

import mutations


def test_the_changes_apply_and_are_tested_by_something() -> None:
    changes = [*mutations.listed(), *mutations.drawn()]
    assert len(changes) >= 60
    assert {change.module.split("/")[0] for change in changes} == {
        "theory",
        "dynamics",
        "measures",
        "experiments",
    }
    for change in changes:
        text = (mutations.SOURCE / change.module).read_text()
        end = change.offset + len(change.old)
        assert text[change.offset : end] == change.old
        compile(text[: change.offset] + change.new + text[end:], change.module, "exec")
        assert change.tests
        assert all((mutations.ROOT / test).exists() for test in change.tests)


def test_the_same_changes_are_drawn_again() -> None:
    assert list(mutations.drawn()) == list(mutations.drawn())
