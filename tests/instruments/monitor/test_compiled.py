from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters

from joma.instruments.monitor.monitor import Monitor
from joma.models.decoder import Decoder

pytestmark = pytest.mark.slow
EVERY, STEPS = 4, 10


def losses(monitored: bool) -> tuple[list[float], list[int], list[int]]:
    """Losses of a compiled decoder's training, and after each step the graphs compiled and broken so far."""
    torch._dynamo.reset()
    counters.clear()
    torch.manual_seed(0)
    decoder = Decoder(31, layers=2, width=16, hidden=16, heads=2, dropout=0.0, longest=12)
    compiled = torch.compile(decoder, backend="aot_eager")
    optimizer = torch.optim.SGD(decoder.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(0)
    monitor = Monitor(compiled, every=EVERY) if monitored else None
    if monitor is not None:
        monitor.begin(1)
    found, graphs, breaks = [], [], []
    for step in range(1, STEPS + 1):
        ids = torch.randint(0, 31, (4, 12), generator=generator)
        loss = cross_entropy(compiled, ids)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
        if monitor is not None:
            monitor.step(step, loss=loss)
        graphs.append(counters["stats"]["unique_graphs"])
        breaks.append(sum(counters["graph_break"].values()))
    if monitor is not None:
        monitor.close()
        looked = monitor.table().query("metric == 'attention_entropy'")["step"].unique()
        assert list(looked) == [4, 8]
    return found, graphs, breaks


def cross_entropy(model: nn.Module, ids: Tensor) -> Tensor:
    logits: Tensor = model(ids)
    return nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def test_a_compiled_model_is_not_compiled_again() -> None:
    plain, graphs, breaks = losses(False)
    watched, watched_graphs, watched_breaks = losses(True)
    assert watched[: EVERY - 1] == plain[: EVERY - 1]
    assert max(abs(a - b) for a, b in zip(plain, watched, strict=True)) < 1e-5
    assert watched_graphs[-1] == graphs[-1]
    assert watched_breaks[-1] == breaks[-1]
