"""One look at a model in training: its attention and its residual stream at one step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

from joma.core.errors import InputError
from joma.instruments.monitor.measuring.backward import Backwards
from joma.instruments.monitor.measuring.blocks import Block, block_of, learning_blocks, trains
from joma.instruments.reading.passes import unwrap
from joma.instruments.watch.capture.lineage import Argument
from joma.instruments.watch.coverage import Entry
from joma.instruments.watch.hooks import leave_out_of_copies
from joma.instruments.watch.padding import parameters_of
from joma.instruments.watch.watch import Watch

_MASKS = ("attention_mask", "decoder_attention_mask")
"""What a model of transformers calls the mask that tells padding, in its first and in its second stack."""
RESIDUAL = ("residual_rms", "residual_update")
"""Of a block's output its root mean square, and that of what the block adds over that of what it reads. A
norm after the sum (post-norm) counts as added, so that a dead layer is not seen there."""
MAXIMA = ("largest_logit",)
"""Statistics of which the largest row counts, not the mean."""


@dataclass(frozen=True)
class Observation:
    """One statistic of one attention, or of one block, at one step; values stay on their device."""

    metric: str
    unit: str
    stack: str
    layer: int
    module: str
    call: int
    values: Tensor
    """(heads,), or one value for what has no heads; float32 or wider."""
    counts: Tensor
    """Rows behind each value."""


Sums = tuple[tuple[str, Block], tuple[Tensor, Tensor, Tensor]]
"""Metric and block, and of one pass what stands above and below the line, and the positions."""


class _TrainingWatch(Watch):
    """A watch of the passes that learn: in training mode, with gradients. Others leave nothing behind.

    Nor does a pass, a part of one or a backward pass that raised: what it had left is taken back, and a loop
    may try it again. Nor one that computes nothing (a graph that is traced or exported).
    """

    learns = False
    """Whether the pass that runs is one."""
    passes = 0
    """How many there were."""
    masks: Mapping[str, Tensor] = {}
    """The padding that the pass was told, by the argument's name."""

    def __init__(self, model: nn.Module, **settings: Any) -> None:
        super().__init__(model, **settings)
        self.within: list[bool] = []
        """Of each block that runs whether gradients get to it, the innermost last."""
        self.sums: list[Sums] = []
        self._before: dict[str, Entry] = {}
        self._settled = self._mark()
        """What there was after the last whole backward pass."""

    def _pass_started(self, module: nn.Module) -> None:
        # What generates, or evaluates without leaving training mode, learns nothing.
        super()._pass_started(module)
        self.learns = module.training and torch.is_grad_enabled() and self._has_values
        self.masks, self.within = {}, []
        self._before = {name: replace(one) for name, one in self._coverage.entries.items()}

    def _pass_ended(self, whole: bool = True) -> None:
        learned, self.learns = self.learns, False
        super()._pass_ended(whole)
        if learned and not whole:
            self._coverage.entries = self._before
        else:
            self.passes += learned

    def _mark(self) -> tuple[int, ...]:
        return len(self._records), len(self.sums), len(self.within), self.passes

    def _module_raised(self, mark: tuple[int, ...]) -> None:
        records, sums, within, self.passes = mark
        for record in self._records[records:]:
            self._calls[record.step, record.module] -= 1
            self._coverage.take_back(record.module)
        del self._records[records:], self.sums[sums:], self.within[within:]

    def backward_ended(self, whole: bool) -> None:
        """Where it raised, the passes since the last one were for nothing."""
        if whole:
            self._settled = self._mark()
        else:
            self._module_raised(self._settled)

    def _active(self) -> bool:
        return self.learns and (not self.within or self.within[-1]) and super()._active()

    def enter_block(
        self, block: Block, module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]
    ) -> None:
        """A block begins: do gradients get to it?"""
        given = any(isinstance(one, Tensor) and one.requires_grad for one in (*inputs, *named.values()))
        own = trains(module)
        # A checkpoint runs its modules without gradients, and again in the backward pass.
        self.within.append((given or own) if torch.is_grad_enabled() else (given and own))

    def leave_block(self) -> bool:
        """A block ends; whether its pass counts."""
        counts = self.within.pop() if self.within else False
        return self.learns and counts and not self._failure

    def take_padding(
        self, module: nn.Module, inputs: tuple[Argument, ...], named: Mapping[str, Argument]
    ) -> None:
        """Keep the padding that a module is told; those further in are told the same in other forms."""
        given = {**dict(zip(parameters_of(type(module)), inputs, strict=False)), **named}
        found = {name: mask for name in _MASKS if _is_mask(mask := given.get(name))}
        self.masks = {**found, **self.masks}


