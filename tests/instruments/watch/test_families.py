"""Families of transformers: their entropies against eager attentions, padded on either side."""

from __future__ import annotations

import numpy as np
import pytest
import torch

pytest.importorskip("transformers")

from torch import Tensor

from joma.instruments.watch.watch import Watch, watch
from probe_models import (
    BY_SOFTMAX_ONLY,
    ENCODER_DECODERS,
    FAMILIES,
    FAST,
    IMAGES,
    eager_entropies,
    tiny_batch,
    tiny_model,
)

CASES = [
    pytest.param(family, padding, marks=() if family in FAST else pytest.mark.slow, id=f"{family}-{padding}")
    for family in FAMILIES
    for padding in (("none",) if family in IMAGES else ("none", "left", "right"))
]


def measured_entropies(family: str, seen: Watch) -> dict[str, Tensor]:
    table = seen.table()
    modules = [
        (name, torch.tensor(group.sort_values("head")["value"].to_numpy()))
        for (name, _), group in table.groupby(["module", "call"], sort=False)
    ]
    if family not in ENCODER_DECODERS:
        return {"self": torch.stack([values for _, values in modules])}
    decoder = [values for name, values in modules if name.startswith("decoder")]
    return {
        "encoder": torch.stack([values for name, values in modules if name.startswith("encoder")]),
        "decoder": torch.stack(decoder[::2]),
        "cross": torch.stack(decoder[1::2]),
    }


@pytest.mark.parametrize(("family", "padding"), CASES)
def test_family_matches_its_eager_attentions(family: str, padding: str) -> None:
    batch = tiny_batch(family, padding)
    truth = eager_entropies(family, batch)
    model = tiny_model(family)
    # Eager attentions do not show the sink's share.
    statistic = "entropy_among_keys" if family == "gpt_oss" else "entropy"
    with torch.no_grad():
        plain = model(**batch)[0]
        with watch(model, statistics=(statistic,)) as seen:
            watched = model(**batch)[0]
    assert torch.equal(plain, watched)
    measured = measured_entropies(family, seen)
    for kind, expected in truth.items():
        torch.testing.assert_close(measured[kind], expected, atol=3e-6, rtol=0)
    coverage = seen.coverage()
    coverage = coverage[coverage["status"] != "no attention"]  # routers
    assert (coverage["status"] == "measured").all()
    if family == "gpt_oss" or family not in {*BY_SOFTMAX_ONLY, "mpnet"}:
        assert (coverage["route"] == "registry").all()


def test_thirty_families_are_tested() -> None:
    assert len(FAMILIES) >= 30
    assert len(FAST) >= 10


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_window_and_group_rows_one_by_one(family: str) -> None:
    """Row by row against the eager attentions, where a mean could hide a shifted window."""
    batch = tiny_batch(family, "none", length=24)
    with torch.no_grad():
        attentions = tiny_model(family, "eager")(**batch, output_attentions=True).attentions
        with watch(model := tiny_model(family), reduce="none") as seen:
            model(**batch)
    table = seen.table().sort_values(["layer", "sample", "head", "position"])
    expected = torch.special.entr(torch.stack(attentions).double()).sum(-1)
    assert torch.allclose(torch.tensor(table["value"].to_numpy()), expected.flatten(), atol=3e-6)


def test_sliding_window_shows_one_two_three_w_w_keys() -> None:
    """Equal scores: the effective support is the number of visible keys (transformers#29623)."""
    model = tiny_model("mistral")
    with torch.no_grad():
        for layer in model.layers:
            layer.self_attn.q_proj.weight.zero_()
        with watch(model, statistics=["effective_support"], reduce="position") as seen:
            model(**tiny_batch("mistral", length=20))
    table = seen.table()
    assert table["value"].tolist() == pytest.approx([1.0, 2.0, 3.0, *[4.0] * 17] * 8)


