"""One look at a model in training: its attention and its residual stream at one step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TypeGuard

import torch
from torch import Tensor, nn

from joma.core.errors import InputError
from joma.instruments.reading.passes import unwrapped
from joma.instruments.watch.lineage import Argument
from joma.instruments.watch.owners import LOOKS_LIKE_ATTENTION, parameters_of
from joma.instruments.watch.watch import Watch

_MASKS = ("attention_mask", "decoder_attention_mask")
"""What a model of transformers calls the mask that tells padding, in its first and in its second stack."""
RESIDUAL = ("residual_rms", "residual_update")
"""Of a block's output its root mean square, and that of what the block adds over that of what it reads. A
norm after the sum (post-norm) counts as added, so that a dead layer is not seen there."""
MAXIMA = ("largest_logit",)
"""Statistics of which the largest row counts, not the mean."""


@dataclass(frozen=True)
class Seen:
    """One statistic of one attention, or of one block, at one step; values stay on their device."""

    metric: str
    unit: str
    layer: int
    module: str
    call: int
    values: Tensor
    """(heads,), or one value for what has no heads; float32 or wider."""
    counts: Tensor
    """Rows behind each value."""


class _TrainingWatch(Watch):
    """A watch of the passes that learn: in training mode, with gradients. Others leave nothing behind."""

    learns = False
    """Whether the pass that runs is one."""
    passes = 0
    """How many there were."""
    masks: Mapping[str, Tensor] = {}
    """The padding that the pass was told, by the argument's name."""

    def _pass_started(self, module: nn.Module) -> None:
        super()._pass_started(module)
        # What generates, or evaluates without leaving training mode, learns nothing.
        self.learns = module.training and torch.is_grad_enabled()
        self.passes += self.learns
        self.masks = {}

    def _pass_ended(self) -> None:
        super()._pass_ended()
        self.learns = False

    def _active(self) -> bool:
        return self.learns and super()._active()

    def told(self, module: nn.Module, inputs: tuple[Argument, ...], named: Mapping[str, Argument]) -> None:
        """Keep the padding that a module is told; those further in are told the same in other forms."""
        given = {**dict(zip(parameters_of(type(module)), inputs, strict=False)), **named}
        found = {name: mask for name in _MASKS if _is_mask(mask := given.get(name))}
        self.masks = {**found, **self.masks}


