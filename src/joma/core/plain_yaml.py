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

    def construct_number(self, node: yaml.ScalarNode) -> Json:
        """A number; one of base 60 (``1:30``), which takes time quadratic in its length, is a text."""
        if ":" in node.value:
            return str(node.value)
        whole = node.tag.endswith(":int")
        number: Json = self.construct_yaml_int(node) if whole else self.construct_yaml_float(node)
        return number


for _kind in ("int", "float"):
    _PlainLoader.add_constructor(f"tag:yaml.org,2002:{_kind}", _PlainLoader.construct_number)


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
    except Exception as error:  # whatever the value of a tag comes to: a date that is none, a list as a key
        reason = "nested too deep" if isinstance(error, RecursionError) else " ".join(str(error).split())
        raise InputError(f"{path} is not YAML ({reason[:200]}).") from error
    return found
