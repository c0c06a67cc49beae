"""``joma.probe`` on families of transformers: each section is measured, or says why it is not."""

from __future__ import annotations

import numpy as np
import pytest
import torch

pytest.importorskip("transformers")

from joma.instruments.probe.probe import USUAL, probe
from probe_models import ENCODER_DECODERS, FAMILIES, IMAGES, tiny_model

FULL = ("llama", "gpt2", "gpt_neox", "opt", "qwen2", "phi")
"""Causal, with a plain or gated MLP: everything can be measured of these."""
NARROW = ("mistral", "gemma3_text", "starcoder2")
"""Every layer of these tiny models sees four keys, too few for a correlation."""
TEXT = np.random.default_rng(0).integers(3, 60, 60)


def with_head(family: str) -> torch.nn.Module:
    """The family's language model, where it has one."""
    from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, AutoModelForSeq2SeqLM

    config = tiny_model(family).config
    for kind in (AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoModelForMaskedLM):
        if type(config) in kind._model_mapping:
            torch.manual_seed(0)
            return kind.from_config(config).eval()  # type: ignore[no-any-return]
    model: torch.nn.Module = tiny_model(family)
    return model


@pytest.mark.parametrize(
    "family",
    [
        pytest.param(family, marks=() if family in FULL else pytest.mark.slow)
        for family in FAMILIES
        if family not in IMAGES
    ],
)
def test_every_section_is_measured_or_says_why_not(family: str) -> None:
    found = probe(with_head(family), TEXT, length=20)
    reasons = {}
    if "not_measured" in found.tables:
        missing = found.tables["not_measured"]
        reasons = dict(zip(missing["section"], missing["reason"], strict=True))
    for section in USUAL:
        assert (section in found.tables) != (section in reasons)
        if section == "joint_dynamics" and family in NARROW:
            assert found.tables[section]["value"].isna().all()
        elif section in found.tables:
            assert found.tables[section]["value" if section != "salience" else "salience"].notna().any()
        else:
            assert len(reasons[section]) > 20
    heads = found.tables["attention"]
    entropy = heads[heads["metric"] == "attention_entropy"]
    assert entropy["value"].between(0, np.log(20) + 1e-6).all()
    if family in FULL:
        assert not reasons
    if family not in ENCODER_DECODERS:
        assert found.tables["layers"]["layer"].tolist() == [0, 1]
