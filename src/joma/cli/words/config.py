"""``--config``: settings from a YAML file, which may be the ``settings.yaml`` of a run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from joma.cli.words.options import JobOptions
from joma.core.errors import InputError, abbreviate, nearest
from joma.core.files import Json
from joma.core.plain_yaml import read_yaml
from joma.core.settings import Field, Value
from joma.runs.job import Job


def read_config(given: Mapping[str, Value], job: type[Job], *options: Field) -> dict[str, Value]:
    """What the file that the words name sets: settings of the job, and these options.

    Raises:
        InputError: no such file, no settings, an unknown one, an option that a file may not set, or a run of
            another job.
    """
    if not given.get("config"):
        return {}
    path = str(given["config"])
    fields = {**job.fields(), **{field.name: field for field in options}}
    found: dict[str, Value] = {}
    for key, value in _content(path, job, fields).items():
        name = str(key).replace("-", "_")
        if name not in fields:
            raise InputError(
                f"{path}: {job.name()} has no setting {abbreviate(name)}; {_advice(name, fields)}"
            )
        try:
            found[name] = fields[name].from_file(value)
        except (ValueError, OverflowError):
            raise InputError(f"{path}: {name} is not of the type {fields[name].type_name()}.") from None
    return found


def _content(path: str, job: type[Job], fields: Mapping[str, Field]) -> dict[str, Json]:
    content = read_yaml(Path(path))
    if content is None:
        raise InputError(f"{path} is empty; write lines of the form 'steps: 1000'.")
    if not isinstance(content, dict):
        raise InputError(f"{path} holds no settings; write lines of the form 'steps: 1000'.")
    settings = content.get("settings")
    if "experiment" not in content or not isinstance(settings, dict):
        return content
    if content["experiment"] != job.name():
        raise InputError(f"{path} is of a run of {abbreviate(content['experiment'])}, not of {job.name()!r}.")
    kept = {"preset": content["preset"]} if content.get("preset") and "preset" in fields else {}
    return {**kept, **settings}


def _advice(name: str, fields: Mapping[str, Field]) -> str:
    if name in JobOptions.fields():
        return "it is an option, which is set on the command line only."
    return nearest(name, fields)
