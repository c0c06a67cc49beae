from __future__ import annotations

import itertools
import math

import numpy as np
import pandas as pd
import pytest

from joma.core.errors import InputError
from joma.core.figures import style
from joma.core.progress import Progress
from joma.data.text import TokenText
from joma.experiments.scan_snap.snap_yz_layers import MODELS, SnapYzLayers
from joma.experiments.scan_snap.snap_yz_layers.ngram_losses import bigram_loss, unigram_loss

TINY = {
    "vocabulary_size": 12,
    "models": tuple(MODELS),
    "depths": (1, 2),
    "seeds": 2,
    "learning_rates": (1e-3, 1e-2),
    "steps": 4,
    "measure_every": 2,
    "batch": 3,
    "length": 5,
    "rank": 3,
    "width": 4,
    "windows": 4,
}


class InProcess(Progress):
    """Parts one after the other: a pool of processes costs more than these."""

    def parts(self, computations):
        return {name: compute(self) for name, compute in computations.items()}


@pytest.fixture(scope="module")
def tables():
    return SnapYzLayers(**TINY).run(InProcess(quiet=True))


def test_every_model_takes_its_best_rate_and_keeps_it_for_further_seeds(tables) -> None:
    losses = tables["losses"]
    cells = set(itertools.product(MODELS, (1, 2)))
    first = losses[losses["seed"] == 0]
    assert len(first) == 2 * len(cells)
    best = first.loc[first.groupby(["model", "depth"])["loss"].idxmin()]
    chosen = losses[losses["chosen"]]
    assert len(chosen) == 2 * len(cells)
    rates = best.set_index(["model", "depth"])["learning_rate"]
    for row in chosen.itertuples():
        assert row.learning_rate == rates[row.model, row.depth]
    held_out = tables["curves"].query("metric == 'validation_loss'")
    assert (losses.set_index("run")["loss"] == held_out.groupby("run")["value"].min()).all()
    assert not held_out["value"].isna().any()


def test_one_layer_from_identity_is_the_yz_model_itself(tables) -> None:
    one = tables["losses"].query("depth == 1 and seed == 0").set_index(["model", "learning_rate"])["loss"]
    assert (one["YZ"] == one["YZ, identity start"]).all()
    others = {model: one[model].iloc[0] for model in MODELS if model != "YZ, identity start"}
    assert len(set(others.values())) == len(others)


def made(
    means: dict[str, list[float]], spread: float = 0.01, still_falling: float = 0.0
) -> dict[str, pd.DataFrame]:
    """Tables in which two seeds of each model lie ``spread`` about the given losses of depths 1 ... 4."""
    rows = [
        {
            "run": f"{model} {depth} {seed}",
            "model": model,
            "depth": depth,
            "seed": seed,
            "learning_rate": 0.01,
            "loss": mean + spread * (2 * seed - 1),
            "last": mean + spread * (2 * seed - 1),
            "chosen": True,
        }
        for model, values in means.items()
        for depth, mean in enumerate(values, start=1)
        for seed in (0, 1)
    ]
    baselines = pd.DataFrame({"model": ["unigram", "bigram"], "value": [3.5, 3.2]})
    curves = [
        {"run": row["run"], "depth": row["depth"], "step": step, "metric": "validation_loss", "value": value}
        for row in rows
        for step, value in ((10, row["loss"] + still_falling), (20, row["loss"]))
    ]
    return {"losses": pd.DataFrame(rows), "curves": pd.DataFrame(curves), "baselines": baselines}


def verdicts(tables: dict[str, pd.DataFrame]) -> dict[str, str]:
    return {
        claim.id.removeprefix("snap_yz_layers."): claim.verdict for claim in SnapYzLayers().claims(tables)
    }


AS_THE_SLIDES_SAY = {
    "YZ": [3.0, 2.9, 2.9, 3.4],
    "YZ, no residual": [3.3, 3.2, 3.3, 3.6],
    "YZ, identity start": [3.0, 2.9, 2.9, 3.0],
    "YZ, low rank": [2.9, 2.8, 2.8, 3.1],
    "decoder": [2.5, 2.4, 2.4, 2.4],
}


