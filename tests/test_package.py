"""What is published: metadata, contents, and the wheel alone in an environment of its own."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import textwrap
import tomllib
import venv
import zipfile
from email.parser import HeaderParser
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "docs"))
import release  # noqa: E402

from probe_models import save_small_model  # noqa: E402
from readme_steps import steps  # noqa: E402


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


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new environment with nothing but Python."""
    folder = tmp_path_factory.mktemp("alone") / "venv"
    venv.create(folder, with_pip=True)
    return folder


@pytest.fixture(scope="module")
def core(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new environment with the wheel and what it depends on, without any extra."""
    folder = tmp_path_factory.mktemp("core") / "venv"
    venv.create(folder, with_pip=True)
    given = environment(folder, dist, folder / "home")
    subprocess.run(["pip", "install", "--quiet", "joma"], env=given, check=True)
    return folder


def extended(core: Path, folder: Path) -> Path:
    """A new environment that sees the packages of ``core``; what is installed into it lies in it alone."""
    venv.create(folder, with_pip=True)
    ((own, lent),) = zip(
        (folder / "lib").glob("python*/site-packages"),
        (core / "lib").glob("python*/site-packages"),
        strict=True,
    )
    (own / "lent.pth").write_text(str(lent))
    for older in own.glob("setuptools*"):  # ensurepip's, which is too old for torch
        shutil.rmtree(older)
    return folder


def environment(alone: Path, dist: Path, home: Path) -> dict[str, str]:
    """As of a new user to whom the package index offers this wheel of joma."""
    (wheel,) = dist.glob("*.whl")
    pins = alone / "constraints.txt"
    pinned = (ROOT / "constraints.txt").read_text("utf-8")
    pins.write_text(f"{pinned}\njoma=={wheel.name.split('-')[1]}\n")
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "HF_"))}
    return {
        **kept,
        "PATH": f"{alone / 'bin'}:/usr/bin:/bin",
        "VIRTUAL_ENV": str(alone),
        "PIP_FIND_LINKS": f"{dist.resolve()} {os.environ.get('PIP_FIND_LINKS', '')}",
        "PIP_CONSTRAINT": str(pins),
        "HF_HOME": str(home),
        "HF_HUB_OFFLINE": "1",
        "MPLBACKEND": "agg",
    }


@pytest.mark.slow
def test_a_reader_types_the_readme_beside_nothing_but_the_page(
    dist: Path, alone: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Every step, in order, as printed; the models of the hub that it names were fetched before."""
    page = tmp_path / "README.md"
    page.write_text((ROOT / "README.md").read_text("utf-8"), "utf-8")
    home = tmp_path_factory.mktemp("home")
    fetch_small_models(home, page.read_text("utf-8"))
    words = {"sh": ["bash", "-ec"], "python": ["python", "-c"], "pycon": ["python", "-c"]}
    typed = steps(page.read_text("utf-8"))
    assert typed[0].typed == "pip install joma"
    assert {step.kind for step in typed} == set(words)
    for kind, text in typed:
        assert kind in words, f"nobody types a block of {kind}"
        if kind == "pycon":
            text = f"import doctest\n__doc__ = {text!r}\nassert doctest.testmod().failed == 0"
        done = subprocess.run(
            [*words[kind], text], cwd=tmp_path, env=environment(alone, dist, home),
            capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr
        if text.startswith("joma demo"):
            assert (tmp_path / done.stdout.split()[-1]).stat().st_size > 100_000
    where = subprocess.run(
        ["python", "-c", "import joma; print(joma.__file__)"],
        cwd=tmp_path, env=environment(alone, dist, home), capture_output=True, text=True,
    )  # fmt: skip
    assert where.stdout.startswith(str(alone))


def fetch_small_models(home: Path, page: str) -> None:
    """Into the hub's cache, as its own client lays it out: small ones for those that a page names."""
    names = set(re.findall(r"HuggingFaceTB/[\w.-]+", page))
    assert names
    for name in names:
        revision = "0" * 40
        folder = home / "hub" / f"models--{name.replace('/', '--')}"
        (folder / "refs").mkdir(parents=True)
        (folder / "refs" / "main").write_text(revision)
        save_small_model(folder / "snapshots" / revision, layers=2, text=page)


def typed(given: dict[str, str], where: Path, *words: str) -> str:
    done = subprocess.run(words, cwd=where, env=given, capture_output=True, text=True)
    assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.slow
def test_the_wheel_alone_runs_what_a_user_asks_first(dist: Path, core: Path, tmp_path: Path) -> None:
    given = environment(core, dist, tmp_path / "home")

    def call(*words: str) -> str:
        return typed(given, tmp_path, *words)

    assert re.fullmatch(r"joma \d+\.\d+\.\d+ \(commit [0-9a-f]{12}\)\n", call("joma", "--version"))
    assert "Lemma 4" in call("joma", "check", "lemma4")
    save_small_model(tmp_path / "model", layers=2)
    assert "stable_rank" in call("joma", "probe", "model", "--weights", "--quiet", "--json")
    (tmp_path / "text.txt").write_text("w1 w2 w3 w4 w5 " * 200)
    missing = subprocess.run(
        ["joma", "probe", "model", "--text", "text.txt"],
        cwd=tmp_path,
        env=given,
        capture_output=True,
        text=True,
    )
    assert missing.returncode == 2
    assert "transformers" in missing.stderr
    assert missing.stderr.count("\n") == 1


@pytest.mark.slow
def test_a_kernel_compiles_once_where_the_package_cannot_be_written(
    dist: Path, core: Path, tmp_path: Path
) -> None:
    """As for a user of a read-only install: what numba compiles is kept in the user's own cache."""
    (package,) = (core / "lib").glob("python*/site-packages/joma")
    for folder in {path.parent for path in package.rglob("compiled*.py")}:
        shutil.rmtree(folder / "__pycache__", ignore_errors=True)
        (folder / "__pycache__").write_text("no folder")
    home = tmp_path / "home"
    home.mkdir()
    given = {**environment(core, dist, home), "HOME": str(home), "XDG_CACHE_HOME": str(home / "cache")}
    asked = (
        "import joma, torch, logging; logging.basicConfig(); q = torch.randn(1, 2, 600, 16); "
        "print(joma.attention_entropy(q, q, causal=True).entropy.shape)"
    )
    kept = []
    for _ in range(2):
        assert "600" in typed(given, tmp_path, "python", "-c", asked)
        kept.append({path: path.stat().st_mtime_ns for path in home.rglob("*.nbc")})
    assert kept[0]
    assert kept[0] == kept[1], "the second process compiled again"
    for folder in {path.parent for path in package.rglob("compiled*.py")}:
        (folder / "__pycache__").unlink()


EXTRAS = {
    "demo": """
        from joma.data.corpora import load_corpus
        print("created the heavens" in load_corpus("world-english-bible").training)
    """,
    "hf": """
        import joma
        import joma.hf
        found = joma.probe("model", "w1 w2 w3 w4 w5 " * 200)
        print(found.tables["attention"].metric.str.contains("entropy").any())
    """,
    "gguf": """
        import gguf, numpy, subprocess
        writer = gguf.GGUFWriter("m.gguf", "llama")
        writer.add_tensor("blk.0.ffn_up.weight", numpy.eye(64, dtype=numpy.float32))
        for part in ("header", "kv_data", "tensors"):
            getattr(writer, f"write_{part}_to_file")()
        writer.close()
        words = "python -m joma probe m.gguf --weights --quiet --json".split()
        print(b"stable_rank" in subprocess.run(words, check=True, capture_output=True).stdout)
    """,
    "lightning": """
        import lightning, torch
        import joma.lightning
        class Task(lightning.LightningModule):
            def __init__(self):
                super().__init__()
                self.layer = torch.nn.TransformerEncoderLayer(8, 2, batch_first=True)
            def training_step(self, batch, index):
                return self.layer(batch).square().mean()
            def configure_optimizers(self):
                return torch.optim.SGD(self.parameters(), lr=0.1)
        monitor = joma.lightning.TrainingMonitor(every=1, folder="live")
        quiet = dict(logger=False, enable_checkpointing=False, enable_progress_bar=False)
        trainer = lightning.Trainer(max_epochs=1, accelerator="cpu", callbacks=[monitor], **quiet)
        trainer.fit(Task(), torch.utils.data.DataLoader(torch.randn(4, 8, 8), 2))
        print(len(joma.read("live").table()) > 0)
    """,
    "dask": """
        import distributed, subprocess
        words = dict(processes=False, protocol="tcp", dashboard_address=None)
        with distributed.LocalCluster(n_workers=1, **words) as cluster:
            place = "dask://127.0.0.1:" + cluster.scheduler_address.rpartition(":")[2]
            subprocess.run(f"python -m joma run fig4 --executor {place} --quiet".split(), check=True)
        print(True)
    """,
    "ray": """
        import subprocess
        words = "--head --port 0 --num-cpus 1 --ray-client-server-port 23456 --include-dashboard false"
        subprocess.run(["ray", "start", *words.split()], check=True, stdout=subprocess.DEVNULL)
        try:
            words = "python -m joma run fig4 --executor ray://127.0.0.1:23456 --quiet --overwrite"
            subprocess.run(words.split(), check=True)
        finally:
            subprocess.run(["ray", "stop", "--force"], check=True, stdout=subprocess.DEVNULL)
        print(True)
    """,
    "all": "import gguf, joma.hf, joma.lightning; print(True)",
}
"""What each extra is there for, tried where the core and this extra alone are installed."""
OTHER_EXTRAS = {"dev", "long-tests", "docs", "notebooks", "kvpress"}
"""Those of who develops joma, and the one that pins older packages (``make kvpress``)."""


@pytest.mark.slow
def test_every_extra_alone(dist: Path, core: Path, tmp_path: Path) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert set(EXTRAS) | OTHER_EXTRAS == set(project["optional-dependencies"])
    save_small_model(tmp_path / "model", layers=2)
    for extra, asked in EXTRAS.items():
        folder = extended(core, tmp_path / extra)
        given = environment(folder, dist, tmp_path / "home")
        typed(given, tmp_path, "pip", "install", "--quiet", f"joma[{extra}]")
        (tmp_path / "asked.py").write_text(textwrap.dedent(asked))
        assert typed(given, tmp_path, "python", "asked.py").split()[-1] == "True", extra


def test_publishing_waits_for_what_only_the_publisher_knows(tmp_path: Path) -> None:
    (tmp_path / "release.toml").write_text('repository = ""\ndoi = "10.1/2"\n')
    assert release.missing(tmp_path / "release.toml") == ["repository"]
    fields = release.missing(ROOT / "release.toml")
    assert set(fields) <= {"repository", "documentation", "security", "conduct", "doi"}


def test_the_citation_names_what_the_release_names(tmp_path: Path) -> None:
    (tmp_path / "CITATION.cff").write_text("version: 1\n")
    assert release.citation_elsewhere(tmp_path / "CITATION.cff", "") == ""
    assert "doi: 10.1/2" in release.citation_elsewhere(tmp_path / "CITATION.cff", "10.1/2")
    (tmp_path / "CITATION.cff").write_text("version: 1\ndoi: 10.1/2\n")
    assert release.citation_elsewhere(tmp_path / "CITATION.cff", "10.1/2") == ""


def test_every_form_for_an_issue_is_one() -> None:
    folder = ROOT / ".github" / "ISSUE_TEMPLATE"
    for file in folder.glob("*.yml"):
        form = yaml.safe_load(file.read_text("utf-8"))
        if file.name == "config.yml":
            assert set(form) == {"blank_issues_enabled"}
            continue
        assert {"name", "description", "body"} <= set(form)
        fields = [field for field in form["body"] if field["type"] != "markdown"]
        assert len({field["id"] for field in fields}) == len(fields) >= 3
        for field in fields:
            assert field["type"] in ("textarea", "input", "dropdown", "checkboxes")
            assert field["attributes"]["label"]
            assert field["validations"] == {"required": True}


def test_every_step_of_a_workflow_is_whole() -> None:
    """A job has a machine, an end in time and steps; what it needs is a job; what it runs is a shell's."""
    for file in (ROOT / ".github" / "workflows").glob("*.yml"):
        content = yaml.safe_load(file.read_text("utf-8"))
        assert content.get(True), f"{file.name} has no `on`, which YAML reads as true"
        for job in content["jobs"].values():
            assert job["runs-on"]
            assert "timeout-minutes" in job or "environment" in job
            assert set([job["needs"]] if "needs" in job else []) <= set(content["jobs"])
            for step in job["steps"]:
                assert ("uses" in step) != ("run" in step)
                if "run" in step:
                    subprocess.run(["bash", "-n", "-c", step["run"]], check=True)
                for name in re.findall(r"matrix\.(\w+)", str(step)):
                    assert name in job["strategy"]["matrix"]


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