class Look:
    """Open from the step before until the step that is looked at; then ``taken`` says what was seen.

    Only forward passes in training mode of which gradients are taken count, and of them the blocks that
    gradients get to. Nothing is left on the model when the look is closed; a copy of the model that is made
    while it is open has nothing of it either.
    """

    def __init__(
        self,
        model: nn.Module,
        statistics: Sequence[str],
        layers: Iterable[int | str] | None,
        rows: float | None,
        blocks: Sequence[Block],
        norm: Callable[[], Tensor | None],
        stepped: Callable[[Optimizer], None],
    ) -> None:
        self._watch = _TrainingWatch(
            model, statistics=statistics, layers=layers, rows=rows, reduce="none", tolerance=None
        )
        self.backwards = Backwards(norm, self._watch.backward_ended, self._watch._fail)
        self._model = model
        self._blocks = blocks
        self._stepped = stepped
        self._learning = learning_blocks(blocks)
        self._empty = False
        """Whether a block had no position to read."""
        self._stack = ExitStack()

    def open(self) -> None:
        """Begin to look."""
        with ExitStack() as stack:
            for block in self._blocks:
                ends = partial(self._block_ran, block)
                register = partial(nn.Module.register_forward_hook, hook=ends, with_kwargs=True)
                stack.enter_context(leave_out_of_copies(block.module, register))
            # The watch's own hooks are on all modules, and run before these.
            stack.enter_context(self._watch)
            for block in self._blocks:
                begins = partial(self._block_begins, block)
                register = partial(nn.Module.register_forward_pre_hook, hook=begins, with_kwargs=True)
                stack.enter_context(leave_out_of_copies(block.module, register))
            for module in self._model.modules():
                if any(name in _MASKS for name in parameters_of(type(module))):
                    register = partial(
                        nn.Module.register_forward_pre_hook, hook=self._watch.take_padding, with_kwargs=True
                    )
                    stack.enter_context(leave_out_of_copies(module, register))
            stack.enter_context(self.backwards.hooks())
            stack.callback(register_optimizer_step_pre_hook(self._optimizer_steps).remove)
            self._stack = stack.pop_all()

    def close(self) -> None:
        """Leave the model as it was."""
        self._stack.close()

    def _optimizer_steps(self, optimizer: Optimizer, _arguments: Any, _named: Any) -> None:
        """An optimizer of this model's weights is about to move them."""
        try:
            own = {id(weight) for weight in self._model.parameters()}
            if any(id(weight) in own for group in optimizer.param_groups for weight in group["params"]):
                self._stepped(optimizer)
        except Exception as error:  # the training goes on
            self._watch._fail(error)

    def _block_begins(
        self, block: Block, module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]
    ) -> None:
        if self._watch.learns:
            self._watch.enter_block(block, module, inputs, named)

    def _block_ran(
        self, block: Block, _module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any], output: Any
    ) -> None:
        if not self._watch.learns or not self._watch.leave_block() or block not in self._learning:
            return
        try:
            self._read(block, (*inputs, *named.values()), output)
        except Exception as error:  # the model's own pass goes on
            self._watch._fail(error)

    def _read(self, block: Block, inputs: tuple[Any, ...], output: Any) -> None:
        hidden = output[0] if isinstance(output, tuple) else output
        if not (isinstance(hidden, Tensor) and hidden.is_floating_point()):
            return
        self._empty = self._empty or hidden.numel() == 0
        keep = self._no_padding(block.name, hidden)
        number = keep.sum()
        sums = _sum_of_squares(hidden, keep), number, number
        self._watch.sums.append((("residual_rms", block), sums))
        came = inputs[0] if inputs else None
        if isinstance(came, Tensor) and came.shape == hidden.shape:
            written = _sum_of_squares(hidden - came.to(hidden), keep)
            sums = written, _sum_of_squares(came, keep), number
            self._watch.sums.append((("residual_update", block), sums))

    def _no_padding(self, block: str, hidden: Tensor) -> Tensor:
        """Which positions count, (batch, length) bool."""
        sides = _MASKS if _has_two_stacks(self._model) else _MASKS[:1]
        mask = self._watch.masks.get(sides[-1] if "decoder" in block.split(".") else sides[0])
        if mask is None or mask.shape != hidden.shape[:-1]:
            return torch.ones(hidden.shape[:-1], dtype=torch.bool, device=hidden.device)
        return mask.to(hidden.device).bool()

    def observations(self) -> tuple[list[Observation], str]:
        """What was seen, means over the passes of this step weighted by their rows; and what could not be.

        Raises:
            InputError: no pass in training mode ran, or the watching itself failed.
        """
        if self._watch._failure:
            raise InputError(self._watch.problem())
        if not self._watch.passes:
            raise InputError("no forward pass in training mode ran at a step that was to be looked at.")
        seen: dict[tuple[str, str, int], list[Observation]] = {}
        for layer, record, measured in self._watch.measurements_so_far():
            values, counts = _per_head(measured.name, measured.values, measured.counts)
            block = block_of(self._blocks, record.module)
            stack, number = ("", layer) if block is None else (block.stack, block.number)
            if block is None or block in self._learning:
                found = Observation(
                    measured.name, measured.unit, stack, number, record.module, record.call, values, counts
                )
                seen.setdefault((found.metric, found.module, found.call), []).append(found)
        rows = [_join_passes(passes) for passes in seen.values()]
        sums: dict[tuple[str, Block], list[tuple[Tensor, Tensor, Tensor]]] = {}
        for key, parts in self._watch.sums:
            sums.setdefault(key, []).append(parts)
        for (metric, block), passes in sums.items():
            above, below, counted = (torch.stack(part).sum()[None] for part in zip(*passes, strict=True))
            root = (above / below).sqrt()
            rows.append(Observation(metric, "", block.stack, block.number, block.name, 0, root, counted))
        nothing = self._empty and not seen
        return rows, "the batch of a step was empty." if nothing else self._watch.problem()


