"""What is published: metadata, contents, and the wheel alone in an environment of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import venv
import zipfile
from email.parser import HeaderParser
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "docs"))
import release  # noqa: E402


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Wheel and sdist: those of ``make package-check``, or built here."""
    if "JOMA_DIST" in os.environ:
        return ROOT / os.environ["JOMA_DIST"]
    pytest.importorskip("build", reason="make package-check installs what builds a wheel")
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run([sys.executable, "-m", "build", "--outdir", str(folder), str(ROOT)], check=True)
    return folder


@pytest.mark.slow
def test_the_wheel_holds_the_package_and_nothing_else(dist: Path) -> None:
    (wheel,) = dist.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names} == {"joma", wheel.name.rsplit("-", 3)[0] + ".dist-info"}
    assert {
        "joma/__init__.pyi",
        "joma/py.typed",
        "joma/experiments/costs.json",
        "joma/report/page.html",
    } <= set(names)
    assert not [name for name in names if re.search(r"test|\.pyc$|/docs/|stored", name)]


@pytest.mark.slow
def test_the_source_archive_builds_and_tests(dist: Path) -> None:
    (archive,) = dist.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    assert {
        "Makefile",
        "README.md",
        "constraints.txt",
        "release.toml",
        "setup.py",
        "tests/conftest.py",
    } <= names
    assert not [name for name in names if name.startswith((".venv", "runs/", "joma-demo"))]


@pytest.mark.slow
def test_the_metadata_is_complete(dist: Path) -> None:
    (wheel,) = dist.glob("*.whl")
    archive = zipfile.ZipFile(wheel)
    (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
    text = archive.read(name).decode()
    fields = HeaderParser().parsestr(text)
    assert fields["Summary"]
    assert fields["License-Expression"] == "MIT"
    assert fields["Requires-Python"] == ">=3.11"
    assert "all" in (fields.get_all("Provides-Extra") or [])
    assert all(url.partition(", ")[2].startswith("https://") for url in fields.get_all("Project-URL") or [])
    description = text.partition("\n\n")[2]
    relative = re.findall(r"\]\((?!https?://|#)[^)]*\)", description)
    assert not relative, "a relative link leads nowhere on a package index"


@pytest.mark.slow
def test_the_wheel_alone_runs_what_the_readme_prints(dist: Path, tmp_path: Path) -> None:
    """Its dependencies are those of this environment; nothing of the checkout is in reach."""
    (wheel,) = dist.glob("*.whl")
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    (site,) = (tmp_path / "venv" / "lib").glob("python*/site-packages")
    # pytest's own environment lends its packages, the editable joma aside.
    shared = [path for path in sys.path if path.endswith("site-packages")]
    (site / "shared.pth").write_text("\n".join(shared))
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-deps", str(wheel)], check=True)
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}

    def call(*words: str) -> str:
        done = subprocess.run(
            [python, "-m", "joma", *words], cwd=tmp_path, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    where = [python, "-c", "import joma; print(joma.__file__)"]
    assert str(site) in subprocess.run(where, cwd=tmp_path, capture_output=True, text=True).stdout
    assert re.fullmatch(r"joma \d+\.\d+\.\d+ \(commit [0-9a-f]{12}\)\n", call("--version"))
    assert "lemma4" in call("check", "lemma4") or "Lemma 4" in call("check", "lemma4")
    assert call("demo", "--quick", "--quiet", "--out", "demo").strip().endswith("report.html")
    assert (tmp_path / "demo" / "report.html").stat().st_size > 100_000
    assert "stable_rank" in call("probe", "demo/decoder/checkpoint-60", "--weights", "--quiet")


def test_publishing_waits_for_what_only_the_publisher_knows(tmp_path: Path) -> None:
    (tmp_path / "release.toml").write_text('repository = ""\ndoi = "10.1/2"\n')
    assert release.missing(tmp_path / "release.toml") == ["repository"]
    fields = release.missing(ROOT / "release.toml")
    assert set(fields) <= {"repository", "documentation", "security", "conduct", "doi"}


def test_every_action_is_pinned_by_its_commit() -> None:
    for file in (ROOT / ".github" / "workflows").glob("*.yml"):
        content = yaml.safe_load(file.read_text("utf-8"))
        assert content["permissions"] == {"contents": "read"}
        for line in re.findall(r"uses: (.*)", file.read_text("utf-8")):
            assert re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v[\d.]+", line), line
        targets = set(re.findall(r"make ([a-z-]+)", file.read_text("utf-8")))
        rules = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
        assert targets <= rules


def test_every_line_of_the_security_page_names_a_test_that_exists() -> None:
    text = (ROOT / "SECURITY.md").read_text("utf-8").partition("## What joma does not")[0]
    named = re.findall(r"`(test_\w+)`", text)
    written = "\n".join(path.read_text("utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    assert len(named) >= 10
    for name in named:
        assert f"def {name}(" in written, name
    for line in re.split(r"\n- ", text)[1:]:
        assert re.search(r"`test_\w+`", line), f"no test shows: {line}"
