"""What the name of a checkpoint tells: stage, branch, epoch, step, tokens; and which tell nothing."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

_SUFFIXES = (".safetensors", ".ckpt", ".pth", ".bin", ".pt")
_NO_MEMBER = re.compile(r"(^|/)(main|master|refs/.*|tmp-.*|[^/]*[-_.]tmp|\.[^/]*)(/|$)", re.IGNORECASE)
_STAGE = re.compile(r"(?<![a-z])stage[-_]?(\d+)", re.IGNORECASE)
_BRANCH = re.compile(r"(?<![a-z])(ingredient|seed|branch)[-_]?(\d+)", re.IGNORECASE)
_TOKENS = re.compile(r"(?<![a-z])tokens?[-_=]?(\d+(?:\.\d+)?)([KMBT]?)T?(?![a-z0-9.])", re.IGNORECASE)
_AMOUNT = re.compile(r"(?<![a-z0-9.])(\d+(?:\.\d+)?)([MBT])T?(?![a-z0-9])", re.IGNORECASE)
"""Tokens after a step; before one it may be the model's size."""
_WRITTEN = (
    r"(?P<number>\d{1,3}(?:,\d{3})+|\d{1,3}(?:_\d{3}){2,}|\d{1,15}(?:\.\d+)?(?:e\d{1,2})?)"
    r"(?P<times>[KMB](?![a-z0-9]))?(?![,._]?\d|-of-|[a-z])"
)
"""A number, read whole or not at all: 1000, 1,000, 1_000_000, 0.5M, 1e5, 1200.0."""
_COUNTERS: tuple[tuple[str, str], ...] = (
    (r"(?:global[-_]?)?steps?", "step"),
    (r"iter(?:ation)?s?|updates?|batch(?:es)?|ba", "step"),
    (r"checkpoint", "step"),
    (r"epochs?|ep", "epoch"),
    (r"ckpt|model", "number"),
)
_FIND = [
    (re.compile(rf"(?<![a-z])(?:{word})[-_=:. ]?{_WRITTEN}", re.IGNORECASE), unit) for word, unit in _COUNTERS
]
_EPOCH = _FIND[3][0]
_EPOCH_AND_UPDATES = re.compile(
    r"(?<![a-z])checkpoint_(?P<epoch>\d{1,9})_(?P<number>\d{1,15})(?![\d_a-z.])", re.I
)
"""fairseq's ``checkpoint_7_5500``: an epoch and the updates since the beginning."""
_THOUSANDS = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
_RUN = re.compile(
    r"(?P<before>\d{1,3}_(?!000(?!\d))(?=\d+(?!_?\d)))?(?P<digits>\d+(?:[.,_]\d+)*)(?P<times>[KMBT](?![a-z0-9]))?",
    re.IGNORECASE,
)
"""All that may be one number: digits, what stands between them, a power of ten."""
_PLAIN = re.compile(r"\d+(?:\.\d+)?|\d{1,3}(?:,\d{3})+|\d{1,3}(?:_\d{3}){2,}|\d{1,3}_000")
_DATE = re.compile(r"(?<!\d)(?:19|20)\d\d([-_.]?)(?:0[1-9]|1[0-2])\1(?:0[1-9]|[12]\d|3[01])(?!\d)")

_METHODS = ({"sft"}, {"dpo"}, {"rl", "rlhf", "rlvr", "ppo", "grpo"})
"""Phases behind pretraining, in their order."""

Rest = tuple[str | int, ...]


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
    epoch: int | None = field(default=None, compare=False)
    """The epoch that a name tells beside a step, whose steps may start over in each."""
    rest: str = field(default="", compare=False)
    """Whatever else the name says: members that differ there may be of other phases. A series keeps what
    tells its lines apart (``joma.checkpoints.series.members.in_lines``)."""

    @property
    def line(self) -> tuple[Rest, int, tuple[str, int], int, str]:
        """What the members of one curve have in common; numbers in the rest of a name count as such."""
        return (
            (self.phase, *natural(self.rest)),
            self.stage,
            self.branch,
            -1 if self.epoch is None else self.epoch,
            self.unit,
        )

    @property
    def phase(self) -> int:
        """How late a phase of training comes that the name speaks of by its method; 0: not told."""
        words = set(re.findall(r"[a-z]+", self.rest.lower()))
        return max((late for late, methods in enumerate(_METHODS, 1) if methods & words), default=0)

    @property
    def line_name(self) -> str:
        """The same in words; empty for the steps of one stage."""
        stage = f"stage{self.stage}" if self.stage else ""
        branch = f"{self.branch[0]}{self.branch[1]}" if self.branch[0] else ""
        epoch = "" if self.epoch is None else f"epoch {self.epoch}"
        unit = "" if self.unit == "step" else f"{self.unit}s"
        return " ".join(filter(None, [self.rest, stage, branch, epoch, unit]))


