"""A function's or class's name is a noun or a verb, no bare participle or adverb (properties are fields)."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import joma

ADVERBS = {"again", "alone", "apart", "aside", "away", "beside", "beyond", "elsewhere", "forth", "once"}
ADVERBS |= {"otherwise", "through", "together", "twice", "within"}
PARTICIPLES = {
    "broken",
    "brought",
    "built",
    "caught",
    "chosen",
    "dealt",
    "drawn",
    "driven",
    "fed",
    "forgotten",
}
PARTICIPLES |= {
    "found",
    "frozen",
    "given",
    "grown",
    "heard",
    "held",
    "hidden",
    "kept",
    "known",
    "led",
    "left",
}
PARTICIPLES |= {
    "lent",
    "lit",
    "lost",
    "made",
    "meant",
    "met",
    "paid",
    "said",
    "seen",
    "sent",
    "shown",
    "shut",
}
PARTICIPLES |= {"sold", "spent", "spoken", "stood", "struck", "swept", "taken", "taught", "thought", "thrown"}
PARTICIPLES |= {"told", "understood", "won", "worn", "written"}
NOUNS_AND_VERBS = {
    "bring",
    "ceiling",
    "classestraining",
    "ending",
    "embed",
    "feed",
    "finding",
    "heading",
    "listing",
}
NOUNS_AND_VERBS |= {
    "mostattended",
    "padding",
    "reading",
    "rounding",
    "seed",
    "setting",
    "speed",
    "stoptraining",
}
"""Words that end like a participle and are none."""


def names(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """The functions and classes of a module, properties aside."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            decorators = {ast.unparse(one).rpartition(".")[2] for one in node.decorator_list}
            if not decorators & {"property", "cached_property"} and not node.name.startswith("__"):
                yield node.name, node.lineno


def is_bare(name: str) -> bool:
    """Whether one word stands alone that is a participle or an adverb."""
    word = name.strip("_").lower()
    if "_" in word or word in NOUNS_AND_VERBS:
        return False
    return word in ADVERBS | PARTICIPLES or re.fullmatch(r"[a-z]{2,}(ed|ing)", word) is not None


def test_the_rule_tells_participles() -> None:
    assert all(map(is_bare, ("joined", "_kept", "Found", "beside", "measuring")))
    assert not any(map(is_bare, ("join", "kept_rows", "rounding", "speed", "Setting", "is_judged")))


def test_functions_and_classes_are_nouns_and_verbs() -> None:
    root = Path(joma.__file__).parent
    bare = [
        f"{path.relative_to(root)}:{line} {name}"
        for path in sorted(root.rglob("*.py"))
        for name, line in names(ast.parse(path.read_text("utf-8")))
        if is_bare(name)
    ]
    assert not bare, "name what it is or what it does: " + ", ".join(bare)
