"""``python -m joma``."""

from joma.cli.main import entry

entry()
