"""Which contexts activate each neuron of a model's MLPs, and what the query token attends to there.

A neuron is one input of the MLP's second matrix: ``act(lower x)``, or ``act(gate x) * lower x`` in a gated
MLP. One pass over the text keeps, for each neuron, the windows that activate it most, with what the query
(the position that activates) attends to in the attention that the MLP reads: that of its own block, or of
the block before where attention and MLP stand side by side (GPT-J, Phi, most of Pythia).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence, Sized
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from joma.core.errors import InputError
from joma.core.progress import Progress
from joma.instruments.neurons.attended import AttendedTokens
from joma.instruments.neurons.measured import TOP
from joma.instruments.neurons.top_contexts import TopContexts
from joma.instruments.reading.anatomy import Block, find_blocks
from joma.instruments.reading.lent import leave_untouched
from joma.instruments.reading.passes import device_of, run_batch
from joma.instruments.reading.texts import TokenBatch

ATTENDED = 8
"""AttentionPlace tokens kept for each context."""
FIRST_POSITION = 8
"""Tokens at a window's start that are no contexts: there is little that they could attend to."""
POOL = 256
"""Neurons of a layer that are followed at least, so that there are others to draw shuffled contexts from."""


@dataclass(frozen=True, eq=False)
class LayerContexts:
    """What was found in one MLP; arrays on the CPU."""

    layer: int
    stack: str
    attention: str
    """The module whose attention it is."""
    neurons: NDArray[np.int64]
    """(followed,): the neurons' numbers, increasing."""
    asked: NDArray[np.bool_]
    """(followed,): False for those followed only as a pool to draw from."""
    activation: NDArray[np.float32]
    """(followed, top), decreasing; -inf where there were fewer windows."""
    window: NDArray[np.int64]
    """(followed, top), -1 for none."""
    position: NDArray[np.int64]
    """(followed, top): the query's place in its window."""
    attended: NDArray[np.int64]
    """(followed, top, attended): places of the attended tokens, strongest first."""
    weight: NDArray[np.float64]
    """(followed, top, attended): attention, averaged over heads."""

    @property
    def active(self) -> NDArray[np.bool_]:
        """(followed, top): contexts in which the neuron is above zero; the others do not activate it."""
        return (self.window >= 0) & (self.activation > 0)


@dataclass(frozen=True, eq=False)
class NeuronContexts:
    """What ``find_neurons`` found."""

    layers: list[LayerContexts]
    windows: dict[int, NDArray[np.int32]]
    """The tokens of every window that is a context of some neuron."""
    tokens: int
    """How many tokens were read, padding left out."""
    windows_read: int
    skipped: dict[str, str] = field(default_factory=dict)
    """Blocks that were not looked at -> why."""


