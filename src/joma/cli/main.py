"""The command line: arguments in, functions called."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn, get_type_hints

from joma import __version__
from joma.cli import models as cli_models
from joma.cli.arguments import (
    command_parser,
    frozen,
    one_line,
    parse,
    plain_words,
    preset_of,
    quiet_and_json,
    settings_parser,
)
from joma.errors import InputError, JomaError, nearest

_COMMANDS = {
    "demo": "the tour, in minutes: theory checked, a few experiments run, a report to look at",
    "check": "every theorem, lemma and erratum of the papers, verified numerically",
    "list": "the experiments, with the figure or table they reproduce and what they cost",
    "run": "one experiment: tables, figure, and the paper's claims against what was measured",
    "probe": cli_models.PROBE,
    "neurons": cli_models.NEURONS,
    "report": "results as one self-contained HTML page",
}
_USAGE = (
    "usage: joma COMMAND [options]\n\n"
    "The laboratory for the training dynamics of transformers.\n\ncommands:\n"
    + "\n".join(f"  {name:<8} {text}" for name, text in _COMMANDS.items())
    + "\n\njoma COMMAND --help tells more. Exit status: 0 done, 1 a run that could not finish, "
    "2 something\nin the call or its files must be put right, 130 interrupted.\n"
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run joma with these arguments (default: the process's own); returns the exit status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in words
    words = [word for word in words if word != "--debug"]
    try:
        return _dispatch(words)
    except JomaError as error:
        if debug:
            raise
        print(f"joma: {one_line(str(error))}", file=sys.stderr)
        return error.exit_status
    except KeyboardInterrupt:
        if debug:
            raise
        if sys.stderr.isatty():
            print(file=sys.stderr)  # the terminal has echoed ^C into a progress bar
        print(
            "joma: interrupted; finished parts are kept, and the same command continues from there.",
            file=sys.stderr,
        )
        return 130
    except BrokenPipeError:
        # The reader of our output left (joma list | head): say nothing more, not even at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if debug:
            raise
        print(
            f"joma: unexpected {type(error).__name__}: {one_line(str(error))} "
            "(a defect of joma: please report it with what --debug shows)",
            file=sys.stderr,
        )
        return 1


def entry() -> NoReturn:
    """The console script: :func:`main`, and an end that an interrupted pool of processes cannot hold up."""
    status = main()
    if status == 130:
        sys.stdout.flush()
        sys.stderr.flush()
        # The pool's hooks at exit wait for workers that are gone; the workers leave with this process.
        os._exit(status)
    sys.exit(status)


def _dispatch(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help"):
        print(_USAGE, end="")
        return 0
    if words[0] == "--version":
        print(f"joma {__version__}")
        return 0
    command, rest = words[0], words[1:]
    handlers: dict[str, Callable[[list[str]], int]] = {
        "demo": _demo,
        "check": _check,
        "list": _list,
        "run": _run,
        "probe": cli_models.probe,
        "neurons": cli_models.neurons,
        "report": _report,
    }
    if command not in handlers:
        raise InputError(f"there is no command {command!r}; {nearest(command, handlers)} (see: joma --help)")
    return handlers[command](rest)


def _list(words: list[str]) -> int:
    from joma.experiments import catalog

    parser = command_parser("list", _COMMANDS["list"])
    parser.add_argument("--json", action="store_true", help="machine-readable list on stdout")
    options = parse(parser, words)
    found = {name: catalog.find(name) for name in catalog.names()}
    if options.json:
        rows = [
            {"name": n, "title": e.title, "reproduces": e.reproduces, "cost": dict(e.cost)}
            for n, e in found.items()
        ]
        print(json.dumps(rows, indent=1))
        return 0
    for name, experiment in found.items():
        cost = ", ".join(f"{preset}: {time}" for preset, time in experiment.cost.items())
        print(f"{name:<18} {experiment.reproduces}  ({cost})")
        print(textwrap.indent(textwrap.fill(experiment.title, 88), " " * 19))
    return 0


def _run(words: list[str]) -> int:
    from joma.experiments import catalog

    name = words[0] if words and not words[0].startswith("-") else None
    if name is None and words and words[0] not in ("-h", "--help"):
        raise InputError("joma run: name the experiment first, then its settings (see: joma list).")
    if name is None:
        print("usage: joma run EXPERIMENT [--preset quick|paper] [--out DIR] [settings]\n")
        print(f"{_COMMANDS['run']}.\nexperiments: {', '.join(catalog.names())}")
        print("\njoma run EXPERIMENT --help shows its settings; joma list tells what each one is.")
        return 0
    experiment = catalog.find(name)
    words = plain_words(experiment, words[1:])
    preset = preset_of(words)
    defaults = experiment.from_preset(preset)
    parser = settings_parser(f"run {name}", _first_paragraph(experiment))
    parser.add_argument("--config", action="config", help="YAML file of settings")
    parser.add_argument("--preset", default="quick", help=f"starting point: {', '.join(experiment.presets)}")
    parser.add_argument("--out", default="", help=f"run directory (empty: runs/{name})")
    parser.add_argument("--overwrite", action="store_true", help="start over, whatever the directory holds")
    quiet_and_json(parser)
    types = get_type_hints(experiment)
    fields = dataclasses.fields(experiment)
    for field in fields:
        parser.add_argument(
            f"--{field.name}",
            type=types[field.name],
            default=getattr(defaults, field.name),
            help=field.metadata["help"],
        )
    options = parse(parser, words)
    settings = {field.name: frozen(options[field.name]) for field in fields}
    chosen = experiment.from_preset(preset, **settings)

    from joma.reporting.terminal import run_as_text
    from joma.runs.directory import run_experiment

    directory = Path(options.out or f"runs/{name}")
    run = run_experiment(chosen, directory, preset=preset, overwrite=options.overwrite, quiet=options.quiet)
    if options.json:
        result = {"directory": str(directory), "claims": [claim.as_dict() for claim in run.claims]}
        print(json.dumps(result, indent=1))
    else:
        print(run_as_text(run))
        print(f"{directory}")
    return 0


def _check(words: list[str]) -> int:
    parser = command_parser("check", _COMMANDS["check"] + ". NAMES: groups of checks (default: all)")
    parser.add_argument("names", nargs="*", help="groups, such as theorem2 or lemma4")
    quiet_and_json(parser)
    options = parse(parser, words)

    from joma.checks.catalog import run_checks
    from joma.progress import Progress
    from joma.reporting.terminal import claims_as_text

    claims = run_checks(options.names or [], Progress(quiet=options.quiet))
    if options.json:
        print(json.dumps([claim.as_dict() for claim in claims], indent=1))
    else:
        print(claims_as_text(claims))
    return 0


def _demo(words: list[str]) -> int:
    parser = command_parser("demo", _COMMANDS["demo"])
    parser.add_argument("--out", default="joma-demo", help="directory for the runs and the report")
    parser.add_argument("--overwrite", action="store_true", help="start over")
    parser.add_argument("--quiet", action="store_true", help="no progress on stderr")
    options = parse(parser, words)

    from joma.cli.demo import run_demo

    print(run_demo(Path(options.out), overwrite=options.overwrite, quiet=options.quiet))
    return 0


def _report(words: list[str]) -> int:
    parser = command_parser("report", _COMMANDS["report"])
    parser.add_argument("directories", nargs="+", help="run directories, or folders that hold some")
    parser.add_argument("--out", default="", help="the page (empty: report.html in the first directory)")
    options = parse(parser, words)

    from joma.reporting.page import write_report
    from joma.runs.directory import Run, find_runs, read_run

    directories = [Path(word) for word in options.directories]
    runs: list[Run] = []
    seen: set[Path] = set()
    for directory in directories:
        if not directory.is_dir():
            raise InputError(f"{directory} is not a directory; give run directories of joma run.")
        found = find_runs(directory)
        if not found:
            raise InputError(f"{directory} holds no run; give a directory that joma run has written.")
        runs += [read_run(path) for path in found if path.resolve() not in seen]
        seen |= {path.resolve() for path in found}
    print(write_report(runs, Path(options.out) if options.out else directories[0] / "report.html"))
    return 0


def _first_paragraph(experiment: type[Any]) -> str:
    return one_line((experiment.__doc__ or "").split("\n\n")[0])
