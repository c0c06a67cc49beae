"""Print the lowest versions that pyproject.toml states, as constraints for pip."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text("utf-8"))["project"]

if __name__ == "__main__":
    for line in PROJECT["dependencies"]:
        name, version = re.fullmatch(r"([\w.-]+)>=([\w.]+)", line).groups()
        print(f"{name}=={version}")
