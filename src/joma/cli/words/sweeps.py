"""The words of ``joma sweep``: an experiment, the settings of all its cells, and the grid."""

from __future__ import annotations

from joma.cli.words.arguments import Grammar
from joma.cli.words.config import read_config
from joma.cli.words.options import JobCall, SweepOptions, all_fields, divide_options
from joma.core.errors import InputError
from joma.core.settings import as_text
from joma.experiments import catalog
from joma.sweeps import SweepSettings

_GRID = "--grid"


def read(command: str, summary: str, words: list[str]) -> JobCall | None:
    """A sweep; None where help was asked for, and shown."""
    if not words or words[0] in ("-h", "--help"):
        print(
            "usage: joma sweep EXPERIMENT [--preset quick|paper] [--grid NAME=VALUES ...] [--out DIR]\n"
            "                  [--executor processes|dask://HOST:PORT|ray://HOST:PORT] [settings]\n"
        )
        print(f"{summary}.\nexperiments: {', '.join(catalog.names())}")
        print(
            "\nA grid is written  learning_rate=1e-5,1e-4 layers=1,2,5 seed=1..3: each combination is a "
            "cell of one\n"
            "training, a run directory of its own below DIR/cells. Without a grid it is the preset's own.\n"
            "joma sweep EXPERIMENT --help shows the settings; --dry-run says what it would take."
        )
        return None
    if words[0].startswith("-"):
        raise InputError("sweep: name the experiment first, then its grid and settings (see: joma list).")
    kind = catalog.find(words[0])
    grid, rest = _divide(words[1:])
    grammar = Grammar(
        f"sweep {words[0]}",
        f"{summary}: {kind.title}",
        all_fields(SweepOptions, kind),
        others=catalog.tell_owners,
    )
    given = grammar.values([word for word in rest if word not in ("-h", "--help")]) or {}
    given = {**read_config(given, kind, SweepOptions.fields()["preset"]), **given}
    options, settings = divide_options(SweepOptions, given)
    assert isinstance(options, SweepOptions)
    if {"-h", "--help"} & set(rest):
        print(
            grammar.help({"out": f"runs/sweep-{kind.name()}", **kind.preset_values(options.preset)}), end=""
        )
        return None
    named = tuple(f"{name}={as_text(value)}" for name, value in sorted(settings.items()))
    job = SweepSettings(experiment=kind.name(), preset=options.preset, settings=named, grid=grid)
    job.grid_cells()
    return JobCall(job, options, options.preset)


def _divide(words: list[str]) -> tuple[tuple[str, ...], list[str]]:
    """The words behind ``--grid``, up to the next option, and the others."""
    grid: list[str] = []
    rest: list[str] = []
    inside = named = False
    for word in words:
        if word == _GRID or word.startswith(f"{_GRID}="):
            inside = named = True
            if word != _GRID:
                grid.append(word.removeprefix(f"{_GRID}="))
        elif inside and not word.startswith("-"):
            grid.append(word)
        else:
            inside = False
            rest.append(word)
    if named and not grid:
        raise InputError("sweep: --grid is empty; write name=1,2 or name=1..3 behind it, or leave it out.")
    return tuple(grid), rest
