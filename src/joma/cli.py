"""The command line: arguments in, functions called."""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import json
import os
import re
import sys
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn, get_type_hints

from joma import __version__
from joma.errors import InputError, JomaError, nearest

_COMMANDS = {
    "demo": "the tour, in minutes: theory checked, a few experiments run, a report to look at",
    "check": "every theorem, lemma and erratum of the papers, verified numerically",
    "list": "the experiments, with the figure or table they reproduce and what they cost",
    "run": "one experiment: tables, figure, and the paper's claims against what was measured",
    "probe": "attention entropy, stable ranks, salience ... of a real model",
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
        print(f"joma: {_one_line(str(error))}", file=sys.stderr)
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
            f"joma: unexpected {type(error).__name__}: {_one_line(str(error))} "
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
        "probe": _probe,
        "report": _report,
    }
    if command not in handlers:
        raise InputError(f"there is no command {command!r}; {nearest(command, handlers)} (see: joma --help)")
    return handlers[command](rest)


class _Parser(argparse.ArgumentParser):
    """An argparse parser whose errors can be told in one line."""

    def error(self, message: str) -> NoReturn:
        raise argparse.ArgumentError(None, message)


def _parser(command: str, description: str = "") -> argparse.ArgumentParser:
    parser = _Parser(prog=f"joma {command}", description=description or _COMMANDS[command])
    return _with_debug(parser)


def _settings_parser(command: str, description: str) -> argparse.ArgumentParser:
    """A parser that knows types, YAML files and lists; its import is most of ``joma --help``'s time."""
    from jsonargparse import ArgumentParser

    return _with_debug(ArgumentParser(prog=f"joma {command}", description=description, exit_on_error=False))


