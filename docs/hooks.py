"""What the site's build adds (``hooks`` in mkdocs.yml): a page for each notebook."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

NOTEBOOKS = Path(__file__).parent / "notebooks"
LINK = re.compile(r"\((?P<place>(?:\.\./)*(?:notebooks/)?\w+)\.ipynb\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Beside each notebook its page and its pictures."""
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        text, pictures = notebook_page(json.loads(path.read_text("utf-8")), path.stem)
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=text))
        for name, content in pictures.items():
            files.append(File.generated(config, f"notebooks/{name}", content=content))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """A link to a notebook leads to its page."""
    return LINK.sub(r"(\g<place>.md)", markdown)


def notebook_page(notebook: dict[str, Any], name: str) -> tuple[str, dict[str, bytes]]:
    """A notebook in Markdown, and file name -> content of its pictures."""
    parts: list[str] = []
    pictures: dict[str, bytes] = {}
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        for output in cell["outputs"]:
            parts.append(_shown(output, name, pictures))
    return "\n\n".join(part for part in parts if part) + "\n", pictures


def _shown(output: dict[str, Any], name: str, pictures: dict[str, bytes]) -> str:
    if output["output_type"] == "stream":
        return "```text\n" + "".join(output["text"]).rstrip() + "\n```"
    data = output.get("data", {})
    if "image/png" in data:
        file = f"{name}-{len(pictures) + 1}.png"
        pictures[file] = base64.b64decode("".join(data["image/png"]))
        return f"![What the cell draws]({file})"
    if "text/html" in data:
        return "<div>" + "".join(data["text/html"]).replace("\n", " ") + "</div>"
    return "```text\n" + "".join(data.get("text/plain", "")).rstrip() + "\n```"
