"""Small transformers trained for a moment, as series of checkpoints, and faults planted in them.

Seeds below ``JUDGED`` chose the thresholds of the audit; those from there on judge it and chose nothing.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional

JUDGED = 5000
"""The first seed on which nothing was chosen; 1000, 2000 and 3000 to 3099 have mended rules, and 4000 to 4099
have judged earlier ones."""
WORDS, WIDTH, LAYERS, EXPERTS = 48, 24, 3, 4
State = dict[str, Tensor]
Series = dict[int, State]


class _Layer(nn.Module):
    def __init__(self, experts: int) -> None:
        super().__init__()
        names = ("q_proj", "k_proj", "v_proj", "o_proj")
        self.self_attn = nn.ModuleDict({name: nn.Linear(WIDTH, WIDTH) for name in names})
        self.input_layernorm, self.post_attention_layernorm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        shapes = {
            "gate_proj": (WIDTH, 2 * WIDTH),
            "up_proj": (WIDTH, 2 * WIDTH),
            "down_proj": (2 * WIDTH, WIDTH),
        }

        def mlp() -> nn.ModuleDict:
            return nn.ModuleDict({name: nn.Linear(*sizes, bias=False) for name, sizes in shapes.items()})

        self.mlp = (
            mlp()
            if not experts
            else nn.ModuleDict(
                {
                    "gate": nn.Linear(WIDTH, experts, bias=False),
                    "experts": nn.ModuleList(mlp() for _ in range(experts)),
                }
            )
        )

    def forward(self, x: Tensor) -> Tensor:
        y = self.input_layernorm(x)
        q, k, v = (
            self.self_attn[name](y).unflatten(-1, (2, -1)).transpose(1, 2)
            for name in ("q_proj", "k_proj", "v_proj")
        )
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x = x + self.self_attn["o_proj"](y)
        y = self.post_attention_layernorm(x)
        if "experts" not in self.mlp:
            return x + _mlp(self.mlp, y)
        weights = self.mlp["gate"](y).softmax(-1)
        return x + sum(weights[..., i, None] * _mlp(one, y) for i, one in enumerate(self.mlp["experts"]))


def _mlp(mlp: nn.ModuleDict, y: Tensor) -> Tensor:
    return mlp["down_proj"](functional.silu(mlp["gate_proj"](y)) * mlp["up_proj"](y))


class Model(nn.Module):
    """A decoder with the names of Llama's and Mixtral's."""

    def __init__(self, *, experts: int = 0, tied: bool = False) -> None:
        super().__init__()
        self.model = nn.ModuleDict(
            {
                "embed_tokens": nn.Embedding(WORDS, WIDTH),
                "layers": nn.ModuleList(_Layer(experts) for _ in range(LAYERS)),
                "norm": nn.LayerNorm(WIDTH),
            }
        )
        self.lm_head = nn.Linear(WIDTH, WORDS, bias=False)
        if tied:
            self.lm_head.weight = self.model["embed_tokens"].weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.model["embed_tokens"](tokens)
        for layer in self.model["layers"]:
            x = layer(x)
        return self.lm_head(self.model["norm"](x))


@dataclass(frozen=True)
class Training:
    """How a series is made."""

    seed: int = 0
    optimizer: str = "adamw"
    schedule: str = "warm up"
    steps: tuple[int, ...] = tuple(range(0, 100, 10))
    batch: int = 8
    grows: bool = False
    experts: int = 0
    tied: bool = False
    frozen: bool = False


def rate_at(schedule: str, step: int, last: int) -> float:
    """The learning rate over its highest one."""
    share = step / max(1, last)
    if schedule == "cosine":
        return 0.02 + 0.98 * (1 + math.cos(math.pi * share)) / 2
    if schedule == "decay":
        return 1.0 if share < 0.7 else max(0.01, (1 - share) / 0.3)
    if schedule == "drop":
        return 1.0 if share < 0.5 else 0.05
    if schedule == "re-warm":
        return 0.05 + 0.95 * abs(1 - 2 * share)
    if schedule == "restarts":
        return 0.02 + 0.98 * (1 - (3 * share) % 1.0)
    return min(1.0, step / max(1, last / 10))


_RATES = {"adamw": 3e-3, "adam": 1e-3, "sgd": 0.1, "momentum": 0.03, "rmsprop": 1e-3, "adagrad": 0.02}


def train(how: Training) -> Series:
    """A series of states by step, on text that a random matrix draws."""
    torch.manual_seed(how.seed)
    model = Model(experts=how.experts, tied=how.tied)
    if how.frozen:
        model.model["embed_tokens"].weight.requires_grad_(False)
    rows = (3.0 * torch.randn(WORDS, WORDS)).softmax(-1)
    parameters = [one for one in model.parameters() if one.requires_grad]
    kinds: dict[str, Callable[[], torch.optim.Optimizer]] = {
        "adamw": lambda: torch.optim.AdamW(parameters, weight_decay=0.1),
        "adam": lambda: torch.optim.Adam(parameters),
        "sgd": lambda: torch.optim.SGD(parameters),
        "momentum": lambda: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
        "rmsprop": lambda: torch.optim.RMSprop(parameters),
        "adagrad": lambda: torch.optim.Adagrad(parameters),
    }
    optimizer, series, last = kinds[how.optimizer](), {}, max(how.steps)
    for step in range(last + 1):
        if step in how.steps:
            series[step] = {name: one.detach().clone() for name, one in model.state_dict().items()}
        for group in optimizer.param_groups:
            group["lr"] = _RATES[how.optimizer] * rate_at(how.schedule, step, last)
        size = how.batch * (2 if how.grows and step > last / 2 else 1)
        tokens = [torch.randint(WORDS, (size,))]
        for _ in range(12):
            tokens.append(torch.multinomial(rows[tokens[-1]], 1).squeeze(1))
        text = torch.stack(tokens, 1)
        loss = functional.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return series


def write_series(folder: Path, series: Mapping[int, State], files: int = 1) -> Path:
    """The series as ``folder/step10/...``, each member in one file or in several with an index."""
    for step, state in series.items():
        write_member(folder / f"step{step}", state, files)
    return folder


def write_member(folder: Path, state: Mapping[str, Tensor], files: int = 1) -> None:
    """One member."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    plain = {name: one.clone().contiguous() for name, one in state.items()}
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "num_attention_heads": 2}))
    if files == 1:
        save_file(plain, folder / "model.safetensors")
        return
    names = list(plain)
    placed = {
        name: f"model-{k * files // len(names) + 1:05d}-of-{files:05d}.safetensors"
        for k, name in enumerate(names)
    }
    for file in set(placed.values()):
        save_file({name: plain[name] for name in names if placed[name] == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": placed}))


def in_shard(state: State, number: int, files: int) -> list[str]:
    """The names that ``write_member`` puts into one of the files."""
    return [name for k, name in enumerate(state) if k * files // len(state) == number]


Plant = Callable[[Series, list[int], int, Series], "Planted"]


@dataclass(frozen=True)
class Planted:
    """A series with a fault: what must be named."""

    series: Series
    members: dict[str, set[str]]
    """Member -> tensors; nothing else may be named."""
    matches: str = ""
    damage: Callable[[Path], None] | None = None
    files: int = 1


def _changed(series: Series, step: int, new: Mapping[str, Tensor]) -> Series:
    return {**series, step: {**series[step], **new}}


def _layer(state: State, layer: int, *words: str) -> list[str]:
    return [n for n in state if f"layers.{layer}." in n and all(w in n for w in words)]


def plant(kind: str, series: Series, step: int, other: Series) -> Planted:
    """Plant one fault at a step. ``other`` is the same training from another seed."""
    steps, state = sorted(series), series[step]
    final, name = steps[-1], f"step{step}"
    later = steps[steps.index(step) + 2] if steps.index(step) + 2 < len(steps) else steps[0]
    up = "model.layers.1.self_attn.q_proj.weight"
    everything = set(state)
    if kind == "stale shard":
        own = in_shard(state, 0, 3)
        return Planted(
            _changed(series, step, {n: series[final][n] for n in own}),
            {name: set(own)},
            f"step{final}",
            files=3,
        )
    if kind == "swapped steps":
        new = {**series, step: series[later], later: series[step]}
        return Planted(new, {name: everything, f"step{later}": everything})
    if kind == "other seed":
        return Planted({**series, step: other[step]}, {name: everything})
    if kind == "final copy":
        return Planted({**series, step: series[final]}, {name: everything}, f"step{final}")
    if kind == "doubled step":
        before = steps[steps.index(step) - 1]
        return Planted({**series, step: series[before]}, {name: everything}, f"step{before}")
    if kind == "reset layer":
        own = _layer(state, 1)
        return Planted(
            _changed(series, step, {n: series[steps[0]][n] for n in own}), {name: set(own)}, f"step{steps[0]}"
        )
    if kind == "truncated":

        def cut(folder: Path) -> None:
            file = folder / name / "model.safetensors"
            file.write_bytes(file.read_bytes()[:-1000])

        return Planted(series, {name: set()}, damage=cut)
    if kind == "missing shard":
        own = in_shard(state, 1, 3)

        def remove(folder: Path) -> None:
            (folder / name / "model-00002-of-00003.safetensors").unlink()

        return Planted(series, {name: set(own)}, damage=remove, files=3)
    if kind == "renumbered layers":
        moved = {n.replace("layers.0.", "layers.3.") if "layers.0." in n else n: t for n, t in state.items()}
        shifted = {}
        for n, t in moved.items():
            for k in (1, 2, 3):
                if f"layers.{k}." in n:
                    n = n.replace(f"layers.{k}.", f"layers.{k % 3 + 1}.")
                    break
            shifted[n] = t
        return Planted({**series, step: shifted}, {name: {n for n in shifted if "layers." in n}})
    if kind == "layers exchanged":
        first, second = _layer(state, 0), _layer(state, 2)
        new = {a: state[b] for a, b in [*zip(first, second, strict=True), *zip(second, first, strict=True)]}
        return Planted(_changed(series, step, new), {name: set(new)})
    if kind == "permuted experts":
        new = {}
        for n in _layer(state, 1, ".experts."):
            k = int(n.split(".experts.")[1].split(".")[0])
            new[n] = state[n.replace(f".experts.{k}.", f".experts.{(k + 1) % EXPERTS}.")]
        return Planted(_changed(series, step, new), {name: set(new)})
    if kind == "other tokenizer":
        order = torch.randperm(WORDS, generator=torch.Generator().manual_seed(step))
        own = ["model.embed_tokens.weight", "lm_head.weight"]
        return Planted(_changed(series, step, {n: state[n][order] for n in own}), {name: set(own)})
    if kind == "merged adapter":
        own = [n for n in state if n.endswith(("q_proj.weight", "v_proj.weight"))]
        torch.manual_seed(step)
        new = {}
        for n in own:
            change = torch.randn(WIDTH, 2) @ torch.randn(2, WIDTH)
            new[n] = state[n] + 0.5 * state[n].norm() / change.norm() * change
        return Planted(_changed(series, step, new), {name: set(own)})
    if kind == "rounded":
        return Planted(
            _changed(series, step, {n: t.bfloat16().float() for n, t in state.items()}), {name: everything}
        )
    if kind == "bf16":
        return Planted(
            _changed(series, step, {n: t.bfloat16() for n, t in state.items()}), {name: everything}
        )
    if kind == "quantised and back":
        new = {n: _quantise(t) for n, t in state.items() if t.ndim > 1 and "layers" in n}
        return Planted(_changed(series, step, new), {name: set(new)})
    if kind == "zeroed bias":
        own = {"model.layers.1.self_attn.v_proj.bias"}
        return Planted(_changed(series, step, {n: torch.zeros_like(state[n]) for n in own}), {name: own})
    if kind == "NaN":
        broken = state[up].clone()
        broken[3, 5] = math.nan
        return Planted(_changed(series, step, {up: broken}), {name: {up}})
    if kind == "EMA":
        own, weight, average = list(state), 0.0, {}
        for k, s in enumerate(one for one in steps if one <= step):
            weight = 0.7
            average = {n: series[s][n] if not k else weight * average[n] + 0.3 * series[s][n] for n in own}
        return Planted({**series, step: average}, {name: everything})
    if kind == "layer missing":
        own = _layer(state, 2)
        return Planted({**series, step: {n: t for n, t in state.items() if n not in own}}, {name: set(own)})
    changes: dict[str, Callable[[Tensor], Tensor]] = {
        "transposed": lambda t: t.T,
        "negated": lambda t: -t,
        "scaled": lambda t: 2.0 * t,
        "rows permuted": lambda t: t.roll(7, 0)[torch.arange(len(t)).flip(0)],
        "another draw": lambda t: (
            t.std() * torch.randn(t.shape, generator=torch.Generator().manual_seed(step))
        ),
    }
    if kind == "shifted head":
        return Planted(
            _changed(series, step, {"lm_head.weight": state["lm_head.weight"].roll(1, 0)}),
            {name: {"lm_head.weight"}},
        )
    if kind == "stale embedding":
        own = ["model.embed_tokens.weight"]
        return Planted(
            _changed(series, step, {n: series[later][n] for n in own}), {name: set(own)}, f"step{later}"
        )
    if kind == "bias copied":
        own = "model.layers.1.self_attn.v_proj.bias"
        return Planted(_changed(series, step, {own: series[steps[0]][own]}), {name: {own}}, f"step{steps[0]}")
    return Planted(_changed(series, step, {up: changes[kind](state[up])}), {name: {up}})


def _quantise(tensor: Tensor) -> Tensor:
    scale = tensor.abs().amax(-1, keepdim=True) / 127
    return (tensor / scale).round() * scale


TWENTY = (
    *("stale shard", "swapped steps", "other seed", "final copy", "reset layer", "transposed", "rounded"),
    *("truncated", "bf16", "doubled step", "renumbered layers", "merged adapter", "zeroed bias"),
    *("missing shard", "NaN", "EMA", "shifted head", "other tokenizer", "quantised and back"),
    "permuted experts",
)
"""The kinds of the planted faults; an average near its model cannot be told (``EMA``)."""
FURTHER = (
    *("negated", "scaled", "rows permuted", "another draw", "layers exchanged", "stale embedding"),
    *("bias copied", "layer missing"),
)


def clean_training(seed: int) -> Training:
    """One of many ways to train, drawn by its seed: optimizer, schedule, number of members, model."""
    draw = random.Random(seed)
    count = draw.choice([2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 30, 60])
    every = draw.choice([1, 2, 4, 8] if count < 30 else [1, 2])
    steps = tuple(every * k for k in range(count))
    if draw.random() < 0.3:
        steps = tuple(sorted({0, *(2**k for k in range(min(count, 7)))}))
    first = draw.choice([0, 0, 10])
    return Training(
        seed=seed,
        optimizer=draw.choice(["adamw", "adam", "sgd", "momentum", "rmsprop", "adagrad"]),
        schedule=draw.choice(["warm up", "cosine", "decay", "drop", "re-warm", "restarts"]),
        steps=tuple(first + step for step in steps),
        batch=draw.choice([2, 8, 32]),
        grows=draw.random() < 0.3,
        experts=EXPERTS if draw.random() < 0.2 else 0,
        tied=draw.random() < 0.3,
        frozen=draw.random() < 0.15,
    )
