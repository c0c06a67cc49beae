from __future__ import annotations

import dataclasses
import functools
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from torch.nn import functional as F

from joma.core.errors import DivergenceError, InputError
from joma.data.hierarchy import draw_hierarchy
from joma.models.hierarchy import HierarchyNetwork
from joma.training.distinct import (
    DistinctRecipe,
    draw_classes,
    draw_counts,
    fold_padding,
    train_distinct,
    train_together,
    weighted_loss,
)
from joma.training.loop import reproducible


def network_and_tokens(causal: bool = False, children: int = 2) -> tuple[HierarchyNetwork, torch.Tensor]:
    drawn = draw_hierarchy(
        classes=12, latents=(8, 10), children=children, vocabulary_size=20, random=np.random.default_rng(3)
    )
    torch.manual_seed(0)
    network = HierarchyNetwork(20, 12, layers=3, width=16, heads=2, causal=causal).double()
    return network, torch.from_numpy(drawn.sequences())


def plain_gradient(
    network: HierarchyNetwork, tokens: torch.Tensor, classes: torch.Tensor
) -> list[torch.Tensor]:
    """The batch as sampled: every repeated sequence, every padding position, every output position."""
    loss = F.cross_entropy(network(tokens[classes], shortened=False), classes)
    return list(torch.autograd.grad(loss, list(network.parameters())))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("lengths", ["equal", "ragged", "full"])
def test_the_gradient_is_the_sampled_batchs(causal: bool, lengths: str) -> None:
    network, tokens = network_and_tokens(causal)
    if lengths == "ragged":
        for row in range(12):
            tokens[row, : 22 + row % 7] = 20
    if lengths == "full":
        tokens[0] = torch.arange(30) % 20
    classes = draw_classes(12, 16, torch.Generator().manual_seed(5))
    counts = draw_counts(12, 16, torch.Generator().manual_seed(5))
    assert (counts == 0).any()
    assert counts.max() > 1
    sequences = fold_padding(tokens, 20, dtype=torch.float64)
    assert sequences.tokens.shape[1] == (30 if lengths == "full" else 9)
    loss = weighted_loss(network, sequences, counts)
    ours = torch.autograd.grad(loss, list(network.parameters()))
    plain = plain_gradient(network, tokens, classes)
    scale = max(g.abs().max().item() for g in plain)
    assert scale > 1e-3
    assert max((a - b).abs().max().item() for a, b in zip(ours, plain, strict=True)) <= 1e-12 * max(scale, 1)


def test_counts_are_those_of_the_batches_one_after_the_other() -> None:
    ours, batches = torch.Generator().manual_seed(1), torch.Generator().manual_seed(1)
    for _ in range(5):
        expected = torch.bincount(torch.randint(9, (50,), generator=batches), minlength=9)
        assert torch.equal(draw_counts(9, 50, ours), expected)


def test_training_is_adam_on_the_sampled_batches() -> None:
    network, tokens = network_and_tokens()
    reference, _ = network_and_tokens()
    recipe = DistinctRecipe(steps=20, learning_rate=1e-3, weight_decay=1e-2, batch=16, seed=7)
    train_distinct(network, tokens, 20, recipe, measure=lambda n, s: [], measure_at=frozenset())
    adam = torch.optim.Adam(reference.parameters(), lr=1e-3, weight_decay=1e-2)
    generator = torch.Generator().manual_seed(7)
    for _ in range(20):
        classes = torch.randint(12, (16,), generator=generator)
        adam.zero_grad()
        F.cross_entropy(reference(tokens[classes]), classes).backward()
        adam.step()
    for ours, theirs in zip(network.parameters(), reference.parameters(), strict=True):
        # Adam divides by the gradient's size, so components of 1e-16 grow where both are zero but for
        # rounding (the key bias cannot matter); elsewhere the runs agree.
        if ours is not network.embedding.weight and ours.shape != (48,):
            torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-8)


def several() -> tuple[list[HierarchyNetwork], list[torch.Tensor]]:
    """Three networks of different weights, each with a hierarchy of its own."""
    networks, tokens = [], []
    for seed in range(3):
        drawn = draw_hierarchy(
            classes=12, latents=(8, 10), children=2, vocabulary_size=20, random=np.random.default_rng(seed)
        )
        torch.manual_seed(seed)
        networks.append(HierarchyNetwork(20, 12, layers=3, width=16, heads=2).double())
        tokens.append(torch.from_numpy(drawn.sequences()))
    return networks, tokens


