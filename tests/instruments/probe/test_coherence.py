from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

from joma.core.errors import InputError
from joma.instruments.probe.sections.coherence import representation_coherence
from joma.measures.coherence import random_absolute_cosine, random_largest_cosine
from probe_models import ENCODER_DECODERS, FAMILIES, FAST, IMAGES, tiny_batch, tiny_model


def text(rows: int = 5, length: int = 12) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(0)
    tokens = torch.randint(3, 12, (rows, length), generator=random)
    mask = torch.ones_like(tokens, dtype=torch.bool)
    mask[1, -4:] = False
    return tokens.masked_fill(~mask, 0), mask


def everything(family: str, tokens: Tensor, mask: Tensor) -> tuple[list[np.ndarray], np.ndarray]:
    """Hidden states before each layer and after the last, (occurrences, width), and the tokens."""
    model = tiny_model(family)
    kept = mask & (mask.cumsum(1) > 1)
    with torch.no_grad():
        seen = model(tokens, attention_mask=mask.long(), output_hidden_states=True).hidden_states
        states = [s[kept].double().numpy() for s in seen]
    return states, tokens[kept].numpy()


def value(table: pd.DataFrame, layer: Any, other: Any, pairs: str, centred: bool, metric: str) -> float:
    (layer, place), (other, other_place) = layer, other
    rows = table[
        (table["layer"] == layer)
        & (table["place"] == place)
        & (table["other_layer"] == other)
        & (table["other_place"] == other_place)
        & (table["pairs"] == pairs)
        & (table["centred"] == centred)
        & (table["metric"] == metric)
    ]
    assert len(rows) == 1
    return float(rows["value"].iloc[0])


@pytest.mark.parametrize("family", ["gpt2", "gpt_neox", "opt", "bert", "llama"])
def test_against_hidden_states_and_all_pairs(family: str) -> None:
    """With every occurrence drawn, nothing is left to chance."""
    tokens, mask = text()
    states, ids = everything(family, tokens, mask)
    # Two batches, as many occurrences as there are.
    batches = [(tokens[:2], mask[:2]), (tokens[2:], mask[2:])]
    table = representation_coherence(tiny_model(family), batches, tokens=99, occurrences=99)
    places = [(0, "input"), (1, "input"), (1, "output")]
    if family != "bert":
        states[-1] = _before_final_norm(family, tokens, mask)
    different = ids[:, None] != ids
    later = np.triu(np.ones_like(different), 1)
    for centred in (False, True):
        units = []
        for s in states:
            s = s - s.mean(0) if centred else s
            units.append(s / np.linalg.norm(s, axis=1, keepdims=True))
        for k, here in enumerate(places):
            within = units[k] @ units[k].T
            apart, same = within[different & later], within[~different & later]
            found = value(table, here, here, "different", centred, "mean_absolute_cosine")
            np.testing.assert_allclose(found, np.abs(apart).mean(), atol=2e-6)
            found = value(table, here, here, "different", centred, "largest_absolute_cosine")
            np.testing.assert_allclose(found, np.abs(apart).max(), atol=2e-6)
            found = value(table, here, here, "same_token", centred, "mean_cosine")
            np.testing.assert_allclose(found, same.mean(), atol=2e-6)
            for j in range(k):
                across = units[j] @ units[k].T
                other = places[j]
                found = value(table, here, other, "same_row", centred, "mean_cosine")
                np.testing.assert_allclose(found, np.diag(across).mean(), atol=2e-6)
                found = value(table, here, other, "different", centred, "mean_cosine")
                np.testing.assert_allclose(found, across[different].mean(), atol=2e-6)
                found = value(table, here, other, "same_token", centred, "root_mean_square_cosine")
                truth = across[~different & ~np.eye(len(ids), dtype=bool)]
                np.testing.assert_allclose(found, np.sqrt((truth**2).mean()), atol=2e-6)


def _before_final_norm(family: str, tokens: Tensor, mask: Tensor) -> np.ndarray:
    """transformers gives the last hidden state after the model's final norm."""
    model = tiny_model(family)
    name = {
        "gpt2": "ln_f",
        "gpt_neox": "final_layer_norm",
        "opt": "decoder.final_layer_norm",
        "llama": "norm",
    }[family]
    seen: list[Tensor] = []
    model.get_submodule(name).register_forward_pre_hook(lambda module, given: seen.append(given[0]))
    with torch.no_grad():
        model(tokens, attention_mask=mask.long())
    return seen[0][mask & (mask.cumsum(1) > 1)].double().numpy()


