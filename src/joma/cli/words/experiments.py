"""The words of ``joma run``: an experiment, its settings, a file of them."""

from __future__ import annotations

import re

from joma.cli.words.arguments import Grammar
from joma.cli.words.config import read_config
from joma.cli.words.options import JobCall, RunOptions, all_fields, divide_options
from joma.core.errors import InputError, one_line
from joma.experiments import catalog
from joma.experiments.base import Experiment


def read(command: str, summary: str, words: list[str]) -> JobCall | None:
    """An experiment with its settings; None where help was asked for, and shown."""
    if not words or words[0] in ("-h", "--help"):
        print("usage: joma run EXPERIMENT [--preset quick|paper] [--out DIR] [settings]\n")
        print(f"{summary}.\nexperiments: {', '.join(catalog.names())}")
        print("\njoma run EXPERIMENT --help shows its settings; joma list tells what each one is.")
        return None
    if words[0].startswith("-"):
        raise InputError("run: name the experiment first, then its settings (see: joma list).")
    experiment = catalog.find(words[0])
    name, words = f"run {words[0]}", words[1:]
    cost = ", ".join(f"{preset} {time}" for preset, time in experiment.costs().items())
    grammar = Grammar(
        name,
        _first_paragraph(experiment),
        all_fields(RunOptions, experiment),
        f"It costs (processor time of one core): {cost}.",
        others=catalog.tell_owners,
    )
    given = grammar.values([word for word in words if word not in ("-h", "--help")]) or {}
    given = {**read_config(given, experiment, RunOptions.fields()["preset"]), **given}
    preset = str(given.pop("preset", "quick"))
    values = experiment.preset_values(preset)
    if {"-h", "--help"} & set(words):
        print(grammar.help({"out": f"runs/{experiment.name()}", "preset": preset, **values}), end="")
        return None
    options, settings = divide_options(RunOptions, given)
    return JobCall(experiment.from_preset(preset, **settings), options, preset)


def _first_paragraph(experiment: type[Experiment]) -> str:
    """Of the docstring, as plain words."""
    text = one_line((experiment.__doc__ or "").split("\n\n")[0])
    return re.sub(r"(?::\w+:)?`+~?([^`]+)`+", r"\1", text)
