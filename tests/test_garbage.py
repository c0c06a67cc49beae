"""Every claim about learning turns on its garbage: a sample here, all of them where time allows."""

from __future__ import annotations

import pytest

import garbage
from joma.core.claim import at_least, statements

SAMPLE = ("fig2", "fig6-evidence", "snap_yz_layers", "table1", "tree_null")


@pytest.mark.parametrize("run", SAMPLE)
def test_a_sample_turns(run: str) -> None:
    check(run)


@pytest.mark.slow
@pytest.mark.parametrize("run", [run for run in garbage.runs() if run not in SAMPLE])
def test_all_turn(run: str) -> None:
    check(run)


def check(run: str) -> None:
    results = list(garbage.judge(run))
    assert [str(one) for one in results if not one.turned] == []


def test_every_garbage_is_of_a_stored_run_and_of_a_claim() -> None:
    assert set(garbage.GARBAGE) <= set(garbage.runs())


def test_what_names_no_garbage_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(garbage.GARBAGE, "fig2", [])
    results = list(garbage.judge("fig2"))
    assert results
    assert not any(one.turned for one in results)
    assert "NO GARBAGE" in str(results[0])


def test_a_claim_that_holds_on_garbage_has_not_turned() -> None:
    claim = statements({"a.b": "a paper | it is so"})["a.b"].judge(at_least(1, 2, of="number"))
    assert not garbage.Result("a", claim, "noise", "holds").turned
    assert not garbage.Result("a", claim, "noise", "corrected").turned
    assert garbage.Result("a", claim, "noise", "fails").turned
    assert garbage.Result("a", claim, "noise", "not tested").turned


def test_patterns_choose_and_leave_out() -> None:
    claim = statements({"fig6.rank_falls": "a paper | it is so"})["fig6.rank_falls"].not_tested("")
    same = dict
    for patterns, concerned in (
        ("*", True),
        ("rank_*", True),
        ("falls", False),
        ("-rank_falls", False),
        ("-falls", True),
        ("rank_* -rank_falls", False),
    ):
        assert garbage.Garbage("noise", same, patterns).concerns(claim) is concerned, patterns
