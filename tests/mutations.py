"""Small wrong changes to formulas, one at a time: does a test notice?

``python tests/mutations.py`` makes each change in a temporary copy of ``src``, runs the fast tests of the
changed module until the first failure, and lists what survives; exit status 1 where more than three of
100 drawn ones survive. ``--list`` prints the changes, ``--only TEXT`` takes those whose line holds the
text, ``--jobs N`` works on several at a time, ``--slice I/N`` takes every N-th. Changes that were once
unnoticed are written out below; the others are drawn with ``--seed`` from all folders and kinds
(``KINDS``). Tests are mended on the seed ``MENDED`` and judged on ``JUDGED``.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import importlib
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "joma"
MENDED, JUDGED = 2024, 31
DRAWN = 100
SLOWEST = 300
MOST_SURVIVORS = 3
EXPLAINED = {
    "measures/alignment.py": "the columns are divided by their norms, so a common factor cancels",
    "measures/attention/flash.py": "an estimate of an error, with a factor of four to spare, moves by 2 %",
}
"""Module -> why a change of it may survive."""
# What is preloaded once and not again for each change.
LOADED = (
    "numpy",
    "scipy.optimize",
    "scipy.integrate",
    "scipy.signal",
    "scipy.stats",
    "torch",
    "pandas",
    "pytest",
)
LOADED += ("hypothesis", "hypothesis.strategies", "matplotlib.pyplot", "numba")


@dataclass(frozen=True)
class Change:
    """One wrong change: the text at an offset of a module becomes another."""

    module: str
    offset: int
    old: str
    new: str
    tests: tuple[str, ...]

    def __str__(self) -> str:
        text = (SOURCE / self.module).read_text()
        line = 1 + text.count("\n", 0, self.offset)
        begin, end = text.rfind("\n", 0, self.offset) + 1, text.find("\n", self.offset)
        at = self.offset - begin
        shown = text[begin:end][:at] + self.new.splitlines()[0] + text[begin:end][at + len(self.old) :]
        return f"{self.module}:{line}: {shown.strip()}   [was {' '.join(self.old.split())}]"


# Module, text that occurs once there, what it becomes; and tests where they are not those of the module.
NOTICED_TOO_LATE: tuple[tuple[str, ...], ...] = (
    ("measures/bounce/slow_noise.py", "(rises >= move)", "(rises > move)"),
    ("measures/bounce/slow_noise.py", "power = np.max([np", "power = np.mean([np"),
    ("theory/bounce_law.py", "_NEAR, _TERMS = 2.5, 14", "_NEAR, _TERMS = 2.5, 3"),
    ("theory/bounce_law.py", "for _ in range(42):", "for _ in range(14):"),
    (
        "dynamics/block_salience_flow.py",
        "turn = rate * (v * pull).sum(axis=0)",
        "turn = (v * pull).sum(axis=0)",
    ),
    ("dynamics/block_salience_flow.py", "turn - a * turn.mean()", "turn - turn.mean()"),
    ("dynamics/stack_flow.py", "turn / rate * layer", "rate / turn * layer", "tests/theory/test_stack.py"),
    ("dynamics/stack_flow.py", "rate * step.bias", "turn * step.bias", "tests/theory/test_stack.py"),
    ("measures/change/detector.py", "moments.counted.max(", "moments.counted.min("),
    (
        "measures/change/detector.py",
        "np.sqrt(np.mean(moments.mean**2, axis=-1))",
        "np.abs(np.mean(moments.mean, axis=-1))",
    ),
    ("measures/change/residuals.py", "(1 + correlation) / (1 - correlation)", "1 / (1 - correlation)"),
    ("measures/change/loss.py", "score - SLACK), 2 * THRESHOLD)", "score - SLACK), 200 * THRESHOLD)"),
    ("measures/change/loss.py", "if self.total == 0:", "if self.total >= 0:"),
    ("experiments/beyond/alarm/labels.py", "if not smooth < least + RISE:", "if smooth >= least + RISE:"),
    ("experiments/joma_paper/fig8/run.py", 'COLLAPSED * found["start"]', "COLLAPSED"),
    (
        "experiments/joma_paper/fig8/claims.py",
        'r - r.groupby(groups.to_numpy()).transform("mean")',
        "r - r.mean()",
    ),
    ("instruments/track/waves.py", "np.argmax(values[: low + 1])", "np.argmax(values)"),
    ("experiments/scan_snap/snap_phases/run.py", "(before - after) / (2", "(after - before) / (2"),
    ("experiments/joma_paper/deep_hierarchy/claims.py", "half = 0.5 * value.max()", "half = 0.5 * value[-1]"),
    ("experiments/beyond/block_flow/run.py", "course[-1] - course.min()", "course.max() - course.min()"),
    ("measures/bounce/several.py", "min(1.0, 2 * median)", "min(1.0, median)"),
    (
        "measures/bounce/valleys.py",
        "min(dip.depth, dip.rebound) > least",
        "min(dip.depth, dip.rebound) >= least",
    ),
    (
        "measures/ranks/stable_rank.py",
        "StableRank(value, value - lower,",
        "StableRank(value, 0.5 * (value - lower),",
        "tests/measures/ranks/test_bounds.py",
    ),
    (
        "measures/attention/flash.py",
        "    error = scores.rounding * (size",
        "    error = 0.5 * scores.rounding * (size",
    ),
    ("theory/salience.py", "within_floats(where, c *", "within_floats(where, 2 * c *"),
    ("theory/salience.py", "within_floats(where, c *", "within_floats(where, 0.5 * c *"),
    ("theory/salience.py", "np.divide(-np.expm1(-at * at), at,", "np.divide(-np.expm1(-1.02 * at * at), at,"),
    ("theory/salience.py", "zeta(1.0, m)) - m * float(R(m))", "zeta(1.0, m)) - 1.02 * m * float(R(m))"),
    (
        "theory/scan_snap/snapping.py",
        "    h = eta_y * t / classes\n    return np.asarray(np.log1p(factor * h**2) / 4)",
        "    h = eta_y * t / classes\n    return np.asarray(np.log1p(factor * h**2) / 4.1)",
    ),
    ("theory/scan_snap/snapping.py", "np.log1p(factor * late**2) / 4", "np.log1p(factor * late**2) / 4.1"),
    (
        "theory/scan_snap/fates.py",
        "np.exp(2 * f**2 * b), np.exp(2 * b)",
        "np.exp(1.9 * f**2 * b), np.exp(2 * b)",
    ),
    (
        "theory/scan_snap/fates.py",
        "np.exp(2 * f**2 * b), np.exp(2 * b)",
        "np.exp(2 * f**2 * b), np.exp(2.1 * b)",
    ),
    ("theory/scan_snap/fates.py", "(mass / other) ** 2 - 1", "(mass / other) ** 2.02 - 1"),
    ("theory/scan_snap/fates.py", "-0.5 * np.log1p(", "-0.51 * np.log1p("),
    ("theory/coherence.py", "epsilon * (largest * others)", "1.05 * epsilon * (largest * others)"),
    (
        "theory/coherence.py",
        "np.sqrt((products**2).sum(axis=1) / (4 * dimension))",
        "1.15 * np.sqrt((products**2).sum(axis=1) / (4 * dimension))",
    ),
    (
        "theory/winner_take_all.py",
        "scale = np.exp(start**2 / 2) / pace",
        "scale = 1.02 * np.exp(start**2 / 2) / pace",
    ),
    (
        "experiments/joma_paper/fig2/run.py",
        "second = -norms * course.frequencies",
        "second = -0.9 * norms * course.frequencies",
    ),
    ("experiments/joma_paper/fig6/claims.py", "LEAST_REBOUND = 0.2", "LEAST_REBOUND = 0.02"),
    ("experiments/joma_paper/fig6/claims.py", "SIGNIFICANT = 0.05", "SIGNIFICANT = 0.5"),
    (
        "experiments/joma_paper/table1/readings.py",
        "activations.masked_fill(is_padding[:, :, None], -torch.inf)",
        "activations",
    ),
    (
        "experiments/joma_paper/table1/readings.py",
        "np.quantile(shuffled.null, 0.95)",
        "np.quantile(shuffled.null, 0.5)",
    ),
    ("measures/alignment.py", "z[random.permutation(len(z))]", "np.roll(z, 1, axis=0)"),
    ("theory/feature_graph.py", "begin + speed * drift * moments", "begin + 1.02 * speed * drift * moments"),
    ("theory/feature_graph.py", "np.cos(turn) * np.cos(turn + c)", "0.95 * np.cos(turn) * np.cos(turn + c)"),
)


def listed() -> Iterator[Change]:
    """The changes written out above."""
    for module, old, new, *tests in NOTICED_TOO_LATE:
        text = (SOURCE / module).read_text()
        if text.count(old) != 1:
            raise SystemExit(f"mutations: {old!r} occurs {text.count(old)} times in {module}; mend the list.")
        yield Change(module, text.index(old), old, new, tuple(tests) or tests_of(module))


@cache
def tests_of(module: str) -> tuple[str, ...]:
    """The tests that mirror a module: its folder's, or the files whose name begins like it; of a module
    without any, those of the nearest folder that has some. Of what claims and checks compute also the pages,
    which are compared with it."""
    path = Path(module)
    if path.parts[0] == "experiments" and len(path.parts) > 3:
        name = ROOT / "tests" / "experiments" / f"test_{path.parts[2]}.py"
        pages = ["tests/test_docs_numbers.py"] if path.stem in ("claims", "readings", "remarks") else []
        return (str(name.relative_to(ROOT)), *pages) if name.exists() else ()
    groups = (SOURCE / "checks" / "catalog.py").read_text()  # joma is imported only where it is changed
    if path.parts[0] == "checks" and f'"{(group := path.parts[1].removesuffix(".py"))}",' in groups:
        return (f"tests/checks/test_errata.py::test_a_page_says_what_is_computed[{group}]", *_mirrors(path))
    return _mirrors(path)


def _mirrors(path: Path) -> tuple[str, ...]:
    for name in (path.with_suffix(""), *path.parents[:-1]):
        folder = ROOT / "tests" / name
        if len(name.parts) > 1 and folder.is_dir():
            return (str(folder.relative_to(ROOT)),)
        found = sorted(folder.parent.glob(f"test_{name.name}*.py"))
        if found:
            return tuple(str(file.relative_to(ROOT)) for file in found)
    return ()


def drawn(seed: int = JUDGED) -> list[Change]:
    """``DRAWN`` changes: a kind, a folder and a change of that kind there, each in equal shares."""
    chosen = random.Random(seed)
    places: dict[str, dict[str, list[Change]]] = {kind: {} for kind in KINDS}
    for file in sorted(SOURCE.rglob("*.py")):
        module = str(file.relative_to(SOURCE))
        room = Path(module).parts[0]
        if room in ROOMS and "compiled" not in file.name and tests_of(module):
            for kind, change in changes_of(module):
                places[kind].setdefault(room, []).append(change)
    found: dict[tuple[str, int], Change] = {}
    while len(found) < DRAWN:
        rooms = places[KINDS[len(found) % len(KINDS)]]
        change = chosen.choice(rooms[chosen.choice(sorted(rooms))])
        found[change.module, change.offset] = change
    return sorted(found.values(), key=lambda change: (change.module, change.offset))


ROOMS = (
    "theory",
    "dynamics",
    "measures",
    "experiments",
    "checks",
    "data",
    "models",
    "checkpoints",
    "instruments",
    "training",
)
"""Folders of the source that hold formulas."""
_TURNED = {ast.Lt: ">=", ast.LtE: ">", ast.Gt: "<=", ast.GtE: "<"}
_OTHER_NAMES = {
    "extreme": {"max": "min", "min": "max", "maximum": "minimum", "minimum": "maximum", "argmax": "argmin"},
    "mean": {"mean": "max", "sum": "mean", "median": "mean"},
}
KINDS = (
    "factor",
    "exponent",
    "comparison",
    "sign",
    "extreme",
    "mean",
    "root",
    "dropped term",
    "dropped factor",
    "constant",
    "transposed",
    "swapped",
)


@cache
def changes_of(module: str) -> list[tuple[str, Change]]:
    """All changes of a module's formulas that may be drawn, each with its kind."""
    text = (SOURCE / module).read_text()
    encoded, lines = text.encode(), [0]
    for line in encoded.splitlines(keepends=True):
        lines.append(lines[-1] + len(line))

    def change(node: ast.expr, new: str) -> Change:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        begin = len(encoded[: lines[node.lineno - 1] + node.col_offset].decode())
        end = len(encoded[: lines[node.end_lineno - 1] + node.end_col_offset].decode())
        return Change(module, begin, text[begin:end], f"({new})", tests_of(module))

    factors = random.Random(module)
    return [
        (kind, change(part, new))
        for node in _formulas(ast.parse(text))
        for kind, part, new in wrong(node, factors)
    ]


