from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from joma.core.errors import InputError
from joma.instruments.probe.sections.salience import token_salience
from joma.measures.salience import Context
from probe_models import ENCODER_DECODERS, FAMILIES, IMAGES, tiny_batch, tiny_model

KEY = ["layer", "query_token", "context_token"]


def language_model(family: str, **settings: Any) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(family, **{**FAMILIES[family], **settings})
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=0.2)
    return model.double().eval()


def text(seed: int = 0, rows: int = 6, length: int = 12) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(seed)
    tokens = torch.randint(3, 9, (rows, length), generator=random)
    mask = torch.ones_like(tokens, dtype=torch.bool)
    mask[1, -4:] = False
    return tokens.masked_fill(~mask, 0), mask


def dense_saliences(
    model: Any, upper: list[str], tokens: Tensor, mask: Tensor, query: int, window: int | None = None
) -> dict[tuple[int, int], np.ndarray]:
    """(layer, context token) -> Delta, by a perturbation added to every hidden neuron of every sequence."""
    sums: dict[tuple[int, int], np.ndarray] = {}
    samples = 0
    for row, kept in zip(tokens, mask, strict=True):
        ids = row[kept]
        added: dict[str, Tensor] = {}
        handles = []
        for name in upper:

            def add(
                module: nn.Module,
                given: tuple[Tensor],
                name: str = name,
                added: dict[str, Tensor] = added,
            ) -> tuple[Tensor]:
                added[name] = torch.zeros_like(given[0], requires_grad=True)
                return (given[0] + added[name],)

            handles.append(model.get_submodule(name).register_forward_pre_hook(add))
        logits = model(ids[None]).logits[0]
        for handle in handles:
            handle.remove()
        likelihood = torch.log_softmax(logits, -1)[torch.arange(len(ids) - 1), ids[1:]].sum()
        gradients = torch.autograd.grad(likelihood, [added[name] for name in upper])
        for p in range(1, len(ids) - 1):
            if ids[p] != query:
                continue
            seen = ids[max(0, p - window) if window else 0 : p].tolist()
            samples += 1
            for layer, gradient in enumerate(gradients):
                for token in set(seen):
                    share = seen.count(token) / len(seen)
                    key = layer, token
                    sums[key] = sums.get(key, 0.0) + share * gradient[0, p].numpy()
    return {key: value / samples for key, value in sums.items()}


@pytest.mark.parametrize(
    ("family", "upper"),
    [
        ("gpt2", "transformer.h.{}.mlp.c_proj"),
        ("gpt_neox", "gpt_neox.layers.{}.mlp.dense_4h_to_h"),
        ("llama", "model.layers.{}.mlp.down_proj"),
        ("mistral", "model.layers.{}.mlp.down_proj"),
    ],
)
def test_against_gradients_of_one_sequence_at_a_time(family: str, upper: str) -> None:
    model = language_model(family)
    tokens, mask = text()
    names = [upper.format(layer) for layer in range(2)]
    table = token_salience(
        model, [(tokens[:4], mask[:4]), (tokens[4:], mask[4:])], query_tokens=[4, 7], context_tokens=6
    )
    assert table["layer"].drop_duplicates().tolist() == [0, 1]
    for query in (4, 7):
        window = 3 if family == "mistral" else None
        truth = dense_saliences(model, names, tokens, mask, query, window)
        found = table[table["query_token"] == query].set_index(["layer", "context_token"])["salience"]
        assert len(found) >= len(truth)
        for key, delta in truth.items():
            np.testing.assert_allclose(found[key], np.linalg.norm(delta), rtol=1e-9, atol=1e-12)
        neuron = token_salience(
            model, [(tokens, mask)], query_tokens=[query], context_tokens=6, neurons=[5, 0], layers=[1]
        ).set_index(["context_token", "neuron"])["salience"]
        for (layer, token), delta in truth.items():
            if layer == 1:
                np.testing.assert_allclose(neuron[token, 5], delta[5], rtol=1e-9, atol=1e-12)
                np.testing.assert_allclose(neuron[token, 0], delta[0], rtol=1e-9, atol=1e-12)


def test_before_the_activation_the_gradient_has_its_slope() -> None:
    """One sequence, one query: Delta is the share times one gradient, on both sides of the activation."""
    model = language_model("gpt_neox", hidden_act="relu")
    tokens, mask = torch.tensor([[3, 5, 4, 6]]), torch.ones(1, 4, dtype=torch.bool)
    inputs: list[Tensor] = []
    lower = model.gpt_neox.layers[1].mlp.dense_h_to_4h
    with lower.register_forward_hook(lambda m, a, output: inputs.append(output[0, 2])):
        model(tokens)
    before, after = (
        token_salience(
            model,
            [(tokens, mask)],
            query_tokens=[4],
            context_tokens=[3],
            neurons=range(48),
            at=at,
            layers=[1],
        ).set_index("neuron")["salience"]
        for at in ("pre_activation", "activation")
    )
    slope = (inputs[0] > 0).double().numpy()
    assert 0 < slope.sum() < 48
    np.testing.assert_allclose(before, after.loc[before.index] * slope[before.index], atol=1e-15)
    assert before.abs().max() > 0


