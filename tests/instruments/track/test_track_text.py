"""Models of a series on a text: loss and attention beside those of a probe, sections, two series aligned."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
import transformers
from torch.nn import functional

import joma
from joma.cli.main import main

pytestmark = pytest.mark.usefixtures("no_pictures")

VOCABULARY, LENGTH = 50, 16
SECTIONS = ("attention", "coherence", "salience", "received_attention")


def trained(folder: Path, names: list[str], seed: int = 0) -> None:
    """A model that moves along a line; its loss on random text grows with the size of its weights."""
    config = transformers.GPTNeoXConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=LENGTH,
        bos_token_id=0,
        eos_token_id=0,
    )
    torch.manual_seed(seed)
    model = transformers.GPTNeoXForCausalLM(config)
    for name in names:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter *= 1.5
        model.save_pretrained(folder / name)


@pytest.fixture(scope="module")
def series(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("text")
    trained(folder / "run", [f"step{n}-tokens{n}M" for n in (1, 2, 3, 4)])
    trained(folder / "other", [f"step{n}-tokens{2 * n}M" for n in (1, 2, 3)], seed=1)
    tokens = np.random.default_rng(0).integers(0, VOCABULARY, 20 * LENGTH)
    np.save(folder / "text.npy", tokens)
    return folder


@pytest.fixture(scope="module")
def found(series: Path) -> joma.TrackResult:
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        return joma.track(
            series / "run",
            series / "text.npy",
            length=LENGTH,
            sections=SECTIONS,
            quiet=True,
        )


def test_loss_attention_and_sections_are_those_of_the_model_itself(
    series: Path, found: joma.TrackResult
) -> None:
    name = "step3-tokens3M"
    table = found.table()
    own = table[table["checkpoint"] == name]
    model = transformers.GPTNeoXForCausalLM.from_pretrained(series / "run" / name)
    tokens = torch.from_numpy(np.load(series / "text.npy")).reshape(-1, LENGTH)
    with torch.no_grad():
        logits = model(tokens).logits[:, :-1]
    loss = float(functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()))
    (measured,) = own[own["metric"] == "loss"]["value"]
    assert measured == pytest.approx(loss, rel=1e-5)
    assert set(own["loss"]) == {measured}

    probed = joma.probe(model, series / "text.npy", length=LENGTH, sections=SECTIONS).tables
    entropy = own[(own["metric"] == "attention_entropy") & (own["matrix"] == "attention")]
    truth = probed["attention"][probed["attention"]["metric"] == "attention_entropy"]
    assert len(entropy) == 4
    assert entropy["value"].to_numpy() == pytest.approx(truth["value"].to_numpy(), rel=1e-6)

    for section in SECTIONS[1:]:
        kept = found.tables[section]
        kept = kept[kept["checkpoint"] == name].drop(
            columns=["series", "checkpoint", "line", "step", "tokens"]
        )
        pd.testing.assert_frame_equal(kept.reset_index(drop=True), probed[section])
    means = probed["salience"].groupby("layer")["salience"].mean()
    curve = own[(own["metric"] == "salience") & (own["matrix"] == "salience")].set_index("layer")["value"]
    assert curve.to_numpy(float) == pytest.approx(means.to_numpy())

    received = probed["received_attention"]
    curves = own[own["matrix"] == "received_attention"]
    assert set(curves["metric"]) == {
        "hitter_share", "even_hitter_share", "first_key_share", "hitter_overlap", "received_maximum",
        "removal_effect",
    }  # fmt: skip
    assert curves["value"].to_numpy() == pytest.approx(received["value"].to_numpy(), rel=1e-6)


def test_two_series_by_tokens_and_by_loss(series: Path) -> None:
    def compared(align: str) -> pd.DataFrame:
        beside = joma.track(
            series / "run",
            series / "text.npy",
            length=LENGTH,
            tokens=4 * LENGTH,
            changes=False,
            against=str(series / "other"),
            align=align,
            quiet=True,
        ).tables["beside"]
        return beside[(beside["metric"] == "stable_rank") & (beside["matrix"] == "lower")]

    by_tokens = compared("tokens")
    assert sorted(by_tokens["at"].unique()) == [2e6, 3e6, 4e6]
    by_loss = compared("loss")
    assert len(by_loss)
    losses = by_loss["at"].unique()
    assert all(1.0 < loss < 50.0 for loss in losses)


def test_weights_count_where_the_text_cannot_be_read(
    series: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trained(tmp_path / "run", ["step1", "step2", "step3"])
    config = tmp_path / "run" / "step2" / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "model_type": "of-nobody"}))
    words = ["track", str(tmp_path / "run"), "--text", str(series / "text.npy"), "--length", str(LENGTH)]
    assert main([*words, "--out", str(tmp_path / "out"), "-q", "--json"]) == 1
    printed = capsys.readouterr()
    assert "step2 cannot read the text" in printed.err
    values = pd.DataFrame(json.loads(printed.out)["tables"]["values"])
    assert set(values[values["metric"] == "stable_rank"]["step"]) == {1, 2, 3}
    assert set(values[values["metric"] == "loss"]["step"]) == {1, 3}


def test_a_text_or_section_that_is_none_is_told_at_once(
    series: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = str(series / "run")
    assert main(["track", run, "--text", str(series / "nothing.txt"), "-q"]) == 2
    assert "nothing.txt" in capsys.readouterr().err
    assert main(["track", run, "--text", str(series / "text.npy"), "--sections", "atention", "-q"]) == 2
    assert "did you mean 'attention'?" in capsys.readouterr().err
    assert main(["track", run, "--align", "tokns", "-q"]) == 2


def test_another_text_under_the_same_name_is_read_anew(series: Path, tmp_path: Path) -> None:
    text, random = tmp_path / "text.npy", np.random.default_rng(1)

    def losses(out: Path | None) -> list[float]:
        found = joma.track(
            series / "other", text, length=LENGTH, sections=("attention",), out=out, quiet=True, audit=False
        ).table()
        return found[found["metric"] == "loss"]["value"].tolist()

    np.save(text, random.integers(0, VOCABULARY, 4 * LENGTH))
    first = losses(tmp_path / "run")
    np.save(text, random.integers(0, 3, 4 * LENGTH))
    trained(series / "other", ["step9-tokens18M"], seed=2)
    again = losses(tmp_path / "run")
    assert again == losses(None)
    assert len(again) == 4
    assert again[:3] != first