def weight_sums(number: int, network: HierarchyNetwork, step: int) -> list[dict[str, float]]:
    return [{"number": number, "step": step, "value": network.output.weight.sum().item()}]


def test_networks_trained_together_go_the_way_each_goes_alone() -> None:
    recipe = DistinctRecipe(steps=20, learning_rate=1e-3, weight_decay=1e-2, batch=16)
    at = frozenset({0, 7, 20})
    networks, tokens = several()
    together = train_together(networks, tokens, 20, recipe, [5, 6, 7], measure=weight_sums, measure_at=at)
    alone, _ = several()
    for number, network in enumerate(alone):
        table = train_distinct(
            network,
            tokens[number],
            20,
            dataclasses.replace(recipe, seed=5 + number),
            measure=functools.partial(weight_sums, number),
            measure_at=at,
        )
        mine = together[together["number"] == number].reset_index(drop=True)
        pd.testing.assert_frame_equal(mine, table, rtol=1e-6)
        assert table["value"].nunique() == 3
        for (name, ours), theirs in zip(
            networks[number].named_parameters(), network.parameters(), strict=True
        ):
            if name != "embedding.weight" and "in_projection.bias" not in name:  # see above
                torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-8)


def test_a_stopped_joint_training_continues_to_the_same_table(tmp_path: Path) -> None:
    recipe = DistinctRecipe(steps=12, learning_rate=1e-2, batch=16)

    def run(folder: Path | None, stop_at: int | None = None) -> pd.DataFrame:
        def measure(number: int, network: HierarchyNetwork, step: int) -> list[dict[str, float]]:
            if step == stop_at:
                raise KeyboardInterrupt
            return weight_sums(number, network, step)

        networks, tokens = several()
        return train_together(
            networks,
            tokens,
            20,
            recipe,
            [1, 2, 3],
            measure=measure,
            measure_at=frozenset(range(13)),
            checkpoints=folder,
            checkpoint_every=3,
        )

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, stop_at=8)
    pd.testing.assert_frame_equal(run(tmp_path), run(None), check_exact=True)


def test_a_stopped_training_continues_to_the_same_table(tmp_path: Path) -> None:
    recipe = DistinctRecipe(steps=12, learning_rate=1e-2, batch=16)
    calls = 0

    def measure(network: HierarchyNetwork, step: int) -> list[dict[str, float]]:
        nonlocal calls
        calls += 1
        if calls == stop_at:
            raise KeyboardInterrupt
        return [{"step": step, "value": network.output.weight.sum().item()}]

    def run(folder: Path | None) -> pd.DataFrame:
        with reproducible(0):
            network, tokens = network_and_tokens()
            return train_distinct(
                network,
                tokens,
                20,
                recipe,
                measure=measure,
                measure_at=frozenset(range(13)),
                checkpoints=folder,
                checkpoint_every=3,
            )

    stop_at = -1
    whole = run(None)
    calls, stop_at = 0, 9
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path)
    calls, stop_at = 0, -1
    pd.testing.assert_frame_equal(run(tmp_path), whole, check_exact=True)
    assert calls == 13 - 6


def test_bad_input() -> None:
    with pytest.raises(InputError, match="stands behind a token"):
        fold_padding(torch.tensor([[1, 9, 2]]), 9)
    with pytest.raises(InputError, match="fills a row"):
        fold_padding(torch.tensor([[9, 9, 9]]), 9)
    with pytest.raises(InputError, match=r"give \(rows, positions\)"):
        fold_padding(torch.tensor([1, 2]), 9)
    network, tokens = network_and_tokens()
    with torch.no_grad():
        network.output.weight.fill_(float("nan"))
    with pytest.raises(DivergenceError, match="at step 0"):
        train_distinct(
            network, tokens, 20, DistinctRecipe(steps=1), measure=lambda n, s: [], measure_at=frozenset()
        )
    networks, sequences = several()
    with pytest.raises(InputError, match="3 networks, 3 sets of sequences and 2 seeds"):
        train_together(
            networks,
            sequences,
            20,
            DistinctRecipe(steps=1),
            [0, 1],
            measure=weight_sums,
            measure_at=frozenset(),
        )
    with torch.no_grad():
        networks[1].output.weight.fill_(float("nan"))
    with pytest.raises(DivergenceError, match="nan at step 0"):
        train_together(
            networks,
            sequences,
            20,
            DistinctRecipe(steps=1),
            [0, 1, 2],
            measure=weight_sums,
            measure_at=frozenset(),
        )
