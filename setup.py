"""What the build adds to pyproject.toml: addresses, a description whose links lead somewhere, and the commit.

The addresses come from ``release.toml``. Without a repository's address the description keeps the words of a
link and drops its target, since a relative one leads nowhere on a package index.
"""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

ROOT = Path(__file__).parent
COMMIT = Path("joma", "core", "commit.txt")
RELEASE = tomllib.loads((ROOT / "release.toml").read_text("utf-8"))
LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?://|#)([^)\s]+)\)")


def describe(text: str, repository: str) -> str:
    """README as a package index shows it: relative links and pictures with the repository's address."""

    def absolute(link: re.Match[str]) -> str:
        picture, words, target = link.groups()
        if not repository:
            return "" if picture else words
        return f"{picture}[{words}]({repository}/{'raw' if picture else 'blob'}/main/{target})"

    return LINK.sub(absolute, text)


def addresses() -> dict[str, str]:
    """The addresses that the metadata names: the papers', and those that are known of joma's own."""
    own = {"Repository": RELEASE["repository"], "Documentation": RELEASE["documentation"]}
    if RELEASE["repository"]:
        own["Issues"] = f"{RELEASE['repository']}/issues"
        own["Changelog"] = f"{RELEASE['repository']}/blob/main/CHANGELOG.md"
    papers = {
        "JoMA (arXiv)": "https://arxiv.org/abs/2310.00535",
        "Scan&Snap (arXiv)": "https://arxiv.org/abs/2305.16380",
    }
    return {name: address for name, address in {**own, **papers}.items() if address}


def commit() -> str:
    """The commit of this checkout; of an unpacked archive that which it names, and empty where nothing does."""
    asked = subprocess.run(
        ["git", "rev-parse", "--show-toplevel", "--short=12", "HEAD"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    top, _, found = asked.stdout.strip().partition("\n")
    if asked.returncode == 0 and Path(top) == ROOT.resolve():
        return found
    named = ROOT / "src" / COMMIT
    return named.read_text("utf-8").strip() if named.exists() else ""


class BuildWithCommit(build_py):
    """Writes the commit that the package was built from into it, for ``joma --version``."""

    def run(self) -> None:
        """Build, then write ``core/commit.txt`` where the commit is known."""
        super().run()
        if commit() and not self.editable_mode:
            (Path(self.build_lib) / COMMIT).write_text(commit())


class ArchiveWithCommit(sdist):
    """Writes the commit into the source archive, from which the wheel is built."""

    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        """As setuptools does, and ``core/commit.txt`` where the commit is known."""
        super().make_release_tree(base_dir, files)
        if commit():
            (Path(base_dir) / "src" / COMMIT).write_text(commit())


setup(
    long_description=describe((ROOT / "README.md").read_text("utf-8"), RELEASE["repository"]),
    long_description_content_type="text/markdown",
    project_urls=addresses(),
    cmdclass={"build_py": BuildWithCommit, "sdist": ArchiveWithCommit},
)