def test_in_gated_mlps_the_pre_activation_is_the_gates_also_in_one_matrix_with_the_lower() -> None:
    plain, fused = language_model("llama"), language_model("phi3")
    tokens, mask = text()
    for model, layers in ((plain, plain.model.layers), (fused, fused.model.layers)):
        table = token_salience(
            model, [(tokens, mask)], query_tokens=[4], context_tokens=[5], at="pre_activation", layers=[1]
        )
        mlp = layers[1].mlp
        gate = mlp.gate_proj if model is plain else mlp.gate_up_proj
        total, samples = torch.zeros(48, dtype=torch.float64), 0
        for row, kept in zip(tokens, mask, strict=True):
            ids, seen = row[kept], []
            with gate.register_forward_hook(lambda m, a, output, seen=seen: seen.append(output)):
                logits = model(ids[None]).logits[0]
            likelihood = torch.log_softmax(logits, -1)[torch.arange(len(ids) - 1), ids[1:]].sum()
            gradient = torch.autograd.grad(likelihood, seen[0])[0][0, :, :48]  # the gate comes first
            for p in range(1, len(ids) - 1):
                if ids[p] == 4:
                    samples += 1
                    total += gradient[p] * (ids[:p] == 5).double().mean()
        np.testing.assert_allclose(table["salience"], (total / samples).norm(), rtol=1e-9)


def test_distinct_tokens_are_salient_in_a_model() -> None:
    """The token after the query 3 is 4 or 5; 6 and 7 tell which, 8 to 11 do not."""
    random = np.random.default_rng(0)
    label = random.integers(0, 2, 400)
    tokens = random.integers(8, 12, (400, 14))
    tokens = np.where(random.random(tokens.shape) < 0.2, 6 + label[:, None], tokens)
    tokens[:, -2], tokens[:, -1] = 3, 4 + label
    model = language_model("gpt2")
    mask = torch.ones(400, 14, dtype=torch.bool)
    table = token_salience(
        model, [(torch.from_numpy(tokens), mask)], query_tokens=[3], context_tokens=range(6, 12), folds=10
    )
    for layer in (0, 1):
        # An untrained model expects 4 and 5 no more than other tokens, which common ones inherit from
        # E[g | m]; contrast leaves that out.
        found = table[table["layer"] == layer].set_index("context_token")
        distinct, common = found.loc[[6, 7]], found.loc[range(8, 12)]
        assert distinct["contrast"].min() > 4 * common["contrast"].max()
        assert (distinct["contrast"] > 5 * distinct["contrast_standard_error"]).all()
    last = table[table["layer"] == 1].set_index("context_token").loc[range(8, 12)]
    assert (last["salience"] > 10 * last["standard_error"]).all()


def test_left_padding_changes_nothing() -> None:
    model = language_model("llama")  # relative positions only
    tokens, mask = text()
    right = token_salience(model, [(tokens, mask)], query_tokens=[4, 7], context_tokens=4)
    shifted = torch.stack([row.roll(int((~kept).sum())) for row, kept in zip(tokens, mask, strict=True)])
    left = token_salience(model, [(shifted, mask.flip(1))], query_tokens=[4, 7], context_tokens=4)
    np.testing.assert_allclose(
        left.sort_values(KEY)["salience"], right.sort_values(KEY)["salience"], rtol=1e-6
    )


@pytest.mark.parametrize("family", ["gpt2", "gpt_neox", "opt", "bert", "t5", "albert", "qwen2", "gemma2"])
def test_any_transformer_with_a_loss_and_the_model_stays_as_it_was(family: str) -> None:
    model = tiny_model(family)
    model.train()
    next(model.children()).eval()
    frozen = next(model.parameters())
    frozen.requires_grad_(False)
    marked = list(model.parameters())[-1]
    marked.grad = torch.ones_like(marked)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    flags = [module.training for module in model.modules()]
    batch = tiny_batch(family, "right")
    batches = [(batch["input_ids"], batch["attention_mask"].bool())]

    def loss(output: Any, tokens: Tensor, mask: Tensor) -> Tensor:
        return (output.last_hidden_state[mask] ** 2).sum()

    def broken(output: Any, tokens: Tensor, mask: Tensor) -> Tensor:
        raise KeyError("broken")

    with torch.no_grad():
        table = token_salience(model, batches, loss=loss, query_tokens=3, context_tokens=5)
        with pytest.raises(KeyError):
            token_salience(model, batches, loss=broken)
        assert not torch.is_grad_enabled()
    with torch.inference_mode():
        again = token_salience(model, batches, loss=loss, query_tokens=3, context_tokens=5)
    pd.testing.assert_frame_equal(table, again)
    assert set(table["layer"]) == {0, 1}
    assert np.isfinite(table["salience"]).all()
    assert (table["salience"] > 0).any()
    assert flags == [module.training for module in model.modules()]
    assert [p.requires_grad for p in model.parameters() if p is not frozen] == [True] * (
        len(list(model.parameters())) - 1
    )
    assert not frozen.requires_grad
    assert all(p.grad is None for p in model.parameters() if p is not marked)
    assert bool((marked.grad == 1).all())
    assert all(bool((value == before[name]).all()) for name, value in model.state_dict().items())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


