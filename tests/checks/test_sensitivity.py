"""Small wrong changes to formulas, each of which must fail a claim of ``joma check``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from joma.checks import (
    _softmax_invariants,
    block_flow,
    coherence,
    critical_points,
    feature_graph,
    invariants,
    optimizers,
    salience,
    winner_take_all,
)
from joma.checks.scan_snap import fates, snapping
from joma.core.claim import Claim
from joma.theory.winner_take_all import WinnerTakeAll


def scaled(module: object, name: str, factor: float) -> Callable[..., np.ndarray]:
    right = getattr(module, name)
    return lambda *args, **kwargs: np.asarray(right(*args, **kwargs)) * factor


def failed(claims: list[Claim]) -> set[str]:
    return {claim.id for claim in claims if claim.verdict == "fails"}


def test_a_relative_gain_of_another_power(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fates.fates, "relative_gain", lambda mass, other: (mass / other) ** 2.02 - 1)
    assert "snap_theorem3.gain_exact" in failed(fates.snap_theorem3())


@pytest.mark.parametrize(
    ("name", "claim"),
    [("losers_limit", "losers"), ("gain_bounds", "bounds_sharp"), ("gain_factor", "gain_exact")],
)
@pytest.mark.parametrize("factor", [0.98, 1.02])
def test_fates(monkeypatch: pytest.MonkeyPatch, name: str, claim: str, factor: float) -> None:
    right = getattr(fates.fates, name)

    def wrong(*args):
        found = right(*args)
        return tuple(bound**factor for bound in found) if name == "gain_bounds" else found**factor

    monkeypatch.setattr(fates.fates, name, wrong)
    monkeypatch.setattr(fates, "ENSEMBLE", 3)
    assert f"snap_theorem3.{claim}" in failed(fates.snap_theorem3())


@pytest.mark.parametrize(("name", "claim"), [("gain_late", "late"), ("scanning_gain", "early")])
def test_regimes_of_theorem_4(monkeypatch: pytest.MonkeyPatch, name: str, claim: str) -> None:
    monkeypatch.setattr(snapping.snapping, name, scaled(snapping.snapping, name, 4 / 4.1))
    assert f"snap_theorem4.{claim}" in failed(snapping.snap_theorem4())


def test_a_typical_drift_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coherence, "typical_drift", scaled(coherence, "typical_drift", 1.15))
    assert coherence._response_error() > 0.02


@pytest.mark.parametrize("factor", [0.9, 1.5])
def test_a_bound_of_drift_that_is_not_sharp(monkeypatch: pytest.MonkeyPatch, factor: float) -> None:
    monkeypatch.setattr(coherence, "drift_bound", scaled(coherence, "drift_bound", factor))
    assert coherence._sharp_bound().verdict == "fails"


@pytest.mark.parametrize(
    ("name", "claim", "factor"),
    [("violation_rate", "coin", 1.01), ("guaranteed_without_label", "weaker", 0.95)],
)
def test_the_draft(monkeypatch: pytest.MonkeyPatch, name: str, claim: str, factor: float) -> None:
    monkeypatch.setattr(feature_graph.graph, name, scaled(feature_graph.graph, name, factor))
    assert f"cdag.{claim}" in failed(feature_graph.theorem())


@pytest.mark.parametrize("factor", [0.98, 1.02])
def test_another_pace_of_theorem_2_is_a_failed_claim(monkeypatch: pytest.MonkeyPatch, factor: float) -> None:
    right = vars(WinnerTakeAll)["_pace"].func
    monkeypatch.setattr(WinnerTakeAll, "_pace", property(lambda self: right(self) * factor))
    assert "theorem2.blow_up" in failed(winner_take_all._single_node())


@pytest.mark.parametrize("factor", [0.5, 0.9, 1.1, 2.0])
def test_another_constant_of_theorem_4(monkeypatch: pytest.MonkeyPatch, factor: float) -> None:
    monkeypatch.setattr(salience, "needed_convergence", scaled(salience, "needed_convergence", factor))
    assert "theorem4.constant" in failed(salience._conditions())


def test_another_lemma_6(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(salience, "lemma_6", scaled(salience, "lemma_6", 0.99))
    assert failed(salience.lemma6()) == {"lemma6.bound"}


def test_a_drift_of_another_order(monkeypatch: pytest.MonkeyPatch) -> None:
    right = invariants.example_descent
    monkeypatch.setattr(invariants, "example_descent", lambda kind, rate, steps: right(kind, rate**2, steps))
    assert invariants._first_order().verdict == "fails"


@pytest.mark.parametrize("factor", [0.98, 1.02])
@pytest.mark.parametrize(
    ("owner", "name", "group", "claim"),
    [
        (_softmax_invariants.invariants, "softmax_logits", _softmax_invariants._lost_sign, "sign"),
        (_softmax_invariants.invariants, "softmax_logits", _softmax_invariants._lost_factor, "missing_term"),
        (_softmax_invariants.invariants, "rigidity", _softmax_invariants._constant_mean, "constant_mean"),
        (critical_points, "equation_58", critical_points.lemma4, "laplace_boundary"),
        (salience, "lemma_7_maximum", salience.lemma7, "bound"),
        (salience, "F", salience._bounds, "bound_88"),
        (block_flow.block_salience, "convergence_rate", block_flow._rates, "ratio"),
        (optimizers, "adam_pace", optimizers.adam, "pace"),
    ],
)
def test_a_formula_off_by_two_percent(
    monkeypatch: pytest.MonkeyPatch,
    owner: object,
    name: str,
    group: Callable[[], Claim | list[Claim]],
    claim: str,
    factor: float,
) -> None:
    monkeypatch.setattr(owner, name, scaled(owner, name, factor))
    found = group()
    assert claim in {id.partition(".")[2] for id in failed([found] if isinstance(found, Claim) else found)}


@pytest.mark.parametrize("factor", [0.98, 1.02])
def test_another_law_of_the_bounce(monkeypatch: pytest.MonkeyPatch, factor: float) -> None:
    right = block_flow.bounce_law

    def wrong(mu: np.ndarray) -> object:
        law = right(mu)
        return replace(
            law, least=law.start - factor * law.dip, end=law.start - factor * (law.start - law.end)
        )

    monkeypatch.setattr(block_flow, "bounce_law", wrong)
    assert {"block_bounce.law", "block_bounce.figure_4"} <= failed(block_flow.block_bounce())


def test_a_stability_that_is_the_sign_alone_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(critical_points.MultivariateT, "density", lambda law, s: 1.0 + 0 * np.asarray(s))
    assert "theorem3.stability" in failed(critical_points.theorem3())


def test_a_clock_of_another_power(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fates, "ENSEMBLE", 3)
    monkeypatch.setattr(fates.fates, "distinct_clock", lambda z, p: -np.expm1(-2 * z) / p**2.02)
    assert "snap_theorem3.clock" in failed(fates.snap_theorem3())


def test_attention_that_does_not_end_one_hot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(winner_take_all, "softmax", lambda z, axis: np.full_like(z, 0.25))
    assert "theorem2.one_hot" in failed(winner_take_all._single_node())