def natural(text: str) -> Rest:
    """Text and numbers in turn, so that 4k comes before 32k."""
    return tuple(int(one) if i % 2 else one for i, one in enumerate(re.split(r"(\d{1,18})", text)))


def shared_beginning(lists: Collection[Sequence[str]]) -> int:
    """How many parts all of the lists begin with."""
    columns = enumerate(zip(*lists, strict=False))
    shortest = min(map(len, lists), default=0)
    return next((i for i, column in columns if len(set(column)) > 1), shortest)


def is_no_member(name: str) -> bool:
    """Whether the name is that of something else: ``main``, ``refs/pr/1``, a folder half written."""
    return bool(_NO_MEMBER.search(name))


def place_of(name: str) -> Place | None:
    """The place that a name tells, or None where it tells no step.

    ``step1000``, ``checkpoint-500``, ``global_step20``, ``stage2-ingredient1-step3000-tokens7B``,
    ``step-001000-2BT``, ``step_360``, ``ckpt_358`` (counted, no step), ``epoch=3-step=1200.ckpt``,
    ``checkpoint_7_5500`` (epoch and updates), ``step_0.5M``; of a path the last part that tells one.
    """
    if is_no_member(name):
        return None
    parts = _without_suffix(name).split("/")
    for number in range(len(parts), 0, -1):
        part = parts[number - 1]
        if (told := _count_in(part)) is not None and (step := _value(told[0])) is not None:
            match, unit = told
            path = "/".join(parts[:number])
            stage, branch = (list(pattern.finditer(path))[-1:] for pattern in (_STAGE, _BRANCH))
            return Place(
                stage=int(stage[0].group(1)) if stage else 0,
                branch=(branch[0].group(1).lower(), int(branch[0].group(2))) if branch else ("", 0),
                step=step,
                unit=unit,
                tokens=_tokens(part, match),
                epoch=_epoch(part, match, unit),
                rest=_rest([*parts[: number - 1], part[: match.start()] + "-" + part[match.end() :]]),
            )
    return None


def pattern_of(name: str) -> tuple[str, list[float]] | None:
    """A name without its numbers, and these; None where it tells a date.

    ``1k``, ``2.5M``, ``1,000`` and ``1_000`` are whole. ``2_500`` may be one number or two: its beginning
    stays in the pattern, so that only what follows it may differ from name to name. So does ``1.2.3``.
    """
    plain = _without_suffix(name)
    if _DATE.search(plain):
        return None
    numbers: list[float] = []

    def read(run: re.Match[str]) -> str:
        digits = run["digits"]
        pieces = [digits] if _PLAIN.fullmatch(digits) else digits.split("_")
        if not all(_PLAIN.fullmatch(piece) for piece in pieces):
            return run[0]
        times = [None] * (len(pieces) - 1) + [run["times"]]
        numbers.extend(_number(p, t) for p, t in zip(pieces, times, strict=True) if len(p) < 16)
        return (run["before"] or "") + "_".join("*" * len(pieces))

    return _RUN.sub(read, plain), numbers


def _number(digits: str, times: str | None) -> float:
    return float(re.sub(r"[,_]", "", digits)) * _THOUSANDS[(times or "").upper()]


def _without_suffix(name: str) -> str:
    for suffix in _SUFFIXES:
        name = name.removesuffix(suffix)
    return name


def _count_in(part: str) -> tuple[re.Match[str], str] | None:
    """What is counted in a part of a path, and its unit."""
    if two := _EPOCH_AND_UPDATES.search(part):
        return two, "step"
    return next(
        ((match, unit) for pattern, unit in _FIND for match in list(pattern.finditer(part))[-1:]), None
    )


def _value(match: re.Match[str]) -> int | None:
    """The number as it is meant, or None where it is no whole one."""
    value = _number(match["number"], match.groupdict().get("times"))
    return round(value) if abs(value - round(value)) < 1e-6 * max(1.0, value) and value < 1e15 else None


def _epoch(part: str, match: re.Match[str], unit: str) -> int | None:
    """The epoch beside a step."""
    if "epoch" in match.groupdict():
        return int(match["epoch"])
    found = list(_EPOCH.finditer(part)) if unit == "step" else []
    return _value(found[-1]) if found else None


def _rest(parts: list[str]) -> str:
    """What no pattern reads."""
    text = "/".join(parts)
    for pattern in (_STAGE, _BRANCH, _EPOCH, _TOKENS, _AMOUNT):
        text = pattern.sub("-", text)
    return re.sub(r"[-_=. ]+", " ", text.strip("-_=. /")).replace(" /", "/").replace("/ ", "/").strip(" /")


def _tokens(part: str, step: re.Match[str]) -> float | None:
    before, after = part[: step.start()], part[step.end() :]
    found = [*_AMOUNT.finditer(after), *_TOKENS.finditer(before), *_TOKENS.finditer(after)]
    if not found:
        return None
    return float(found[-1].group(1)) * _THOUSANDS[found[-1].group(2).upper()]
