"""R12: what came out empty, an error of a user's model and memory that runs out are told in joma's words."""

from __future__ import annotations

import string
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import joma
from joma.cli.main import main
from joma.core.errors import InputError, UnfinishedError
from joma.instruments.reading.passes import run_batch
from joma.instruments.reading.texts import TokenBatch
from joma.measures.ranks.spectral_norm import spectral_norm
from joma.measures.ranks.stable_rank import effective_rank, stable_rank, stable_rank_estimate

TOKENS = TokenBatch(torch.ones(2, 5, dtype=torch.int64), torch.ones(2, 5, dtype=torch.bool))
words = st.text(string.ascii_letters + " ", min_size=3, max_size=30).map(str.strip).filter(bool)


@settings(max_examples=20, deadline=None)
@given(kind=st.sampled_from([TypeError, RuntimeError, ValueError, KeyError, IndexError]), said=words)
def test_an_error_of_a_users_model_keeps_its_words(kind: type[Exception], said: str) -> None:
    class Odd(nn.Module):
        def forward(self, tokens: Tensor) -> Tensor:
            raise kind(said)

    with pytest.raises(InputError, match="batches=") as caught:
        run_batch(Odd(), TOKENS)
    assert said in str(caught.value)
    assert kind.__name__ in str(caught.value)
    assert "Odd cannot read a batch of tokens only" in str(caught.value)


def models() -> dict[str, tuple[nn.Module, dict[str, Any]]]:
    """Models of images, pairs, sound and series, and inputs that they take."""
    from transformers import (
        CLIPConfig,
        CLIPModel,
        PatchTSTConfig,
        PatchTSTModel,
        ViTConfig,
        ViTModel,
        Wav2Vec2Config,
        Wav2Vec2Model,
    )

    small: dict[str, Any] = dict(  # noqa: C408
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
    )
    vision = {**small, "image_size": 8, "patch_size": 4}
    pixels = torch.randn(2, 3, 8, 8)
    text = {**small, "vocab_size": 30, "max_position_embeddings": 16, "eos_token_id": 2}
    return {
        "vit": (ViTModel(ViTConfig(**small, image_size=8, patch_size=4)), {"pixel_values": pixels}),
        "clip": (
            CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=8)),
            {"pixel_values": pixels, "input_ids": torch.randint(3, 30, (2, 5))},
        ),
        "wav2vec2": (
            Wav2Vec2Model(
                Wav2Vec2Config(
                    **small, conv_dim=(16,), conv_kernel=(4,), conv_stride=(4,),
                    num_conv_pos_embeddings=4, num_conv_pos_embedding_groups=2, mask_time_prob=0.0,
                )
            ),
            {"input_values": torch.randn(2, 64)},
        ),
        "patchtst": (
            PatchTSTModel(
                PatchTSTConfig(
                    num_input_channels=2, context_length=16, patch_length=4, patch_stride=4, d_model=16,
                    num_attention_heads=2, num_hidden_layers=1, ffn_dim=16,
                )
            ),
            {"past_values": torch.randn(2, 16, 2)},
        ),
    }  # fmt: skip


@pytest.mark.parametrize("name", ["vit", "clip", "wav2vec2", "patchtst"])
def test_a_model_that_reads_no_text_says_what_to_give_and_takes_it(name: str) -> None:
    torch.manual_seed(0)
    model, inputs = models()[name]
    with pytest.raises(InputError, match=r"batches=\[") as caught:
        joma.probe(model.eval(), [[3, 4, 5, 6]] * 2, sections=["attention"])
    assert type(model).__name__ in str(caught.value)
    # The advice, as it was given:
    table = joma.probe(model, batches=[inputs], sections=["attention"]).tables["attention"]
    assert table["value"].notna().all()


@pytest.mark.parametrize("measure", [stable_rank, stable_rank_estimate, effective_rank, spectral_norm])
@pytest.mark.parametrize(
    "error",
    [MemoryError(), torch.OutOfMemoryError("x"), RuntimeError("DefaultCPUAllocator: can't allocate memory")],
)
def test_memory_that_runs_out_is_told(
    measure: Any, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    for module in ("stable_rank", "spectral_norm"):
        monkeypatch.setattr(f"joma.measures.ranks.{module}.matrix_norm", fail)
    monkeypatch.setattr("joma.measures.ranks.stable_rank.refuse_unusable", fail)
    with pytest.raises(UnfinishedError, match=r"out of memory in .*\(6, 4\).*one matrix at a time"):
        measure(torch.randn(6, 4))


def series(folder: Path, names: list[str]) -> str:
    folder.mkdir()
    for number, name in enumerate(names):
        weight = torch.randn(8, 8, generator=torch.Generator().manual_seed(number))
        torch.save({"model.layers.0.mlp.up_proj.weight": weight}, folder / f"{name}.pt")
    return str(folder)


def test_series_that_do_not_meet_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    one = series(tmp_path / "a", [f"step{100 * i}-tokens{i}B" for i in range(1, 4)])
    other = series(tmp_path / "b", [f"step{10 * i}" for i in range(1, 4)])
    for align, said in (("tokens", "tells no tokens"), ("step", "has step 10 to 30")):
        words = ["track", one, "--against", other, "--align", align, "--weights", "--quiet", "--out", align]
        assert main(words) == 1
        told = capsys.readouterr().err
        assert f"nothing was laid side by side by --align {align}" in told
        assert said in told
        assert pd.read_parquet(tmp_path / align / "beside.parquet").empty
    same = ["track", one, "--against", one, "--align", "tokens", "--weights", "--quiet", "--out", "same"]
    assert main(same) == 0  # the advice of another --align or other checkpoints
    assert len(pd.read_parquet(tmp_path / "same" / "beside.parquet"))


@pytest.mark.parametrize("option", [["--null", "none"], ["--seed", "3"]])
def test_options_that_weights_do_not_heed_are_refused(
    option: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["probe", str(tmp_path), "--weights", *option]) == 2
    assert f"{option[0]} belongs to" in capsys.readouterr().err
