from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from joma.core.errors import InputError
from joma.instruments.neurons.find import LayerContexts, NeuronContexts, find_neurons
from joma.instruments.neurons.scores import (
    choose_neurons,
    context_tables,
    layer_table,
    neuron_table,
    null_table,
    score_layers,
)
from joma.instruments.reading.anatomy import find_blocks
from joma.models.decoder import Decoder

pytest.importorskip("transformers")
from probe_models import FAMILIES, VOCABULARY, tiny_model

# With eager attentions to compare with, and an MLP without experts.
FAST = ("gpt2", "llama", "mistral", "gemma2", "opt", "gpt_neox", "bert")
SLOW = ("qwen3", "gptj", "gpt_neo", "codegen", "olmo2", "phi", "cohere", "bloom", "falcon", "roberta")


def batches(
    count: int = 3, batch: int = 4, length: int = 20, padded: bool = False
) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(5)
    result = []
    for _ in range(count):
        tokens = torch.randint(3, VOCABULARY, (batch, length), generator=generator)
        mask = torch.ones(batch, length, dtype=torch.bool)
        if padded:
            mask[-1, length - 6 :] = False
        result.append((tokens.masked_fill(~mask, 0), mask))
    return result


def activations_and_attentions(
    family: str, text: list[tuple[Tensor, Tensor]]
) -> tuple[list[Tensor], list[Tensor]]:
    """By eager attentions and hooks on the MLPs: per layer, (windows, length, neurons) and (.., keys)."""
    model = tiny_model(family, "eager")
    seen: dict[str, list[Tensor]] = {}
    blocks = find_blocks(model)
    for block in blocks:
        assert block.upper is not None

        def keep(module: nn.Module, args: Any, name: str = block.name) -> None:
            seen.setdefault(name, []).append(args[0].reshape(-1, 20, args[0].shape[-1]))

        model.get_submodule(block.upper).register_forward_pre_hook(keep)
    attentions: list[list[Tensor]] = []
    with torch.no_grad():
        for tokens, mask in text:
            out = model(tokens, attention_mask=mask.long(), output_attentions=True)
            attentions.append([a.float().mean(1) for a in out.attentions])
    per_layer = [torch.cat([batch[number] for batch in attentions]) for number in range(len(blocks))]
    return [torch.cat(seen[block.name]) for block in blocks], per_layer


def check_family(family: str, padded: bool) -> None:
    text = batches(padded=padded)
    activations, attentions = activations_and_attentions(family, text)
    found = find_neurons(tiny_model(family), text, top=5, attended=4, first_position=3)
    blocks = find_blocks(tiny_model(family))
    expected_layers = [b.layer for b in blocks if not (b.parallel and b.layer == 0)]
    assert [layer.layer for layer in found.layers] == expected_layers
    mask = torch.cat([m for _, m in text])
    usable = mask.clone()
    usable[:, :3] = False
    for layer in found.layers:
        own = activations[layer.layer].masked_fill(~usable[..., None], -torch.inf)
        # What the MLP reads: in parallel blocks, the layer before's.
        attention = attentions[layer.layer - blocks[layer.layer].parallel]
        largest = own.amax(dim=1)
        order = torch.sort(largest.T, dim=1, descending=True, stable=True)
        np.testing.assert_allclose(layer.activation, order.values[:, :5], rtol=2e-4, atol=2e-5)
        for neuron in range(0, len(layer.neurons), 7):
            for rank in range(5):
                window, query = int(layer.window[neuron, rank]), int(layer.position[neuron, rank])
                # Ties to within rounding may be in another order.
                assert own[window, query, neuron] == pytest.approx(
                    float(largest[window, neuron]), rel=2e-4, abs=2e-5
                )
                row = attention[window, query].clone()
                row[0] = row[query] = 0.0
                row[~mask[window]] = 0.0
                wanted = row.sort(descending=True).values[:4]
                np.testing.assert_allclose(layer.weight[neuron, rank], wanted, rtol=1e-3, atol=1e-6)
                places = layer.attended[neuron, rank]
                np.testing.assert_allclose(row[places], layer.weight[neuron, rank], rtol=1e-3, atol=1e-6)
    windows = torch.cat([t for t, _ in text])
    for number, tokens in found.windows.items():
        assert tokens.tolist() == windows[number, : int(mask[number].sum())].tolist()
    assert found.tokens == int(mask.sum())
    assert found.windows_read == 12


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("family", FAST)
def test_families_against_hooks_and_eager_attentions(family: str, padded: bool) -> None:
    check_family(family, padded)


