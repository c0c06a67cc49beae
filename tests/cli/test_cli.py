from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

import joma.cli.main as cli
import toy
from joma.experiments import catalog


@pytest.fixture
def with_toy(monkeypatch: pytest.MonkeyPatch) -> None:
    real = catalog.find
    monkeypatch.setattr(catalog, "find", lambda name: toy.Toy if name == "toy" else real(name))


def joma(*arguments: str, **kwargs: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # type: ignore[call-overload, no-any-return]
        [sys.executable, "-m", "joma", *arguments], capture_output=True, text=True, timeout=120, **kwargs
    )


def test_help_and_list_import_nothing_heavy() -> None:
    for command in (
        ["--help"],
        ["list"],
        ["list", "--json"],
        ["run", "--help"],
        ["run", "fig6", "--help"],
        ["--version"],
    ):
        code = (
            "import sys, contextlib, io\nfrom joma.cli.main import main\n"
            "with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):\n"
            f"    main({command!r})\n"
            "heavy = {'torch', 'pandas', 'numpy', 'scipy', 'matplotlib', 'transformers'} & set(sys.modules)\n"
            "sys.exit(f'imported {heavy}' if heavy else 0)"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, (command, done.stderr)


def test_help_imports_nothing_that_takes_longer_than_help() -> None:
    """Dataclasses, regular expressions and typing take longer to import than a Python takes to start."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "joma", "--help"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    imported = [line.rpartition("|")[2].strip() for line in done.stderr.splitlines()]
    own = imported[imported.index("joma") :]
    assert "joma.cli.main" in own
    assert not {"dataclasses", "difflib", "inspect", "pathlib", "re", "typing"} & set(own)


def test_list_names_every_experiment(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["list"]) == 0
    shown = capsys.readouterr().out
    assert cli.main(["list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [entry["name"] for entry in listed] == catalog.names()
    assert all(name in shown for name in catalog.names())


def test_an_experiment_runs_with_no_option_at_all(tmp_path: Path) -> None:
    done = joma("run", "fig9", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "runs" / "fig9" / "claims.json").exists()


@pytest.mark.usefixtures("with_toy")
def test_run_with_settings_as_people_type_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "run")
    words = [
        "run",
        "toy",
        "--parts=3",
        "--sizes",
        "4,5",
        "--limit",
        "none",
        "--flag",
        "true",
        "--out",
        out,
        "--json",
    ]
    assert cli.main(words) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["directory"] == out
    assert [claim["id"] for claim in result["claims"]] == ["toy.count"]
    assert cli.main([*words[:-1]]) == 0
    shown = capsys.readouterr().out
    assert "HOLDS" in shown
    assert shown.rstrip().endswith(out)


@pytest.mark.usefixtures("with_toy")
def test_config_file_and_preset(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "settings.yaml").write_text("parts: 4\nrate: 0.125\n")
    out = tmp_path / "run"
    words = [
        "run",
        "toy",
        "--preset",
        "paper",
        "--config",
        str(tmp_path / "settings.yaml"),
        "--rate",
        "2",
        "--out",
        str(out),
    ]
    assert cli.main(words) == 0
    from joma.runs.directory import read_run

    settings = read_run(out).settings
    assert settings["preset"] == "paper"
    assert (settings["settings"]["parts"], settings["settings"]["rate"]) == (4, 2.0)
    assert settings["settings"]["note"] == "long"


@pytest.mark.usefixtures("with_toy")
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\xff\xfe\x00", "is not UTF-8"),
        (b"a: [1", "is not YAML"),
        (b"just words", "holds no settings"),
        (b"", "is empty"),
        (b"parts: 0", "setting parts = 0 is out of range"),
        (b"prats: 3", "prats"),
    ],
)
def test_bad_config_files(
    content: bytes, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "config.yaml"
    path.write_bytes(content)
    assert cli.main(["run", "toy", "--config", str(path), "--out", str(tmp_path / "run")]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.usefixtures("with_toy")
def test_the_preset_may_stand_in_the_config_file(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("preset: paper\nparts: 2\n")
    assert cli.main(["run", "toy", "--config", str(tmp_path / "c.yaml"), "--out", str(tmp_path / "r")]) == 0
    from joma.runs.directory import read_run

    settings = read_run(tmp_path / "r").settings
    assert (settings["preset"], settings["settings"]["parts"], settings["settings"]["note"]) == (
        "paper",
        2,
        "long",
    )


@pytest.mark.usefixtures("with_toy")
def test_a_defect_is_one_line_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(toy.Toy, "run", lambda self, progress: {}["value"])
    assert cli.main(["run", "toy", "--out", str(tmp_path / "r")]) == 1
    error = capsys.readouterr().err
    assert error.startswith("joma: unexpected KeyError: 'value' (a defect of joma")
    assert error.count("\n") == 1


@pytest.mark.usefixtures("with_toy")
@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (["rum"], 2, "no command 'rum'; did you mean 'run'"),
        (["run", "fig66"], 2, "no experiment 'fig66'; did you mean 'fig6'"),
        (["run", "toy", "--prats", "3"], 2, "unknown argument '--prats'; did you mean '--parts'"),
        (["sweep", "fig8", "--grid", "lr=0.1,0.2"], 2, "no setting 'lr'; did you mean 'learning_rate'"),
        (["run", "fig9", "--corpus", "x"], 2, "'--corpus'; it is a setting of "),
        (["check", "--lst"], 2, "'--lst'; did you mean '--list'"),
        (["run", "toy", "--parts", "many"], 2, "--parts many is not of the type int"),
        (["run", "toy", "--parts", "0"], 2, "setting parts = 0 is out of range"),
        (["run", "toy", "--preset", "papper"], 2, "no preset 'papper'; did you mean 'paper'"),
        (["run", "toy", "--config", "nowhere.yaml"], 2, "nowhere.yaml cannot be read"),
        (["run", "toy", "--rate", "1e999"], 2, "not a finite number"),
        (["run", "toy", "--sizes", "2,2"], 2, "sizes = (2, 2) repeats a value"),
        (["run", "toy", "stray", "--quiet", "--out", "x"], 2, "unknown argument 'stray'"),
        (["run", "--preset", "quick", "toy"], 2, "name the experiment first"),
        (["run", "toy", "--out", "a" * 300], 2, "File name too long"),
        (["run", "toy", "--fail-at", "0"], 1, "part 0 diverged; lower the rate"),
        (["run", "toy", "--out", "/proc/nowhere"], 2, "cannot be written"),
        (["probe", "./nowhere", "--weights"], 2, "./nowhere does not exist"),
        (["report", "nowhere"], 2, "'nowhere' is not a directory"),
        (["report", "."], 2, "holds no run"),
        (["check", "theorem22"], 2, "no group of checks 'theorem22'; did you mean 'theorem2'"),
    ],
)
def test_errors_are_one_line(
    words: list[str],
    status: int,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(words) == status
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    assert captured.err.startswith("joma: ")
    assert message in captured.err
    assert "Traceback" not in captured.err


@pytest.mark.usefixtures("with_toy")
def test_debug_shows_the_traceback(tmp_path: Path) -> None:
    with pytest.raises(ArithmeticError):
        cli.main(["run", "toy", "--fail_at", "0", "--out", str(tmp_path / "x"), "--debug"])


@pytest.mark.usefixtures("with_toy")
def test_report_of_a_folder_of_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in "ab":
        assert cli.main(["run", "toy", "--out", str(tmp_path / name)]) == 0
    capsys.readouterr()
    assert cli.main(["report", str(tmp_path)]) == 0
    page = Path(capsys.readouterr().out.strip())
    assert page == tmp_path / "report.html"
    assert page.read_text().count('<section id="run-') == 2
    assert (
        cli.main(["report", str(tmp_path / "a"), str(tmp_path / "b"), "--out", str(tmp_path / "p.html")]) == 0
    )
    assert (tmp_path / "p.html").exists()


def test_probe_of_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import torch
    from safetensors.torch import save_file

    weight = torch.diag(torch.tensor([3.0, 2.0, 1.0, 0.5]))
    save_file({"model.layers.0.mlp.up_proj.weight": weight}, tmp_path / "model.safetensors")
    out = tmp_path / "table.parquet"
    assert cli.main(["probe", str(tmp_path), "--weights", "--json", "--out", str(out)]) == 0
    rows = {row["metric"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["stable_rank"]["value"] == pytest.approx((9 + 4 + 1 + 0.25) / 9)
    assert rows["spectral_norm"]["value"] == pytest.approx(3)
    assert out.exists()
    assert cli.main(["probe", str(tmp_path), "--weights"]) == 0
    assert "stable_rank" in capsys.readouterr().out


def test_a_closed_pipe_is_no_error() -> None:
    command = f"{sys.executable} -m joma list | head -n 1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    assert done.stderr == ""


def test_interruption_is_one_line_and_the_run_continues(tmp_path: Path) -> None:
    settings = "--corpus python-reference --vocabulary-size 100 --layers 1 --width 8 --hidden 8 --windows 4"
    command = [
        sys.executable,
        *f"-m joma run fig6 {settings} --measure-every 25 --steps 300 --seeds 3 --out {tmp_path}/run".split(),
    ]
    running = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # A test-suite in the background of a shell has SIGINT ignored, and hands that on.
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )
    deadline = time.monotonic() + 60
    while not (tmp_path / "run" / "settings.yaml").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    # Once more where the first one fell into a callback of the pool, which swallows it, as users do.
    for _ in range(6):
        os.killpg(running.pid, signal.SIGINT)
        try:
            _, errors = running.communicate(timeout=10)
            break
        except subprocess.TimeoutExpired:
            continue
    assert running.returncode == 130
    assert (
        errors == "joma: interrupted; finished parts are kept, and the same command continues from there.\n"
    )
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "claims.json").exists()
