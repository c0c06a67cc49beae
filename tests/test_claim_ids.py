"""A claim's id occurs once in the project: no two places of the sources can make the same one."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

import joma

SOURCES = Path(joma.__file__).parent


def template(node: ast.expr) -> str | None:
    """The regular expression of a string or f-string; None for anything else."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return re.sub(r"\\{\w+\\}", "[^._]+", re.escape(node.value))  # {part}: one of a family
    if isinstance(node, ast.JoinedStr):
        return "".join(
            re.escape(str(part.value)) if isinstance(part, ast.Constant) else r"[^._]+"
            for part in node.values
        )
    return None


def ids() -> dict[str, set[str]]:
    """Template of an id -> the files whose claims have it."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in [*SOURCES.glob("checks/**/*.py"), *SOURCES.glob("experiments/**/*.py")]:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            values: list[ast.expr] = []
            if isinstance(node, ast.Call):
                values = [keyword.value for keyword in node.keywords if keyword.arg == "id"]
                if getattr(node.func, "id", "") == "Statement":
                    values.append(node.args[0])
                if getattr(node.func, "id", "") == "statements":
                    table = node.args[0]
                    if isinstance(table, ast.DictComp):
                        values.append(table.key)
                    elif isinstance(table, ast.Dict):
                        values += [key for key in table.keys if key is not None]
            elif isinstance(node, ast.Dict):
                keys = [key.value if isinstance(key, ast.Constant) else None for key in node.keys]
                values = [value for key, value in zip(keys, node.values, strict=True) if key == "id"]
            elif isinstance(node, ast.Assign) and any(getattr(t, "id", "") == "id" for t in node.targets):
                values = [node.value]
            for value in values:
                name = template(value)
                if name is not None and "." in name:
                    found[name].add(path.relative_to(SOURCES).as_posix())
    return found


def test_no_two_files_make_the_same_claim() -> None:
    found = ids()
    assert len(found) > 200
    plain = {name: re.sub(r"\[.*?\]\+", "x", re.sub(r"\\(.)", r"\1", name)) for name in found}
    twice = [
        (one, other, places)
        for one in found
        for other in found
        if re.fullmatch(one, plain[other]) and len(places := found[one] | found[other]) > 1
    ]
    assert not twice


def test_an_experiments_claims_bear_its_name() -> None:
    for name, places in ids().items():
        for place in places:
            part = place.split("/")
            if part[0] == "experiments" and part[1] != "shared":
                assert re.sub(r"\\", "", name).startswith(part[2] + ".") or name.startswith("["), (
                    name,
                    place,
                )
