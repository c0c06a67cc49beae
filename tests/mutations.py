"""Small wrong changes to formulas, one at a time: does a test notice?

``python tests/mutations.py`` makes each change in a temporary copy of ``src``, runs the fast tests of the
changed module until the first failure, and lists what survives; exit status 1 where more than three
survive. ``--list`` prints the changes, ``--only TEXT`` takes those whose line holds the text, ``--jobs N``
works on several at a time. Changes that were once unnoticed are written out below; the others are drawn
with a fixed seed from factors, exponents, products and comparisons of all formulas.
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
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "joma"
SEED = 2024
DRAWN = {"theory": 18, "dynamics": 8, "measures": 14, "experiments": 10}
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
    ("measures/bounce/slow_noise.py", "    return float(1 + count -", "    return 0.5 * float(1 + count -"),
    ("measures/bounce/slow_noise.py", 'rise, side="left"', 'rise, side="right"'),
    ("measures/bounce/slow_noise.py", "0.95, 0.975, 1)", "0.95, 0.975)"),
    ("measures/bounce/slow_noise.py", "bool(as_fast < share", "bool(as_fast < 4 * share"),
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
        "    error = scores.rounding * (lse",
        "    error = 0.5 * scores.rounding * (lse",
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


def tests_of(module: str) -> tuple[str, ...]:
    """The tests that mirror a module: its folder's, or the files whose name begins like it."""
    path = Path(module)
    if path.parts[0] == "experiments":
        return (f"tests/experiments/test_{path.parts[2]}.py",)
    for name in (path.with_suffix(""), path.parent):
        folder = ROOT / "tests" / name
        if len(name.parts) > 1 and folder.is_dir():
            return (str(folder.relative_to(ROOT)),)
        found = sorted(folder.parent.glob(f"test_{name.name}*.py")) if len(name.parts) > 1 else []
        if found:
            return tuple(str(file.relative_to(ROOT)) for file in found)
    return ()


def drawn() -> Iterator[Change]:
    """Changes drawn with a fixed seed, so many of each package."""
    for package, count in DRAWN.items():
        chosen = random.Random(f"{SEED} {package}")
        pattern = "*/*/claims.py" if package == "experiments" else "**/*.py"
        changes = [
            change
            for file in sorted((SOURCE / package).glob(pattern))
            if "compiled" not in file.name and tests_of(str(file.relative_to(SOURCE)))
            for change in changes_of(str(file.relative_to(SOURCE)), chosen)
        ]
        yield from sorted(chosen.sample(changes, count), key=lambda change: (change.module, change.offset))


def changes_of(module: str, chosen: random.Random) -> Iterator[Change]:
    """All changes of a module's formulas that may be drawn, one each place."""
    text = (SOURCE / module).read_text()
    lines = [0]
    for line in text.encode().splitlines(keepends=True):
        lines.append(lines[-1] + len(line))

    def change(node: ast.expr, new: str) -> Change:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        begin = len(text.encode()[: lines[node.lineno - 1] + node.col_offset].decode())
        end = len(text.encode()[: lines[node.end_lineno - 1] + node.end_col_offset].decode())
        return Change(module, begin, text[begin:end], new, tests_of(module))

    for node in _formulas(ast.parse(text)):
        factor = chosen.choice((0.9, 0.95, 0.98, 1.02, 1.05, 1.1))
        if isinstance(node, ast.Compare):
            turned = {ast.Lt: ">=", ast.LtE: ">", ast.Gt: "<=", ast.GtE: "<"}[type(node.ops[0])]
            yield change(node, f"{ast.unparse(node.left)} {turned} {ast.unparse(node.comparators[0])}")
        elif isinstance(node.op, ast.Pow):
            yield change(node.right, f"({factor} * {ast.unparse(node.right)})")
        else:
            yield change(node.left, f"({factor} * ({ast.unparse(node.left)}))")


def _formulas(tree: ast.AST) -> Iterator[ast.Compare | ast.BinOp]:
    """Products, quotients, powers and comparisons that compute something: not those that choose a message,
    check an argument, count places of an array, or say how small a rounding is."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(
            node, ast.Raise | ast.Assert | ast.JoinedStr | ast.Subscript | ast.arguments | ast.Slice
        ):
            continue
        if isinstance(node, ast.If) and any(isinstance(one, ast.Raise) for one in node.body):
            continue
        if isinstance(node, ast.FunctionDef) and ("check" in node.name or "refuse" in node.name):
            continue
        rounding = (
            isinstance(one, ast.Constant) and isinstance(one.value, float) and abs(one.value) < 1e-5
            for one in ast.walk(node)
        )
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult | ast.Div | ast.Pow):
            texts = any(
                isinstance(one, ast.Constant) and isinstance(one.value, str) for one in ast.walk(node)
            )
            if not texts and not any(rounding):
                yield node
        elif (
            isinstance(node, ast.Compare)
            and len(node.ops) == 1
            and isinstance(node.ops[0], ast.Lt | ast.LtE | ast.Gt | ast.GtE)
            and not any(rounding)
        ):
            yield node
        yield from _formulas(node)


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
    options.add_argument(
        "--skip-unchanged", action="store_true", help="do not run the unchanged source first"
    )
    asked = options.parse_args()
    os.chdir(ROOT)
    changes = [
        change for change in (*listed(), *drawn()) if any(text in str(change) for text in asked.only or [""])
    ]
    if asked.list:
        print("\n".join(map(str, changes)))
        return
    for name in LOADED:
        importlib.import_module(name)
    if not asked.skip_unchanged and not unchanged_pass(changes):
        raise SystemExit("mutations: the tests fail before anything is changed.")
    survivors = judge(changes, asked.jobs)
    print(f"{len(changes)} changes, {len(survivors)} survivors")
    for survivor in survivors:
        print(f"{survivor}: {EXPLAINED.get(survivor.module, 'not explained')}")
    sys.exit(len(survivors) > MOST_SURVIVORS)


if __name__ == "__main__":
    main()
