"""The experiment ``why_bounce``: its sets, its division of the entropy, its verdicts, its seeds."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from joma.core.errors import InputError
from joma.core.figures import style
from joma.core.progress import Progress
from joma.data.text import TokenText
from joma.experiments.beyond.why_bounce import CHOSEN_ON, PREDICTIONS, WhyBounce
from joma.experiments.beyond.why_bounce.claims import STATEMENTS, _decide
from joma.experiments.beyond.why_bounce.forces import Forces
from joma.experiments.beyond.why_bounce.held_out import HeldOutWindows
from joma.experiments.beyond.why_bounce.mechanisms import _mass, _salient, _spread
from joma.experiments.beyond.why_bounce.run import FORBIDDEN, FORWARD, HELD, ORDER
from joma.experiments.beyond.why_bounce.sets import EMBEDDINGS, QUERIES_KEYS, parameter_sets
from joma.instruments.branch.interventions import Intervention
from joma.measures.entropy import entropy_of_probabilities
from joma.models.decoder import Decoder

SMALL = WhyBounce(steps=28, measure_every=2, width=8, batch=2, length=9, windows=3, seeds=3)


def decoder(depth: int = 2, modern: bool = False) -> Decoder:
    torch.manual_seed(3)
    model = Decoder(
        5, layers=depth, width=8, hidden=8, heads=2, dropout=0.1, longest=9, pre_norm=modern, rotary=modern
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model.train()


@pytest.fixture
def held_out() -> HeldOutWindows:
    tokens = np.random.default_rng(0).choice(5, 400, p=[0.5, 0.2, 0.1, 0.1, 0.1])
    text = TokenText("made", tokens[:300], tokens[300:], tuple("abcde"))
    return HeldOutWindows(SMALL, text)


@pytest.mark.parametrize("modern", [False, True])
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_every_number_is_in_one_set(depth: int, modern: bool) -> None:
    model = decoder(depth, modern)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    for patterns in parameter_sets(model).values():
        for part in Intervention("", "freeze", patterns).parts(model):
            part.of(model).add_(1.0)
    assert all(bool((parameter == 1).all()) for parameter in model.parameters())


@pytest.mark.parametrize("modern", [False, True])
def test_entropy_is_that_of_the_probabilities_and_thirds_are_of_the_text(
    held_out: HeldOutWindows, modern: bool
) -> None:
    model, seen = decoder(modern=modern), {}
    entropy = held_out.top_entropies(model).detach()
    assert model.training
    model.eval().hidden_states(held_out.inputs, lambda layer, p: seen.update({layer: p}))
    torch.testing.assert_close(entropy, entropy_of_probabilities(seen[1]), atol=1e-5, rtol=0)
    found = held_out.measure(model)
    assert found["entropy"] == pytest.approx(float(entropy.mean()), abs=1e-6)
    assert held_out.third_of[0] == 0  # half of the text: it begins in the first third
    assert int(held_out.third_of.max()) == 2
    places = [found[f"held-out, {name}"] for name in ("early", "central", "late")]
    assert np.mean(places) == pytest.approx(found["held-out, all"], rel=1e-6)  # windows of nine tokens


def test_the_division_is_that_of_finite_differences_and_adds_up(held_out: HeldOutWindows) -> None:
    model = decoder()
    forces = Forces(held_out, model)
    forces.advance(model)
    start = {name: one.detach().clone() for name, one in model.named_parameters()}
    random = torch.Generator().manual_seed(1)
    moves = {n: 3e-3 * torch.randn(one.shape, generator=random) for n, one in start.items()}
    with torch.no_grad():
        for name, one in model.named_parameters():
            one.add_(moves[name])
    forces.advance(model)
    (change,) = forces.changes
    whole = held_out.mean_entropy(model)
    for name, patterns in parameter_sets(model).items():
        moved = []
        for sign in (1.0, -1.0):  # around the midpoint, this set alone
            with torch.no_grad():
                for one, parameter in model.named_parameters():
                    parameter.copy_(start[one] + moves[one] / 2)
            for part in Intervention("", "freeze", patterns).parts(model):
                part.of(model).add_(part.rows_of(sign / 2 * moves[part.name]))
            moved.append(held_out.mean_entropy(model))
        assert change[name] == pytest.approx(moved[0] - moved[1], abs=2e-5), name
    with torch.no_grad():
        for name, one in model.named_parameters():
            one.copy_(start[name])
    assert sum(change.values()) == pytest.approx(whole - held_out.mean_entropy(model), abs=2e-5)
    assert change["output layer"] == 0.0


def test_salient_keys_and_the_spread_of_logits() -> None:
    rows = torch.tensor([[[[1.0, 0.0, 0.0], [0.45, 0.55, 0.0], [0.3, 0.3, 0.4]]]])
    chosen = _salient(rows)
    assert chosen[0, 0, 1].tolist() == [False, True, False]
    assert int(chosen[0, 0, 2].sum()) == 2  # 0.4 is less than half
    assert _mass(rows, chosen) == pytest.approx((0.55 + 0.7) / 2)
    hidden = torch.tensor([[[[5.0, -torch.inf], [1.0, 3.0]]]])
    assert _spread(hidden) == pytest.approx((0.5 * (0 + 1)) ** 0.5)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    words = np.random.default_rng(1).choice(["ab", "cde", "a", "bead"], 1200)
    path.write_text(" ".join(words), "utf-8")
    return path


def test_a_small_run_end_to_end(corpus: Path) -> None:
    settings = dataclasses.replace(SMALL, corpus=str(corpus), times=("before", "dip", "after"))
    tables = settings.run(Progress(quiet=True))
    shares = tables["sets"].set_index(["way", "set", "time"])["value"]
    for way in ("put back", "brought"):
        assert (shares[way]["lower MLP"] == 0).all()  # of one layer: no MLP stands before its attention
    assert set(shares["frozen"].index.get_level_values("time")) == {"before", "dip", "after"}
    forces = tables["forces"].query("phase == 'rise'").groupby("seed")["value"].sum()
    bounces = tables["bounces"].pivot(index="seed", columns="metric", values="value")
    np.testing.assert_allclose(forces, bounces["rise"], atol=2e-4)
    curves = tables["curves"].set_index(["branch", "seed", "step"])["value"]
    for seed, row in bounces.iterrows():
        for branch in (HELD, ORDER, f"{EMBEDDINGS}; dip"):  # all leave the twin at its dip, and not before
            own = curves[branch][seed]
            assert own.index[0] == row["dip_step"]
            assert own.iloc[0] == pytest.approx(curves["twin"][seed][row["dip_step"]], abs=1e-6)
    with style():
        settings.draw(tables)
    assert {claim.id for claim in settings.claims(tables)} == set(STATEMENTS)
    assert len(settings.answer(tables)) == 2


def made(**changed: float) -> dict[str, pd.DataFrame]:
    """Tables of decoders that bounce, whose every number says yes; others by keyword."""
    steps, seeds = np.arange(0, 800, 20), range(5)
    course = np.where(
        steps < 300, 2.0 - steps / 300, 0.7 + 0.3 * (steps > 300) * (1 - np.exp((300 - steps) / 90))
    )
    noise = np.random.default_rng(2)

    def table(entries: list[dict[str, object]], spread: float = 0.02) -> pd.DataFrame:
        rows = [{**one, "seed": seed, "depth": 1} for one in entries for seed in seeds]
        given = pd.DataFrame(rows)
        given["value"] = given["value"] + spread * noise.normal(size=len(given)) * (given["value"] != 0)
        return given

    def number(name: str, value: float) -> float:
        return changed.get(name, value)

    sets = [
        {"set": name, "way": way, "time": "dip", "value": number(f"{way}: {name}", value)}
        for way, value in (("brought", 0.8), ("put back", 0.8), ("frozen", 0.8), ("all else frozen", 0.8))
        for name in (QUERIES_KEYS, EMBEDDINGS, "MLP", "norms")
    ]
    sets.append({"set": "a tenth of the rate", "way": "slow", "time": "dip", "value": 0.5})
    numbers = {
        "scale": 0.8, "spread_of_logits": 0.9, "noise": 0.8, "mass_lost": 0.1, "mass_lost_back": -0.05,
        "rise_rare": 0.6, "rise_middle": 0.3, "rise_frequent": 0.2, f"entropy, {HELD}": -1.0,
        f"entropy, {FORWARD}": 0.0, f"entropy, {FORBIDDEN}": 0.1, f"entropy, {ORDER}": 0.0,
    }  # fmt: skip
    curves = table(
        [{"branch": "twin", "step": s, "value": v} for s, v in zip(steps, course, strict=True)], 0.01
    )
    losses = [
        {"branch": branch, "text": text, "tokens": "all", "value": number(branch, value)}
        for branch, value in ((HELD, 0.2), (FORBIDDEN, 0.2), (FORWARD, -0.2), (ORDER, 0.01))
        for text in ("held-out", "training")
    ]
    return {
        "curves": curves,
        "bounces": table(
            [
                {"metric": m, "value": v}
                for m, v in (
                    ("dip_step", 300.0),
                    ("rise", 0.3),
                    ("residual", 0.01),
                    ("residual_at_once", 0.9),
                )
            ],
            0.0,
        ),
        "forces": table(
            [
                {"set": name, "phase": phase, "value": value}
                for phase in ("fall", "rise")
                for name, value in ((QUERIES_KEYS, 0.25), (EMBEDDINGS, 0.05))
            ],
            0.001,
        ),
        "sets": table(sets),
        "mechanisms": table([{"metric": m, "value": number(m, v)} for m, v in numbers.items()], 0.01),
        "losses": table(losses),
    }


def verdicts(tables: dict[str, pd.DataFrame]) -> dict[str, str]:
    return {claim.id.partition(".")[2]: claim.verdict for claim in WhyBounce().claims(tables)}


def test_every_prediction_can_hold_and_can_fail() -> None:
    assert verdicts(made()) == dict.fromkeys((one.partition(".")[2] for one in STATEMENTS), "holds")
    shares = {f"{way}: {name}": 0.1 for way in ("brought", "frozen") for name in (
        QUERIES_KEYS, EMBEDDINGS, "MLP", "norms",
    )}  # fmt: skip
    failing = verdicts(
        made(
            **shares,
            **{HELD: -0.2, FORBIDDEN: -0.2, FORWARD: 0.2},
            scale=-0.2,
            noise=0.0001,
            rise_rare=0.1,
            mass_lost=-0.2,
        )
    )
    for name in (*PREDICTIONS, "held_costs", "forbidden_costs", "forward_saves"):
        assert failing[name] == "fails", name


def test_an_interval_on_both_sides_is_undecided() -> None:
    values = pd.Series([0.2, 0.9, 0.4, 0.7, 0.5])
    claim = _decide(
        STATEMENTS["why_bounce.scale"], values, 0.5, of="share", null=0.0, null_description="", evidence=""
    )
    assert claim.verdict == "not tested"
    assert "one cannot tell" in claim.evidence


def test_decoders_that_do_not_bounce_explain_nothing() -> None:
    tables = made()
    tables["curves"]["value"] = 2.0 - tables["curves"]["step"] / 500
    found = verdicts(tables)
    assert found.pop("bounces") != "holds"
    assert set(found.values()) == {"not tested"}


def test_no_judged_seed_is_one_that_settings_were_chosen_on() -> None:
    for preset in WhyBounce.presets:
        judged = WhyBounce.from_preset(preset)
        seeds = {seed for _, seed in judged.trainings()}
        assert len(seeds) >= 5
        assert not seeds & set(CHOSEN_ON)


def test_settings_that_leave_no_dip_are_refused() -> None:
    with pytest.raises(InputError, match="measure more often"):
        WhyBounce(steps=100)
    with pytest.raises(InputError, match="must have 'dip'"):
        WhyBounce(times=("before",))
