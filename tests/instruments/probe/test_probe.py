from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch

import joma
from joma.cli.main import main
from joma.core.errors import InputError, RunDirectoryError
from joma.instruments.probe import ProbeSettings
from joma.instruments.probe.probe import SECTIONS, USUAL, probe
from joma.instruments.probe.text import probe_sentences
from joma.runs.directory import read_run

pytest.importorskip("transformers")
from probe_models import tiny_model

TEXT = np.random.default_rng(0).integers(3, 60, 120)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from transformers import AutoModelForCausalLM

    path = tmp_path_factory.mktemp("llama")
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(tiny_model("llama").config).save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def ids(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "ids.npy"
    np.save(path, TEXT)
    return path


def test_every_section_is_measured_of_a_model_that_allows_all(folder: Path) -> None:
    found = probe(folder, TEXT, length=20, batch_tokens=40)
    assert {"attention", "positions", "coverage", "ranks", "layers", "model"} <= set(found.tables)
    assert {"coherence", "joint_dynamics", "salience"} <= set(found.tables)
    assert "not_measured" not in found.tables
    layers = found.tables["layers"]
    assert layers["layer"].tolist() == [0, 1]
    heads = found.tables["attention"]
    own = heads[(heads["layer"] == 1) & (heads["metric"] == "attention_entropy")]["value"]
    assert layers["entropy"][1] == pytest.approx(own.mean())
    assert layers["lowest"][1] == own.min()
    index = found.tables["joint_dynamics"].query("metric == 'index' and scale == 'linear' and sink == 'out'")
    index = index[(index["given"] == "nothing") & index["position"].isna() & index["head"].isna()]
    assert layers["index"].tolist() == pytest.approx(index["value"].tolist())
    model = found.tables["model"].iloc[0]
    assert (model["tokens"], model["windows"], model["longest_window"]) == (120, 6, 20)


def test_an_untrained_network_stands_beside_the_joint_dynamics(folder: Path) -> None:
    named = probe(folder, TEXT, length=20, sections="joint_dynamics")
    untrained = named.tables["untrained_joint_dynamics"]
    assert list(untrained.columns) == list(named.tables["joint_dynamics"].columns)
    assert not untrained["value"].equals(named.tables["joint_dynamics"]["value"])
    # The model has learned nothing itself.
    (claim,) = [c for c in ProbeSettings().claims(named.tables) if c.id == "probe.joint_dynamics"]
    assert claim.verdict == "fails"
    assert claim.null is not None
    assert any("an untrained network: 0." in sentence for sentence in probe_sentences(named.tables))
    without = probe(folder, TEXT, length=20, sections="joint_dynamics", null="none")
    (claim,) = [c for c in ProbeSettings().claims(without.tables) if c.id == "probe.joint_dynamics"]
    assert (claim.verdict, "no untrained network" in claim.evidence) == ("not tested", True)
    with pytest.raises(InputError, match="null = 'nothing' is unknown"):
        probe(folder, TEXT, null="nothing")


def test_the_prediction_has_to_exceed_an_untrained_networks(folder: Path) -> None:
    tables = dict(probe(folder, TEXT, length=20, sections="joint_dynamics").tables)
    rows = tables["joint_dynamics"]
    index = rows["metric"] == "index"
    tables["joint_dynamics"] = rows.assign(value=rows["value"].where(~index, 0.5))
    null = rows["metric"] == "null"
    tables["joint_dynamics"]["value"] = tables["joint_dynamics"]["value"].where(~null, 0.01)
    for untrained, verdict in ((0.01, "holds"), (-0.4, "fails")):
        tables["untrained_joint_dynamics"] = rows.assign(value=untrained)
        assert ProbeSettings().claims(tables)[0].verdict == verdict


def test_the_model_is_as_it_was(folder: Path) -> None:
    model = joma.load_model(folder).model.train()
    model.requires_grad_(False)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    hooks = sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())
    probe(model, TEXT[:40], length=20)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert all(p.grad is None and not p.requires_grad for p in model.parameters())
    assert model.training
    assert hooks == sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


def test_what_a_model_does_not_allow_is_listed_unless_it_was_asked_for() -> None:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_config(tiny_model("mixtral").config).eval()
    found = probe(model, TEXT[:40], length=20)
    missing = found.tables["not_measured"]
    assert "joint_dynamics" in set(missing["section"])
    assert missing["reason"].str.len().min() > 20
    with pytest.raises(InputError):
        probe(model, TEXT[:40], length=20, sections=["joint_dynamics"])


