"""What the name of a checkpoint tells: stage, branch, step, tokens; and which names are no checkpoint's."""

from __future__ import annotations

import re
from dataclasses import dataclass

_SUFFIXES = (".safetensors", ".ckpt", ".pth", ".bin", ".pt")
_NO_MEMBER = re.compile(r"(^|/)(main|master|refs/.*|tmp-.*|[^/]*[-_.]tmp|\.[^/]*)(/|$)", re.IGNORECASE)
_STAGE = re.compile(r"(?<![a-z])stage[-_]?(\d+)", re.IGNORECASE)
_BRANCH = re.compile(r"(?<![a-z])(ingredient|seed|branch)[-_]?(\d+)", re.IGNORECASE)
_TOKENS = re.compile(r"(?<![a-z])tokens?[-_=]?(\d+(?:\.\d+)?)([KMBT]?)T?(?![a-z0-9.])", re.IGNORECASE)
_AMOUNT = re.compile(r"(?<![a-z0-9.])(\d+(?:\.\d+)?)([MBT])T?(?![a-z0-9])", re.IGNORECASE)
"""Tokens after a step; before one it may be the model's size."""
_COUNTERS: tuple[tuple[str, str], ...] = (
    (r"(?:global[-_]?)?steps?", "step"),
    (r"iter(?:ation)?s?", "step"),
    (r"checkpoint", "step"),
    (r"epoch", "epoch"),
    (r"ckpt|model", "number"),
)
_FIND = [
    (
        re.compile(
            rf"(?<![a-z])(?:{word})[-_=]?(\d{{1,15}})([KM](?![a-z0-9]))?(?!-of-|[a-z0-9])", re.IGNORECASE
        ),
        unit,
    )
    for word, unit in _COUNTERS
]
_THOUSANDS = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}


@dataclass(frozen=True, order=True)
class Place:
    """Where in a training a checkpoint stands; the order is that of the training, never that of the text."""

    stage: int = 0
    """0 where the name tells none."""
    branch: tuple[str, int] = ("", 0)
    """What tells apart branches whose steps start over: ``("ingredient", 2)``."""
    step: int = 0
    unit: str = "step"
    """``step``; ``epoch``; or ``number``, where the checkpoints are merely counted."""
    tokens: float | None = None
    """Tokens seen, where the name tells."""

    @property
    def line(self) -> tuple[int, tuple[str, int], str]:
        """What the members of one curve have in common."""
        return self.stage, self.branch, self.unit

    @property
    def line_name(self) -> str:
        """The same in words; empty for the steps of one stage."""
        stage = f"stage{self.stage}" if self.stage else ""
        branch = f"{self.branch[0]}{self.branch[1]}" if self.branch[0] else ""
        return " ".join(filter(None, [stage, branch, "" if self.unit == "step" else f"{self.unit}s"]))


def is_no_member(name: str) -> bool:
    """Whether the name is that of something else: ``main``, ``refs/pr/1``, a folder half written."""
    return bool(_NO_MEMBER.search(name))


def place_of(name: str) -> Place | None:
    """The place that a name tells, or None where it tells no step.

    ``step1000``, ``checkpoint-500``, ``global_step20``, ``stage2-ingredient1-step3000-tokens7B``,
    ``step-001000-2BT``, ``step_360``, ``ckpt_358`` (counted, no step), ``epoch=3-step=1200.ckpt``; of a path
    the last part that tells one.
    """
    if is_no_member(name):
        return None
    for suffix in _SUFFIXES:
        name = name.removesuffix(suffix)
    parts = name.split("/")
    for number in range(len(parts), 0, -1):
        if (told := _counted(parts[number - 1])) is not None:
            match, unit = told
            path = "/".join(parts[:number])
            stage, branch = (list(pattern.finditer(path))[-1:] for pattern in (_STAGE, _BRANCH))
            return Place(
                stage=int(stage[0].group(1)) if stage else 0,
                branch=(branch[0].group(1).lower(), int(branch[0].group(2))) if branch else ("", 0),
                step=round(int(match.group(1)) * _THOUSANDS[(match.group(2) or "").upper()]),
                unit=unit,
                tokens=_tokens(parts[number - 1], match),
            )
    return None


def _counted(part: str) -> tuple[re.Match[str], str] | None:
    """What is counted in a part of a path, and its unit."""
    return next(
        ((match, unit) for pattern, unit in _FIND for match in list(pattern.finditer(part))[-1:]), None
    )


def _tokens(part: str, step: re.Match[str]) -> float | None:
    before, after = part[: step.start()], part[step.end() :]
    found = [*_AMOUNT.finditer(after), *_TOKENS.finditer(before), *_TOKENS.finditer(after)]
    if not found:
        return None
    return float(found[-1].group(1)) * _THOUSANDS[found[-1].group(2).upper()]
