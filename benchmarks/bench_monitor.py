"""What joma.Monitor costs a training step: GPT-2 small at 512 tokens, the decoder of Fig. 6, a tiny GPT.

Three kinds of steps run in turn: plain ones, steps that are looked at (opening and taking the look included),
and steps in between (loss kept, gradient norm taken). Every RANKS_EVERY-th look also measures stable ranks,
and every READ_EVERY-th step the norms of W_Q^T W_K are read and judged; both are timed apart. The cost at a
cadence is

    (looked at - plain) / cadence + ranks / (cadence * RANKS_EVERY) + reading / READ_EVERY
    + (in between - plain)

of medians, as a share of a plain step, and the same without the last term (the looks alone), what is read
between looks beside it; its upper 95 % bound comes from a bootstrap over the rounds. A loop that clips has
the gradients' norm already and passes it on (``grad_norm=``): the cost without it stands beside. Nothing else
should run on the machine.

    python benchmarks/bench_monitor.py [--rounds 200] [--threads 2] [--processor-time] [NAME ...]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from joma.instruments.monitor.measuring.gauge import READ_EVERY
from joma.instruments.monitor.monitor import RANKS_EVERY, Monitor
from joma.models.decoder import Decoder

TARGETS = {"gpt2-small": {10: 0.02, 50: 0.005}, "fig6": {50: 0.03}, "tiny-gpt": {50: 0.03}}
ROUNDS = {"gpt2-small": 12, "fig6": 200, "tiny-gpt": 200}


def gpt2(width: int, layers: int, heads: int, length: int, vocabulary: int) -> nn.Module:
    """A GPT-2 of transformers, in training mode."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=vocabulary, n_positions=length, n_embd=width, n_layer=layers, n_head=heads, use_cache=False
    )
    return GPT2LMHeadModel(config).train()


def problem(name: str) -> tuple[nn.Module, Callable[[nn.Module], Tensor]]:
    """A model, and its loss on a batch that is drawn anew."""
    if name == "fig6":
        decoder = Decoder(2000, layers=2, width=128, hidden=128, heads=1, longest=35)

        def of_decoder(model: nn.Module) -> Tensor:
            tokens = torch.randint(2000, (20, 36))
            return nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())

        return decoder, of_decoder
    size = (768, 12, 12, 512, 50257) if name == "gpt2-small" else (64, 2, 4, 64, 96)
    batch = 1 if name == "gpt2-small" else 16

    def of_gpt(model: nn.Module) -> Tensor:
        tokens = torch.randint(size[4], (batch, size[3]))
        loss: Tensor = model(input_ids=tokens, labels=tokens).loss
        return loss

    return gpt2(*size), of_gpt


def measured(name: str, rounds: int, clock: Callable[[], float]) -> dict[str, np.ndarray]:
    """Seconds of each kind of step, round by round."""
    torch.manual_seed(0)
    model, loss_of = problem(name)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    monitor = Monitor(model, every=3, ranks_every=None)
    found: dict[str, list[float]] = {
        kind: [] for kind in ("plain", "looked at", "in between", "with its norm", "ranks", "reading")
    }

    def train() -> Tensor:
        optimizer.zero_grad()
        loss = loss_of(model)
        loss.backward()
        optimizer.step()
        return loss.detach()

    def timed(kind: str, act: Callable[[], object]) -> None:
        start = clock()
        act()
        found[kind].append(clock() - start)

    def looked_at(step: int) -> None:
        monitor.begin(step)
        monitor.step(step, loss=train())

    norm, between = torch.ones(()), monitor._between
    for number in range(rounds + 3):
        step = 3 * number
        timed("plain", train)
        timed("looked at", lambda step=step: looked_at(step))
        timed("in between", lambda step=step: monitor.step(step + 1, loss=train()))
        monitor.begin(step + 1)
        timed("with its norm", lambda step=step: monitor.step(step + 1, loss=train(), grad_norm=norm))
        timed("ranks", monitor.ranks)
        # A number that is read at; the steps in between, of which every fifth is, count by their median.
        timed("reading", lambda number=number: between.step(READ_EVERY * number, monitor._judge, None))
    monitor.close()
    return {kind: np.array(seconds[3:]) for kind, seconds in found.items()}


def cost(times: dict[str, np.ndarray], every: int, between: str) -> float:
    """Of a step, as a share of a plain one."""
    middle = {kind: float(np.median(seconds)) for kind, seconds in times.items()}
    look = (middle["looked at"] - middle["plain"]) / every
    ranks = middle["ranks"] / (every * RANKS_EVERY)
    reading = middle["reading"] / READ_EVERY
    return (look + ranks + reading + max(middle[between] - middle["plain"], 0.0)) / middle["plain"]


def upper(times: dict[str, np.ndarray], every: int, between: str) -> float:
    """The 95 % quantile of the cost over resampled rounds."""
    random = np.random.default_rng(0)
    count = len(times["plain"])
    drawn = []
    for _ in range(500):
        rounds = random.integers(0, count, count)
        drawn.append(cost({kind: seconds[rounds] for kind, seconds in times.items()}, every, between))
    return float(np.quantile(drawn, 0.95))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", choices=[*TARGETS, []], help="without any, all")
    parser.add_argument("--rounds", type=int, help="of each kind of step")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--processor-time", action="store_true", help="for a busy machine, with one thread")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    for name in given.names or TARGETS:
        clock = time.process_time if given.processor_time else time.perf_counter
        times = measured(name, given.rounds or ROUNDS[name], clock)
        print(
            f"{name}: "
            + ", ".join(f"{kind} {1e3 * float(np.median(s)):.2f} ms" for kind, s in times.items())
            + f" (medians of {len(times['plain'])})",
            flush=True,
        )
        share = float(np.median(times["reading"]) / READ_EVERY / np.median(times["plain"]))
        print(f"  what is read between looks, in all of these: {share:.2%}", flush=True)
        for every, target in TARGETS[name].items():
            kinds = (("plain", "looks alone"), ("with its norm", "norm given"), ("in between", "norm taken"))
            for between, words in kinds:
                bound = upper(times, every, between)
                print(
                    f"  every {every}, {words}: {cost(times, every, between):.2%}, upper 95 % bound "
                    f"{bound:.2%} (target {target:.1%}, {'met' if bound <= target else 'MISSED'})",
                    flush=True,
                )


if __name__ == "__main__":
    main()