def _with_debug(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    return parser


def _parse(parser: argparse.ArgumentParser, words: list[str]) -> Any:
    try:
        return parser.parse_args(words)
    except argparse.ArgumentError as error:
        message = _one_line(str(error))
        if "nrecognized arguments" in message:
            options = [option for action in parser._actions for option in action.option_strings]
            unknown = message.partition("arguments:")[2].split()[0]
            near = difflib.get_close_matches(unknown.split("=")[0], options, n=1, cutoff=0.6)
            hint = f"did you mean {near[0]!r}?" if near else f"see: {parser.prog} --help"
            raise InputError(f"{parser.prog}: unknown argument {unknown!r}; {hint}") from error
        raise InputError(f"{parser.prog}: {_in_plain_words(message)} (see: {parser.prog} --help)") from error


def _in_plain_words(message: str) -> str:
    """``Parser key "steps": Expected a <class 'int'>. Got value: x`` -> ``--steps x: give an int``."""
    found = re.match(
        r'Parser key "(\w+)": .*?Expected a <class \'(\w+)\'>.*(?:Got|Given) value: (\S+)', message
    )
    if not found:
        return message
    or_none = " (or none)" if "NoneType" in message else ""
    return f"--{found[1]} {found[3]} is not of the type {found[2]}{or_none}"


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _quiet_and_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--quiet", action="store_true", help="no progress on stderr")
    parser.add_argument("--json", action="store_true", help="machine-readable results on stdout")


def _list(words: list[str]) -> int:
    from joma.experiments import catalog

    parser = _parser("list")
    parser.add_argument("--json", action="store_true", help="machine-readable list on stdout")
    options = _parse(parser, words)
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
    words = _plain_words(experiment, words[1:])
    preset = _preset(words)
    defaults = experiment.from_preset(preset)
    parser = _settings_parser(f"run {name}", _first_paragraph(experiment))
    parser.add_argument("--config", action="config", help="YAML file of settings")
    parser.add_argument("--preset", default="quick", help=f"starting point: {', '.join(experiment.presets)}")
    parser.add_argument("--out", default="", help=f"run directory (empty: runs/{name})")
    parser.add_argument("--overwrite", action="store_true", help="start over, whatever the directory holds")
    _quiet_and_json(parser)
    types = get_type_hints(experiment)
    fields = dataclasses.fields(experiment)
    for field in fields:
        parser.add_argument(
            f"--{field.name}",
            type=types[field.name],
            default=getattr(defaults, field.name),
            help=field.metadata["help"],
        )
    options = _parse(parser, words)
    settings = {field.name: _frozen(options[field.name]) for field in fields}
    chosen = experiment.from_preset(preset, **settings)

    from joma.reporting.terminal import claims_as_text
    from joma.runs import run_experiment

    directory = Path(options.out or f"runs/{name}")
    run = run_experiment(chosen, directory, preset=preset, overwrite=options.overwrite, quiet=options.quiet)
    if options.json:
        result = {"directory": str(directory), "claims": [claim.as_dict() for claim in run.claims]}
        print(json.dumps(result, indent=1))
    else:
        print(claims_as_text(run.claims))
        print(f"{directory}")
    return 0


def _check(words: list[str]) -> int:
    parser = _parser("check", _COMMANDS["check"] + ". NAMES: groups of checks (default: all)")
    parser.add_argument("names", nargs="*", help="groups, such as theorem2 or lemma4")
    _quiet_and_json(parser)
    options = _parse(parser, words)

    from joma.checks.catalog import run_checks
    from joma.progress import Progress
    from joma.reporting.terminal import claims_as_text

    claims = run_checks(options.names or [], Progress(quiet=options.quiet))
    if options.json:
        print(json.dumps([claim.as_dict() for claim in claims], indent=1))
    else:
        print(claims_as_text(claims))
    return 0


def _probe(words: list[str]) -> int:
    parser = _parser("probe")
    parser.add_argument(
        "model", help="a folder, a .gguf file, or a name on the Hugging Face hub (id@revision)"
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "--text", help="run it on this: a text file, a table, a .npy of token ids, a named corpus"
    )
    what.add_argument("--weights", action="store_true", help="weights alone, shard by shard, no model built")
    parser.add_argument(
        "--out",
        default="",
        help="directory of the results (--weights: a Parquet file); empty: runs/probe-MODEL",
    )
    parser.add_argument("--overwrite", action="store_true", help="start over, whatever the directory holds")
    parser.add_argument("--attention", action="store_true", help="ranks of query, key, value, output too")
    parser.add_argument("--certify", action="store_true", help="with --weights: prove the error bounds")
    with_text = parser.add_argument_group("with --text")
    with_text.add_argument("--column", help="the table's column that holds the texts")
    with_text.add_argument("--tokenizer", help="name or folder of a tokenizer, in place of the model's own")
    with_text.add_argument("--length", type=int, help="tokens of a window (512, or the model's positions)")
    with_text.add_argument("--tokens", type=int, help="tokens to read, in whole windows (about 8192)")
    with_text.add_argument("--batch-tokens", type=int, default=2048, help="tokens of a batch (2048)")
    with_text.add_argument("--sections", help="of attention,ranks,coherence,joint_dynamics,salience (all)")
    with_text.add_argument("--statistics", help="of the attention: entropy,renyi_2,self_mass, ...")
    with_text.add_argument("--layers", help="numbers of the layers: 0,5,11 (all)")
    with_text.add_argument("--heads", help="numbers of the heads (all)")
    with_text.add_argument("--rows", type=float, help="share of the attention's rows to measure: 0.125 (all)")
    with_text.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1")
    with_text.add_argument("--dtype", help="float32, bfloat16 or float16 (float32 on a CPU)")
    _quiet_and_json(parser)
    options = _parse(parser, words)
    return _probe_weights(options) if options.weights else _probe_text(options)


def _probe_text(options: argparse.Namespace) -> int:
    if options.certify:
        raise InputError("joma probe: --certify goes with --weights.")
    from joma.probing import ProbeRun
    from joma.reporting.page import write_report
    from joma.reporting.probe_text import probe_as_text
    from joma.reporting.terminal import claims_as_text
    from joma.runs import run_experiment

    run = ProbeRun(
        model=options.model,
        text=options.text,
        column=options.column,
        tokenizer=options.tokenizer,
        length=options.length,
        tokens=options.tokens,
        batch_tokens=options.batch_tokens,
        sections=_words(options.sections),
        statistics=_words(options.statistics),
        layers=_numbers("--layers", options.layers),
        heads=_numbers("--heads", options.heads),
        rows=options.rows,
        attention_matrices=options.attention,
        device=options.device,
        dtype=options.dtype,
    )
    slug = re.sub(r"[^\w.-]+", "-", options.model).strip("-.")
    directory = Path(options.out or f"runs/probe-{slug}")
    done = run_experiment(run, directory, overwrite=options.overwrite, quiet=options.quiet)
    page = write_report([done], directory / "report.html")
    if options.json:
        tables = {
            name: json.loads(table.to_json(orient="records", double_precision=15))
            for name, table in done.tables.items()
        }
        claims = [claim.as_dict() for claim in done.claims]
        print(json.dumps({"directory": str(directory), "tables": tables, "claims": claims}, indent=1))
    else:
        print(probe_as_text(done.tables))
        print(claims_as_text(done.claims))
        print(f"{page}")
    return 0


def _words(text: str | None) -> tuple[str, ...] | None:
    return None if text is None else tuple(word.strip() for word in text.split(",") if word.strip())


def _numbers(option: str, text: str | None) -> tuple[int, ...] | None:
    words = _words(text)
    if words is None:
        return None
    if not all(word.isdigit() for word in words):
        raise InputError(f"joma probe: {option} {text} is no list of numbers; write 0,5,11.")
    return tuple(int(word) for word in words)


def _probe_weights(options: argparse.Namespace) -> int:
    from joma.files import whole_file
    from joma.probes.loading import resolve
    from joma.probes.weights import probe_weights
    from joma.progress import Progress

    table = probe_weights(
        resolve(options.model),
        attention=options.attention,
        certify=options.certify,
        progress=Progress(quiet=options.quiet),
    )
    if options.out:
        with whole_file(Path(options.out)) as temporary:
            table.to_parquet(temporary, index=False)
    if options.json:
        print(table.to_json(orient="records", indent=1, double_precision=15))
    else:
        shown = [column for column in ("stack", "expert") if table[column].astype(bool).any()]
        columns = ["layer", *shown, "matrix", "metric", "value", "error_bound", "rows", "columns"]
        print(table[columns].to_string(index=False, float_format=lambda value: f"{value:.6g}"))
    return 0


def _demo(words: list[str]) -> int:
    parser = _parser("demo")
    parser.add_argument("--out", default="joma-demo", help="directory for the runs and the report")
    parser.add_argument("--overwrite", action="store_true", help="start over")
    parser.add_argument("--quiet", action="store_true", help="no progress on stderr")
    options = _parse(parser, words)

    from joma.demo import run_demo

    print(run_demo(Path(options.out), overwrite=options.overwrite, quiet=options.quiet))
    return 0


def _report(words: list[str]) -> int:
    parser = _parser("report")
    parser.add_argument("directories", nargs="+", help="run directories, or folders that hold some")
    parser.add_argument("--out", default="", help="the page (empty: report.html in the first directory)")
    options = _parse(parser, words)

    from joma.reporting.page import write_report
    from joma.runs import Run, find_runs, read_run

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


def _preset(words: list[str]) -> str:
    """The preset that the words, or else the configuration file, name; ``quick`` by default."""
    named = _option(words, "--preset")
    config = _option(words, "--config")
    if named is None and config is not None:
        import yaml

        from joma.data.corpora import read_text

        try:
            content = yaml.safe_load(read_text(Path(config)))
        except yaml.YAMLError as error:
            raise InputError(f"{config} is not YAML ({_one_line(str(error))}).") from error
        if not isinstance(content, dict):
            raise InputError(f"{config} holds no settings; write lines of the form 'steps: 1000'.")
        named = content.get("preset")
    return "quick" if named is None else str(named)


def _option(words: list[str], option: str) -> str | None:
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if word == option:
            return following
        if word.startswith(f"{option}="):
            return word.partition("=")[2]
    return None


def _plain_words(experiment: type[Any], words: list[str]) -> list[str]:
    """Settings as people type them: dashes for underscores, ``1,2`` for lists, ``none`` for null."""
    types = get_type_hints(experiment)
    plain: list[str] = []
    for word in words:
        if word.startswith("--"):
            option, equals, value = word.partition("=")
            plain += [option.replace("-", "_").replace("__", "--", 1)] + ([value] if equals else [])
        else:
            plain.append(word)
    for i in range(1, len(plain)):
        kind = str(types.get(plain[i - 1].removeprefix("--"), ""))
        if "None" in kind and plain[i].lower() == "none":
            plain[i] = "null"
        if kind.startswith("tuple") and not plain[i].startswith(("[", "(", "--")):
            plain[i] = f"[{plain[i]}]"
    return plain


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _first_paragraph(experiment: type[Any]) -> str:
    return _one_line((experiment.__doc__ or "").split("\n\n")[0])
