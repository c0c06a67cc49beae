"""Write docs/notebooks/NAME.ipynb, each run afresh from its pair examples/notebooks/NAME.py (percent format).

``python docs/notebooks.py`` runs all, ``python docs/notebooks.py NAME ...`` some; ``--badges`` runs none and
only puts the address of ``release.toml`` into the badge that opens a notebook in Colab. Cells with the tag
``install`` are for a machine without joma and are not run. Pictures are kept small, and what varies from
run to run (identifiers, times, warnings on stderr) is left out.
"""

from __future__ import annotations

import base64
import io
import os
import re
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
SOURCES = HERE.parent / "examples" / "notebooks"
FOLDER = HERE / "notebooks"
WIDEST = 760
"""Pixels of a kept picture."""
COLOURS = 64
LONGEST = 1200
"""Seconds of the clock that a cell may take, on a machine that is busy with other things."""
SERVICE = "https://colab.research.google.com/github/"
HOST = "https://github.com/"
WITHOUT_ADDRESS = "*Opens in Colab once joma's repository has an address (release.toml).*"


def sources() -> list[Path]:
    """The notebooks' texts."""
    return sorted(SOURCES.glob("*.py"))


def badge(name: str, repository: str) -> str:
    """The line under a notebook's title: the badge, where the repository has an address that Colab opens."""
    if not repository.startswith(HOST):
        return WITHOUT_ADDRESS
    place = f"{repository.removeprefix(HOST).rstrip('/')}/blob/main/docs/notebooks/{name}.ipynb"
    return f"[![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)]({SERVICE}{place})"


def repository() -> str:
    """The address that a release fills."""
    return str(tomllib.loads((HERE.parent / "release.toml").read_text("utf-8"))["repository"])


def with_badge(notebook: Any, name: str) -> Any:
    """The first cell is the title with its text; the badge stands below the title."""
    first = notebook.cells[0]
    title, _, rest = first.source.partition("\n")
    rest = re.sub(rf"^({re.escape(WITHOUT_ADDRESS)}|\[!\[Open in Colab\].*)\n+", "", rest.lstrip("\n"))
    first.source = f"{title}\n\n{badge(name, repository())}\n\n{rest}"
    return notebook


def convert(source: Path) -> Any:
    """A notebook without outputs, as jupytext reads it."""
    import jupytext

    notebook = jupytext.read(source, fmt="py:percent")
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number}"
    notebook.metadata = {
        "jupytext": {"formats": "docs/notebooks//ipynb,examples/notebooks//py:percent"},
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    }
    return with_badge(notebook, source.stem)


def execute(notebook: Any, seconds: float = LONGEST) -> Any:
    """Run all cells but those tagged ``install`` in an empty folder."""
    from nbclient import NotebookClient

    whole = list(notebook.cells)
    notebook.cells = [cell for cell in whole if "install" not in cell.metadata.get("tags", ())]
    with tempfile.TemporaryDirectory() as folder:
        NotebookClient(notebook, timeout=seconds, resources={"metadata": {"path": folder}}).execute()
    notebook.cells = whole
    for cell in whole:
        cell.metadata.pop("execution", None)
        if cell.cell_type == "code":
            cell.execution_count = None
            cell.outputs = [kept for output in cell.outputs if (kept := shrink(output)) is not None]
    return notebook


def shrink(output: Any) -> Any | None:
    """An output without what varies, its picture small; None for what is not kept."""
    if output.output_type == "stream":
        return output if output.name == "stdout" else None
    if "execution_count" in output:
        output.execution_count = None
    data = output.get("data", {})
    output.metadata = {}
    if "image/png" in data:
        output.data = {"image/png": small(data["image/png"])}
    elif "text/html" in data:
        data["text/html"] = re.sub(r"<style.*?</style>", "", data["text/html"], flags=re.DOTALL)
    elif re.match(r"<Axes|<Figure", data.get("text/plain", "")):
        return None
    return output


def small(picture: str) -> str:
    """A PNG in base64 of at most ``WIDEST`` pixels and ``COLOURS`` colours."""
    from PIL import Image

    content = io.BytesIO()
    with Image.open(io.BytesIO(base64.b64decode(picture))) as opened:
        image = Image.new("RGB", opened.size, "white")
        image.paste(opened, mask=opened.getchannel("A") if "A" in opened.getbands() else None)
    image.thumbnail((WIDEST, 10 * WIDEST), Image.Resampling.LANCZOS)
    image.quantize(COLOURS).save(content, "png", optimize=True)
    return base64.b64encode(content.getvalue()).decode()


def write(notebook: Any, name: str) -> None:
    """Keep a notebook."""
    import nbformat

    FOLDER.mkdir(exist_ok=True)
    (FOLDER / f"{name}.ipynb").write_text(nbformat.writes(notebook) + "\n", encoding="utf-8")


def main(names: Iterable[str]) -> None:
    """Run and keep these notebooks; all, where none is named."""
    os.environ.setdefault("MPLCONFIGDIR", tempfile.gettempdir())
    wanted = set(names) or {source.stem for source in sources()}
    for source in sources():
        if source.stem in wanted:
            begin = time.monotonic()
            write(execute(convert(source)), source.stem)
            print(f"{source.stem}: {time.monotonic() - begin:.0f} s")


def badges() -> None:
    """Put the badges in, with the outputs as they are."""
    import nbformat

    for path in sorted(FOLDER.glob("*.ipynb")):
        write(with_badge(nbformat.read(path, as_version=4), path.stem), path.stem)


if __name__ == "__main__":
    if sys.argv[1:] == ["--badges"]:
        badges()
    else:
        main(sys.argv[1:])
