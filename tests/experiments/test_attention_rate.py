"""Decoders whose attention learns at a rate of its own: settings, claims on made tables, a tiny training."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from joma.core.errors import InputError
from joma.core.progress import Progress
from joma.experiments.beyond.attention_rate import EARLY, AttentionRate, all_name, attention_name
from joma.experiments.beyond.attention_rate.claims import answer, claims
from joma.experiments.beyond.attention_rate.figure import draw
from joma.experiments.beyond.attention_rate.run import variants

SETTINGS = AttentionRate()


def made(grows: float, *, control: float = 0.2, kappa: float = 1.0) -> dict[str, pd.DataFrame]:
    """Five seeds; the rebound grows by ``grows`` a ratio, kappa with the ratio's power ``kappa``."""
    random = np.random.default_rng(1)
    bounces, curves = [], []
    for seed in range(5):
        for place, ratio in enumerate(SETTINGS.ratios):
            size = 0.2 + grows * place + 0.01 * random.standard_normal()
            bounces.append((attention_name(ratio), seed, size))
            curves += [
                (attention_name(ratio), seed, step, metric, value)
                for step in (*EARLY, 100)
                for metric, value in (
                    ("kappa", (0.1 if step < 100 else -1.0) * ratio**kappa),
                    ("kappa_share", 0.5),
                    ("attention_entropy", 2.0),
                )
            ]
        bounces.append((all_name(SETTINGS.control), seed, control + 0.01 * random.standard_normal()))
    table = pd.DataFrame(bounces, columns=["variant", "seed", "rebound"])
    return {
        "bounces": table.assign(
            depth=1,
            layer=0,
            metric="attention_entropy",
            depth_of_dip=table["rebound"],
            rebound_null=0.03,
        ),
        "curves": pd.DataFrame(curves, columns=["variant", "seed", "step", "metric", "value"]).assign(
            depth=1, layer=0
        ),
    }


def verdicts(tables: dict[str, pd.DataFrame], settings: AttentionRate = SETTINGS) -> dict[str, str]:
    return {claim.id.partition(".")[2]: claim.verdict for claim in claims(settings, tables)}


def test_claims_hold_where_attention_bounces_deeper():
    tables = made(0.1)
    assert verdicts(tables) == dict.fromkeys(("rebound", "dip", "not_the_rate", "kappa"), "holds")
    assert "rises again further the faster" in answer(SETTINGS, tables)[0]
    assert len(draw(SETTINGS, tables).axes) == 2


@pytest.mark.parametrize("grows", [0.0, -0.05])
def test_equal_or_smaller_rebounds_fail(grows):
    found = verdicts(made(grows))
    assert found["rebound"] == found["dip"] == "fails"
    assert "does not rise again" in answer(SETTINGS, made(grows))[0]


def test_a_control_that_rises_as_far_fails_the_claim_about_it():
    assert verdicts(made(0.1, control=0.5))["not_the_rate"] == "fails"


@pytest.mark.parametrize("power", [0.0, 0.5, 2.0])
def test_a_kappa_that_is_not_proportional_fails(power):
    assert verdicts(made(0.1, kappa=power))["kappa"] == "fails"


def test_without_equal_rates_nothing_is_said():
    settings = AttentionRate(ratios=(2.0, 3.0, 4.0))
    found = claims(settings, made(0.1))
    assert {claim.verdict for claim in found if claim.id != "attention_rate.not_the_rate"} == {"not tested"}


def test_what_is_trained_is_each_ratio_and_the_control():
    found = variants(SETTINGS)
    rates = {name: (cell.attention_ratio, cell.rate) for name, cell in found.items()}
    base = SETTINGS.learning_rate
    assert rates == {
        "W_Q and W_K x 1": (1.0, base),
        "W_Q and W_K x 3": (3.0, base),
        "W_Q and W_K x 10": (10.0, base),
        "all x 3": (1.0, 3 * base),
    }


def test_bad_settings():
    with pytest.raises(InputError, match="rising"):
        AttentionRate(ratios=(3.0, 1.0))
    with pytest.raises(InputError, match="too few points"):
        AttentionRate(steps=100, measure_every=50)


@pytest.mark.slow
def test_a_tiny_training_gives_every_table():
    tiny = AttentionRate(
        vocabulary_size=60, width=8, batch=4, length=12, steps=40, measure_every=4, windows=8
    )
    tables = tiny.run(Progress(quiet=True))
    assert tables["bounces"]["run"].nunique() == 20
    assert set(tables["curves"]["metric"]) == {"attention_entropy", "validation_loss", "kappa", "kappa_share"}
    first = tables["curves"][tables["curves"]["step"] == 0]
    values = first.pivot_table(index=["seed", "metric"], columns="variant", values="value")
    assert (values.nunique(axis=1) == 1).all()
    assert {claim.id for claim in claims(tiny, tables)} == {
        f"attention_rate.{name}" for name in ("rebound", "dip", "not_the_rate", "kappa")
    }
