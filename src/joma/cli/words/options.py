"""The options of the commands, as settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from joma.cli.words.arguments import Grammar
from joma.core.settings import Field, Settings, Value, setting
from joma.runs.job import Job


@dataclass(frozen=True, kw_only=True)
class Quiet(Settings):
    """Options of every command that computes."""

    quiet: bool = setting(False, "no progress on stderr", short="-q")
    json: bool = setting(False, "machine-readable results on stdout")


@dataclass(frozen=True, kw_only=True)
class ListOptions(Settings):
    """Options of ``joma list``."""

    json: bool = setting(False, "machine-readable list on stdout")


@dataclass(frozen=True, kw_only=True)
class CheckOptions(Quiet):
    """Options of ``joma check``."""

    names: tuple[str, ...] = setting(
        (), "groups of checks, such as theorem2 or lemma4 (default: all)", positional=True
    )
    list: bool = setting(False, "name the groups of checks, and compute nothing")


@dataclass(frozen=True, kw_only=True)
class DemoOptions(Settings):
    """Options of ``joma demo``."""

    out: str = setting("joma-demo", "directory for the runs and the report", short="-o")
    quick: bool = setting(False, "a minute: two groups of checks, one figure, a decoder of few steps")
    overwrite: bool = setting(False, "start over")
    quiet: bool = setting(False, "no progress on stderr", short="-q")


@dataclass(frozen=True, kw_only=True)
class ReportOptions(Settings):
    """Options of ``joma report``; two runs stand side by side."""

    directories: tuple[str, ...] = setting(
        (), "run directories, or folders that hold some; two runs stand side by side", positional=True
    )
    out: str = setting("", "the page (default: report.html in the first directory)", short="-o")
    overwrite: bool = setting(False, "replace a file that joma did not write")


@dataclass(frozen=True, kw_only=True)
class DigestOptions(Quiet):
    """Options of ``joma digest``."""

    subjects: tuple[str, ...] = setting(
        (), "a run directory, a monitor's folder, a model or a series; two runs are compared", positional=True
    )
    schema: bool = setting(False, "print the JSON schema of --json, and look at nothing")


@dataclass(frozen=True, kw_only=True)
class MonitorOptions(Settings):
    """Options of ``joma monitor``."""

    directories: tuple[str, ...] = setting(
        (), "folder that joma.Monitor writes; with --calibrate, of one or more healthy runs", positional=True
    )
    calibrate: str = setting("", "write what these runs reached to this file, for joma.Monitor(reference=)")
    follow: bool = setting(False, "go on until interrupted, and print what is new", short="-f")
    json: bool = setting(False, "machine-readable state and messages on stdout")


@dataclass(frozen=True, kw_only=True)
class CompletionOptions(Settings):
    """Options of ``joma completion``."""

    shell: str = setting("", "bash, zsh or fish", positional=True)


@dataclass(frozen=True, kw_only=True)
class JobOptions(Quiet):
    """Options of the commands that fill a run directory."""

    out: str = setting("", "directory of the results", short="-o")
    overwrite: bool = setting(False, "start over, whatever the directory holds")
    config: str = setting(
        "", "YAML file of settings, a run's settings.yaml, too; words on the command line count more"
    )
    executor: str = setting(
        "processes", "where parts are computed: processes, dask://HOST:PORT or ray://HOST:PORT"
    )


@dataclass(frozen=True, kw_only=True)
class RunOptions(JobOptions):
    """Options of ``joma run``."""

    preset: str = setting("quick", "starting point")


@dataclass(frozen=True, kw_only=True)
class SweepOptions(RunOptions):
    """Options of ``joma sweep``."""

    grid: tuple[str, ...] = setting(
        (), "name=1,2 or name=1..3, one word or several: the cells (default: the preset's own grid)"
    )
    dry_run: bool = setting(False, "say how many cells, how long and how much memory; measure a few steps")
    yes: bool = setting(False, "do not ask, however many cells")


@dataclass(frozen=True, kw_only=True)
class InstrumentOptions(JobOptions):
    """Options of the commands on real models."""

    csv: bool = setting(False, "the main table as CSV on stdout")


@dataclass(frozen=True, kw_only=True)
class TrackOptions(InstrumentOptions):
    """Options of ``joma track``."""

    dry_run: bool = setting(False, "say what there is, what it takes, and how long; measure one checkpoint")
    audit: bool = setting(
        False,
        "only say which members are not what their names say (status 1: some); --no-audit: measure without "
        "asking",
    )


@dataclass(frozen=True)
class JobCall:
    """A job, and how it was asked for."""

    job: Job
    options: JobOptions
    preset: str = ""


_PLAIN = {
    "list": ListOptions,
    "check": CheckOptions,
    "demo": DemoOptions,
    "monitor": MonitorOptions,
    "report": ReportOptions,
    "digest": DigestOptions,
    "completion": CompletionOptions,
}


def read(command: str, summary: str, words: list[str]) -> Settings | None:
    """The options of a command that runs no job; None where help was asked for, and shown."""
    kind: type[Settings] = _PLAIN[command]
    grammar = Grammar(command, summary, kind.fields())
    values = grammar.values(words)
    if values is None:
        print(grammar.help({}), end="")
        return None
    return kind.of(**values)


def all_fields(options: type[JobOptions], job: type[Job]) -> dict[str, Field]:
    """The job's positional settings, the options, the other settings; an option goes before a setting."""
    ordered = sorted(job.fields().items(), key=lambda item: not item[1].positional)
    first = {name: field for name, field in ordered if field.positional}
    return first | dict(options.fields()) | {n: f for n, f in ordered if n not in options.fields()}


def divide_options(
    options: type[JobOptions], given: Mapping[str, Value]
) -> tuple[JobOptions, dict[str, Value]]:
    """The options, and what is left: the job's settings."""
    own = {name: value for name, value in given.items() if name in options.fields()}
    return options.of(**own), {name: value for name, value in given.items() if name not in own}
