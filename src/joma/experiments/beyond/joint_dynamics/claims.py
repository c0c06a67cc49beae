"""What JoMA Theorem 1 says of attention and neurons, judged from the tables of the joint dynamics."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from joma.core.claim import Claim, Statement, above, at_least, statements, within_error
from joma.core.tables import rows
from joma.experiments.beyond.joint_dynamics import JointDynamics
from joma.experiments.beyond.joint_dynamics.tables import of_layers

EXACT = 1e-6
SPREADS = 2.0
"""Of the shuffled null: an index beyond them is no chance of the shuffles."""
SAME_SIGN = 0.9
ALL = "in every run and layer"
STATEMENTS = statements(
    {
        "joint_dynamics.exp_flow": "JoMA Thm 1 | with exp attention, from zero on, the logits are "
        "1/2 sum_k v_k(l)^2 + c: the index is 1",
        "joint_dynamics.first": "JoMA Thm 1, applied to a decoder in its first steps | when training begins, "
        "attention grows with 1/2 sum_k v_k(l)^2: the index turns positive",
        "joint_dynamics.positive": "JoMA Thm 1, applied to a trained decoder (softmax, Adam) | trained "
        "attention grows with 1/2 sum_k v_k(l)^2: the index is positive in every layer",
        "joint_dynamics.grows": "JoMA Thm 1, applied to a trained decoder (softmax, Adam) | training raises "
        "the index above that of the untrained network, in every layer",
        "joint_dynamics.values": "joma (seen first in a pretrained model) | the sign of the index is that of "
        "attention's correlation with the size of the values",
    },
    exact=("joint_dynamics.exp_flow",),
)
_SHUFFLED = "the same index with the prediction shuffled over the tokens"


def claims(settings: JointDynamics, tables: Mapping[str, pd.DataFrame]) -> list[Claim]:
    """Theorem 1's sign, in the block and in decoders, each against its null."""
    curves = tables["curves"]
    return [
        exp_flow(tables["block"]),
        _positive(curves, sorted(curves["step"].unique())[1], STATEMENTS["joint_dynamics.first"]),
        _positive(curves, curves["step"].max(), STATEMENTS["joint_dynamics.positive"]),
        grows_with_training(curves),
        sign_of_the_values(curves, settings.seed),
    ]


def exp_flow(block: pd.DataFrame) -> Claim:
    """The positive control."""
    from_zero = block[(block["start"] == "zero") & (block["time"] > 0)]
    exp = rows(from_zero, attention="exp")
    index, null = rows(exp, metric="index")["value"], rows(exp, metric="null")["value"].abs()
    last = rows(block, progress=1.0, metric="index")
    others = last.groupby(["attention", "start"])["value"].agg(["min", "max"])
    evidence = ", ".join(
        f"{kind} from {start} weights {low:.3f} to {high:.3f}"
        for (kind, start), (low, high) in zip(others.index, others.to_numpy(), strict=True)
    )
    return STATEMENTS["joint_dynamics.exp_flow"].judge(
        within_error(
            EXACT, 1 - index, of="distance of the index from 1", across="at every moment of every flow"
        ),
        measured=index.min(),
        null=null.quantile(0.95),
        null_description=_SHUFFLED + " (size that 1 in 20 exceeds)",
        evidence=f"smallest of {exp['run'].nunique()} flows; at the end: {evidence}",
    )


def chance(curves: pd.DataFrame) -> float:
    """How large an index means nothing: two spreads of the shuffled null, or what untrained decoders have.

    Words recur in all windows, so the random weights of one network leave an index that no shuffle within
    the windows shows.
    """
    untrained = of_layers(rows(curves, step=0))["value"].abs().max()
    return float(max(SPREADS * of_layers(curves, "null_spread")["value"].max(), untrained))


def _positive(curves: pd.DataFrame, step: int, statement: Statement) -> Claim:
    """Theorem 1's sign at one step, in every run and layer."""
    index = of_layers(rows(curves, step=step)).set_index(["run", "layer"])["value"]
    largest = chance(curves)
    worst = index.idxmin()
    return statement.judge(
        above(largest, index, of=f"index at step {step}", than="chance", across=ALL),
        null=largest,
        null_description="largest index of an untrained decoder, or two spreads of the shuffled null",
        evidence=f"{(index > largest).sum()} of {len(index)} (run, layer) positive, "
        f"{(index < -largest).sum()} "
        f"negative beyond chance; lowest in {worst[0]}, layer {worst[1]}; largest {index.max():.3f}",
    )


def grows_with_training(curves: pd.DataFrame) -> Claim:
    """Whether training moves the index the way that the theorem says."""
    ends = [
        of_layers(rows(curves, step=step)).set_index(["run", "layer"])[["value", "standard_error"]]
        for step in (0, curves["step"].max())
    ]
    change = ends[1]["value"] - ends[0]["value"]
    shuffled = of_layers(curves, "null").pivot(index=["run", "layer"], columns="step", values="value")
    null = float((shuffled[curves["step"].max()] - shuffled[0]).abs().max())
    error = (ends[0]["standard_error"] ** 2 + ends[1]["standard_error"] ** 2) ** 0.5
    return STATEMENTS["joint_dynamics.grows"].judge(
        above(null, change, of="rise of the index", than="that of the null", across=ALL)
        & above(
            2 * error, change, of="rise of the index", than="two standard errors over windows", across=ALL
        ),
        null=null,
        null_description="largest change of the index with the prediction shuffled over the tokens",
        evidence=f"rises in {(change > 2 * error).sum()}, falls in {(change < -2 * error).sum()} of "
        f"{len(change)} (run, layer); changes {change.min():.3f} to {change.max():.3f}",
    )


def sign_of_the_values(curves: pd.DataFrame, seed: int) -> Claim:
    """What decides the sign: the size of the values."""
    keys = ["run", "layer", "step"]
    index, size, rest = (
        of_layers(curves, metric, given).set_index(keys)["value"]
        for metric, given in (("index", "nothing"), ("value_norm", "nothing"), ("index", "value_norm"))
    )
    clear = index.abs() > chance(curves)
    signs = np.array((index > 0)[clear]), np.array((size > 0)[clear])
    same = signs[0] == signs[1]
    if not len(same):
        return STATEMENTS["joint_dynamics.values"].not_tested("no index lies beyond chance")
    random = np.random.default_rng(seed)
    null = float(np.quantile([(random.permutation(signs[0]) == signs[1]).mean() for _ in range(1000)], 0.95))
    of = "share of what lies beyond chance that has the same sign"
    return STATEMENTS["joint_dynamics.values"].judge(
        at_least(SAME_SIGN, same.mean(), of=of) & above(null, same.mean(), of=of, than="that of the null"),
        null=null,
        null_description="share that 1 in 20 shuffles of the signs over runs, layers and steps exceeds",
        evidence=f"{int(same.sum())} of {len(same)} (run, layer, step); mean size of the index "
        f"{index.abs().mean():.3f}, with the values' size held fixed {rest.abs().mean():.3f}",
    )