def test_cached_decoding_is_the_last_rows_of_one_pass() -> None:
    model = tiny_model("qwen2")
    tokens = tiny_batch("qwen2", length=12)["input_ids"]
    with torch.no_grad():
        with watch(model, reduce="none") as whole:
            model(input_ids=tokens)
        with watch(model, reduce="none") as steps:
            cache = model(input_ids=tokens[:, :9], use_cache=True).past_key_values
            for at in range(9, 12):
                cache = model(
                    input_ids=tokens[:, at : at + 1], past_key_values=cache, use_cache=True
                ).past_key_values
    by_row = whole.table().set_index(["layer", "sample", "head", "position"])["value"]
    decoded = steps.table()
    assert sorted(decoded["step"].unique()) == [0, 1, 2, 3]
    for row in decoded.itertuples():
        position = row.position if row.step == 0 else 8 + row.step
        assert row.value == pytest.approx(by_row[row.layer, row.sample, row.head, position], abs=3e-6)


def test_two_chunks_with_a_cache_and_large_logits_are_one_pass() -> None:
    """The second chunk sees all of the first and itself causally: two calls of a kernel, joined."""
    model = tiny_model("qwen2")
    tokens = torch.randint(3, 60, (1, 260), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "q_proj.weight" in name or "k_proj.weight" in name:
                weight *= 100
        with watch(model, reduce="none") as whole:
            model(input_ids=tokens)
        with watch(model, reduce="none") as chunks:
            cache = model(input_ids=tokens[:, :130], use_cache=True).past_key_values
            model(input_ids=tokens[:, 130:], past_key_values=cache, use_cache=True)
    largest = max(float(value) for value in whole.table()["value"])
    one, two = (
        seen.table().sort_values(["layer", "sample", "head", "step", "position"]) for seen in (whole, chunks)
    )
    first = one["layer"].to_numpy() == 0  # later layers have other inputs, off by the rounding of the first
    assert largest > 0.1
    assert two["value"].to_numpy()[first] == pytest.approx(one["value"].to_numpy()[first], abs=1e-3)
    assert two["value"].between(0, np.log(260)).all()


def test_generation_with_left_padding_leaves_padding_out() -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", **FAMILIES["llama"])).eval()
    batch = tiny_batch("llama", "left", length=10)
    plain = model.generate(**batch, max_new_tokens=4, do_sample=False, eos_token_id=None)
    with watch(model) as seen:
        watched = model.generate(**batch, max_new_tokens=4, do_sample=False, eos_token_id=None)
    assert torch.equal(plain, watched)
    counts = seen.table().groupby("step")["count"].agg(["min", "max"])
    assert counts.to_numpy().tolist() == [[15, 15], [2, 2], [2, 2], [2, 2]]


def test_packed_sequences_are_separate() -> None:
    """Two documents in one row, told apart by their positions, against each of them alone."""
    model = tiny_model("llama")
    tokens = tiny_batch("llama", length=14)["input_ids"][:1]
    positions = torch.cat([torch.arange(6), torch.arange(8)])[None]
    with torch.no_grad():
        with watch(model, reduce="none") as packed:
            model(input_ids=tokens, position_ids=positions, use_cache=False)
        with watch(model, reduce="none") as alone:
            model(input_ids=tokens[:, :6])
            model(input_ids=tokens[:, 6:])
    together = packed.table().sort_values(["layer", "head", "position"])["value"].to_numpy()
    apart = alone.table().sort_values(["layer", "head", "step", "position"])["value"].to_numpy()
    assert together == pytest.approx(apart, abs=3e-6)


def test_half_precision_left_padding_has_no_nan() -> None:
    """The case of transformers#17433: padded rows in half precision."""
    model = tiny_model("opt").to(torch.bfloat16)
    batch = tiny_batch("opt", "left")
    with torch.no_grad(), watch(model) as seen:
        model(**batch)
    table = seen.table()
    assert table["value"].notna().all()
    assert set(table["dtype"]) == {"bfloat16"}


def test_flex_attention_through_the_registry() -> None:
    batch = tiny_batch("llama", "right")
    truth = eager_entropies("llama", batch)["self"]
    model = tiny_model("llama", "flex_attention")
    with torch.no_grad(), watch(model) as seen:
        model(**batch)
    assert set(seen.coverage()["operation"]) == {"flex_attention"}
    torch.testing.assert_close(measured_entropies("llama", seen)["self"], truth, atol=3e-6, rtol=0)


def test_registry_is_restored() -> None:
    from transformers.modeling_utils import AttentionInterface

    before = AttentionInterface.get_interface
    model = tiny_model("llama")
    with watch(model), watch(model):
        assert AttentionInterface.get_interface is not before
    assert AttentionInterface.get_interface is before
    with pytest.raises(ZeroDivisionError), watch(model):
        raise ZeroDivisionError
    assert AttentionInterface.get_interface is before


def test_nested_watches_see_the_same() -> None:
    model = tiny_model("llama")
    batch = tiny_batch("llama")
    with torch.no_grad(), watch(model) as outer, watch(model, layers=[1]) as inner:
        model(**batch)
    table = outer.table()
    assert table[table["layer"] == 1]["value"].tolist() == inner.table()["value"].tolist()
    assert len(table) == 2 * len(inner.table())
    assert inner.coverage()["status"].tolist() == ["not asked for", "measured"]


def test_gradient_checkpointing_counts_once_and_gradients_are_equal() -> None:
    gradients = []
    for watched in (False, True):
        model = tiny_model("llama").train()
        model.gradient_checkpointing_enable()
        batch = tiny_batch("llama")
        if watched:
            with watch(model) as seen:
                model(**batch, use_cache=False)[0].square().sum().backward()
        else:
            model(**batch, use_cache=False)[0].square().sum().backward()
        gradients.append([p.grad for p in model.parameters()])
    assert seen.coverage()["calls"].tolist() == [1, 1]
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


def test_values_that_are_not_finite_are_named() -> None:
    from joma.core.errors import InputError

    model = tiny_model("llama")
    with torch.no_grad():
        model.layers[1].self_attn.q_proj.weight[0, 0] = torch.nan
        with watch(model) as seen:
            model(**tiny_batch("llama"))
    with pytest.raises(InputError, match=r"layers\.1\.self_attn.*head 0"):
        seen.table()
    assert seen.coverage()["status"].tolist() == ["measured", "not measured"]


@pytest.mark.parametrize("global_tokens", [0, 1])
@pytest.mark.parametrize("padded", [0, 5])
def test_attention_within_windows(global_tokens: int, padded: int) -> None:
    """Longformer's heads stand third, and its keys are a window's: against the model's own probabilities."""
    transformers = pytest.importorskip("transformers")
    config = transformers.LongformerConfig(
        vocab_size=32, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2,
        attention_window=[4], max_position_embeddings=64, pad_token_id=1,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.LongformerModel(config, add_pooling_layer=False).eval()
    for parameter in model.parameters():
        parameter.data.normal_(std=0.3)
    batch = {
        "input_ids": torch.randint(3, 32, (2, 12)),
        "attention_mask": torch.ones(2, 12, dtype=torch.long),
        "global_attention_mask": torch.zeros(2, 12, dtype=torch.long),
    }
    batch["attention_mask"][1, 12 - padded :] = 0
    batch["global_attention_mask"][:, :global_tokens] = 1
    with torch.no_grad(), watch(model, reduce="none") as seen:
        model(**batch)
    with torch.no_grad():
        own = model(**batch, output_attentions=True).attentions[0]
    table = seen.table()
    local = table[(table["call"] == 0) & (table["position"] >= global_tokens)]
    expected = torch.special.entr(own.double()).sum(-1)
    for row in local.itertuples():
        assert row.value == pytest.approx(expected[row.sample, row.head, row.position].item(), abs=1e-5)
    assert len(local) == 2 * (24 - padded - 2 * global_tokens)
    assert sorted(set(table["call"])) == list(range(1 + (global_tokens > 0)))


@pytest.mark.parametrize("kind", ["local", "transient-global"])
@pytest.mark.parametrize("length", [64, 61])
def test_blocks_of_tokens_count_no_padding(kind: str, length: int) -> None:
    """LongT5's samples are blocks, and padding is left out of each as of samples by themselves."""
    transformers = pytest.importorskip("transformers")
    config = transformers.LongT5Config(
        vocab_size=40, d_model=16, d_kv=8, d_ff=24, num_layers=1, num_heads=2, local_radius=7,
        encoder_attention_type=kind, global_block_size=8,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.LongT5EncoderModel(config).eval()
    for parameter in model.parameters():
        parameter.data.normal_(std=0.3)
    batch = {"input_ids": torch.randint(3, 40, (2, length)), "attention_mask": torch.ones(2, length)}
    batch["attention_mask"][1, -21:] = 0
    with torch.no_grad(), watch(model, reduce="none") as seen:
        model(**batch)
    table = seen.table()
    assert len(table) == 2 * (2 * length - 21)
    assert not seen.coverage()["reason"].any()
    # The first sample has no padding, and is what it is alone.
    with torch.no_grad(), watch(model, reduce="none") as alone:
        model(input_ids=batch["input_ids"][:1], attention_mask=torch.ones(1, length))
    blocks = -(-length // 8)
    first = table[table["sample"] < blocks]["value"].to_numpy()
    own = alone.table()
    own = own[(own["sample"] * 8 + own["position"]) < length]["value"].to_numpy()
    np.testing.assert_allclose(first, own, atol=1e-5)


def test_blocks_whose_tokens_are_not_known_are_named() -> None:
    """BigBird's calls are some of the blocks: their padding is counted, and coverage says so."""
    transformers = pytest.importorskip("transformers")
    config = transformers.BigBirdConfig(
        vocab_size=70, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=24,
        max_position_embeddings=128, attention_type="block_sparse", block_size=4, num_random_blocks=1,
    )  # fmt: skip
    model = transformers.BigBirdModel(config, add_pooling_layer=False).eval()
    mask = torch.ones(2, 64, dtype=torch.long)
    mask[1, -20:] = 0
    with torch.no_grad(), watch(model) as seen:
        model(input_ids=torch.randint(3, 70, (2, 64)), attention_mask=mask)
    (reason,) = seen.coverage()["reason"]
    assert reason.startswith("all rows count, padding too: 4 ask at a time")


class Thicket(torch.nn.Module):
    """Attention within blocks, in one call, of nobody's family; of neighbours, or of every fifth token."""

    def __init__(self, *, strided: bool) -> None:
        super().__init__()
        self.strided = strided
        self.mix = torch.nn.Linear(4, 12)

    def forward(self, hidden: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        q, k, v = self._cut(self.mix(hidden).unflatten(-1, (2, 6))).transpose(2, 3).chunk(3, dim=-1)
        kept = self._cut(attention_mask).bool()[:, :, None, None, :]
        scores = (q @ k.transpose(-1, -2)).masked_fill(~kept, -1e9)
        return scores.softmax(-1) @ v

    def _cut(self, x: torch.Tensor) -> torch.Tensor:
        return x.unflatten(1, (-1, 4)).transpose(1, 2) if self.strided else x.unflatten(1, (4, -1))


@pytest.mark.parametrize("strided", [False, True])
def test_blocks_of_any_model(strided: bool) -> None:
    torch.manual_seed(0)
    model = Thicket(strided=strided)
    mask = torch.ones(2, 20)
    mask[1, 13:] = 0
    with torch.no_grad(), watch(model) as seen:
        model(torch.randn(2, 20, 4), mask)
    (count,) = set(seen.table()["count"])
    (reason,) = seen.coverage()["reason"]
    assert (count, reason) == (33, "")
