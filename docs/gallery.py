"""Write docs/gallery.md: every figure of the site, with what it shows and what draws it."""

from __future__ import annotations

import re
from pathlib import Path

from experiments import FOLDER, plain

from joma.experiments import catalog
from joma.experiments.base import Experiment

HERE = Path(__file__).parent
LONGEST = 220
"""Letters of a caption; the experiment's page has the whole."""
HEAD = """# All figures

Each is drawn by one command from the tables of a run, at the preset `quick`; a click leads to the experiment. This
page is written by `python docs/gallery.py`.

"""


def first_sentences(text: str, longest: int = LONGEST) -> str:
    """As many whole sentences as fit, at least one."""
    sentences = re.split(r"(?<=[.!?])\s+(?=[A-Z])", " ".join(text.split()))
    said = sentences[0]
    for sentence in sentences[1:]:
        if len(said) + len(sentence) > longest:
            break
        said += f" {sentence}"
    return said


def entry(name: str) -> str:
    """A figure with its title, caption and command."""
    kind: type[Experiment] = catalog.find(name)
    caption = first_sentences(plain(kind().caption()))
    return (
        f"## {name}: {kind.title}\n\n"
        f"[![{caption}](experiments/{name}.webp)](experiments/{name}.md)\n\n"
        f"{caption} `joma run {name}`\n"
    )


def page() -> str:
    """The whole page in Markdown."""
    drawn = [name for name in catalog.names() if (FOLDER / f"{name}.webp").is_file()]
    return HEAD + "\n".join(map(entry, drawn))


if __name__ == "__main__":
    (HERE / "gallery.md").write_text(page(), encoding="utf-8")
