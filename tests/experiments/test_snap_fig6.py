from __future__ import annotations

import random

import numpy as np
import pandas as pd
import pytest
import torch

from joma.core.claim import Statement
from joma.core.errors import InputError
from joma.core.figures import style
from joma.core.progress import Progress
from joma.data.next_token import graded_tokens
from joma.experiments.scan_snap.snap_fig6 import SnapFig6
from joma.experiments.scan_snap.snap_fig6.authors import authors_classes, authors_start
from joma.experiments.scan_snap.snap_fig6.claims import _reproduction, _steps, _trend

TINY = {
    "last_tokens": (1, 2),
    "eta_z": (0.5, 2.0),
    "ratios": (1.0, 2.0),
    "seeds": 3,
    "steps": 20,
    "batch": 32,
    "length": 32,
}
TABLE = ("reference", "scan_snap_fig6_entropy.csv")


@pytest.fixture(scope="module")
def tables():
    return SnapFig6(**TINY).run(Progress(quiet=True))


def test_the_tables_hold_every_run_before_and_after(tables):
    assert len(tables["entropy"]) == 2 * 4 * 3 * 2
    assert set(tables["entropy"]["step"]) == {0, 20}
    assert len(tables["cells"]) == 8
    assert tables["authors"].empty
    end = tables["entropy"].query("step == 20 and last_tokens == 2 and eta_z == 2 and ratio == 1")["value"]
    cell = tables["cells"].query("last_tokens == 2 and eta_z == 2 and ratio == 1").iloc[0]
    assert cell["mean"] == pytest.approx(end.mean())
    assert cell["standard_error"] == pytest.approx(end.std() / 3**0.5)


def test_same_seed_same_tables_bit_for_bit(tables):
    again = SnapFig6(**TINY).run(Progress(quiet=True))
    pd.testing.assert_frame_equal(tables["entropy"], again["entropy"], check_exact=True)
    fresh = SnapFig6(**TINY, streams="fresh").run(Progress(quiet=True))
    assert not (fresh["entropy"]["value"] == tables["entropy"]["value"]).any()


def test_claims_and_their_null(tables):
    claims = {claim.id: claim for claim in SnapFig6(**TINY).claims(tables)}
    assert claims["snap_fig6.authors_numbers"].verdict == "not tested"
    assert claims["snap_fig6.sparser_with_eta_z"].verdict == "holds"
    assert claims["snap_fig6.sparser_with_eta_z"].null == 0
    start = tables["entropy"].query("step == 0")
    untrained = {claim.id: claim for claim in SnapFig6(**TINY).claims({**tables, "entropy": start})}
    assert untrained["snap_fig6.sparser_with_eta_z"].verdict == "fails"


def test_the_figure_is_drawn(tables):
    with style("dark"):
        figure = SnapFig6(**TINY).draw(tables)
        figure.canvas.draw()
    assert len(figure.axes) == 2


def test_the_authors_streams_are_torch_layers_and_python_choices():
    data = graded_tokens(last_tokens=2)
    torch.manual_seed(7)
    first, second = (torch.nn.Linear(data.logits, data.logits, bias=False).weight for _ in range(2))
    y, z = authors_start(data, 7)
    tokens = data.contextual_tokens
    np.testing.assert_array_equal(z, second.detach().numpy()[tokens : tokens + 2, :tokens])
    # the authors' next token n is vocabulary entry C + L + n, and row of the first layer
    np.testing.assert_array_equal(y[:, 1], first.detach().numpy()[tokens + 2 + 1, :tokens])
    random.seed(7)
    facts = list(range(4))
    assert authors_classes(data, 7, 2, 3).ravel().tolist() == [random.choice(facts) for _ in range(6)]


def test_cells_of_one_last_token_agree_with_the_authors(shared):
    experiment = SnapFig6(last_tokens=(1,), authors_table=str(shared.joinpath(*TABLE)))
    tables = experiment.run(Progress(quiet=True))
    claim = {c.id: c for c in experiment.claims(tables)}["snap_fig6.authors_numbers"]
    assert claim.evidence == "16 cells"
    assert claim.measured >= 15 / 16
    assert claim.null < 0.5


@pytest.mark.slow
def test_at_least_60_of_64_cells_agree_with_the_authors(shared):
    experiment = SnapFig6(authors_table=str(shared.joinpath(*TABLE)))
    tables = experiment.run(Progress(quiet=True))
    claims = {c.id: c for c in experiment.claims(tables)}
    assert claims["snap_fig6.authors_numbers"].evidence == "64 cells"
    assert claims["snap_fig6.authors_numbers"].measured >= 60 / 64
    assert claims["snap_fig6.sparser_with_eta_z"].verdict == "holds"
    assert claims["snap_fig6.denser_with_ratio"].verdict == "holds"
    assert claims["snap_fig6.denser_with_ratio_everywhere"].verdict == "fails"


def test_a_table_that_cannot_be_used_is_named(tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        SnapFig6(**TINY, authors_table=str(tmp_path / "none.csv")).run(Progress(quiet=True))
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    with pytest.raises(InputError, match="lacks the columns entropy_mean_nats"):
        SnapFig6(**TINY, authors_table=str(tmp_path / "other.csv")).run(Progress(quiet=True))
    with pytest.raises(InputError, match="ratios = 0"):
        SnapFig6(ratios=(0.0,))


@pytest.mark.parametrize(("spread", "counted"), [(0.98, 1), (1.02, 0)])
def test_a_step_counts_beyond_two_standard_errors(spread, counted):
    """Two runs that differ by d have a standard error of d / 2: two of them are d."""
    rows = [
        {"run": run, "last_tokens": 1, "eta_z": 1.0, "ratio": ratio, "value": ratio * (1 + side * spread / 2)}
        for run, side in ((0, -1), (1, 1))
        for ratio in (0, 1)
    ]
    assert _steps(pd.DataFrame(rows), "ratio", 1) == (counted, 0, 1)
    assert _steps(pd.DataFrame(rows), "ratio", -1) == (0, counted, 1)


def test_half_of_the_steps_are_enough_and_one_back_is_too_many():
    def verdict(*values):
        rows = [
            {
                "run": run,
                "last_tokens": 1,
                "eta_z": 1.0,
                "ratio": ratio,
                "step": 9,
                "value": value + 0.01 * run * ratio,
            }
            for run in (0, 1)
            for ratio, value in enumerate(values)
        ]
        return _trend(pd.DataFrame(rows), "ratio", 1, Statement("snap_fig6.made", "here", "made")).verdict

    assert verdict(0.0, 1.0, 1.0 - 0.01 / 2) == "holds"
    assert verdict(0.0, 1.0, 1.0, 1.0) == "fails"
    assert verdict(0.0, 1.0, 2.0, 1.0) == "fails"


@pytest.mark.parametrize(("agreeing", "verdict"), [(60, "holds"), (59, "fails")])
def test_sixty_cells_of_the_authors_must_agree(agreeing, verdict):
    cells = pd.DataFrame({"last_tokens": 1, "eta_z": 1.0, "ratio": np.arange(64.0)})
    cells = cells.assign(mean=np.arange(64.0), standard_error=0.0)
    authors = cells[["last_tokens", "eta_z", "ratio"]].assign(authors_std=0.1, authors_seeds=4)
    authors["authors_mean"] = cells["mean"] + np.where(np.arange(64) < agreeing, 0.099, 0.101)
    assert _reproduction(cells, authors).verdict == verdict