def test_sections_by_name(folder: Path) -> None:
    assert set(probe(folder, TEXT, sections="ranks").tables) == {"ranks", "layers", "model"}
    with pytest.raises(InputError, match="did you mean 'ranks'"):
        probe(folder, TEXT, sections=["rank"])
    with pytest.raises(InputError, match="is empty"):
        probe(folder, TEXT, sections=[])


def test_a_probe_is_written_as_a_run_and_reported(folder: Path, tmp_path: Path) -> None:
    found = joma.probe(folder, TEXT, length=20, sections=["attention", "ranks"])
    run = found.save(tmp_path / "probe")
    assert {claim.verdict for claim in run.claims} == {"not tested"}
    pandas.testing.assert_frame_equal(read_run(tmp_path / "probe").tables["ranks"], found.tables["ranks"])
    assert (tmp_path / "probe" / "figure.png").stat().st_size > 10_000
    assert main(["report", str(tmp_path / "probe")]) == 0
    with pytest.raises(RunDirectoryError, match="holds a run"):
        found.save(tmp_path / "probe")
    found.save(tmp_path / "probe", overwrite=True)


def test_the_command_writes_a_directory_and_prints_json(
    folder: Path, ids: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["probe", str(folder), "--text", str(ids), "--out", str(tmp_path / "out"), "--length", "20"]
    assert main([*words, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["directory"] == str(tmp_path / "out")
    assert {"attention", "ranks", "joint_dynamics"} <= set(printed["tables"])
    verdicts = {claim["id"]: claim["verdict"] for claim in printed["claims"]}
    assert set(verdicts) == {"probe.joint_dynamics", "probe.orthogonality"}
    assert "not tested" not in verdicts.values()
    page = (tmp_path / "out" / "report.html").read_text()
    assert "probed on" in page
    # A finished probe is found again; other settings are refused.
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert "120 tokens in 6 windows" in shown
    assert main([*words[:-1], "30"]) == 2
    assert "was run with length = 20" in capsys.readouterr().err


def test_a_killed_probe_continues_with_what_it_has(
    folder: Path, ids: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from joma.instruments.probe import probe as module

    words = ["probe", str(folder), "--text", str(ids), "--out", str(tmp_path / "out"), "--quiet"]

    def killed(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(module, "weight_ranks", killed)
        assert main(words) == 130
    assert (tmp_path / "out" / "parts" / "attention.parquet").exists()

    def measured_again(*_: Any, **__: Any) -> None:
        raise AssertionError

    monkeypatch.setattr(module, "AttentionSection", measured_again)
    assert main(words) == 0
    assert len(read_run(tmp_path / "out").tables["attention"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--text", "{ids}", "--layers", "7"], "7"),
        (["--text", "{ids}", "--layers", "a"], "not a list of numbers"),
        (["--text", "{ids}", "--heads", "9"], "no head 9"),
        (["--text", "{ids}", "--statistics", "entropie"], "did you mean 'entropy'"),
        (["--text", "{ids}", "--length", "100000"], "longer than the model's"),
        (["--text", "{ids}", "--tokens", "100000"], "fewer than the 100000 asked for"),
        (["--text", "nowhere.txt"], "cannot be read"),
        (["--text", "{ids}", "--certify"], "goes with --weights"),
        (["--text", "{ids}", "--rows", "2"], "out of range"),
        (["--text", "{ids}", "--dtype", "int4"], "none of float32"),
        ([], "required"),
    ],
)
def test_bad_calls_end_in_one_line(
    folder: Path,
    ids: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    message: str,
) -> None:
    words = [word.format(ids=ids) for word in words]
    assert main(["probe", str(folder), *words, "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out" / "settings.yaml").exists()


def test_sections_are_known() -> None:
    assert set(USUAL) == {"attention", "ranks", "coherence", "joint_dynamics", "salience"}
    assert set(SECTIONS) == {*USUAL, "received_attention"}


@pytest.mark.parametrize("section", SECTIONS)
def test_each_section_alone_has_a_figure(section: str) -> None:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_config(tiny_model("gpt2").config).eval()
    found = probe(model, TEXT, length=20, sections=[section], null="none")
    figure = found.plot()
    assert figure.axes
    figure.canvas.draw()
    assert found.answer() or section == "salience"
    if section == "received_attention":
        assert "if all queries attended uniformly" in found.answer()[0]
