from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn.functional as F

import joma.training.loop as loop
from joma.core.errors import DivergenceError, InputError
from joma.core.progress import Progress
from joma.data.text import Batches, TokenText
from joma.models.decoder import Decoder
from joma.training.evaluation import HeldOutText
from joma.training.loop import Recipe, reproducible, train


@pytest.fixture
def text() -> TokenText:
    random = np.random.default_rng(0)
    tokens = np.cumsum(random.integers(1, 3, size=900)) % 17
    return TokenText("made", tokens[:700], tokens[700:], tuple(map(str, range(17))))


def run(
    text: TokenText,
    recipe: Recipe,
    *,
    progress: Progress | None = None,
    checkpoints: Path | None = None,
) -> tuple[pd.DataFrame, dict[str, torch.Tensor]]:
    held_out = HeldOutText(text, length=8)
    with reproducible(recipe.seed):
        model = Decoder(17, layers=2, width=8, hidden=8, dropout=0.2, longest=8)
        table = train(
            model,
            text,
            recipe,
            measure=held_out.measure,
            measure_at=range(0, recipe.steps + 1, 3),
            progress=progress,
            checkpoints=checkpoints,
        )
    return table, model.state_dict()


RECIPES = {
    "adam, random": Recipe(steps=20, learning_rate=3e-3, batch=4, length=8),
    "authors": Recipe(
        steps=50, learning_rate=3e-3, batch=4, length=8, order="sequential", restart_optimizer=True
    ),
    "sgd": Recipe(steps=20, learning_rate=0.5, optimizer="sgd", batch=4, length=8),
}


@pytest.mark.parametrize("name", RECIPES)
def test_equals_the_plain_loop_one_would_write(name: str, text: TokenText) -> None:
    recipe = RECIPES[name]
    _, ours = run(text, recipe)
    batches = Batches(text.training, recipe.batch, recipe.length, recipe.order, recipe.seed)
    with reproducible(recipe.seed):
        model = Decoder(17, layers=2, width=8, hidden=8, dropout=0.2, longest=8)

        def optimizer() -> torch.optim.Optimizer:
            if recipe.optimizer == "sgd":
                return torch.optim.SGD(model.parameters(), lr=recipe.learning_rate)
            return torch.optim.Adam(model.parameters(), lr=recipe.learning_rate)

        steps = optimizer()
        for step in range(recipe.steps):
            if recipe.restart_optimizer and step % batches.per_epoch == 0:
                steps = optimizer()
            inputs, targets = batches[step]
            steps.zero_grad()
            F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten()).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            steps.step()
    # Logits rather than weights: the keys' bias has no effect and a gradient of pure rounding, which
    # Adam scales to full steps.
    plain = model.eval()(inputs)
    model.load_state_dict(ours)
    torch.testing.assert_close(model(inputs), plain, rtol=1e-3, atol=2e-4)


@pytest.mark.parametrize("name", ["adam, random", "sgd"])
def test_queries_and_keys_learn_at_a_rate_of_their_own(name: str, text: TokenText) -> None:
    """Beside PyTorch's parameter groups, W_Q and W_K split off the projection that holds them with W_V."""
    recipe = dataclasses.replace(RECIPES[name], attention_ratio=5.0)
    _, ours = run(text, recipe)
    batches = Batches(text.training, recipe.batch, recipe.length, recipe.order, recipe.seed)
    with reproducible(recipe.seed):
        model = Decoder(17, layers=2, width=8, hidden=8, dropout=0.2, longest=8)
        free = {key: value.detach().clone().requires_grad_() for key, value in model.named_parameters()}
        fast = {}
        for key in [key for key in free if "in_projection" in key]:
            whole = free[key].detach()
            fast[key] = whole[:16].clone().requires_grad_()
            free[key] = whole[16:].clone().requires_grad_()

        def joined() -> dict[str, torch.Tensor]:
            return {k: torch.cat([fast[k], v]) if k in fast else v for k, v in free.items()}

        kind = torch.optim.SGD if recipe.optimizer == "sgd" else torch.optim.Adam
        rates = [recipe.learning_rate, 5.0 * recipe.learning_rate]
        groups = [
            {"params": list(parts.values()), "lr": rate}
            for parts, rate in zip((free, fast), rates, strict=True)
        ]
        steps = kind(groups)
        for step in range(recipe.steps):
            inputs, targets = batches[step]
            steps.zero_grad()
            logits = torch.func.functional_call(model, joined(), (inputs,))
            F.cross_entropy(logits.flatten(0, 1), targets.flatten()).backward()
            torch.nn.utils.clip_grad_norm_([*free.values(), *fast.values()], 0.5)
            steps.step()
        model.load_state_dict(joined(), strict=True)
    plain = model.eval()(inputs)
    model.load_state_dict(ours)
    torch.testing.assert_close(model(inputs), plain, rtol=1e-3, atol=2e-4)
    model.load_state_dict(run(text, RECIPES[name])[1])
    assert (model(inputs) - plain).abs().max() > 1e-2


