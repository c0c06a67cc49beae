"""The version of joma."""

__version__ = "0.1.0"
