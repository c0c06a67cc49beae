"""Kinds of networks: those on which the rule's constants were chosen, and those on which it is judged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from joma.experiments.beyond.alarm.branches import Branch

Task = Literal["next", "masked", "translated", "patches"]
"""Next tokens; hidden tokens of a text; a text in reverse after its encoder; the class of an image."""


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of network and how it is trained."""

    name: str
    task: Task = "next"
    width: int = 64
    layers: int = 2
    heads: int = 4
    key_heads: int = 4
    norm: Literal["pre", "post"] = "pre"
    qk_norm: bool = False
    rotary: bool = False
    gated: bool = False
    """SwiGLU in place of GELU."""
    experts: int = 0
    """Experts of each MLP, of which each token takes one; 0: a plain MLP."""
    words: bool = False
    """Text by its 1,000 most frequent words, not by characters."""
    optimizer: Literal["adamw", "sgd", "muon"] = "adamw"
    rate: float = 3e-3


CHOSEN_ON = (
    Kind(name="gpt"),
    Kind(name="gpt, post-norm", norm="post"),
    Kind(name="gpt, rate 1e-2", rate=1e-2),
    Kind(name="decoder, one head, words", heads=1, key_heads=1, norm="post", words=True, rate=1e-3),
)
"""On which the constants of ``joma.measures.change.growth`` were chosen, two bases each."""
JUDGED_ON = (
    Kind(name="qk-norm", qk_norm=True),
    Kind(name="rotary, grouped queries, SwiGLU", key_heads=2, rotary=True, gated=True),
    Kind(name="encoder, masked words", task="masked", words=True),
    Kind(name="encoder-decoder", task="translated"),
    Kind(name="patches of images", task="patches", rate=1e-3),
    Kind(name="mixture of experts", experts=4),
    Kind(name="width 128, four layers", width=128, layers=4, rate=1e-3),
    Kind(name="sgd with momentum", optimizer="sgd", rate=0.3),
    Kind(name="muon", optimizer="muon"),
    Kind(name="gpt, rate 3e-4, words", words=True, rate=3e-4),
)
"""None of whose runs was looked at before the constants were fixed."""
TWIN = Branch(name="continue", kind="healthy", steps=150)
BRANCHES = (
    TWIN,
    Branch(name="end of warm-up", kind="healthy", steps=60, warmup=30),
    Branch(name="resumed", kind="healthy", steps=60, restart=True),
    Branch(name="rate x2", kind="healthy", steps=100, times=2.0),
    Branch(name="attention ramp 15", kind="fault", steps=150, parts=("attention",), doubling=15),
    Branch(name="rate ramp 20", kind="fault", steps=120, doubling=20),
)
"""Ways in which a base is continued, the twin first."""
RAMP = "attention ramp 15"