EXPERTS = ("mixtral", "qwen3_moe", "gpt_oss")


@pytest.mark.slow
@pytest.mark.parametrize("family", [f for f in FAMILIES if f not in IMAGES])
@pytest.mark.parametrize("at", ["activation", "pre_activation"])
def test_every_family(family: str, at: Any) -> None:
    batch = tiny_batch(family, "right")
    batches = [(batch["input_ids"], batch["attention_mask"].bool())]

    def loss(output: Any, tokens: Tensor, mask: Tensor) -> Tensor:
        return (output.last_hidden_state[mask] ** 2).sum()

    if family in EXPERTS:
        with pytest.raises(InputError, match="mixture"):
            token_salience(tiny_model(family), batches, loss=loss, at=at)
        return
    table = token_salience(tiny_model(family), batches, loss=loss, at=at, query_tokens=3)
    assert len(table["module"].unique()) == {"albert": 1}.get(family, 4 if family in ENCODER_DECODERS else 2)
    assert table.groupby(["layer", "module"])["salience"].max().gt(0).all()


class Plain(nn.Module):
    """joma's own decoder takes no padding mask and returns logits."""

    def __init__(self) -> None:
        super().__init__()
        from joma.models.decoder import Decoder

        self.model = Decoder(12, layers=2, width=16, hidden=24, dropout=0.2)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.model(tokens)


def test_jomas_own_decoder() -> None:
    torch.manual_seed(0)
    model = Plain()
    tokens = torch.randint(0, 12, (4, 10))
    mask = torch.ones_like(tokens, dtype=torch.bool)
    table = token_salience(model, [(tokens, mask)], query_tokens=2, context_tokens=3)
    assert len(table) == 2 * 2 * 3
    mask[0, -1] = False
    with pytest.raises(InputError, match="attention_mask"):
        token_salience(model, [(tokens, mask)])


def test_bad_input() -> None:
    model = language_model("llama")
    tokens, mask = text()
    batches = [(tokens, mask)]
    outside = tokens.clone()
    outside[2, 3] = 64
    broken = language_model("llama")
    with torch.no_grad():
        broken.model.layers[1].mlp.down_proj.weight[0, 0] = torch.nan
    constant = torch.full((2, 5), 4), torch.ones(2, 5, dtype=torch.bool)
    for call, message in (
        (lambda: token_salience(model, []), "empty"),
        (lambda: token_salience(model, [(tokens, torch.zeros_like(mask))]), "empty"),
        (lambda: token_salience(model, [(tokens.float(), mask)]), "int64"),
        (lambda: token_salience(model, [(tokens, mask.long())]), "bool"),
        (lambda: token_salience(model, [(outside, mask)]), r"token 64 .*row 2, position 3.*vocabulary of 64"),
        (lambda: token_salience(model, batches, layers=[5]), "no layer 5"),
        (lambda: token_salience(model, batches, layers=[]), "empty list"),
        (lambda: token_salience(model, batches, neurons=[48]), "neurons 0 to 47"),
        (lambda: token_salience(model, batches, query_tokens=[33]), "query token 33"),
        (lambda: token_salience(model, batches, at="output"), "at = 'output'"),
        (lambda: token_salience(model, [constant]), "repeats one token"),
        (lambda: token_salience(broken, batches), "NaN or infinity"),
        (lambda: token_salience(tiny_model("bert"), batches), "next-token loss means nothing"),
        (lambda: token_salience(tiny_model("llama"), batches), "without logits"),
        (lambda: token_salience(language_model("mixtral"), batches), "layer 0"),
        (lambda: token_salience(model, batches, loss=lambda *a: torch.zeros(())), "depends on the layers"),
        (
            lambda: token_salience(
                model, batches, loss=lambda o, t, m: F.mse_loss(o.logits, o.logits.detach()).item()
            ),
            "must be a tensor",
        ),
    ):
        with pytest.raises(InputError, match=message):
            call()


def test_context_can_be_given() -> None:
    model = language_model("gpt2")
    tokens, mask = text()
    narrow = token_salience(
        model, [(tokens, mask)], query_tokens=[4], context_tokens=[5], context=Context(window=1)
    )
    follows = (tokens[:, 1:-1] == 4) & mask[:, 1:-1] & mask[:, 2:]
    share = ((tokens[:, :-2] == 5) & follows).sum() / follows.sum()
    np.testing.assert_allclose(narrow["frequency"], share)