def wrong(node: ast.expr, chosen: random.Random) -> Iterator[tuple[str, ast.expr, str]]:
    """The wrong texts of one expression: kind, what is replaced, by what."""
    shown = ast.unparse
    factor = chosen.choice((0.9, 0.95, 1.05, 1.1))
    if isinstance(node, ast.Compare):
        turned = _TURNED[type(node.ops[0])]
        yield "comparison", node, f"{shown(node.left)} {turned} {shown(node.comparators[0])}"
    elif isinstance(node, ast.BinOp):
        left, right = shown(node.left), shown(node.right)
        if isinstance(node.op, ast.Pow):
            yield "exponent", node.right, f"{factor} * ({right})"
        elif isinstance(node.op, ast.Mult | ast.Div):
            yield "factor", node.left, f"{factor} * ({left})"
            yield "dropped factor", node, left
            if isinstance(node.op, ast.Div):
                yield "swapped", node, f"({right}) / ({left})"
        elif isinstance(node.op, ast.Add | ast.Sub):
            yield "sign", node, f"({left}) {'-' if isinstance(node.op, ast.Add) else '+'} ({right})"
            yield "dropped term", node, left
        elif isinstance(node.op, ast.MatMult):
            yield "transposed", node.left, f"({left}).T"
    elif isinstance(node, ast.UnaryOp):
        yield "sign", node, shown(node.operand)
    elif isinstance(node, ast.Attribute):
        yield "transposed", node, shown(node.value)
    elif isinstance(node, ast.Constant):
        yield (
            "constant",
            node,
            f"{max(1, node.value // 2) if isinstance(node.value, int) else 0.8 * node.value}",
        )
    elif isinstance(node, ast.Call):
        function = shown(node.func)
        owner, _, name = function.rpartition(".")
        for kind, others in _OTHER_NAMES.items():
            if name in others:
                yield kind, node.func, f"{owner}.{others[name]}" if owner else others[name]
        if name == "sqrt" and len(node.args) == 1:
            yield "root", node, shown(node.args[0])
        plain = len(node.args) > 1 and not any(isinstance(one, ast.Starred) for one in node.args)
        if plain and shown(node.args[0]) != shown(node.args[1]) and name not in _SYMMETRIC:
            first, second, *others = map(shown, node.args)
            more = [*others, *(shown(one) for one in node.keywords)]
            yield "swapped", node, f"{function}({', '.join([second, first, *more])})"


