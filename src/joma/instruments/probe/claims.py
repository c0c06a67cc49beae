"""Theorem 1's prediction and the embeddings' orthogonality, judged on a user's model."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from joma.core.claim import Claim, above, at_most, statements
from joma.core.tables import rows
from joma.instruments.probe import ProbeSettings
from joma.instruments.probe.adapter import adapter_sentences
from joma.instruments.probe.sections.index_rows import index_of_heads
from joma.instruments.probe.text import probe_sentences

_NEARLY = 2.0
_CLEAR = 3.0

STATEMENTS = statements(
    {
        "probe.joint_dynamics": "JoMA Thm 1 | attention's logits grow with half the sum of squares of what "
        "the hidden neurons see of a context token through the head",
        "probe.orthogonality": "JoMA Sec. 2 and 7 | the embeddings of distinct tokens are nearly orthogonal",
    }
)


def claims(settings: ProbeSettings, tables: Mapping[str, pd.DataFrame]) -> list[Claim]:
    """Theorem 1's prediction for the attention, and the embeddings' orthogonality; none of weights."""
    return (
        []
        if settings.weights or settings.adapter
        else [_joint_dynamics_claim(tables), _orthogonality_claim(tables)]
    )


def answer(settings: ProbeSettings, tables: Mapping[str, pd.DataFrame]) -> list[str]:
    """A sentence a section."""
    return adapter_sentences(tables) if settings.adapter else probe_sentences(tables)


def _joint_dynamics_claim(tables: Mapping[str, pd.DataFrame]) -> Claim:
    statement = STATEMENTS["probe.joint_dynamics"]
    if "joint_dynamics" not in tables:
        return statement.not_tested(_why_missing(tables, "joint_dynamics"))
    joint = tables["joint_dynamics"]
    linear, shuffled = index_of_heads(joint), index_of_heads(joint, "null")
    if linear.empty or shuffled.empty:
        return statement.not_tested("no query sees enough keys for a correlation")
    if "untrained_joint_dynamics" not in tables:
        return statement.not_tested(
            "it speaks of learning, and no untrained network stands beside ("
            f"{_why_missing(tables, 'untrained')})"
        )
    untrained = index_of_heads(tables["untrained_joint_dynamics"]).abs()
    partial = index_of_heads(joint, given="position and value_norm")
    logs = index_of_heads(joint, scale="log")
    positive, measured = float((linear > 0).mean()), float(linear.mean())
    null = max(float(shuffled.abs().mean()), float(untrained.mean()))
    return statement.judge(
        above(
            _CLEAR * null,
            measured,
            of="mean correlation of the heads",
            than=f"{_CLEAR:g} times that of shuffled tokens and of an untrained network",
        )
        & above(0.5, positive, of="share of the heads with a positive correlation"),
        null=null,
        null_description="mean |correlation| over the heads of an untrained network of the same shape "
        f"({untrained.mean():.3f}), or with the prediction shuffled over the tokens "
        f"({shuffled.abs().mean():.3f}); the larger",
        evidence="log-attention against the prediction, query by query, first key left out; positive in "
        f"{positive:.0%} of {len(linear)} heads; log against log {logs.mean():.3f}; with position and the "
        f"value's norm held fixed {partial.mean():.3f}. The theorem is for exp attention and equal rates",
    )


def _orthogonality_claim(tables: Mapping[str, pd.DataFrame]) -> Claim:
    statement = STATEMENTS["probe.orthogonality"]
    if "coherence" not in tables:
        return statement.not_tested(_why_missing(tables, "coherence"))
    cosines = rows(tables["coherence"], metric="mean_absolute_cosine", pairs="different")
    table = rows(cosines, place="embedding").set_index("centred")
    if table.empty:
        return statement.not_tested("the model has no table of embeddings that could be found")
    inputs = rows(cosines, place="input", centred=False)
    inputs = inputs[inputs["layer"] == inputs["other_layer"]]
    measured, random = float(table.loc[False, "value"]), float(table.loc[False, "random"])
    return statement.judge(
        at_most(
            _NEARLY * random, measured, of="mean |cos|", than=f"{_NEARLY:g} times that of random directions"
        ),
        null=random,
        null_description=f"independent random directions in {int(table.loc[False, 'width'])} dimensions",
        evidence=f"embedding table; with the mean vector removed {float(table.loc[True, 'value']):.3f}; at "
        f"the layers' inputs {inputs['value'].min():.3f} to {inputs['value'].max():.3f}",
    )


def _why_missing(tables: Mapping[str, pd.DataFrame], section: str) -> str:
    if "not_measured" in tables:
        reasons = rows(tables["not_measured"], section=section)["reason"]
        if len(reasons):
            return str(reasons.iloc[0])
    return f"the section {section} was not asked for"