@pytest.mark.slow
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("family", SLOW)
def test_more_families(family: str, padded: bool) -> None:
    check_family(family, padded)


def test_the_papers_decoder() -> None:
    torch.manual_seed(0)
    model = Decoder(VOCABULARY, layers=2, width=16, hidden=24, heads=2, longest=20).eval()
    observed: list[Tensor] = []
    text = batches()
    with torch.no_grad():
        model.hidden_states(text[0][0], lambda layer, attention: observed.append(attention.mean(1)))
    found = find_neurons(model, text[:1], top=2)
    assert [layer.attention for layer in found.layers] == ["layers.0", "layers.1"]
    layer = found.layers[1]
    row = observed[1][layer.window[3, 0], layer.position[3, 0]].clone()
    row[0] = row[layer.position[3, 0]] = 0.0
    np.testing.assert_allclose(layer.weight[3, 0], row.sort(descending=True).values[:8], rtol=1e-5)


def test_one_pass_over_an_iterator_and_the_model_as_it_was() -> None:
    model = tiny_model("llama")
    hooks = sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())

    def once() -> Iterator[tuple[Tensor, Tensor]]:
        yield from batches()

    found = find_neurons(model, once(), top=3)
    again = find_neurons(model, batches(), top=3)
    for one, other in zip(found.layers, again.layers, strict=True):
        np.testing.assert_array_equal(one.window, other.window)
        np.testing.assert_array_equal(one.activation, other.activation)
    assert hooks == sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


def test_special_tokens_are_neither_queries_nor_attended() -> None:
    text = batches()
    special = tuple(range(3, 20))
    found = find_neurons(tiny_model("llama"), text, top=4, special=special)
    windows = torch.cat([t for t, _ in text]).numpy()
    for layer in found.layers:
        there = layer.window >= 0
        queries = windows[layer.window[there], layer.position[there]]
        assert not np.isin(queries, special).any()
        attended = windows[layer.window[there][:, None], layer.attended[there]]
        assert not np.isin(attended[layer.weight[there] > 0], special).any()


def test_neurons_asked_for_are_those_of_a_whole_search() -> None:
    whole = find_neurons(tiny_model("llama"), batches(), top=3, layers=[1])
    some = find_neurons(tiny_model("llama"), batches(), top=3, layers=[1], neurons=[40, 7])
    assert [layer.layer for layer in some.layers] == [1]
    (one,) = some.layers
    assert one.neurons[one.asked].tolist() == [7, 40]
    # The layer has fewer neurons than are followed at least, so all are in the pool.
    assert one.neurons.tolist() == list(range(48))
    np.testing.assert_array_equal(one.window, whole.layers[0].window)
    scores = score_layers(some, smallest=2, null_scores=20)
    assert set(neuron_table(scores)["neuron"]) == {7, 40}


def test_memory_is_bounded_by_the_contexts_kept() -> None:
    torch.manual_seed(0)
    model = Decoder(VOCABULARY, layers=1, width=8, hidden=3, heads=1, longest=12).eval()
    text = batches(count=160, batch=64, length=12)
    found = find_neurons(model, text, top=5)
    assert found.windows_read == 160 * 64
    assert len(found.windows) <= 15


def test_bad_input() -> None:
    model = tiny_model("llama")
    with pytest.raises(InputError, match="no layer 7; its layers are 0 to 1"):
        find_neurons(model, batches(), layers=[7])
    with pytest.raises(InputError, match=r"no neuron 48 in layers\.0; its neurons are 0 to 47"):
        find_neurons(model, batches(), neurons=[3, 48])
    with pytest.raises(InputError, match="layers is empty"):
        find_neurons(model, batches(), layers=[])
    with pytest.raises(InputError, match="neurons is empty"):
        find_neurons(model, batches(), neurons=[])
    with pytest.raises(InputError, match="no batch"):
        find_neurons(model, [])
    with pytest.raises(InputError, match="no window has a token behind position 8"):
        find_neurons(model, batches(length=7))
    with pytest.raises(InputError, match="top = 0"):
        find_neurons(model, batches(), top=0)
    with pytest.raises(InputError, match="no MLP"):
        find_neurons(nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 9)), batches())
    with pytest.raises(InputError, match="experts"):
        find_neurons(tiny_model("mixtral"), batches())
    with pytest.raises(InputError, match="reads what attention reads"):
        find_neurons(tiny_model("gptj"), batches(), layers=[0, 1])
    with pytest.raises(InputError, match="12 windows, and two patterns of 7"):
        score_layers(find_neurons(model, batches()), smallest=7)