def find_neurons(
    model: nn.Module,
    batches: Iterable[tuple[Tensor, Tensor]],
    *,
    layers: Sequence[int] | None = None,
    neurons: Sequence[int] | None = None,
    top: int = TOP,
    attended: int = ATTENDED,
    first_position: int = FIRST_POSITION,
    special: Collection[int] = (),
    seed: int = 0,
    progress: Progress | None = None,
) -> NeuronContexts:
    """Run the model over a text once and keep the contexts that activate each neuron most.

    Memory: ``neurons * top`` contexts, whatever the length of the text. The model runs in evaluation mode
    without gradients, and is left as it was.

    Args:
        model: a transformer whose MLPs and attentions ``joma.instruments.reading.anatomy.find_blocks`` knows.
        batches: ``(tokens, mask)``, each (batch, length); the mask is False for padding.
        layers: numbers of layers; by default all whose MLP and attention are known.
        neurons: numbers of neurons, in each of these layers; by default all.
        top: contexts kept for each neuron: windows, each at the position where the neuron is largest.
        attended: attended tokens kept for each context.
        first_position: from which position of its window on a token may be a context.
        special: token ids that are no content (separators): neither contexts nor attended tokens.
        seed: of the choice of further neurons to draw shuffled contexts from, if few were asked for.
        progress: shows a bar.

    Raises:
        InputError: a model without MLP or attention that can be found, layers or neurons that do not
            exist, no batches or windows shorter than ``first_position``, activations that are NaN.
    """
    for name, value in (("top", top), ("attended", attended), ("first_position", first_position)):
        if value < 1:
            raise InputError(f"{name} = {value} in find_neurons; give at least 1.")
    chosen, skipped = _choose(find_blocks(model), layers)
    readers = [
        _Reader(block, attention, neurons, top, attended, np.random.default_rng([seed, number]))
        for number, (block, attention) in enumerate(chosen)
    ]
    watch = AttendedTokens(model, {r.attention for r in readers}, attended=attended, special=special)
    state = _State(watch)
    excluded = torch.tensor(sorted(special), dtype=torch.int64)
    windows: dict[int, NDArray[np.int32]] = {}
    room = 4096
    tokens_read = windows_read = 0
    device = device_of(model)
    for tokens, mask in (progress or Progress()).track(batches, "neurons", total=_length(batches)):
        here, real = tokens.to(device), mask.to(device)
        place = real.to(torch.int64).cumsum(dim=1) - 1
        state.usable = real & (place >= first_position) & ~torch.isin(here, excluded.to(device))
        state.first_window = windows_read
        watch.begin(here, real)
        with leave_untouched(model), watch, _hooks(model, readers, state):
            run_batch(model, TokenBatch(tokens, mask))
        for row, kept in zip(tokens.numpy(force=True), mask.numpy(force=True), strict=True):
            # From the first to the last real token, so that positions stay what they are.
            end = int(np.flatnonzero(kept)[-1]) + 1 if kept.any() else 0
            windows[windows_read] = row[:end].astype(np.int32)
            windows_read += 1
        tokens_read += int(mask.sum())
        if len(windows) > room:
            windows = _windows_in_use(windows, readers)
            room = 2 * len(windows) + 4096
    if not windows_read:
        raise InputError("find_neurons got no batch of text; give a text with words in it.")
    silent = [r.block.name for r in readers if not r.ran]
    if silent:
        raise InputError(
            f"the MLP of {silent[0]} did not run: {type(model).__name__} calls {silent[0]} only with other "
            "inputs; leave those layers out (layers = ...)."
        )
    found = [r.result() for r in readers]
    if not any(layer.window.max(initial=-1) >= 0 for layer in found):
        raise InputError(
            f"no window has a token behind position {first_position}, so there is no context; give longer "
            "windows, or a lower first_position."
        )
    return NeuronContexts(found, _windows_in_use(windows, readers), tokens_read, windows_read, skipped)


@contextmanager
def _hooks(model: nn.Module, readers: list[_Reader], state: _State) -> Iterator[None]:
    """Only while a batch of the search runs: whoever makes the batches may run the model, too."""
    handles = [model.get_submodule(r.upper).register_forward_pre_hook(r.hook(state)) for r in readers]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _length(batches: Iterable[tuple[Tensor, Tensor]]) -> int | None:
    try:
        return len(batches) if isinstance(batches, Sized) else None
    except TypeError:
        return None


def _choose(
    blocks: list[Block], layers: Sequence[int] | None
) -> tuple[list[tuple[Block, str]], dict[str, str]]:
    """The blocks to look at, each with the attention that its MLP reads; and why others are left out."""
    if layers is not None:
        numbers = sorted({block.layer for block in blocks})
        for layer in layers:
            if layer not in numbers:
                raise InputError(
                    f"the model has no layer {layer}; its layers are {numbers[0]} to {numbers[-1]}."
                )
        if not len(layers):
            raise InputError("layers is empty; give numbers of layers, or none for all.")
    chosen, skipped = [], {}
    for block in blocks:
        if layers is not None and block.layer not in layers:
            continue
        attention = _attention_read(block, blocks)
        if block.upper is None:
            skipped[block.name] = block.mlp_problem or "its MLP is not known by name"
        elif attention is None and block.parallel:
            skipped[block.name] = (
                "it is the first, and its MLP reads what attention reads: no attention at all"
            )
        elif attention is None:
            skipped[block.name] = block.attention_problem or "its attention is not known by name"
        else:
            chosen.append((block, attention))
    if not chosen or (layers is not None and skipped):
        name, why = next(iter(skipped.items()))
        raise InputError(f"the neurons of {name} cannot be told from what they attend to: {why}.")
    return chosen, skipped


def _attention_read(block: Block, blocks: list[Block]) -> str | None:
    if not block.parallel:
        return block.attention
    before = [b for b in blocks if b.stack == block.stack and b.layer == block.layer - 1]
    return before[0].attention if before else None


@dataclass
class _State:
    """What the hooks need to know of the batch that is running."""

    watch: AttendedTokens
    usable: Tensor = field(default_factory=lambda: torch.empty(0, 0, dtype=torch.bool))
    first_window: int = 0