_SYMMETRIC = ("maximum", "minimum", "max", "min", "hypot", "isinstance", "getattr", "zip", "broadcast_shapes")


def _formulas(tree: ast.AST) -> Iterator[ast.expr]:
    """Expressions that compute something: not those that choose a message, check an argument, count places of
    an array, annotate a type, or say how small a rounding is."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(
            node, ast.Raise | ast.Assert | ast.JoinedStr | ast.Subscript | ast.arguments | ast.Slice
        ):
            continue
        if isinstance(node, ast.If) and any(isinstance(one, ast.Raise) for one in node.body):
            continue
        if isinstance(node, ast.FunctionDef) and ("check" in node.name or "refuse" in node.name):
            continue
        if isinstance(node, ast.AnnAssign):
            if node.value is not None:
                yield from _formulas(ast.Expression(node.value))
            continue
        if isinstance(node, ast.expr) and _computes(node):
            yield node
        yield from _formulas(node)


def _computes(node: ast.expr) -> bool:
    constants = [one.value for one in ast.walk(node) if isinstance(one, ast.Constant)]
    if any(isinstance(one, str) or (isinstance(one, float) and abs(one) < 1e-5) for one in constants):
        return False
    if isinstance(node, ast.Constant):
        return type(node.value) in (int, float) and node.value not in (0, 1, 2, -1)
    if isinstance(node, ast.Compare):
        return len(node.ops) == 1 and type(node.ops[0]) in _TURNED
    if isinstance(node, ast.UnaryOp):
        return isinstance(node.op, ast.USub) and not isinstance(node.operand, ast.Constant)
    if isinstance(node, ast.BinOp):
        return not isinstance(node.op, ast.BitOr | ast.BitAnd | ast.BitXor)
    return isinstance(node, ast.Call) or (isinstance(node, ast.Attribute) and node.attr == "T")


def run_tests(tests: tuple[str, ...], source: Path, log: Path) -> int:
    """In a child of this process, which has loaded the libraries: its id."""
    child = os.fork()
    if child:
        return child
    os.setsid()
    with log.open("w") as out, contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        sys.path.insert(0, str(source))
        os.environ["PYTHONPATH"] = os.pathsep.join([str(source), os.environ.get("PYTHONPATH", "")])
        import pytest

        options = ["-x", "-q", "-m", "not slow and not browser", "-p", "no:cacheprovider", "-p", "no:xdist"]
        status = int(pytest.main([*options, *tests]))
        out.flush()
    os._exit(status)


def judge(changes: list[Change], jobs: int) -> list[Change]:
    """Run the tests of each change, ``jobs`` at a time; those that no test notices."""
    survivors: list[Change] = []
    waiting, running = list(reversed(changes)), {}
    with tempfile.TemporaryDirectory() as folder:
        os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = str(Path(folder) / "hypothesis")
        while waiting or running:
            while waiting and len(running) < jobs:
                change = waiting.pop()
                copy = Path(folder) / str(len(waiting))
                shutil.copytree(SOURCE, copy / "joma", ignore=shutil.ignore_patterns("__pycache__"))
                target = copy / "joma" / change.module
                text = target.read_text()
                end = change.offset + len(change.old)
                if text[change.offset : end] != change.old:
                    raise SystemExit(f"mutations: {change.module} was edited meanwhile; start again.")
                target.write_text(text[: change.offset] + change.new + text[end:])
                running[run_tests(change.tests, copy, copy / "log")] = change, copy, time.monotonic()
            time.sleep(0.1)
            for child, (change, copy, began) in list(running.items()):
                ended, status = os.waitpid(child, os.WNOHANG)
                late = not ended and time.monotonic() - began > SLOWEST
                if late:
                    os.killpg(child, signal.SIGKILL)
                    os.waitpid(child, 0)
                if not (ended or late):
                    continue
                survived = not late and os.waitstatus_to_exitcode(status) == 0
                if survived:
                    survivors.append(change)
                word = "SURVIVED" if survived else "too slow" if late else "noticed"
                print(f"{word:9}{time.monotonic() - began:5.0f} s  {change}", flush=True)
                del running[child]
                shutil.rmtree(copy)
    return survivors


def unchanged_pass(changes: list[Change]) -> bool:
    """Whether the tests pass as the source is: otherwise they would notice everything."""
    files = tuple(sorted({test for change in changes for test in change.tests}))
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        child = run_tests(files, SOURCE.parent, log)
        if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0:
            return True
        print(log.read_text()[-3000:])
    return False


def main() -> None:
    """Judge the changes and print what survives."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--list", action="store_true")
    options.add_argument(
        "--only", action="append", help="may be repeated: changes that hold any of the texts"
    )
    options.add_argument("--jobs", type=int, default=1)
    options.add_argument("--seed", type=int, default=JUDGED, help=f"tests were mended on {MENDED}")
    options.add_argument("--slice", default="0/1", metavar="I/N", help="every N-th change, from the I-th on")
    options.add_argument("--drawn", action="store_true", help="without those that are written out")
    options.add_argument(
        "--skip-unchanged", action="store_true", help="do not run the unchanged source first"
    )
    asked = options.parse_args()
    os.chdir(ROOT)
    every = [*([] if asked.drawn else listed()), *drawn(asked.seed)]
    first, _, step = asked.slice.partition("/")
    changes = [one for one in every if any(text in str(one) for text in asked.only or [""])]
    changes = changes[int(first) :: int(step)]
    if asked.list:
        print("\n".join(map(str, changes)))
        return
    for name in LOADED:
        importlib.import_module(name)
    if not asked.skip_unchanged and not unchanged_pass(changes):
        raise SystemExit("mutations: the tests fail before anything is changed.")
    survivors = judge(changes, asked.jobs)
    print(f"seed {asked.seed} (mended on {MENDED}): {len(changes)} changes, {len(survivors)} survivors")
    for survivor in survivors:
        print(f"{survivor}: {EXPLAINED.get(survivor.module, 'not explained')}")
    sys.exit(len(survivors) > MOST_SURVIVORS)


if __name__ == "__main__":
    main()
