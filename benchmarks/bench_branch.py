"""What a branch costs beside its training: ``joma.branch`` and a plain loop, interleaved.

fig6's decoder (width 128, one layer, 35 tokens, 20 windows a batch) on random tokens, one thread: a training
up to the parting point, a twin, one twin in another order, and two branches, of which one freezes W_Q and
W_K; the plain loop takes as many steps. Processor seconds, the least of the rounds (another program's work
only adds), and their ratio, at most 1.05. A branch that holds the entropy has one more term in its loss: it
is shown by itself.

Run it alone on the machine: ``python benchmarks/bench_branch.py``.
"""

from __future__ import annotations

import sys
import time

import torch

import joma
from joma.models.decoder import Decoder

AT, STEPS, ROUNDS, TOKENS, WINDOWS, LENGTH = 40, 80, 7, 500, 20, 35
BOUND = 1.05
BRANCHES = {"same": "none", "frozen": "freeze layers.0.in_projection.*[:256]"}
HELD = {"held": "hold-entropy"}


def make() -> tuple[Decoder, torch.optim.Optimizer, torch.Tensor]:
    model = Decoder(TOKENS, layers=1, width=128, hidden=128, longest=LENGTH)
    batches = torch.randint(
        TOKENS, (AT + STEPS, WINDOWS, LENGTH + 1), generator=torch.Generator().manual_seed(1)
    )
    return model, torch.optim.Adam(model.parameters(), lr=1e-3), batches


def step(model: Decoder, batch: torch.Tensor) -> torch.Tensor:
    logits = model(batch[:, :-1])
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())


def plain(steps: int) -> float:
    """Processor seconds of a loop without branches."""
    torch.manual_seed(0)
    model, optimizer, batches = make()
    began = time.process_time()
    for number in range(steps):
        optimizer.zero_grad()
        step(model, batches[number % len(batches)]).backward()
        optimizer.step()
    return time.process_time() - began


def branched(interventions: dict[str, str]) -> float:
    """Processor seconds of ``joma.branch`` with one seed."""
    began = time.process_time()
    joma.branch(make, step, at=AT, interventions=interventions, steps=STEPS, seeds=1)
    return time.process_time() - began


def main() -> int:
    torch.set_num_threads(1)
    plain(AT)
    branched(BRANCHES)
    twins = 2
    ours, own, held = [], [], []
    for _ in range(ROUNDS):
        own.append(plain(AT + (twins + len(BRANCHES)) * STEPS))
        ours.append(branched(BRANCHES))
        held.append(branched(BRANCHES | HELD) - ours[-1])
    ratio = min(ours) / min(own)
    more = min(held) / min(own) * (AT / STEPS + twins + len(BRANCHES))
    print(f"plain loop {min(own):.2f} s, joma.branch {min(ours):.2f} s: {ratio:.3f}")
    print(f"a branch that holds the entropy: {more:.2f} of its plain training")
    print(f"at most {BOUND}: {'yes' if ratio <= BOUND else 'NO'}")
    return int(ratio > BOUND)


if __name__ == "__main__":
    sys.exit(main())