class Killed(Exception):
    pass


class KilledAt(Progress):
    """Stops the loop at a step, as a kill would: nothing after the last checkpoint is left."""

    def __init__(self, step: int) -> None:
        super().__init__(quiet=True)
        self.step = step

    def track(self, items: Iterable[Any], label: str, **kwargs: Any) -> Iterator[Any]:
        for item in items:
            if item == self.step:
                raise Killed
            yield item


@pytest.mark.parametrize("name", RECIPES)
def test_a_killed_run_continues_to_the_same_table_bit_for_bit(
    name: str, text: TokenText, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "SECONDS_BETWEEN_CHECKPOINTS", 0.0)
    recipe = RECIPES[name]
    table, weights = run(text, recipe)
    for step in (1, 2, 9, 10, 18):
        with pytest.raises(Killed):
            run(text, recipe, progress=KilledAt(step), checkpoints=tmp_path)
    resumed, resumed_weights = run(text, recipe, checkpoints=tmp_path)
    pd.testing.assert_frame_equal(resumed, table, check_exact=True)
    assert all(torch.equal(weights[key], resumed_weights[key]) for key in weights)


def test_the_result_does_not_depend_on_threads_or_the_global_seed(text: TokenText) -> None:
    table, _ = run(text, RECIPES["adam, random"])
    threads = torch.get_num_threads()
    torch.manual_seed(99)
    torch.set_num_threads(2)
    before = torch.get_rng_state()
    try:
        again, _ = run(text, RECIPES["adam, random"])
        assert torch.get_num_threads() == 2
        assert torch.equal(torch.get_rng_state(), before)
    finally:
        torch.set_num_threads(threads)
    pd.testing.assert_frame_equal(again, table, check_exact=True)


def test_divergence_keeps_what_was_measured(text: TokenText) -> None:
    recipe = Recipe(steps=500, learning_rate=1e35, batch=4, length=8)
    with pytest.raises(
        DivergenceError, match=r"the loss became (nan|inf) at step \d+ .*lower the learning rate"
    ) as caught:
        run(text, recipe)
    assert caught.value.table is not None
    assert set(caught.value.table["step"]) >= {0}


def test_bad_recipes() -> None:
    with pytest.raises(InputError, match="optimizer 'adamw'"):
        Recipe(steps=1, learning_rate=1.0, optimizer="adamw")
    with pytest.raises(InputError, match="learning_rate = 0"):
        Recipe(steps=1, learning_rate=0)


DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU is here")),
]


def on(device: str, text: TokenText, recipe: Recipe, checkpoints: Path | None = None) -> pd.DataFrame:
    held_out = HeldOutText(text, length=8, device=device)
    with reproducible(recipe.seed):
        model = Decoder(17, layers=2, width=8, hidden=8, dropout=0.0, longest=8).to(device)
        return train(
            model,
            text,
            recipe,
            measure=held_out.measure,
            measure_at=range(0, 61, 20),
            checkpoints=checkpoints,
        )


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("autocast", [False, True])
def test_every_device_and_precision_learns_the_same(text: TokenText, device: str, autocast: bool) -> None:
    """To the rounding of its products: bfloat16 has eight bits."""
    recipe = Recipe(steps=60, learning_rate=3e-3, batch=4, length=8, autocast=autocast)
    found, plain = (
        on(device, text, recipe),
        on("cpu", text, Recipe(steps=60, learning_rate=3e-3, batch=4, length=8)),
    )
    np.testing.assert_allclose(found["value"], plain["value"], rtol=0.05 if autocast else 1e-3)
    loss = found[found["metric"] == "validation_loss"]["value"]
    assert loss.iloc[-1] < loss.iloc[0] - 0.3
    assert autocast == (not np.allclose(found["value"], plain["value"], rtol=1e-5)) or device == "cuda"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU is here")
def test_a_training_on_a_gpu_continues_from_its_checkpoint(
    text: TokenText, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "SECONDS_BETWEEN_CHECKPOINTS", 0.0)
    recipe = Recipe(steps=60, learning_rate=3e-3, batch=4, length=8)
    whole = on("cuda", text, recipe, tmp_path)
    assert (tmp_path / "state.safetensors").exists()
    pd.testing.assert_frame_equal(on("cuda", text, recipe, tmp_path), whole)
