"""YAML that anyone may have written, read with bounds: no aliases, no objects, a megabyte at most."""

from __future__ import annotations

from pathlib import Path

import yaml

from joma.core.errors import InputError
from joma.core.files import Json, read_bytes

_LARGEST = 1_000_000
"""Bytes; joma's own settings take a few thousand."""


class _PlainLoader(yaml.SafeLoader):
    """YAML without aliases, which can say the same thing a billion times, or hold themselves."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("an alias, which joma does not read")
        return super().compose_node(parent, index)


def read_yaml(path: Path) -> Json:
    """What a YAML file of at most a megabyte holds.

    Raises:
        InputError: no such file, or no plain YAML in UTF-8 (aliases and endless nesting are none).
    """
    content = read_bytes(path, _LARGEST)
    try:
        found: Json = yaml.load(content.decode("utf-8-sig"), _PlainLoader)
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 (byte {error.start}).") from error
    # Dates that are none, integers of thousands of digits: ValueError. Lists as keys: TypeError.
    except (yaml.YAMLError, ValueError, TypeError, RecursionError, OverflowError) as error:
        reason = "nested too deep" if isinstance(error, RecursionError) else " ".join(str(error).split())
        raise InputError(f"{path} is not YAML ({reason[:200]}).") from error
    return found
