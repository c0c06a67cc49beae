"""``python -m joma``."""

from joma.cli import entry

entry()
