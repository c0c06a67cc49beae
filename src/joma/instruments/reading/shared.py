"""One pass over a text for all that want to see something of it: the sections of a probe."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TYPE_CHECKING, ClassVar, Concatenate, NamedTuple, ParamSpec

import torch
from torch import Tensor, nn

from joma.core.errors import InputError
from joma.core.progress import Progress
from joma.instruments.reading.lent import Anatomy, checked_batches, leave_untouched
from joma.instruments.reading.passes import Output, run_batch
from joma.instruments.reading.ready import ReadyBatch
from joma.instruments.reading.texts import TokenBatch

if TYPE_CHECKING:
    import pandas

P = ParamSpec("P")
Batches = Iterable[tuple[Tensor, Tensor]]
"""Tokens (batch, length) int64, and masks (batch, length) bool, False for padding."""

_TOKENS_AT_ONCE = 1024
"""With gradients: a backward pass keeps every activation, which a forward pass does not."""


class Part(NamedTuple):
    """What one forward pass runs on: a batch, or some of its rows."""

    batch: TokenBatch
    whole: TokenBatch
    """The batch that it is of."""
    number: int
    """That batch's."""
    first: int = 0
    """Its first row's number in that batch."""


class Section(ABC):
    """What one section of a probe wants to see of each pass. Its failure is no other section's."""

    differentiable: ClassVar[bool] = False
    """Whether gradients flow through the activations, and there are logits at every position."""
    failure: InputError | None = None

    @abstractmethod
    def around_pass(self, part: Part) -> AbstractContextManager[None]:
        """Entered around the forward pass of a part: sets hooks and takes them out again."""

    @abstractmethod
    def after_pass(self, part: Part, output: Output) -> None:
        """A part has run, and this is what the model returned."""

    @abstractmethod
    def make_tables(self) -> dict[str, pandas.DataFrame]:
        """The tables, by name, when all parts have passed."""

    def tables(self) -> dict[str, pandas.DataFrame]:
        """What was found.

        Raises:
            InputError: what could not be measured, and why.
        """
        if self.failure is not None:
            raise self.failure
        return self.make_tables()

    @contextmanager
    def excuse_errors(self) -> Iterator[None]:
        """What cannot be measured ends this section, and not the pass that it shares."""
        try:
            yield
        except InputError as error:
            self.failure = self.failure or error


class TokenSection(Section):
    """A section that is of token ids."""

    def __init__(self, anatomy: Anatomy, batches: Batches, where: str) -> None:
        self.model = anatomy.model
        self.batches = checked_batches(batches, anatomy.model, where)


def as_function(
    kind: Callable[Concatenate[Anatomy, Batches, P], TokenSection],
) -> Callable[Concatenate[nn.Module, Batches, P], pandas.DataFrame]:
    """A section by itself, as a function of a model and batches that gives its one table."""

    def measure(model: nn.Module, batches: Batches, /, *args: P.args, **kwargs: P.kwargs) -> pandas.DataFrame:
        section = kind(Anatomy(model), batches, *args, **kwargs)
        read(model, section.batches, [section])
        (table,) = section.tables().values()
        return table

    return measure


def read(
    model: nn.Module,
    batches: Sequence[TokenBatch],
    sections: Sequence[Section],
    progress: Progress | None = None,
) -> None:
    """Run the model over the batches once, for all sections; it is left as it was.

    PyTorch's encoder layers leave their fast path for gradients, and ready inputs are not cut: there,
    sections that need gradients have a pass of their own.

    Raises:
        InputError: what ``joma.instruments.reading.passes.run_batch`` raises. A section keeps its own.
        UnfinishedError: out of memory.
    """
    progress = progress or Progress(quiet=True)
    groups = [list(sections)]
    if any(isinstance(batch, ReadyBatch) for batch in batches) or any(
        isinstance(module, nn.TransformerEncoderLayer) for module in model.modules()
    ):
        groups = [[one for one in sections if one.differentiable is kind] for kind in (False, True)]
    for group in groups:
        parts = list(_parts(batches, cut=any(one.differentiable for one in group)))
        for part in progress.track(parts, "reading", total=len(parts)):
            active = [one for one in group if one.failure is None]
            if active:
                _run(model, part, active)


def _parts(batches: Sequence[TokenBatch], *, cut: bool) -> Iterator[Part]:
    for number, whole in enumerate(batches):
        rows = max(1, _TOKENS_AT_ONCE // max(1, whole.tokens.shape[1])) if cut else len(whole.tokens)
        if rows >= len(whole.tokens):
            yield Part(TokenBatch(*whole) if cut else whole, whole, number)
            continue
        for first in range(0, len(whole.tokens), rows):
            some = slice(first, first + rows)
            yield Part(TokenBatch(whole.tokens[some], whole.mask[some]), whole, number, first)


def _run(model: nn.Module, part: Part, sections: Sequence[Section]) -> None:
    differentiable = any(one.differentiable for one in sections)
    with leave_untouched(model, differentiable=differentiable):
        with ExitStack() as stack:
            for one in sections:
                stack.enter_context(one.around_pass(part))
            output = run_batch(model, part.batch, logits=differentiable)
        for one in sections:
            with one.excuse_errors(), torch.set_grad_enabled(one.differentiable):
                one.after_pass(part, output)