class _Reader:
    """One MLP, and the contexts of its neurons so far."""

    def __init__(
        self,
        block: Block,
        attention: str,
        neurons: Sequence[int] | None,
        top: int,
        attended: int,
        random: np.random.Generator,
    ) -> None:
        assert block.upper is not None
        self.block = block
        self.upper = block.upper
        self.attention = attention
        self.ran = False
        self._asked = neurons
        self._top, self._attended = top, attended
        self._random = random
        self._contexts: TopContexts | None = None
        self._neurons = np.empty(0, dtype=np.int64)
        self._columns: Tensor | None = None

    def hook(self, state: _State) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        def before(module: nn.Module, args: tuple[Tensor, ...]) -> None:
            activations: Tensor = args[0].detach()
            batch, length = state.usable.shape
            if activations.ndim != 3 and activations.numel() % max(batch * length, 1) == 0:
                activations = activations.reshape(batch, length, -1)
            if activations.shape[:2] != (batch, length):
                raise InputError(
                    f"{self.upper} reads activations of shape {tuple(args[0].shape)} over a batch of "
                    f"{batch} x {length} tokens, so whose they are cannot be told; leave its layer out."
                )
            attended = state.watch.found.get(self.attention)
            if attended is None:
                raise InputError(
                    f"what {self.attention} attends to could not be read: {self._why(state.watch)}"
                )
            contexts = self._contexts or self._start(activations)
            if self._columns is not None:
                activations = activations[..., self._columns]
            contexts.update(activations, state.usable, attended, state.first_window)
            self.ran = True

        return before

    def _why(self, watch: AttendedTokens) -> str:
        if self.attention in watch.failed:
            return watch.failed[self.attention]
        coverage = watch.coverage()
        reasons = [
            str(row.reason) for row in coverage.itertuples() if str(row.module).startswith(self.attention)
        ]
        return reasons[0] if reasons and reasons[0] else "no softmax attention was seen in it."

    def _start(self, activations: Tensor) -> TopContexts:
        width = activations.shape[-1]
        if self._asked is None:
            self._neurons = np.arange(width)
        else:
            for neuron in self._asked:
                if not 0 <= neuron < width:
                    raise InputError(
                        f"there is no neuron {neuron} in {self.block.name}; its neurons are 0 to {width - 1}."
                    )
            if not len(self._asked):
                raise InputError("neurons is empty; give numbers of neurons, or none for all.")
            others = np.setdiff1d(np.arange(width), self._asked)
            further = min(len(others), max(0, POOL - len(set(self._asked))))
            pool = self._random.choice(others, further, replace=False)
            self._neurons = np.union1d(np.asarray(self._asked, dtype=np.int64), pool)
            self._columns = torch.from_numpy(self._neurons).to(activations.device)
        self._contexts = TopContexts(
            len(self._neurons), top=self._top, attended=self._attended, device=activations.device
        )
        return self._contexts

    def windows(self) -> NDArray[np.int64]:
        contexts = self._contexts
        return np.empty(0, dtype=np.int64) if contexts is None else contexts.window.cpu().numpy()

    def result(self) -> LayerContexts:
        contexts = self._contexts
        assert contexts is not None
        activation = contexts.activation.cpu().numpy()
        position = contexts.position.cpu().numpy().astype(np.int64)
        if np.isnan(activation).any():
            row, rank = np.argwhere(np.isnan(activation))[0]
            raise InputError(
                f"layer {self.block.layer}: the activation of neuron {self._neurons[row]} is NaN at position "
                f"{position[row, rank]} of window {self.windows()[row, rank]}; the model overflows there "
                "(try dtype float32)."
            )
        return LayerContexts(
            layer=self.block.layer,
            stack=self.block.stack,
            attention=self.attention,
            neurons=self._neurons,
            asked=np.isin(self._neurons, self._neurons if self._asked is None else self._asked),
            activation=activation,
            window=contexts.window.cpu().numpy(),
            position=position,
            attended=contexts.attended.cpu().numpy().astype(np.int64),
            weight=contexts.weight.cpu().numpy().astype(np.float64),
        )


def _windows_in_use(
    windows: dict[int, NDArray[np.int32]], readers: list[_Reader]
) -> dict[int, NDArray[np.int32]]:
    """The windows that are still some neuron's context; the others need not be kept."""
    held = np.unique(np.concatenate([reader.windows().reshape(-1) for reader in readers]))
    return {int(number): windows[int(number)] for number in held if number >= 0}
