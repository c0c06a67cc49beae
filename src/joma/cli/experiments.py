"""The words of ``joma run``: an experiment, its settings, a file of them."""

from __future__ import annotations

from pathlib import Path

from joma.cli.arguments import Grammar
from joma.cli.options import JobCall, RunOptions, divided, together
from joma.errors import InputError, nearest, one_line, shown
from joma.experiments import catalog
from joma.experiments.base import Experiment
from joma.plain_yaml import read_yaml
from joma.settings import Value


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
    grammar = Grammar(name, _first_paragraph(experiment), together(RunOptions, experiment))
    given = grammar.values([word for word in words if word not in ("-h", "--help")]) or {}
    config = _config(str(given["config"]), experiment) if given.get("config") else {}
    given = {**config, **given}
    preset = str(given.pop("preset", "quick"))
    values = experiment.preset_values(preset)
    if {"-h", "--help"} & set(words):
        print(grammar.help({"out": f"runs/{experiment.name()}", "preset": preset, **values}), end="")
        return None
    options, settings = divided(RunOptions, given)
    return JobCall(experiment.from_preset(preset, **settings), options, preset)


def _config(path: str, experiment: type[Experiment]) -> dict[str, Value]:
    """The settings, and perhaps the preset, of a YAML file.

    Raises:
        InputError: no such file, no settings, an unknown one, or an option that a file may not set.
    """
    content = read_yaml(Path(path))
    if content is None:
        raise InputError(f"{path} is empty; write lines of the form 'steps: 1000'.")
    if not isinstance(content, dict):
        raise InputError(f"{path} holds no settings; write lines of the form 'steps: 1000'.")
    fields = {**experiment.fields(), "preset": RunOptions.fields()["preset"]}
    found: dict[str, Value] = {}
    for key, value in content.items():
        name = str(key).replace("-", "_")
        if name not in fields:
            raise InputError(
                f"{path}: {experiment.name()} has no setting {shown(name)}; {nearest(name, fields)}"
            )
        try:
            found[name] = fields[name].from_file(value)
        except (ValueError, OverflowError):
            raise InputError(f"{path}: {name} is not of the type {fields[name].type_name()}.") from None
    return found


def _first_paragraph(experiment: type[Experiment]) -> str:
    return one_line((experiment.__doc__ or "").split("\n\n")[0])
