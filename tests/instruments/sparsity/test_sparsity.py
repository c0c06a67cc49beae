"""joma.sparsity: its gates, its bound, and its errors."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import joma
from joma.core.errors import InputError
from joma.core.figures import style
from joma.instruments.reading.lent import Anatomy
from joma.instruments.sparsity import SparsitySettings
from joma.instruments.sparsity.find import CHOICES, _bisect
from joma.instruments.sparsity.gates import attach, make_gates
from joma.models.decoder import Decoder

TEXT = np.random.default_rng(0).integers(0, 30, 40)


def decoder() -> Decoder:
    torch.manual_seed(0)
    return Decoder(30, layers=2, width=16, hidden=24, heads=2).eval()


@pytest.fixture(scope="module")
def found() -> joma.SparsityResult:
    return joma.sparsity(decoder(), TEXT, length=20, epsilon=0.02)


def test_a_closed_gate_leaves_a_unit_out() -> None:
    """As setting the columns to zero that read the unit's output."""
    model, tokens = decoder(), torch.from_numpy(TEXT[:20])[None]
    gates = {(gate.kind, gate.layer): gate for gate in make_gates(model, Anatomy(model).blocks)}
    for (kind, layer), gate in gates.items():
        other = decoder()
        part = other.layers[layer].out_projection if kind == "heads" else other.layers[layer].upper
        with torch.no_grad():
            part.weight[:, : part.in_features // gate.units] = 0.0
        gate.open = torch.ones(1, 20, gate.units)
        gate.open[..., 0] = 0.0
        with attach([gate]), torch.no_grad():
            torch.testing.assert_close(model(tokens), other(tokens))
    with torch.no_grad():
        torch.testing.assert_close(model(tokens), decoder()(tokens))


def test_every_token_is_within_epsilon_in_one_pass(found: joma.SparsityResult) -> None:
    tokens, sets = found.tables["tokens"], found.tables["sets"].set_index(["kind", "choice"])
    assert (tokens["rise"] <= 0.02).all()
    assert (tokens["kept"] <= tokens["of"]).all()
    assert (tokens.groupby("kind").size() == 38).all()
    assert set(sets.loc["heads"].index) == set(CHOICES)
    assert sets.loc[("neurons", "own"), "within_epsilon"] == 1.0
    assert sets.loc[("neurons", "random"), "share_kept"] == sets.loc[("neurons", "own"), "share_kept"]
    logits = decoder()(torch.from_numpy(TEXT[:20])[None]).detach()[0, :-1]
    truth = functional.cross_entropy(logits, torch.from_numpy(TEXT[1:20]), reduction="none")
    own = tokens[(tokens["kind"] == "heads") & (tokens["sample"] == 0)]["loss"]
    assert own.tolist() == pytest.approx(truth.tolist(), rel=1e-5)


def test_bisection_finds_what_a_token_needs() -> None:
    needed = torch.tensor([[3, 0, 17, 50]])

    def rises(kept: Tensor) -> Tensor:
        return (kept < needed).double()[:, :-1]

    kept = _bisect(rises, 64, needed.shape, 0.5, torch.device("cpu"))
    assert kept[0, :3].tolist() == [3, 0, 17]


def test_claims_fail_where_all_sets_are_alike(found: joma.SparsityResult) -> None:
    settings, sets = SparsitySettings(), found.tables["sets"].copy()
    sets["loss_rise"] = sets["choice"].map({"own": 0.0, "static": 0.1}).fillna(0.2)
    assert {c.verdict for c in settings.claims({**found.tables, "sets": sets})} == {"holds"}
    garbage = sets.assign(loss_rise=0.2)
    assert {c.verdict for c in settings.claims({**found.tables, "sets": garbage})} == {"fails"}
    with style():
        settings.draw(found.tables)
    assert "upper bound" in settings.terminal_text(found.tables)
    again = joma.sparsity(decoder(), TEXT, length=20, epsilon=0.02).tables
    for name, table in found.tables.items():
        pd.testing.assert_frame_equal(table, again[name], check_exact=True)


def test_bad_input_is_one_sentence() -> None:
    class Looks(Decoder):
        def forward(self, tokens: Tensor) -> Tensor:
            logits = super().forward(tokens)
            return logits + logits.mean(1, keepdim=True)

    bad = (
        *(({"epsilon": epsilon}, "no set keeps it") for epsilon in (0.0, -1.0, math.nan, math.inf, "much")),
        ({"layers": [7]}, "no layer 7"),
        ({"layers": []}, "empty list"),
    )
    for keywords, said in bad:
        with pytest.raises(InputError, match=said):
            joma.sparsity(decoder(), TEXT, length=20, **keywords)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="no two tokens"):
        joma.sparsity(decoder(), [3], length=20)
    with pytest.raises(InputError, match="no MLP and no attention was found"):
        joma.sparsity(nn.Linear(3, 3), TEXT, length=20)
    looking = Looks(30, layers=1, width=16, hidden=24, heads=2).eval()
    with pytest.raises(InputError, match="no next-token loss"):
        joma.sparsity(looking, TEXT, length=20)