@pytest.mark.parametrize(
    "family",
    [
        pytest.param(family, marks=() if family in (*FAST, "albert") else pytest.mark.slow)
        for family in FAMILIES
        if family not in IMAGES
    ],
)
def test_families_and_the_model_stays_as_it_was(family: str) -> None:
    model = tiny_model(family)
    model.train()
    next(model.children()).eval()
    flags = [module.training for module in model.modules()]
    wanting = [parameter.requires_grad for parameter in model.parameters()]
    batch = tiny_batch(family, "right")
    batches = [(batch["input_ids"], batch["attention_mask"].bool())]
    table = representation_coherence(model, batches)
    assert flags == [module.training for module in model.modules()]
    assert wanting == [parameter.requires_grad for parameter in model.parameters()]
    assert all(p.grad is None for p in model.parameters())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert table["value"].notna().all()
    assert (table["value"].abs() <= 1).all()
    layers = table[table["place"] != "embedding"]
    assert set(layers["layer"]) == {0, 1}
    assert layers["stack"].nunique() == (2 if family in ENCODER_DECODERS else 1)
    pd.testing.assert_frame_equal(table, representation_coherence(model, batches))
    with pytest.raises(InputError, match="distinct"):
        representation_coherence(model, [(torch.full((2, 5), 4), torch.ones(2, 5, dtype=torch.bool))])
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_a_random_embedding_table_is_as_coherent_as_random_directions() -> None:
    model = tiny_model("gpt2")  # 64 random rows of width 32
    table = representation_coherence(model, [text()])
    rows = table[(table["place"] == "embedding") & ~table["centred"]].set_index("metric")
    assert (rows["count"] == 64 * 63 // 2).all()
    absolute = rows.loc["mean_absolute_cosine"]
    assert absolute["random"] == random_absolute_cosine(32)
    assert absolute["value"] == pytest.approx(absolute["random"], abs=5 * absolute["standard_error"])
    largest = rows.loc["largest_absolute_cosine"]
    assert largest["random"] == random_largest_cosine(32, 2016)
    assert largest["value"] == pytest.approx(largest["random"], rel=0.2)


def test_draws_are_limited_and_seeded() -> None:
    model, batches = tiny_model("llama"), [text()]
    table = representation_coherence(model, batches, tokens=4, occurrences=2, seed=1)
    rows = table[(table["pairs"] == "same_row") & (table["metric"] == "mean_cosine")]
    assert (rows["count"] <= 8).all()
    within = table[(table["place"] == "input") & (table["pairs"] == "same_token")]
    assert within["count"].max() <= 2 * 4  # ordered between layers
    other = representation_coherence(model, batches, tokens=4, occurrences=2, seed=2)
    assert not np.allclose(rows["value"], other.loc[rows.index, "value"])
    one = representation_coherence(model, batches, occurrences=1)
    assert "same_token" not in set(one["pairs"])


def test_chosen_layers() -> None:
    table = representation_coherence(tiny_model("llama"), [text()], layers=[1])
    assert set(table["place"]) == {"embedding", "input"}
    assert set(table["layer"].dropna()) == {1}


def test_bad_input() -> None:
    model, (tokens, mask) = tiny_model("llama"), text()
    broken = tiny_model("llama")
    with torch.no_grad():
        broken.layers[0].mlp.down_proj.weight[0, 0] = torch.nan
    for call, message in (
        (lambda: representation_coherence(model, []), "empty"),
        (lambda: representation_coherence(model, [(tokens, mask.long())]), "bool"),
        (lambda: representation_coherence(model, [(tokens + 60, mask)]), "vocabulary of 64"),
        (lambda: representation_coherence(model, [(tokens, mask)], layers=[2]), "no layer 2"),
        (lambda: representation_coherence(model, [(tokens, mask)], tokens=2), "tokens = 2"),
        (lambda: representation_coherence(model, [(tokens, mask)], occurrences=0), "occurrences = 0"),
        (lambda: representation_coherence(model, [(tokens, mask)], skip=20), "0 distinct"),
        (lambda: representation_coherence(broken, [(tokens, mask)]), "input of layer 1 holds NaN"),
        (lambda: representation_coherence(torch.nn.Linear(2, 2), [(tokens, mask)]), "no MLP"),
    ):
        with pytest.raises(InputError, match=message):
            call()
