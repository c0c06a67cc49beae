"""Formulas of the site: plain notation and LaTeX become MathML, what is none stays as it is."""

from __future__ import annotations

import ast
import importlib
import re
import sys
import tomllib
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest

from joma.theory.results import RESULTS

pytest.importorskip("latex2mathml", reason="pip install 'joma[docs]'")

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"


@pytest.fixture
def mathematics(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(DOCS))
    monkeypatch.delitem(sys.modules, "mathematics", raising=False)
    return importlib.import_module("mathematics")


@pytest.mark.parametrize(
    ("plain", "latex"),
    [
        ("v' = (mu - v) exp(v^2 / 2)  (Eq. 6)", r"v'=(\mu-v)\exp(\frac{v^{2}}{2})\qquad\text{(Eq.6)}"),
        ("z_l = sum_k v_kl^2 / 2", r"z_{l}=\sum_{k}\frac{v_{kl}^{2}}{2}"),
        ("F(rho_+)/F(rho_-) = a_-/a_+", r"\frac{F(\rho_{+})}{F(\rho_{-})}=\frac{a_{-}}{a_{+}}"),
        ("c(l) = P(l|n) / |c|_2", r"c(l)=\frac{P(l\midn)}{|c|_{2}}"),
        ("z_CT' = -C0^{-1} x", r"z'_{CT}=-C_{0}^{-1}x"),
        ("sum_l' f_l' <= sqrt(2 pi)", r"\sum_{l'}f_{l'}\le\sqrt{2\pi}"),
        ("d ln f^2 / dB = -2", r"\frac{d\lnf^{2}}{dB}=-2"),
        ("x = 1 for every token", r"x=1\text{foreverytoken}"),
    ],
)
def test_plain_notation_becomes_latex(mathematics: ModuleType, plain: str, latex: str) -> None:
    found = re.sub(r"\\left|\\right|\s", "", mathematics.to_latex(plain))
    assert found == latex.replace(" ", "")


@pytest.mark.parametrize("line", ["a plain sentence", "x = 'text", "x = {", "f(x = 1"])
def test_what_is_no_formula_is_left_alone(mathematics: ModuleType, line: str) -> None:
    with pytest.raises(mathematics.NoFormulaError):
        mathematics.to_latex(line)
    assert mathematics.block_to_mathml(line) is None


def blocks() -> list[str]:
    """Indented blocks of the theory's docstrings that are neither examples nor lists."""
    found = []
    for path in sorted((ROOT / "src" / "joma" / "theory").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Module | ast.FunctionDef | ast.ClassDef):
                text = ast.get_docstring(node) or ""
                for block in re.findall(r"\n\n((?:    .+\n?)+)(?=\n|$)", text):
                    if ">>>" not in block and not re.match(r" +\w+: ", block):
                        found.append(block)
    return found


def test_every_formula_of_the_theory_is_set(mathematics: ModuleType) -> None:
    found = blocks()
    assert len(found) > 25
    for block in found:
        made = mathematics.block_to_mathml(block)
        assert made is not None, block
        root = ElementTree.fromstring(f"<all>{made}</all>")  # well-formed
        assert len(root) == sum(bool(line.strip()) for line in block.splitlines())
        assert not re.search(r"\\[a-z]", "".join(root.itertext())), block


def test_every_theorem_and_lemma_has_its_statement(mathematics: ModuleType) -> None:
    stated = tomllib.loads((DOCS / "statements.toml").read_text("utf-8"))
    sources = {result.source for result in RESULTS}
    assert set(stated) <= sources
    assert {source for source in sources if re.search("Theorem|Lemma", source)} <= set(stated)
    for entry in stated.values():
        assert entry["assumes"]
        for latex in entry["formula"]:
            made = ElementTree.fromstring(mathematics.to_mathml(latex, True))
            assert not re.search(r"\\[a-z]", "".join(made.itertext())), latex


def test_the_page_of_results_is_current(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(DOCS))
    monkeypatch.delitem(sys.modules, "results", raising=False)
    page = importlib.import_module("results").page()
    assert (DOCS / "results.md").read_text("utf-8") == page, "run: python docs/results.py"
    theorem = page.partition("### JoMA Theorem 2:")[2].partition("\n### ")[0]
    for part in ("$$", "**Assumes**", "| printed | right |", "joma check theorem2", "fig3.webp"):
        assert part in theorem, part


def test_the_build_sets_formulas(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mkdocs", reason="pip install 'joma[docs]'")
    from types import SimpleNamespace

    monkeypatch.syspath_prepend(str(DOCS))
    hooks = importlib.import_module("hooks")

    def page(place: str) -> SimpleNamespace:
        return SimpleNamespace(file=SimpleNamespace(src_uri=place))

    inline = '<p><span class="arithmatex">\\(x^2 &lt; 1\\)</span></p>'
    assert "<math" in hooks.on_page_content(inline, page("a.md"))
    shown = '<div class="arithmatex">\\[x^2\\]</div>'
    assert 'display="block"' in hooks.on_page_content(shown, page("a.md"))
    block = "<pre><code>v' = mu - v\n</code></pre>"
    assert hooks.on_page_content(block, page("a.md")) == block
    assert "<math" in hooks.on_page_content(block, page("reference/theory.md"))
    example = "<pre><code>&gt;&gt;&gt; x = 1\n</code></pre>"
    assert hooks.on_page_content(example, page("reference/theory.md")) == example