def test_claims_hold_on_what_the_slides_say() -> None:
    found = verdicts(made(AS_THE_SLIDES_SAY))
    assert set(found.values()) == {"holds"}
    assert len(found) == 7


def test_claims_fail_where_nothing_differs_by_more_than_the_seeds_do() -> None:
    found = verdicts(made({model: [3.3, 3.3, 3.3, 3.31] for model in MODELS}))
    assert set(found.values()) == {"fails"}
    noisy = verdicts(made(AS_THE_SLIDES_SAY, spread=0.5))
    assert noisy["drops"] == noisy["residual"] == noisy["embedding"] == "fails"


def test_a_deep_model_that_still_learns_is_not_called_worse() -> None:
    assert verdicts(made(AS_THE_SLIDES_SAY, still_falling=0.1))["drops"] == "not tested"
    late = AS_THE_SLIDES_SAY | {"YZ": [3.0, 2.9, 3.3, 3.4]}
    assert verdicts(made(late, still_falling=0.1))["works_in_layers"] == "not tested"
    assert verdicts(made(late))["works_in_layers"] == "fails"
    level = AS_THE_SLIDES_SAY | {"YZ": [3.0, 2.9, 2.9, 2.9]}
    assert verdicts(made(level, still_falling=0.1))["drops"] == "fails"


def test_what_was_not_trained_is_not_tested() -> None:
    found = verdicts(made({"YZ": [3.0, 2.9]}))
    assert found.pop("works") == "holds"
    assert found.pop("works_in_layers") == "holds"
    assert set(found.values()) == {"not tested"}
    one_seed = made(AS_THE_SLIDES_SAY)
    one_seed["losses"] = one_seed["losses"].query("seed == 0")
    assert verdicts(one_seed)["drops"] == "not tested"


def test_unigram_and_bigram_losses_by_enumeration() -> None:
    random = np.random.default_rng(0)
    tokens = random.integers(0, 3, size=60)
    text = TokenText("made", tokens[:50], tokens[50:], ("a", "b", "c"))
    counts = [1 + int((text.training == word).sum()) for word in range(3)]
    share = [count / sum(counts) for count in counts]
    after = text.validation[1:].tolist()
    assert unigram_loss(text) == pytest.approx(
        -sum(math.log(share[b]) for b in after) / len(after), rel=1e-12
    )
    pairs = list(itertools.pairwise(text.training.tolist()))

    def loss(k: float) -> float:
        total = 0.0
        for a, b in itertools.pairwise(text.validation.tolist()):
            before = sum(first == a for first, _ in pairs)
            total -= math.log((pairs.count((a, b)) + k * share[b]) / (before + k))
        return total / len(after)

    candidates = [loss(k) for k in (1, 2, 5, 10, 20, 50, 100)]
    assert min(abs(bigram_loss(text) - value) for value in candidates) < 1e-12


def test_a_bigram_model_knows_what_follows_what() -> None:
    tokens = np.arange(3000) % 5
    text = TokenText("made", tokens[:2500], tokens[2500:], tuple("abcde"))
    assert unigram_loss(text) == pytest.approx(math.log(5), abs=1e-3)
    assert bigram_loss(text) < 0.02


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_figure_is_drawn(tables, theme: str) -> None:
    experiment = SnapYzLayers(**TINY)
    with style(theme):
        figure = experiment.draw(tables)
        figure.canvas.draw()
    assert len(figure.axes) == 2
    assert len(experiment.claims(tables)) == 7


def test_same_seed_same_tables_bit_for_bit() -> None:
    small = TINY | {"models": ("YZ",), "depths": (1,), "seeds": 1}
    one, two = (SnapYzLayers(**small).run(InProcess(quiet=True)) for _ in range(2))
    for name in one:
        pd.testing.assert_frame_equal(one[name], two[name], check_exact=True)


@pytest.mark.parametrize(
    "settings", [{"models": ()}, {"depths": (1, 1)}, {"models": ("YX",)}, {"learning_rates": (0.0,)}]
)
def test_bad_settings(settings: dict[str, object]) -> None:
    with pytest.raises(InputError, match=next(iter(settings))):
        SnapYzLayers(**settings)
