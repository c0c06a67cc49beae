"""Drawn calls of attention_entropy over its routes, offsets, types, sizes, masks and biases, beside the dense
formula in extended precision: no error above its estimate, no refusal of what is right."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

import joma
from joma.measures.attention import compiled, entropy

TYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
EXTENDED = np.finfo(np.longdouble).eps < 1e-18
Extended = NDArray[np.longdouble]


def extended(tensor: Tensor) -> Extended:
    return tensor.double().numpy().astype(np.longdouble)


def drawn(number: int) -> tuple[Tensor, Tensor, dict[str, Any]]:
    """The arguments of call ``number``."""
    chance = np.random.default_rng([30, number])
    generator = torch.Generator().manual_seed(number)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    def one_of(*values: Any, p: Any = None) -> Any:
        return values[int(chance.choice(len(values), p=p))]

    # The sizes of numbers: logits of standard deviation 0.01 to 10,000.
    dtype = one_of(*TYPES, p=[0.4, 0.2, 0.15, 0.25])
    group, key_heads, batch = int(one_of(1, 1, 1, 2, 3)), int(one_of(1, 1, 2)), int(one_of(1, 1, 2))
    rows = int(one_of(1, 7, 40, 70, 90, 130))
    more = int(one_of(0, 0, 1, 11, 64, 130))
    keys = rows + more if chance.random() < 0.8 else int(chance.integers(1, 200))
    if number % 50 == 9:  # a cache of up to 10,000 keys
        rows, keys = min(rows, 7), int(10 ** chance.uniform(3, 4))
    width = int(one_of(1, 2, 8, 16, 32, 64, 64, 128))
    spread = 10 ** chance.uniform(-2, 4)
    share = chance.uniform(0, 1)
    query = normal(batch, key_heads * group, rows, width) * spread**share
    key = normal(batch, key_heads, keys, width) * spread ** (1 - share)
    kind = one_of("plain", "mean", "sink", "ties", "alike", p=[0.4, 0.2, 0.15, 0.15, 0.1])
    if kind == "mean":
        key = key + normal(batch, key_heads, 1, width) * spread ** (1 - share) * 10 ** chance.uniform(-1, 2)
    elif kind == "sink":
        key[:, :, 0] *= 10 ** chance.uniform(0, 2)
    elif kind == "ties":
        key[:, :, 1::2] = key[:, :, : keys - 1 : 2][:, :, : len(range(1, keys, 2))]
    elif kind == "alike":
        query, key = query[..., :1].expand_as(query), key[..., :1].expand_as(key)
    if dtype == torch.float16:
        query, key = query.clamp(-6e4, 6e4), key.clamp(-6e4, 6e4)
    arguments: dict[str, Any] = {}
    if chance.random() < 0.6:
        arguments["causal"] = True
        if rows > keys or chance.random() < 0.2:
            arguments["first_position"] = int(chance.integers(0, max(1, keys)))
    elif rows > keys:
        arguments["first_position"] = 0
    if chance.random() < 0.15:
        window = int(chance.integers(1, keys + 2))
        arguments["window"] = (
            window if arguments.get("causal") else (window, int(chance.integers(0, keys + 1)))
        )
    shape = one_of((1, 1, 1, keys), (batch, 1, 1, keys), (1, key_heads * group, rows, keys), (rows, keys))
    if chance.random() < 0.25:
        arguments["mask"] = torch.rand(shape, generator=generator) < chance.uniform(0.3, 1)
        if chance.random() < 0.4:  # padding
            arguments["mask"] = torch.arange(keys) >= torch.randint(
                0, keys, (batch, 1, 1, 1), generator=generator
            )
    elif chance.random() < 0.2:
        narrow = one_of(*TYPES)
        added = normal(*shape) * 10 ** chance.uniform(-2, 3)
        arguments["mask"] = added.masked_fill(torch.rand(shape, generator=generator) < 0.2, -math.inf).to(
            narrow
        )
    if chance.random() < 0.15:
        arguments["bias"] = (normal(*shape) * 10 ** chance.uniform(-2, 3)).to(one_of(*TYPES))
    if chance.random() < 0.08:
        arguments["softcap"] = 10 ** chance.uniform(-1, 3)
    if chance.random() < 0.12:
        arguments["sinks"] = normal(key_heads * group) * 10 ** chance.uniform(-1, 3)
    if chance.random() < 0.15:
        arguments["scale"] = float(chance.uniform(-1, 1))
    arguments["tolerance"] = one_of(None, None, 1e-3, math.inf)
    return query.to(dtype), key.to(dtype), arguments


def dense(query: Tensor, key: Tensor, arguments: dict[str, Any]) -> Extended:
    """Entropy of every row by the definition, in extended precision; NaN where it sees no key."""
    batch, heads, rows, width = query.shape
    keys = key.shape[2]
    scale = np.longdouble(width**-0.5 if arguments.get("scale") is None else arguments["scale"])
    repeated = np.repeat(extended(key), heads // key.shape[1], 1)
    scores = np.empty((batch, heads, rows, keys), np.longdouble)
    for sample in range(batch):
        for head in range(heads):
            scores[sample, head] = extended(query[sample, head]) @ repeated[sample, head].T * scale
    if arguments.get("softcap") is not None:
        cap = np.longdouble(arguments["softcap"])
        scores = cap * np.tanh(scores / cap)
    place = np.arange(keys)
    own = arguments.get("first_position", keys - rows) + np.arange(rows)[:, None]
    seen = np.ones((batch, heads, rows, keys), bool)
    if arguments.get("causal"):
        seen &= place <= own
    if (window := arguments.get("window")) is not None:
        before, after = (window - 1, 0) if isinstance(window, int) else window
        seen &= (place >= own - before) & (place <= own + after)
    for name in ("mask", "bias"):
        if (given := arguments.get(name)) is not None:
            if given.dtype == torch.bool:
                seen &= given.numpy()
            else:
                hidden = given.double().numpy() == -math.inf
                seen &= ~hidden
                scores = scores + np.where(hidden, 0, extended(given.masked_fill(given == -math.inf, 0)))
    scores = np.where(seen, scores, -np.inf)
    if (sinks := arguments.get("sinks")) is not None:
        column = np.broadcast_to(extended(sinks)[:, None, None], (batch, heads, rows, 1))
        scores = np.concatenate([scores, column], -1)
    with np.errstate(invalid="ignore", divide="ignore"):
        away = scores - scores.max(-1, keepdims=True)
        weight = np.exp(away)
        total = weight.sum(-1)
        entropies: Extended = np.log(total) - np.where(weight > 0, weight * away, 0).sum(-1) / total
    return np.where(seen.any(-1), entropies, np.nan)


def missed(number: int) -> tuple[str, str]:
    """What is wrong with call ``number``, empty if nothing; and the route that it took."""
    query, key, arguments = drawn(number)
    told = f"{number}: {tuple(query.shape)} on {tuple(key.shape)}, {query.dtype}, {arguments}"
    try:
        found = joma.attention_entropy(query, key, **arguments)
    except joma.JomaError as refusal:
        return f"{told}: {refusal}", ""
    truth = dense(query, key, arguments)
    off = np.abs(extended(found.entropy) - truth)
    bad = (np.isnan(truth) != found.entropy.isnan().numpy()) | (off > extended(found.error))
    with np.errstate(invalid="ignore", divide="ignore"):
        worst = float(np.nanmax(np.where(bad, off / extended(found.error), 0), initial=0))
    return (
        f"{told}: {int(bad.sum())} rows, up to {worst:.3g} times the estimate" if bad.any() else ""
    ), found.route


@pytest.mark.skipif(not EXTENDED, reason="this platform has no floats of more than 64 bits")
@pytest.mark.parametrize("numbers", [range(120), pytest.param(range(120, 5000), marks=pytest.mark.slow)])
def test_no_error_is_above_its_estimate_and_nothing_is_refused(
    numbers: range, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong, routes = [], Counter[str]()
    for number in numbers:
        with monkeypatch.context() as patch:
            if number % 3 == 0:
                patch.setattr(compiled, "FEWEST", 0)
            elif number % 3 == 1:
                patch.setattr(entropy, "compiled_moments", lambda *_: None)
            said, route = missed(number)
        routes[route] += 1
        wrong += [said] * bool(said)
    assert not wrong, f"{len(wrong)} of {len(numbers)}: " + "\n".join(wrong[:10])
    assert min(routes[name] for name in ("compiled", "flash", "blocked", "dense")) > len(numbers) / 50, routes
