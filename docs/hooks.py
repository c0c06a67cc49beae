"""What the site's build adds (``hooks`` in mkdocs.yml): a page for each notebook, and formulas as MathML."""

from __future__ import annotations

import base64
import html
import json
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

sys.path.insert(0, str(Path(__file__).parent))  # mkdocs loads this file by its path

from mathematics import block_to_mathml, to_mathml  # noqa: E402

NOTEBOOKS = Path(__file__).parent / "notebooks"
LINK = re.compile(r"\((?P<place>(?:\.\./)*(?:notebooks/)?\w+)\.ipynb\)")

WITHIN = re.compile(r"\]\(#(?P<anchor>[\w-]+)\)")
FORMULA = re.compile(
    r'<(?P<tag>span|div) class="arithmatex">\\[(\[](?P<latex>.*?)\\[)\]]</(?P=tag)>', re.DOTALL
)
PLAIN_BLOCK = re.compile(
    r'(?:<div class="(?:language-text )?highlight">)?<pre>(?:<span></span>)?<code>(?P<text>.*?)</code></pre>(?:</div>)?',
    re.DOTALL,
)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Beside each notebook its page and its pictures."""
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        text, pictures = notebook_page(json.loads(path.read_text("utf-8")), path.stem)
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=text))
        for name, content in pictures.items():
            files.append(File.generated(config, f"notebooks/{name}", content=content))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """A link to a notebook leads to its page, one within a page to its heading: of hyphens in a row the site
    keeps one."""
    markdown = WITHIN.sub(lambda found: f"](#{re.sub('-+', '-', found['anchor'])})", markdown)
    return LINK.sub(r"(\g<place>.md)", markdown)


def on_page_content(content: str, page: Page, **_: Any) -> str:
    """Formulas are set: those in dollars everywhere, those in plain notation in the reference of the theory."""
    content = FORMULA.sub(
        lambda found: to_mathml(html.unescape(found["latex"]).strip(), found["tag"] == "div"), content
    )
    if page.file.src_uri == "reference/theory.md":
        content = PLAIN_BLOCK.sub(_set_block, content)
    return content


def _set_block(found: re.Match[str]) -> str:
    text = html.unescape(re.sub(r"<[^>]+>", "", found["text"]))
    return found[0] if ">>>" in text else block_to_mathml(text) or found[0]


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