def _sum_of_squares(hidden: Tensor, keep: Tensor) -> Tensor:
    """Over the width their mean, over the positions that count their sum."""
    return hidden.detach().float().square().mean(-1).masked_fill(~keep, 0.0).sum()


def _per_head(metric: str, values: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """(batch, heads, rows) -> the mean, or the largest, over the valid rows of each head."""
    valid = (counts > 0) & values.isfinite()
    number = valid.sum(dim=(0, 2))
    if metric in MAXIMA:
        best = values.masked_fill(~valid, -torch.inf).amax(dim=(0, 2))
        return torch.where(number > 0, best, torch.nan), number
    return values.masked_fill(~valid, 0).sum(dim=(0, 2)) / number, number


def _join_passes(passes: list[Observation]) -> Observation:
    """Several passes of a step (accumulated gradients) as one."""
    first = passes[0]
    if len(passes) == 1:
        return first
    values = torch.stack([seen.values for seen in passes])
    counts = torch.stack([seen.counts for seen in passes])
    if first.metric in MAXIMA:
        joined = values.nan_to_num(nan=-torch.inf).amax(dim=0)
    else:
        joined = (values.nan_to_num() * counts).sum(dim=0) / counts.sum(dim=0)
    total = counts.sum(dim=0)
    return replace(first, values=torch.where(total > 0, joined, torch.nan), counts=total)


def _is_mask(given: Argument) -> TypeGuard[Tensor]:
    """One number a token, not 0 where it counts; masks that are added to scores are no such."""
    return isinstance(given, Tensor) and given.ndim == 2 and not given.is_floating_point()


def _has_two_stacks(model: nn.Module) -> bool:
    return bool(getattr(getattr(unwrap(model), "config", None), "is_encoder_decoder", False))
