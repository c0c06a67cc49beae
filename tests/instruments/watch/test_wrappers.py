"""Models in the hands of TransformerLens and nnsight: the same numbers as of the model itself.

Neither is among the requirements of joma: ``pip install transformer-lens nnsight`` installs both.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from joma.core.errors import InputError
from joma.instruments.watch.watch import watch

transformers = pytest.importorskip("transformers")


def gpt2(implementation: str) -> nn.Module:
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        n_layer=2, n_head=4, n_embd=32, vocab_size=50, n_positions=32, attn_implementation=implementation
    )
    model: nn.Module = transformers.GPT2LMHeadModel(config).eval()
    return model


TOKENS = torch.randint(0, 50, (2, 20), generator=torch.Generator().manual_seed(0))
KEYS = ["layer", "head", "metric"]


def values(table: pd.DataFrame) -> np.ndarray:
    return table.sort_values(KEYS)["value"].to_numpy()


def plain(model: nn.Module) -> np.ndarray:
    with torch.no_grad(), watch(model) as seen:
        model(TOKENS)
    return values(seen.table())


class Envoy:
    """What holds a model and is none."""

    def __init__(self, model: nn.Module) -> None:
        self.inner = model
        self.called = 0

    def trace(self, tokens: torch.Tensor) -> None:
        self.called += 1
        self.inner(tokens)


def test_what_holds_one_model_is_that_model() -> None:
    model = gpt2("sdpa")
    envoy = Envoy(model)
    with torch.no_grad(), watch(envoy) as seen:
        envoy.trace(TOKENS)
    np.testing.assert_array_equal(values(seen.table()), plain(model))


def test_what_holds_two_models_is_refused() -> None:
    envoy = Envoy(gpt2("sdpa"))
    envoy.other = gpt2("sdpa")
    with pytest.raises(InputError, match=r"got a Envoy; give a torch\.nn\.Module"):
        watch(envoy)


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_nnsight(implementation: str) -> None:
    nnsight = pytest.importorskip("nnsight")
    model = gpt2(implementation)
    expected = plain(model)
    wrapper = nnsight.NNsight(model)
    with torch.no_grad(), watch(wrapper) as seen, wrapper.trace(TOKENS):
        wrapper.output.save()
    np.testing.assert_allclose(values(seen.table()), expected, atol=1e-6)


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_transformer_lens(implementation: str, tmp_path: Path) -> None:
    bridge = pytest.importorskip("transformer_lens.model_bridge")
    from tokenizers import Tokenizer, models

    model = gpt2(implementation)
    expected = plain(model)
    letters = Tokenizer(models.BPE({chr(97 + i): i for i in range(26)}, []))
    special = dict.fromkeys(("bos_token", "eos_token", "pad_token"), "a")
    transformers.PreTrainedTokenizerFast(tokenizer_object=letters, **special).save_pretrained(tmp_path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    model.config._name_or_path = "gpt2"
    wrapped = bridge.TransformerBridge.boot_transformers(
        "gpt2", hf_model=model, tokenizer=tokenizer, device="cpu"
    )
    with torch.no_grad(), watch(wrapped) as seen:
        wrapped(TOKENS)
    np.testing.assert_allclose(values(seen.table()), expected, atol=1e-6)
