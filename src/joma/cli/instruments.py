"""The words of the commands on real models."""

from __future__ import annotations

from joma.cli.arguments import Grammar
from joma.cli.options import InstrumentOptions, JobCall, divided, together
from joma.instruments.base import Instrument
from joma.instruments.neurons import NeuronsRun
from joma.instruments.probe import ProbeRun

_KINDS: dict[str, type[Instrument]] = {"probe": ProbeRun, "neurons": NeuronsRun}


def read(command: str, summary: str, words: list[str]) -> JobCall | None:
    """An instrument with its settings; None where help was asked for, and shown."""
    kind = _KINDS[command]
    grammar = Grammar(command, summary, together(InstrumentOptions, kind))
    given = grammar.values(words)
    if given is None:
        print(grammar.help({"out": f"runs/{command}-MODEL"}), end="")
        return None
    options, settings = divided(InstrumentOptions, given)
    job = kind.of(**settings)
    job.check_complete()
    return JobCall(job, options)