def test_overflow_is_told_with_its_place() -> None:
    model = tiny_model("llama")
    with torch.no_grad():
        model.layers[1].mlp.up_proj.weight[5] = torch.inf
        model.layers[1].mlp.gate_proj.weight[5] = 0.0
    with pytest.raises(InputError, match="layer 1: the activation of neuron 5 is NaN at position"):
        find_neurons(model, batches())
    assert not any(m._forward_pre_hooks for m in model.modules())


def planted(neurons: int = 60, top: int = 12, seed: int = 0) -> NeuronContexts:
    """Contexts made up: neuron 0 attends to tokens {1, 2} or {3, 4}, neuron 1 to {5, 6}, the rest to any."""
    random = np.random.default_rng(seed)
    windows = {
        number: np.concatenate([np.arange(8), random.integers(8, 300, 24)]).astype(np.int32)
        for number in range(40)
    }
    window = np.stack([random.permutation(40)[:top] for _ in range(neurons)])
    attended = np.stack([[random.permutation(24)[:4] + 8 for _ in range(top)] for _ in range(neurons)])
    for context in range(top):
        attended[0, context, :2] = [[1, 2], [3, 4]][context % 2]
        attended[1, context, :2] = [5, 6]
    layer = LayerContexts(
        layer=3,
        stack="",
        attention="attention",
        neurons=np.arange(neurons),
        asked=np.ones(neurons, dtype=bool),
        activation=np.sort(random.random((neurons, top)) + 0.1, axis=1)[:, ::-1].astype(np.float32),
        window=window,
        position=random.integers(8, 32, (neurons, top)),
        attended=attended,
        weight=np.tile([0.3, 0.25, 0.05, 0.02], (neurons, top, 1)),
    )
    return NeuronContexts([layer], windows, 40 * 32, 40)


def test_planted_neuron_is_found_among_the_others() -> None:
    found = planted()
    scores = score_layers(found)
    table = neuron_table(scores)
    wide = table.pivot(index="neuron", columns="metric", values="value")
    assert wide["superposition"].idxmax() == 0
    assert wide["q_value"][0] < 0.05
    assert wide["patterns"][0] == 2
    assert (wide["q_value"][1:] > 0.05).all()
    # One pattern: selective, and not in superposition.
    assert wide["similarity"].idxmax() == 1
    assert wide["similarity_p_value"][1] < 0.01
    assert wide["p_value"][1] > 0.05
    assert scores[0].found.pattern[0].tolist() == [0, 1] * 6
    null = null_table(scores)
    summary = layer_table(table, null).iloc[0]
    assert (summary["neurons"], summary["scored"]) == (60, 60)
    assert summary["share_q_below_5_percent"] == pytest.approx(1 / 60)
    contexts, tokens = context_tables(found, scores, choose_neurons(table, 1), lambda number: f" {number}")
    assert len(contexts) == 12
    assert contexts["text"][0].count("**") == 4  # half of the attention: the two planted tokens
    assert "**1** **2**" in contexts["text"][0]
    first = tokens[tokens["rank"] == 0]
    assert first["bold"].sum() == 2
    assert first["query"].sum() == 1
    assert first["weight"].max() == 0.3


def test_scores_are_the_same_with_the_same_seed_and_dead_neurons_have_none() -> None:
    found = planted()
    found.layers[0].activation[2, 3:] = -0.1
    one, other = (neuron_table(score_layers(found, seed=1)) for _ in range(2))
    assert one.equals(other)
    wide = one.pivot(index="neuron", columns="metric", values="value")
    assert np.isnan(wide["superposition"][2])
    assert np.isnan(wide["p_value"][2])
    assert wide["contexts"][2] == 3


def test_untrained_families_are_all_there() -> None:
    assert set(FAST + SLOW) <= set(FAMILIES)
