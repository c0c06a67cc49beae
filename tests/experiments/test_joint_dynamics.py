from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from joma.core.errors import InputError
from joma.core.figures import style
from joma.core.progress import Progress
from joma.experiments.beyond.joint_dynamics import JointDynamics
from joma.experiments.beyond.joint_dynamics.block import block_flows
from joma.experiments.beyond.joint_dynamics.tables import of_layers
from joma.runs.executors.processes import local_processes
from small_decoders import SMALL_DECODERS

SMALL = {
    **SMALL_DECODERS,
    "steps": 20,
    "length": 24,
    "measure_every": 10,
    "windows": 8,
    "draws": 3,
    "block_tokens": 12,
    "block_neurons": 3,
    "block_runs": 2,
}


@pytest.fixture(scope="module")
def tables() -> dict[str, pd.DataFrame]:
    return JointDynamics(**SMALL).run(Progress(quiet=True, executor=local_processes))


def test_tables_are_tidy_and_complete(tables: dict[str, pd.DataFrame]) -> None:
    curves = tables["curves"]
    experiment = JointDynamics(**SMALL)
    assert set(curves["step"]) == set(experiment.measured_steps())
    index = of_layers(curves)
    assert len(index) == 3 * len(experiment.measured_steps())
    assert index["value"].between(-1, 1).all()
    assert (index["count"] == 8 * 2 * (24 - 10)).all()  # windows, heads, queries that see ten keys
    by_head = curves[(curves["metric"] == "index") & curves["head"].notna()]
    assert set(by_head["head"]) == {0, 1}
    assert set(curves["metric"]) == {"index", "null", "null_spread", "value_norm", "input_norm", "recency"}
    assert len(tables["turns"]) == 3


def test_same_settings_same_tables(tables: dict[str, pd.DataFrame], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("joma.core.progress.usable_cores", lambda: 1)
    again = JointDynamics(**SMALL).run(Progress(quiet=True))
    for name, table in tables.items():
        pd.testing.assert_frame_equal(table, again[name], check_exact=True)


def test_figure_and_claims_come_from_the_tables_alone(tables: dict[str, pd.DataFrame]) -> None:
    experiment = JointDynamics(**SMALL)
    with style("dark"):
        figure = experiment.draw(tables)
    assert len(figure.axes) == 2 * 3 + 1
    claims = {claim.id: claim for claim in experiment.claims(tables)}
    assert set(claims) == {
        f"joint_dynamics.{n}" for n in ("exp_flow", "first", "positive", "grows", "values")
    }
    assert claims["joint_dynamics.exp_flow"].verdict == "holds"
    assert all(claim.null is not None for claim in claims.values() if claim.verdict != "not tested")


def flipped(curves: pd.DataFrame, value: float) -> pd.DataFrame:
    """Curves whose index is ``value`` from the first step after the start on."""
    table = curves.copy()
    index = table["metric"].isin(["index", "value_norm"]) & (table["step"] > 0)
    table.loc[index, "value"] = value
    table.loc[table["metric"].isin(["index", "value_norm"]) & (table["step"] == 0), "value"] = 0.0
    return table


def test_claims_can_hold_and_fail(tables: dict[str, pd.DataFrame]) -> None:
    experiment = JointDynamics(**SMALL)
    for value, verdict in ((0.9, "holds"), (-0.9, "fails")):
        changed = {**tables, "curves": flipped(tables["curves"], value)}
        claims = {claim.id: claim.verdict for claim in experiment.claims(changed)}
        assert claims["joint_dynamics.first"] == verdict
        assert claims["joint_dynamics.positive"] == verdict
        assert claims["joint_dynamics.grows"] == verdict
        # All signs alike: shuffled over runs and steps they agree as well.
        assert claims["joint_dynamics.values"] == "fails"
    mixed = flipped(tables["curves"], 0.9)
    of_one_run = mixed["run"] == "layers-1-seed-0"
    mixed.loc[of_one_run & mixed["metric"].isin(["index", "value_norm"]), "value"] *= -1
    claims = {c.id: c.verdict for c in experiment.claims({**tables, "curves": mixed})}
    assert claims["joint_dynamics.values"] == "holds"
    assert claims["joint_dynamics.positive"] == "fails"
    shuffled = tables["block"].copy()
    shuffled.loc[shuffled["metric"] == "index", "value"] *= 0.5
    claims = {c.id: c.verdict for c in experiment.claims({**tables, "block": shuffled})}
    assert claims["joint_dynamics.exp_flow"] == "fails"


def test_block_flow_with_exp_attention_goes_to_one() -> None:
    table = block_flows(JointDynamics(block_tokens=20, block_neurons=5, block_runs=3, draws=10, seed=3))
    index = table[table["metric"] == "index"]
    exp = index[index["attention"] == "exp"]
    zero, random = exp[exp["start"] == "zero"], exp[exp["start"] == "random"]
    assert np.isnan(exp[exp["time"] == 0]["value"]).all()  # there is no attention to speak of yet
    assert (zero[zero["time"] > 0]["value"] > 1 - 1e-8).all()
    assert (random.groupby("run")["value"].nth(1) < 0.9).all()
    assert (random.groupby("run")["value"].last() > 0.95).all()
    null = table[(table["metric"] == "null") & (table["progress"] == 1.0)]
    assert abs(null["value"].mean()) < 0.15


def test_windows_too_short_to_correlate_are_refused() -> None:
    with pytest.raises(InputError, match="length"):
        JointDynamics(length=12)
