from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from joma.core.errors import InputError
from joma.core.figures import style
from joma.core.progress import Progress
from joma.experiments.scan_snap.snap_fig7 import SnapFig7

TINY = {
    "layers": (1, 2),
    "seeds": 1,
    "vocabulary_size": 40,
    "pictured": (0, 3, 6),
    "measure_every": 2,
    "width": 8,
    "hidden": 8,
    "batch": 4,
    "length": 7,
    "windows": 5,
    "common": 3,
}


class InProcess(Progress):
    """Parts one after the other: a pool of processes costs more than these."""

    def parts(self, computations):
        return {name: compute(self) for name, compute in computations.items()}


@pytest.fixture(scope="module")
def tables():
    return SnapFig7(**TINY).run(InProcess(quiet=True))


def test_tables(tables) -> None:
    curves, maps = tables["curves"], tables["maps"]
    assert set(curves["run"]) == {f"layers-{d}-seed-0{s}" for d in (1, 2) for s in ("", "-shuffled")}
    assert sorted(curves["step"].unique()) == [0, 2, 3, 4, 6]
    assert sorted(maps["step"].unique()) == [0, 3, 6]
    assert not curves["value"].isna().any()
    # rows of attention sum to one, and no token looks ahead
    np.testing.assert_allclose(maps.groupby(["run", "step", "query"])["value"].sum(), 1.0, rtol=1e-5)
    assert (maps["key"] <= maps["query"]).all()
    one = maps[(maps["run"] == "layers-1-seed-0") & (maps["step"] == 0)]
    words = one.drop_duplicates("query").set_index("query")["query_token"]
    assert (one["key_token"] == one["key"].map(words)).all()


def test_what_uniform_attention_would_measure(tables) -> None:
    curves = tables["curves"]
    value = curves.groupby("metric")["value"].mean()
    assert value["uniform_entropy"] == pytest.approx(np.log(np.arange(1, 8)).mean(), rel=1e-5)
    assert value["uniform_own_token"] == pytest.approx((1 / np.arange(1, 8)).mean(), rel=1e-5)
    # untrained attention is nearly uniform, so that every share is about that of uniform attention
    untrained = curves[curves["step"] == 0].groupby("metric")["value"].mean()
    assert untrained["common_tokens"] == pytest.approx(1.0, abs=0.1)
    assert untrained["own_token"] == pytest.approx(untrained["uniform_own_token"], abs=0.05)


def test_shuffling_keeps_the_words_and_the_start(tables) -> None:
    start = tables["curves"].query("step == 0 and metric == 'attention_entropy' and depth == 1")
    of_text = start.set_index("text")["value"]
    assert of_text["real"] == pytest.approx(of_text["shuffled"], abs=0.05)


def made(
    entropy: dict[str, list[float]], *, common: float = 0.5, own: float = 0.1
) -> dict[str, pd.DataFrame]:
    """Tables of one depth whose entropies at steps 0, 10, 20 are given, by text."""
    rows = []
    for text, values in entropy.items():
        for step, value in zip((0, 10, 20), values, strict=True):
            ids = {"run": text, "depth": 1, "seed": 0, "text": text, "step": step, "head": 0}
            done = step == 20
            rows += [
                ids | {"layer": 0, "metric": "attention_entropy", "value": value},
                ids | {"layer": 0, "metric": "common_tokens", "value": common if done else 1.0},
                ids | {"layer": 0, "metric": "own_token", "value": own if done else 0.1},
                ids | {"layer": None, "metric": "uniform_entropy", "value": 2.6},
                ids | {"layer": None, "metric": "uniform_own_token", "value": 0.1},
            ]
    maps = [{"step": step} for step in (0, 10, 20)]
    return {"curves": pd.DataFrame(rows), "maps": pd.DataFrame(maps)}


def verdicts(tables: dict[str, pd.DataFrame]) -> dict[str, str]:
    return {claim.id.removeprefix("snap_fig7."): claim.verdict for claim in SnapFig7().claims(tables)}


def test_claims_hold_on_attention_that_becomes_sparse() -> None:
    found = verdicts(made({"real": [2.6, 2.0, 1.5], "shuffled": [2.6, 2.6, 2.5]}, own=0.3))
    assert found == dict.fromkeys(
        ["sparse_1", "from_order_1", "keeps_falling", "common_suppressed", "own_token"], "holds"
    )


def test_claims_fail_on_what_they_must_not_take_for_it() -> None:
    dense = verdicts(made({"real": [2.6, 2.5, 2.6], "shuffled": [2.6, 2.6, 2.6]}, common=1.0))
    assert set(dense.values()) == {"fails"}
    as_shuffled = verdicts(made({"real": [2.6, 2.0, 1.5], "shuffled": [2.6, 2.0, 1.4]}))
    assert as_shuffled["sparse_1"] == "fails"
    assert as_shuffled["from_order_1"] == "fails"


def test_same_seed_same_tables_bit_for_bit() -> None:
    small = TINY | {"layers": (1,), "pictured": (0, 2)}
    one, two = (SnapFig7(**small).run(InProcess(quiet=True)) for _ in range(2))
    for name in one:
        pd.testing.assert_frame_equal(one[name], two[name], check_exact=True)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_figure_is_drawn(tables, theme: str) -> None:
    with style(theme):
        figure = SnapFig7(**TINY).draw(tables)
        figure.canvas.draw()
    assert len(figure.axes) == 2 * 4 + 2
    assert len(SnapFig7(**TINY).claims(tables)) == 7


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"layers": ()}, "layers is empty"),
        ({"pictured": (5, 10)}, "must begin with 0"),
        ({"pictured": (0, 10, 5)}, "increase"),
        ({"dropout": 1.0}, "dropout"),
    ],
)
def test_bad_settings(settings: dict[str, object], says: str) -> None:
    with pytest.raises(InputError, match=says):
        SnapFig7(**settings)


def test_common_tokens_must_leave_others() -> None:
    with pytest.raises(InputError, match="common = 40"):
        SnapFig7(**(TINY | {"common": 40})).run(InProcess(quiet=True))
