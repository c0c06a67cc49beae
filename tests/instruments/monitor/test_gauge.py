"""ln sigma_1 of W_Q^T W_K between looks: whose heads, and what it is by a dense decomposition."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from joma.core.errors import InputError
from joma.instruments.monitor.measuring.gauge import READ_EVERY, Gauge
from joma.instruments.monitor.measuring.products import AttentionPlace, find_products
from joma.instruments.monitor.monitor import Monitor
from joma.measures.ranks.head_products import first_vectors, follow_norms
from joma.models.decoder import Decoder

transformers = pytest.importorskip("transformers")


def by_svd(query: Tensor, key: Tensor) -> np.ndarray:
    """sigma_1 of each head's product, in float64."""
    shared = len(query) // len(key)
    return np.array(
        [
            float(torch.linalg.svdvals(query[head].double().T @ key[head // shared].double())[0])
            for head in range(len(query))
        ]
    )


def weights(key_heads: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    draw = lambda heads: torch.randn(heads, 5, 12, generator=generator)  # noqa: E731
    return draw(4), draw(key_heads)


@pytest.mark.parametrize("key_heads", [4, 2, 1])
def test_norms_are_those_of_a_dense_decomposition(key_heads: int) -> None:
    query, key = weights(key_heads)
    vectors = first_vectors(query.double(), key.double())
    for _ in range(200):
        norms, vectors = follow_norms(query.double(), key.double(), vectors)
    assert np.allclose(norms.numpy(), by_svd(query, key), rtol=1e-6)


def test_a_warm_start_follows_weights_that_move() -> None:
    query, key = weights(2)
    vectors = first_vectors(query, key)
    generator = torch.Generator().manual_seed(1)
    direction = torch.randn(5, 1, generator=generator) @ torch.randn(1, 12, generator=generator)
    for step in range(60):
        query[3] += 0.002 * 1.1**step * direction
        norms, vectors = follow_norms(query, key, vectors)
        true = by_svd(query, key)
        assert (norms.numpy() <= true * (1 + 1e-5)).all()
        if step >= 40:  # the new direction leads by then
            assert np.allclose(norms.numpy(), true, rtol=0.02)


def test_what_is_broken_has_no_norm_and_comes_back() -> None:
    query, key = weights(4)
    vectors = first_vectors(query, key)
    broken = query.clone()
    broken[1], broken[2] = torch.nan, 0.0
    norms, after = follow_norms(broken, key, vectors)
    assert torch.isfinite(norms).tolist() == [True, False, True, True] or torch.isnan(norms[1])
    assert torch.equal(after[1], vectors[1])
    assert torch.equal(after[2], vectors[2])
    norms, _ = follow_norms(query, key, after)
    assert torch.isfinite(norms).all()
    with pytest.raises(InputError, match="whole number of query heads"):
        first_vectors(query, key[:3])


def llama(key_heads: int = 2) -> nn.Module:
    config = transformers.LlamaConfig(
        vocab_size=17,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=key_heads,
        intermediate_size=24,
        max_position_embeddings=16,
    )
    torch.manual_seed(0)
    model: nn.Module = transformers.LlamaForCausalLM(config)
    return model


def gpt2() -> nn.Module:
    config = transformers.GPT2Config(vocab_size=17, n_embd=16, n_layer=2, n_head=4, n_positions=16)
    torch.manual_seed(0)
    model: nn.Module = transformers.GPT2LMHeadModel(config)
    return model


def neox() -> nn.Module:
    config = transformers.GPTNeoXConfig(
        vocab_size=17,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=16,
        max_position_embeddings=16,
    )
    torch.manual_seed(0)
    model: nn.Module = transformers.GPTNeoXForCausalLM(config)
    return model


def truth(model: nn.Module) -> dict[tuple[int, int], float]:
    """(layer, head) -> ln sigma_1, from the weights by the layouts that the families document."""
    found = {}
    for number, layer in enumerate(
        model.gpt_neox.layers
        if hasattr(model, "gpt_neox")
        else model.transformer.h
        if hasattr(model, "transformer")
        else model.model.layers
    ):
        if hasattr(layer, "attention"):
            query, key = layer.attention.query_key_value.weight.view(4, 3, 4, 16)[:, :2].unbind(1)
        elif hasattr(layer, "attn"):
            query, key = (part.T.reshape(4, 4, 16) for part in layer.attn.c_attn.weight.split(16, 1)[:2])
        else:
            query = layer.self_attn.q_proj.weight.view(4, 4, 16)
            key = layer.self_attn.k_proj.weight.view(-1, 4, 16)
        for head, norm in enumerate(by_svd(query.detach(), key.detach())):
            found[number, head] = float(np.log(norm))
    return found


@pytest.mark.parametrize("make", [llama, gpt2, neox])
def test_a_monitor_keeps_them_for_each_head_of_each_layer(make) -> None:
    model = make().train()
    with Monitor(model, every=10, ranks_every=None) as monitor:
        for step in range(21):
            loss = model(input_ids=torch.arange(8)[None], labels=torch.arange(8)[None]).loss
            monitor.step(step, loss=loss.detach())
    table = monitor.table().query("metric == 'log_spectral_norm'")
    # The first look, at step 0, tells which attentions there are.
    assert sorted(table["step"].unique()) == list(range(READ_EVERY, 21, READ_EVERY))
    last = table[table["step"] == 20].set_index(["layer", "head"])["value"].to_dict()
    expected = truth(model)
    assert last.keys() == expected.keys()
    assert all(last[place] == pytest.approx(expected[place], abs=5e-3) for place in expected)


def test_modules_of_torch_and_of_joma_are_found() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    decoder = Decoder(31, layers=2, width=16, hidden=16, heads=2, dropout=0.0, longest=12)
    for model, batch in ((encoder, torch.randn(2, 6, 8)), (decoder, torch.randint(31, (2, 6)))):
        monitor = Monitor(model.train(), every=5, ranks_every=None)
        with monitor:
            for step in range(6):
                monitor.step(step, loss=model(batch).float().mean().detach())
        table = monitor.table().query("metric == 'log_spectral_norm'")
        assert len(table) == 4
        assert table["value"].notna().all()


def test_what_has_no_plain_queries_and_keys_is_said(caplog: pytest.LogCaptureFixture) -> None:
    model = llama()
    parametrizations.weight_norm(model.model.layers[1].self_attn.q_proj)
    with (
        caplog.at_level(logging.WARNING, logger="joma"),
        Monitor(model.train(), every=5, ranks_every=None) as monitor,
    ):
        for step in range(6):
            loss = model(input_ids=torch.arange(8)[None], labels=torch.arange(8)[None]).loss
            monitor.step(step, loss=loss.detach())
    (line,) = [record.getMessage() for record in caplog.records if "sigma_1" in record.getMessage()]
    assert "1 of 2 attentions, first model.layers.1.self_attn" in line
    assert "computed from other weights" in line
    assert set(monitor.table().query("metric == 'log_spectral_norm'")["layer"]) == {0}


def test_the_model_is_left_as_it_is_and_copies_are_followed() -> None:
    model = llama()
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    places = [AttentionPlace("", n, f"model.layers.{n}.self_attn", 4) for n in range(2)]
    products, reasons = find_products(model, places, [])
    assert not reasons
    gauge = Gauge(model, [], products, searched=True)
    gauge.read(0)
    model.model.layers[0].self_attn.q_proj.weight = nn.Parameter(
        4 * model.model.layers[0].self_attn.q_proj.weight.detach()
    )
    gauge.read(5)
    (_, first), (_, second) = gauge.take()
    assert np.allclose(second[:4] - first[:4], np.log(4), atol=0.05)
    assert np.allclose(second[4:], first[4:], atol=0.05)
    changed = {n for n, w in model.state_dict().items() if not torch.equal(w, before[n])}
    assert changed == {"model.layers.0.self_attn.q_proj.weight"}


def test_heads_that_do_not_fit_are_no_heads() -> None:
    products, reasons = find_products(llama(), [AttentionPlace("", 0, "model.layers.0.self_attn", 3)], [])
    assert not products
    assert "are not those of 3 heads" in reasons["model.layers.0.self_attn"]
    _, reasons = find_products(nn.Linear(2, 2), [AttentionPlace("", 0, "", 1)], [])
    assert "no rule tells which weights" in reasons[""]
