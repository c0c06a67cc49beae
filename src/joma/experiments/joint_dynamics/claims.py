"""What JoMA Theorem 1 says of attention and neurons, judged from the tables of the joint dynamics."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from joma.claim import Claim, judge
from joma.experiments.joint_dynamics import JointDynamics
from joma.experiments.joint_dynamics.tables import of_layers

EXACT = 1e-6
SPREADS = 2.0
"""Of the shuffled null: an index beyond them is no chance of the shuffles."""
SAME_SIGN = 0.9
_SHUFFLED = "the same index with the prediction shuffled over the tokens"


def claims(settings: JointDynamics, tables: Mapping[str, pd.DataFrame]) -> list[Claim]:
    """Theorem 1's sign, in the block and in decoders, each against its null."""
    curves = tables["curves"]
    return [
        exp_flow(tables["block"]),
        positive_at_first(curves, 2 * settings.measure_every),
        positive_when_trained(curves),
        grows_with_training(curves),
        sign_of_the_values(curves),
    ]


def exp_flow(block: pd.DataFrame) -> Claim:
    """The positive control."""
    from_zero = block[(block["start"] == "zero") & (block["time"] > 0)]
    exp = from_zero[from_zero["attention"] == "exp"]
    index = exp[exp["metric"] == "index"]["value"]
    null = exp[exp["metric"] == "null"]["value"].abs()
    last = block[(block["progress"] == 1.0) & (block["metric"] == "index")]
    others = last.groupby(["attention", "start"])["value"].agg(["min", "max"])
    evidence = ", ".join(
        f"{kind} from {start} weights {low:.3f} to {high:.3f}"
        for (kind, start), (low, high) in zip(others.index, others.to_numpy(), strict=True)
    )
    return judge(
        bool(index.min() > 1 - EXACT),
        id="joint_dynamics.exp_flow",
        source="JoMA Thm 1",
        statement="with exp attention, from zero on, the logits are 1/2 sum_k v_k(l)^2 + c: the index is 1",
        expected=f"1 to {EXACT:g} at every moment of every flow",
        measured=index.min(),
        tolerance=EXACT,
        null=null.quantile(0.95),
        null_description=_SHUFFLED + " (size that 1 in 20 exceeds)",
        evidence=f"smallest of {exp['run'].nunique()} flows; at the end: {evidence}",
    )


def chance(curves: pd.DataFrame) -> float:
    """How large an index means nothing: two spreads of the shuffled null, or what untrained decoders have.

    Words recur in all windows, so the random weights of one network leave an index that no shuffle within
    the windows shows.
    """
    untrained = of_layers(curves[curves["step"] == 0])["value"].abs().max()
    return float(max(SPREADS * of_layers(curves, "null_spread")["value"].max(), untrained))


def positive_at_first(curves: pd.DataFrame, until: int) -> Claim:
    """Theorem 1's sign in the first steps, where the weights are still small."""
    early = of_layers(curves[(curves["step"] > 0) & (curves["step"] <= until)])
    highest = early.loc[early.groupby(["run", "layer"])["value"].idxmax()]
    largest = chance(curves)
    return judge(
        bool((highest["value"] > largest).all()),
        id="joint_dynamics.first",
        source="JoMA Thm 1, applied to a decoder in its first steps",
        statement="when training begins, attention grows with 1/2 sum_k v_k(l)^2: the index turns positive",
        expected=f"above chance in every run and layer, once within the first {until} steps",
        measured=highest["value"].min(),
        tolerance=largest,
        null=largest,
        null_description="largest index of an untrained decoder, or two spreads of the shuffled null",
        evidence=f"highest values {highest['value'].min():.3f} to {highest['value'].max():.3f}, at steps "
        f"{highest['step'].min()} to {highest['step'].max()}",
    )


def positive_when_trained(curves: pd.DataFrame) -> Claim:
    """Theorem 1's sign in decoders."""
    last = curves[curves["step"] == curves["step"].max()]
    index = of_layers(last).set_index(["run", "layer"])["value"]
    largest = chance(curves)
    positive, negative = (index > largest).sum(), (index < -largest).sum()
    worst = index.idxmin()
    return judge(
        bool(positive == len(index)),
        id="joint_dynamics.positive",
        source="JoMA Thm 1, applied to a trained decoder (softmax, Adam)",
        statement="trained attention grows with 1/2 sum_k v_k(l)^2: the index is positive in every layer",
        expected="above chance in every run and layer at the end",
        measured=index.min(),
        tolerance=largest,
        null=largest,
        null_description="largest index of an untrained decoder, or two spreads of the shuffled null",
        evidence=f"{positive} of {len(index)} (run, layer) positive, {negative} negative beyond chance; "
        f"lowest in {worst[0]}, layer {worst[1]}; largest {index.max():.3f}",
    )


def grows_with_training(curves: pd.DataFrame) -> Claim:
    """Whether training moves the index the way that the theorem says."""
    ends = [
        of_layers(curves[curves["step"] == step]).set_index(["run", "layer"])[["value", "standard_error"]]
        for step in (0, curves["step"].max())
    ]
    change = ends[1]["value"] - ends[0]["value"]
    error = (ends[0]["standard_error"] ** 2 + ends[1]["standard_error"] ** 2) ** 0.5
    return judge(
        bool((change > 2 * error).all()),
        id="joint_dynamics.grows",
        source="JoMA Thm 1, applied to a trained decoder (softmax, Adam)",
        statement="training raises the index above that of the untrained network, in every layer",
        expected="a rise of more than two standard errors (over windows) in every run and layer",
        measured=change.min(),
        tolerance=float(2 * error.max()),
        null=0.0,
        null_description="no change",
        evidence=f"rises in {(change > 2 * error).sum()}, falls in {(change < -2 * error).sum()} of "
        f"{len(change)} (run, layer); changes {change.min():.3f} to {change.max():.3f}",
    )


def sign_of_the_values(curves: pd.DataFrame) -> Claim:
    """What decides the sign: the size of the values."""
    keys = ["run", "layer", "step"]
    index, size, rest = (
        of_layers(curves, metric, given).set_index(keys)["value"]
        for metric, given in (
            ("index", "nothing"),
            ("value_norm", "nothing"),
            ("index", "value_norm"),
        )
    )
    clear = index.abs() > chance(curves)
    same = ((index > 0) == (size > 0))[clear]
    return judge(
        bool(same.mean() >= SAME_SIGN),
        id="joint_dynamics.values",
        source="joma (seen first in a pretrained model)",
        statement="the sign of the index is that of attention's correlation with the size of the values",
        expected=f"the same sign in at least {SAME_SIGN:.0%} of what lies beyond chance",
        measured=same.mean(),
        tolerance=SAME_SIGN,
        null=0.5,
        null_description="signs that have nothing to do with each other",
        evidence=f"{int(same.sum())} of {len(same)} (run, layer, step); mean size of the index "
        f"{index.abs().mean():.3f}, with the values' size held fixed {rest.abs().mean():.3f}",
    )
