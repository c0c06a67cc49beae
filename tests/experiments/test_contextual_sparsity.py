"""The experiment ``contextual_sparsity``: its table, and what turns its claims."""

from __future__ import annotations

from joma.core.figures import style
from joma.core.progress import Progress
from joma.experiments.beyond.contextual_sparsity import ContextualSparsity
from joma.experiments.beyond.contextual_sparsity.claims import GARBAGE, STATEMENTS

SMALL = ContextualSparsity(steps=2, width=16, heads=2, length=12, batch=2, tokens=24)


def test_tokens_own_sets_stand_beside_others_and_claims_turn_on_garbage() -> None:
    tables = SMALL.run(Progress(quiet=True))
    sets = tables["sets"]
    own = sets[sets["choice"] == "own"]
    assert (own["within_epsilon"] == 1.0).all()
    assert set(sets["network"]) == {"trained", "untrained"}
    with style():
        SMALL.draw(tables)
    trained = sets["network"] == "trained"
    made = sets.assign(loss_rise=0.1 * ((sets["choice"] != "own") & trained))
    assert {c.id: c.verdict for c in SMALL.claims({"sets": made})} == dict.fromkeys(STATEMENTS, "holds")
    garbage = sets.assign(loss_rise=0.1)
    assert {c.id: c.verdict for c in SMALL.claims({"sets": garbage})} == dict.fromkeys(GARBAGE, "fails")
