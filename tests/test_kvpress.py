"""Presses under SDPA beside eager attention, KVPress' own presses, its AdaKV, and its pipeline.

``make kvpress`` runs these: KVPress needs an environment of its own. Without it, that it is named remains.
"""

from __future__ import annotations

import importlib
import sys
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from torch import Tensor

from joma.core.errors import InputError

needs_kvpress = pytest.mark.skipif(find_spec("kvpress") is None, reason="needs KVPress: make kvpress")
WORDS = [f"w{number}" for number in range(40)]


def model(attention: str, **settings: Any) -> Any:
    """A Llama of two layers with grouped queries, its weights large enough for attention that is not even."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=len(WORDS) + 2, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, intermediate_size=32, initializer_range=0.5, bos_token_id=0, eos_token_id=1,
        attn_implementation=attention, **settings,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).eval()


def tokens(length: int = 48) -> Tensor:
    return torch.randint(2, len(WORDS) + 2, (1, length), generator=torch.Generator().manual_seed(1))


def watch_scores(press: Any, net: Any, ids: Tensor) -> list[Tensor]:
    """What a press gives every layer, in a pass that keeps everything it should."""
    from transformers import DynamicCache

    found = []
    own = press.score

    def score(*arguments: Any) -> Tensor:
        found.append(own(*arguments).clone())
        return own(*arguments)

    press.score = score
    cache = DynamicCache()
    with torch.no_grad(), press(net):
        net(ids, past_key_values=cache, use_cache=True)
    assert {layer.keys.shape[2] for layer in cache.layers} == {
        int(ids.shape[1] * (1 - press.compression_ratio))
    }
    return found


def eager_probabilities(ids: Tensor) -> list[Tensor]:
    with torch.no_grad():
        found = model("eager")(ids, output_attentions=True).attentions
    return [p.double() for p in found]


@needs_kvpress
def test_masses_are_those_of_eager_attention_and_of_the_observed_press() -> None:
    from kvpress import ObservedAttentionPress

    from joma.kvpress import ReceivedMassPress

    ids = tokens()
    sums = [p.sum(2).unflatten(1, (2, 2)).mean(2) for p in eager_probabilities(ids)]
    for found, right in zip(watch_scores(ReceivedMassPress(0.5), model("sdpa"), ids), sums, strict=True):
        torch.testing.assert_close(found.double(), right, rtol=1e-4, atol=0)
    observed = ObservedAttentionPress(0.5)
    eager = model("eager", output_attentions=True)
    theirs = watch_scores(observed, eager, ids)
    ours = watch_scores(ReceivedMassPress(0.5, by_query=True), model("sdpa"), ids)
    for found, right in zip(ours, theirs, strict=True):
        torch.testing.assert_close(found, right, rtol=1e-4, atol=0)


@needs_kvpress
def test_removal_effects_are_those_of_softmaxes_without_the_key() -> None:
    from joma.kvpress import RemovalEffectPress

    ids = tokens(20)
    net = model("sdpa")
    found = watch_scores(RemovalEffectPress(0.5), net, ids)
    hidden: list[Tensor] = []
    hooks = [
        layer.self_attn.register_forward_pre_hook(
            lambda _, __, given: hidden.append(given["hidden_states"]), with_kwargs=True
        )
        for layer in net.model.layers
    ]
    with torch.no_grad():
        net(ids)
    for hook in hooks:
        hook.remove()
    for number, p in enumerate(eager_probabilities(ids)):
        attention = net.model.layers[number].self_attn
        value = attention.v_proj(hidden[number]).view(1, 20, 2, 8).transpose(1, 2).repeat_interleave(2, 1)
        value, weight = value.double().detach(), attention.o_proj.weight.double().unflatten(1, (4, 8))
        right = torch.zeros(1, 4, 20, dtype=torch.float64)
        for key in range(20):
            rest = p.clone()
            rest[..., key] = 0
            rest = rest / rest.sum(-1, keepdim=True)
            change = torch.einsum("bhrd,ohd->bhro", (rest - p) @ value, weight).square().sum(-1)
            change[:, :, 0] = 0  # the first query sees no other key
            right[..., key] = change.nan_to_num(0.0).mean(-1)
        grouped = right.unflatten(1, (2, 2)).mean(2).sqrt().detach()
        torch.testing.assert_close(found[number].double(), grouped, rtol=1e-3, atol=1e-7)


@needs_kvpress
@pytest.mark.parametrize("name", ["ReceivedMassPress", "RemovalEffectPress"])
@pytest.mark.parametrize("adaptive", [False, True])
def test_their_pipeline_takes_the_presses_and_adakv_wraps_them(name: str, adaptive: bool) -> None:
    import kvpress
    import tokenizers
    import transformers

    vocabulary = {word: number for number, word in enumerate(["<s>", "</s>", *WORDS])}
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="w0"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=words, bos_token="<s>", eos_token="</s>", unk_token="w0"
    )
    press = getattr(importlib.import_module("joma.kvpress"), name)(compression_ratio=0.5)
    press = kvpress.AdaKVPress(press) if adaptive else press
    pipe = transformers.pipeline("kv-press-text-generation", model=model("sdpa"), tokenizer=tokenizer)
    context = " ".join(WORDS[int(n) % 40] for n in torch.arange(60) * 7)
    answer = pipe(context, question="w3 w5", press=press, max_new_tokens=5)["answer"]
    assert set(answer.split()) <= set(WORDS)
    assert len(answer.split()) > 0


def test_without_kvpress_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kvpress", None)
    monkeypatch.delitem(sys.modules, "joma.kvpress", raising=False)
    with pytest.raises(InputError, match=r"pip install 'joma\[kvpress\]'") as refused:
        importlib.import_module("joma.kvpress")
    assert "\n" not in str(refused.value)
