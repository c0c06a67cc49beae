"""Nothing foreign is run, read or replaced, and what cannot be written is said."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

import joma.cli.main as cli
import toy
from joma.core.errors import RunDirectoryError
from joma.runs import description
from joma.runs.directory import read_run, run_experiment

pytestmark = pytest.mark.usefixtures("no_pictures")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    run_experiment(toy.Toy(), tmp_path / "run")
    return tmp_path / "run"


def rewrite(run: Path, **changes: object) -> None:
    path = run / "settings.yaml"
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), **changes}))


def test_a_report_replaces_only_pages_of_joma(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = run.parent
    (place / "mine.html").write_text("mine")
    (place / "link.html").symlink_to("mine.html")
    os.mkfifo(place / "fifo")
    for name in ("mine.html", "link.html", "fifo", "/dev/null"):
        assert cli.main(["report", str(run), "--out", str(place / name)]) == 2
        assert capsys.readouterr().err.count("\n") == 1
    assert (place / "mine.html").read_text() == "mine"
    assert not Path("/dev/null").is_file()
    for _ in range(2):
        assert cli.main(["report", str(run), "-o", str(place / "page.html")]) == 0
    assert cli.main(["report", str(run), "--out", str(place / "mine.html"), "--overwrite"]) == 0
    assert "<title>joma: " in (place / "mine.html").read_text()


@pytest.mark.parametrize("name", ["../../secret", "a/b", "", "a.b", 3, None, "x\n"])
def test_names_in_settings_are_names(run: Path, name: object) -> None:
    secret = run.parent.parent / "secret.parquet"
    secret.write_text("secret")
    rewrite(run, tables=["counts", name])
    with pytest.raises(RunDirectoryError, match=r"is not a name of letters|does not describe a run"):
        read_run(run)
    with pytest.raises(RunDirectoryError):
        run_experiment(toy.Toy(), run, overwrite=True)
    assert secret.read_text() == "secret"


def test_a_link_out_of_the_directory_is_not_read(run: Path) -> None:
    (run / "counts.parquet").rename(run.parent / "elsewhere.parquet")
    (run / "counts.parquet").symlink_to(run.parent / "elsewhere.parquet")
    with pytest.raises(RunDirectoryError, match="no regular file of its directory"):
        read_run(run)


def test_a_run_of_the_format_before_is_read_and_a_later_one_refused(run: Path) -> None:
    content = yaml.safe_load((run / "settings.yaml").read_text())
    for key in ("format", "files", "device", "dtype"):
        del content[key]
    (run / "settings.yaml").write_text(yaml.safe_dump(content))
    assert len(read_run(run).tables["counts"]) == 2
    assert len(run_experiment(toy.Toy(), run).claims) == 1
    rewrite(run, format=description.FORMAT + 1)
    with pytest.raises(RunDirectoryError, match="written by a later joma"):
        read_run(run)


@pytest.mark.parametrize("place", ["counts.parquet", "claims.json"])
def test_flipped_bits_do_not_pass(run: Path, place: str) -> None:
    content = bytearray((run / place).read_bytes())
    for at in range(0, len(content), max(1, len(content) // 20)):
        changed = content.copy()
        changed[at] ^= 1
        (run / place).write_bytes(changed)
        with pytest.raises(RunDirectoryError, match="is damaged"):
            read_run(run)


@pytest.mark.parametrize(
    "content",
    [
        "a: &a [x, x]\nb: *a\n",
        "a: &a {b: *a}\n",
        "[" * 5000,
        "a: 99-99-99\n",
        "? [1, 2]\n: 3\n",
        "a: " + "9" * 5000,
    ],
)
def test_yaml_that_is_a_bomb_is_refused(
    run: Path, tmp_path: Path, content: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "c.yaml").write_text(content)
    assert cli.main(["run", "fig9", "--config", str(tmp_path / "c.yaml"), "--out", str(tmp_path / "x")]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "defect" not in error
    (run / "settings.yaml").write_text(content)
    with pytest.raises(RunDirectoryError):
        read_run(run)


def test_a_config_file_may_not_overwrite(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "c.yaml").write_text("overwrite: true\n")
    assert cli.main(["run", "fig9", "--config", str(tmp_path / "c.yaml")]) == 2
    assert "has no setting 'overwrite'" in capsys.readouterr().err


def test_a_defect_leaves_no_claim_on_the_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(toy.Toy, "run", lambda self, progress: {}["value"])
        with pytest.raises(KeyError):
            run_experiment(toy.Toy(rate=0.25), tmp_path / "run")
    assert len(run_experiment(toy.Toy(), tmp_path / "run").claims) == 1


def test_what_a_killed_process_left_is_removed(run: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    left = run / f".writing-{gone.pid}-figure.pdf"
    left.write_text("half")
    run_experiment(toy.Toy(), run)
    assert not left.exists()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_output_that_cannot_be_written_is_said() -> None:
    for redirection, reason in ((">/dev/full", "No space left"), (">&-", "stdout is closed")):
        command = f"{sys.executable} -m joma list {redirection}"
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120)
        assert done.returncode == 1
        assert done.stderr.startswith("joma: the output could not be written")
        assert reason in done.stderr
        assert done.stderr.count("\n") == 1


def test_code_that_lies_with_a_model_is_not_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("transformers")
    from transformers import AutoModelForCausalLM

    from probe_models import tiny_model

    folder = tmp_path / "model"
    AutoModelForCausalLM.from_config(tiny_model("llama").config).save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {
        "model_type": "other",
        "auto_map": {"AutoConfig": "own.Own", "AutoModelForCausalLM": "own.Model"},
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "own.py").write_text(
        f"open({str(tmp_path / 'ran')!r}, 'w').close()\n"
        "from transformers import LlamaConfig, LlamaForCausalLM\n"
        "class Own(LlamaConfig):\n    model_type = 'other'\n"
        "class Model(LlamaForCausalLM):\n    config_class = Own\n"
    )
    np.save(tmp_path / "ids.npy", np.random.default_rng(0).integers(3, 60, 200))
    words = ["probe", str(folder), "--text", str(tmp_path / "ids.npy"), "--length", "32", "-q"]
    words += ["--sections", "attention", "--out", str(tmp_path / "out")]
    capsys.readouterr()  # transformers' bar of what it has saved
    assert cli.main(words) == 2
    error = capsys.readouterr().err
    assert "own.Own" in error
    assert "--trust-remote-code" in error
    assert error.count("\n") == 1
    assert not (tmp_path / "ran").exists()
    assert cli.main([*words, "--trust-remote-code"]) == 0
    assert (tmp_path / "ran").exists()