class Look:
    """Open from the step before until the step that is looked at; then ``taken`` says what was seen.

    Only forward passes in training mode of which gradients are taken count. Nothing is left on the model when
    the look is closed.
    """

    def __init__(
        self,
        model: nn.Module,
        statistics: Sequence[str],
        layers: Iterable[int | str] | None,
        rows: float | None,
        blocks: Sequence[tuple[int, str, nn.Module]],
    ) -> None:
        self._watch = _TrainingWatch(
            model, statistics=statistics, layers=layers, rows=rows, reduce="none", tolerance=None
        )
        self._model = model
        self._blocks = blocks
        self._sums: dict[tuple[str, int, str], list[tuple[Tensor, Tensor, Tensor]]] = {}
        """Metric, layer and block -> of each pass, what stands above and below the line, and positions."""
        self._stack = ExitStack()

    def open(self) -> None:
        """Begin to look."""
        with ExitStack() as stack:
            for layer, name, block in self._blocks:
                handle = block.register_forward_hook(
                    lambda _module, inputs, output, key=(layer, name): self._block_ran(key, inputs, output)
                )
                stack.enter_context(handle)
            # The watch's own hooks are on all modules, and run before these.
            stack.enter_context(self._watch)
            for module in self._model.modules():
                if any(name in _MASKS for name in parameters_of(type(module))):
                    stack.enter_context(module.register_forward_pre_hook(self._watch.told, with_kwargs=True))
            self._stack = stack.pop_all()

    def close(self) -> None:
        """Leave the model as it was."""
        self._stack.close()

    def _block_ran(
        self, key: tuple[int, str], inputs: tuple[Argument, ...], output: Tensor | tuple[Tensor, ...]
    ) -> None:
        hidden = output[0] if isinstance(output, tuple) else output
        if not (self._watch.learns and isinstance(hidden, Tensor) and hidden.is_floating_point()):
            return
        keep = self._no_padding(key[1], hidden)
        number = keep.sum()
        sums = _sum_of_squares(hidden, keep), number, number
        self._sums.setdefault(("residual_rms", *key), []).append(sums)
        came = inputs[0] if inputs else None
        if isinstance(came, Tensor) and came.shape == hidden.shape:
            written = _sum_of_squares(hidden - came.to(hidden), keep)
            sums = written, _sum_of_squares(came, keep), number
            self._sums.setdefault(("residual_update", *key), []).append(sums)

    def _no_padding(self, block: str, hidden: Tensor) -> Tensor:
        """Which positions count, (batch, length) bool."""
        sides = _MASKS if _has_two_stacks(self._model) else _MASKS[:1]
        mask = self._watch.masks.get(sides[-1] if "decoder" in block.split(".") else sides[0])
        if mask is None or mask.shape != hidden.shape[:-1]:
            return torch.ones(hidden.shape[:-1], dtype=torch.bool, device=hidden.device)
        return mask.to(hidden.device).bool()

    def taken(self) -> tuple[list[Seen], str]:
        """What was seen, means over the passes of this step weighted by their rows; and what could not be.

        Raises:
            InputError: no pass in training mode ran.
        """
        if not self._watch.passes:
            raise InputError("no forward pass in training mode ran at a step that was to be looked at.")
        seen: dict[tuple[str, str, int], list[Seen]] = {}
        for layer, record, measured in self._watch.kept():
            values, counts = _per_head(measured.name, measured.values, measured.counts)
            found = Seen(measured.name, measured.unit, layer, record.module, record.call, values, counts)
            seen.setdefault((found.metric, found.module, found.call), []).append(found)
        rows = [_joined(passes) for passes in seen.values()]
        for (metric, layer, name), passes in self._sums.items():
            above, below, number = (torch.stack(part).sum()[None] for part in zip(*passes, strict=True))
            rows.append(Seen(metric, "", layer, name, 0, (above / below).sqrt(), number))
        return rows, self._watch.problem()


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


def _joined(passes: list[Seen]) -> Seen:
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
    return Seen(
        first.metric,
        first.unit,
        first.layer,
        first.module,
        first.call,
        torch.where(total > 0, joined, torch.nan),
        total,
    )


def _is_mask(given: Argument) -> TypeGuard[Tensor]:
    """One number a token, not 0 where it counts; masks that are added to scores are no such."""
    return isinstance(given, Tensor) and given.ndim == 2 and not given.is_floating_point()


def _has_two_stacks(model: nn.Module) -> bool:
    return bool(getattr(getattr(unwrapped(model), "config", None), "is_encoder_decoder", False))


def residual_blocks(model: nn.Module) -> list[tuple[int, str, nn.Module]]:
    """Layer number, name and module of each block: the members of the longest list of like modules.

    Lists whose members hold an attention go before others; lists within a block (its experts) are none. An
    encoder and its decoder have one such list each.
    """
    lists: list[tuple[str, list[nn.Module]]] = []
    within: list[str] = []
    for name, module in model.named_modules():  # outer lists come before those within
        members = list(module) if isinstance(module, nn.ModuleList | nn.Sequential) else []
        alike = len({type(member) for member in members}) == 1
        if alike and (isinstance(module, nn.ModuleList) or any(map(_parts, members))):
            if not name.startswith(tuple(within)) or any(map(_holds_attention, members)):
                lists.append((name, members))
            within += [f"{name}.".lstrip(".")] if len(members) > 1 else []
    lists = [one for one in lists if _holds_attention(one[1][0])] or lists
    if _has_two_stacks(model):
        stacks = [[one for one in lists if side in one[0].split(".")] for side in ("encoder", "decoder")]
    else:
        stacks = [lists]
    longest = [max(stack, key=lambda entry: len(entry[1])) for stack in stacks if stack]
    return [
        (number, f"{name}.{number}".lstrip("."), block)
        for name, blocks in longest
        for number, block in enumerate(blocks)
    ]


def _parts(module: nn.Module) -> list[nn.Module]:
    return [part for part in module.modules() if part is not module]


def _holds_attention(block: nn.Module) -> bool:
    return any(LOOKS_LIKE_ATTENTION.search(type(part).__name__) for part in _parts(block))
