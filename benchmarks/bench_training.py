"""A training step and an evaluation of the paper's decoder at its own vocabulary (28,782 words).

Ours against the step one would write first: ``F.cross_entropy`` on the logits, ``clip_grad_norm_``,
``torch.optim.Adam``. Evaluation: attention entropies without the logits against with them. One
thread, as joma trains; both sides in turn, the ratio is the median over rounds. Both sides start from
the same weights and must see the same losses.
"""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F

from joma.data.text import TokenText
from joma.models.decoder import Decoder
from joma.training.evaluation import HeldOutText
from joma.training.fused import ClippedAdam, OutputCrossEntropy

VOCABULARY, WIDTH, BATCH, LENGTH = 28_782, 200, 20, 35
ROUNDS = 12
TARGET_STEP, TARGET_EVALUATION = 1.4, 2.0


def timed(call: Callable[[], float]) -> tuple[float, float]:
    start = time.perf_counter()
    value = call()
    return time.perf_counter() - start, value


def compare_steps(model: Decoder, random: torch.Generator) -> tuple[float, float, float]:
    ours, theirs = copy.deepcopy(model).train(), copy.deepcopy(model).train()
    fused = ClippedAdam(ours.parameters(), learning_rate=1e-4, clip=0.5)
    cross_entropy = OutputCrossEntropy()
    plain = torch.optim.Adam(theirs.parameters(), lr=1e-4)
    inputs, targets = torch.randint(0, VOCABULARY, (2, BATCH, LENGTH), generator=random)

    def our_step() -> float:
        for parameter in ours.parameters():
            parameter.grad = None
        hidden = ours.hidden_states(inputs).reshape(-1, WIDTH)
        loss = cross_entropy(hidden, ours.output.weight, ours.output.bias, targets.reshape(-1))
        loss.backward()
        fused.step()
        return loss.item()

    def plain_step() -> float:
        plain.zero_grad()
        loss = F.cross_entropy(theirs(inputs).reshape(-1, VOCABULARY), targets.reshape(-1))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(theirs.parameters(), 0.5)
        plain.step()
        return loss.item()

    times = []
    for round_number in range(ROUNDS + 2):
        torch.manual_seed(round_number)
        our_time, our_loss = timed(our_step)
        torch.manual_seed(round_number)
        plain_time, plain_loss = timed(plain_step)
        if abs(our_loss - plain_loss) > 1e-3 * plain_loss:
            raise SystemExit(f"the two steps disagree: {our_loss} and {plain_loss}")
        times.append((our_time, plain_time))
    return medians(times[2:])


def compare_evaluations(model: Decoder, random: np.random.Generator) -> tuple[float, float, float]:
    tokens = random.integers(0, VOCABULARY, size=100 * LENGTH + 1)
    held_out = HeldOutText(TokenText("made", tokens, tokens, ("",) * VOCABULARY), length=LENGTH)
    model.eval()
    times = []
    for _ in range(ROUNDS // 2 + 1):
        without, _ = timed(lambda: len(held_out.measure(model, 0, with_loss=False)))
        with_logits, _ = timed(lambda: len(held_out.measure(model, 0)))
        times.append((without, with_logits))
    return medians(times[1:])


def medians(times: list[tuple[float, float]]) -> tuple[float, float, float]:
    return (
        statistics.median(ours for ours, _ in times),
        statistics.median(theirs for _, theirs in times),
        statistics.median(theirs / ours for ours, theirs in times),
    )


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = Decoder(VOCABULARY, layers=1, width=WIDTH, hidden=WIDTH, longest=LENGTH)
    ours, plain, ratio = compare_steps(model, torch.Generator().manual_seed(0))
    print(
        f"training step, vocabulary {VOCABULARY}: ours {ours * 1e3:.0f} ms, plain {plain * 1e3:.0f} ms, "
        f"ratio {ratio:.2f} (target {TARGET_STEP})"
    )
    ours, plain, ratio = compare_evaluations(model, np.random.default_rng(0))
    print(
        f"evaluation with entropies: without logits {ours * 1e3:.0f} ms, with logits {plain * 1e3:.0f} ms, "
        f"ratio {ratio:.2f} (target {TARGET_EVALUATION})"
    )


if __name__ == "__main__":
    main()
