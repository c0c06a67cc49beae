"""What is done to a trained base, and which bases there are: plain data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from joma.experiments.beyond.alarm import Alarm

Part = Literal["attention", "mlp", "rest"]
"""W_Q and W_K; the MLP's two matrices; everything else."""


@dataclass(frozen=True, kw_only=True)
class Branch:
    """A base, continued. ``factor`` says what its learning rates are, step by step."""

    name: str
    kind: Literal["healthy", "fault", "spike"]
    """What it was made to be; what it became is its label."""
    steps: int
    parts: tuple[Part, ...] = ("attention", "mlp", "rest")
    doubling: int = 0
    """Steps in which the rate doubles; 0: it does not."""
    times: float = 1.0
    """The rate at once."""
    until: int = 0
    """Steps after which ``times`` ends; 0: never."""
    decay: bool = False
    """The rate goes to zero linearly."""
    warmup: int = 0
    """Steps in which the rate comes back from zero."""
    batch: int = 1
    """How many times as many windows."""
    other_text: bool = False
    restart: bool = False
    """AdamW's moments are lost, as in a run resumed from weights alone."""

    def factor(self, step: int, part: Part) -> float:
        """The rate at a step (0 is the branch's first), over the base's."""
        if part not in self.parts:
            return 1.0
        value = self.times if not self.until or step < self.until else 1.0
        if self.doubling:
            value *= 2.0 ** ((step + 1) / self.doubling)
        if self.decay:
            value *= 1.0 - step / self.steps
        if self.warmup:
            value *= min(1.0, (step + 1) / self.warmup)
        return value


CONTINUE = Branch(name="continue", kind="healthy", steps=300)
"""The twin: long enough for every other branch of the main setting."""
HEALTHY = (
    CONTINUE,
    Branch(name="decay", kind="healthy", steps=200, decay=True),
    Branch(name="rate x2", kind="healthy", steps=200, times=2.0),
    Branch(name="end of warm-up", kind="healthy", steps=150, warmup=50),
    Branch(name="batch x2", kind="healthy", steps=100, batch=2),
    Branch(name="other text", kind="healthy", steps=150, other_text=True),
    Branch(name="resumed", kind="healthy", steps=150, restart=True),
)
FAULTS = (
    Branch(name="attention ramp 15", kind="fault", steps=150, parts=("attention",), doubling=15),
    Branch(name="attention ramp 45", kind="fault", steps=300, parts=("attention",), doubling=45),
    Branch(name="rate ramp 20", kind="fault", steps=150, doubling=20),
    Branch(name="rate jump", kind="fault", steps=100, times=25.0),
    Branch(name="mlp ramp 20", kind="fault", steps=200, parts=("mlp",), doubling=20),
    Branch(name="spike", kind="spike", steps=150, times=10.0, until=3),
)
ALL = (*HEALTHY, *FAULTS)
_CALIBRATION = ("continue", "decay", "rate x2")
_OTHER = ("continue", "decay", "rate x2", "attention ramp 15", "rate ramp 20", "rate jump", "mlp ramp 20")


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A kind of network and how it is trained from scratch."""

    name: str
    heads: int = 4
    norm: Literal["pre", "post"] = "pre"
    qk_norm: bool = False
    activation: Literal["gelu", "relu"] = "gelu"
    dropout: float = 0.0
    rate: float = 1.0
    """Over the experiment's learning rate."""
    only_scratch: bool = False
    """No branches: trained from scratch for as long as a state message may take."""


MAIN = Setting(name="gpt")
OTHERS = (
    Setting(name="gpt, qk-norm", qk_norm=True),
    Setting(name="gpt, post-norm", norm="post"),
    Setting(name="gpt, rate 1e-2", rate=10 / 3),
    Setting(name="decoder", heads=1, norm="post", activation="relu", dropout=0.2),
    Setting(name="decoder, qk-norm", heads=1, norm="post", activation="relu", dropout=0.2, qk_norm=True),
)
BORN_BAD = (
    Setting(name="gpt, rate 1e-1", rate=100 / 3, only_scratch=True),
    Setting(name="gpt, qk-norm, rate 1e-1", rate=100 / 3, qk_norm=True, only_scratch=True),
)
SCRATCH_STEPS = 200
WARMUP = 50
SIDES = ("calibration", "judged")


@dataclass(frozen=True, kw_only=True)
class Group:
    """Bases of one setting and side that train together."""

    setting: Setting
    side: str
    first: int
    bases: int

    @property
    def name(self) -> str:
        """Fit for a file's name."""
        words = self.setting.name.replace(", ", "-").replace(" ", "-")
        return f"{words}-{self.side}-{self.first:04d}"

    def branches(self) -> tuple[Branch, ...]:
        """How its bases are continued."""
        if self.setting.only_scratch:
            return ()
        if self.side == "calibration":
            names: tuple[str, ...] = _CALIBRATION if self.setting == MAIN else ("continue",)
        else:
            names = tuple(branch.name for branch in ALL) if self.setting == MAIN else _OTHER
        return tuple(branch for branch in ALL if branch.name in names)


def groups(settings: Alarm) -> Iterator[Group]:
    """All groups, the main setting first."""
    for setting in (MAIN, *BORN_BAD, *OTHERS):
        count = settings.other_bases if setting in OTHERS else settings.bases
        for side in SIDES[1:] if setting.only_scratch else SIDES:
            for first in range(0, count, settings.group):
                yield Group(setting=setting, side=side, first=first, bases=min(settings.group, count - first))
