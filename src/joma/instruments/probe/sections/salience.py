"""Which context tokens the neurons of a real model are being taught, by its own back-propagated gradients."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from joma.core.errors import InputError
from joma.instruments.reading.anatomy import Block
from joma.instruments.reading.lent import Anatomy, leave_untouched
from joma.instruments.reading.passes import Output, device_of, logits_of, run_batch
from joma.instruments.reading.shared import Batches, Part, TokenSection, as_function
from joma.instruments.reading.texts import TokenBatch
from joma.measures.salience import Context, QuerySamples, SalienceSums, frequent_contexts, query_samples

if TYPE_CHECKING:
    import pandas

_WHERE = "token_salience"

Loss = Callable[..., Tensor]
"""Of the model's output, tokens and mask (both (batch, length), on the model's device): a scalar."""


class SalienceSection(TokenSection):
    """Delta_lm = E[g | l, m] P(l | m) (JoMA Sec. 3.1) of a model and a text, layer by layer.

    A sample is a position whose token is m; its context is what the position sees; g is minus the
    gradient of the summed next-token loss (nats) at the hidden neurons of that position. That loss includes
    later positions, which the neurons reach through attention in the layers above: it is the gradient that
    training would send. In the last layer it is the position's own loss alone. The last position of a
    sequence has nothing to predict and is no sample.

    Two passes over the token ids choose query and context tokens; then the model runs forward and
    backward once over each batch. Neither parameters nor their ``.grad`` change; dropout is off.

    Args:
        anatomy: of a causal language model, or any transformer with a ``loss``.
        batches: of tokens (batch, length) int64, and mask (batch, length) bool, False for padding.
        layers: their numbers; all by default.
        query_tokens: m: these tokens, or the so many most frequent ones.
        context_tokens: l: these tokens, or for each m the so many most frequent ones in its context.
        neurons: signed values of these hidden neurons instead of norms over all.
        at: where the gradient is taken: ``activation``, the input of the upper MLP matrix, g_hk of the paper
            (in gated MLPs the product of gate and lower); ``pre_activation``, which is g_hk times
            the activation's slope (in gated MLPs at the gate): what moves the neuron's lower weights.
        context: what a query sees. By default found by a trial whether the model is causal, and a sliding
            window as its configuration has it, layer by layer.
        loss: in place of the next-token loss, for models without logits or not causal. A sum over samples
            rather than a mean, if the sizes of batches are to make no difference.
        folds: see ``joma.measures.salience.SalienceSums``.

    The table has one row per layer, query and context token: ``layer, module`` and the columns of
    ``joma.measures.salience.SalienceSums.table``. Where one block is run again and again (ALBERT), its
    runs are its layers.

    Memory: that of a backward pass over 1024 tokens (or one longer sequence), whatever the batches' size, and
    ``8 folds N_query N_context neurons`` bytes per layer, whatever the length of the text.

    Raises:
        InputError: see ``joma.instruments.reading.lent.checked_batches`` and
            ``joma.instruments.reading.lent.Anatomy.choose``; an MLP of a
            kind that is not supported (experts); a model that is not causal, or has no logits, without
            ``loss``; a gradient that is not finite; a query token that is not in the text.
    """

    differentiable = True

    def __init__(
        self,
        anatomy: Anatomy,
        batches: Batches,
        *,
        layers: Iterable[int] | None = None,
        query_tokens: int | Sequence[int] = 8,
        context_tokens: int | Sequence[int] = 32,
        neurons: Sequence[int] | None = None,
        at: Literal["activation", "pre_activation"] = "activation",
        context: Context | None = None,
        loss: Loss | None = None,
        folds: int = 4,
    ) -> None:
        if at not in ("activation", "pre_activation"):
            raise InputError(f"{_WHERE}: at = {at!r}; choose 'activation' or 'pre_activation'.")
        self.blocks = anatomy.choose(layers, _WHERE)
        for block in self.blocks:
            if block.upper is None or block.lower is None:
                raise InputError(
                    f"{_WHERE}: the hidden neurons of layer {block.layer} ({block.name}) were not found: "
                    f"{block.mlp_problem or 'no upper matrix known by its name'}; choose other layers."
                )
        super().__init__(anatomy, batches, _WHERE)
        self.at, self.neurons, self.loss, self.folds = at, neurons, loss, folds
        if context is None or loss is None:
            with leave_untouched(self.model):
                causal = _is_causal(self.model, self.batches)
            if loss is None and not causal:
                raise InputError(
                    f"{_WHERE}: {type(self.model).__name__} sees the token to predict, so the next-token "
                    "loss means nothing; give loss=(output, tokens, mask) -> scalar, as it was trained."
                )
        self.contexts = {
            block.name: context or Context(causal, _window(self.model, block.layer) if causal else None)
            for block in self.blocks
        }
        # Layers that see alike share their context tokens and samples.
        self.chosen = {
            sight: frequent_contexts(
                self.batches, query_tokens=query_tokens, context_tokens=context_tokens, context=sight
            )
            for sight in set(self.contexts.values())
        }
        self.sums: dict[tuple[str, int], SalienceSums] = {}
        self._gradients: _Gradients | None = None

    @contextmanager
    def around_pass(self, part: Part) -> Iterator[None]:
        """Watch the hidden neurons, whose gradients will be received."""
        batch = part.batch
        samples = batch.mask if self.loss is not None else batch.mask & _has_next(batch.mask)
        found = {
            sight: query_samples(chosen, batch.tokens, batch.mask, samples=samples, context=sight)
            for sight, chosen in self.chosen.items()
        }
        self._gradients = _Gradients(self, found, (batch.tokens.shape[0], batch.tokens.shape[1]))
        with ExitStack() as stack:
            self._gradients.attach(stack)
            yield

    def after_pass(self, part: Part, output: Output) -> None:
        """Run backward."""
        gradients, self._gradients = self._gradients, None
        assert gradients is not None
        if self.loss is None:
            start = logits_of(output)
            minus = _minus_next_token_gradient(start.detach(), part.batch)
        else:
            device = device_of(self.model)
            start = self.loss(output, part.batch.tokens.to(device), part.batch.mask.to(device))
            if not isinstance(start, Tensor) or start.numel() != 1 or not start.requires_grad:
                raise InputError(
                    "token_salience: the loss must be a tensor with one element that depends on the layers."
                )
            minus = -torch.ones_like(start)
        if not start.requires_grad:
            raise InputError("token_salience: the logits do not depend on the layers; give a loss that does.")
        # Every hidden layer lies between the loss and the first ones, so its hook is called on the way.
        torch.autograd.grad(start, gradients.leaves, minus, allow_unused=True)
        for block in self.blocks:
            runs = gradients.runs[block.name]
            if not runs or any((block.name, run) not in gradients.received for run in range(runs)):
                raise InputError(
                    f"token_salience: no gradient came back to layer {block.layer} ({block.name}); it takes "
                    "no part in this loss, so leave it out of layers."
                )

    def make_tables(self) -> dict[str, pandas.DataFrame]:
        """``salience``: one row per measurement."""
        return {"salience": _table(self.blocks, self.sums, self.neurons)}


token_salience = as_function(SalienceSection)
"""The table of a model and batches: see ``SalienceSection``."""


class _Gradients:
    """Takes one pass's gradients out of the backward pass and adds each up as it comes."""

    def __init__(
        self, section: SalienceSection, found: dict[Context, dict[int, QuerySamples]], shape: tuple[int, int]
    ) -> None:
        self.section, self.found, self.shape = section, found, shape
        self.leaves: list[Tensor] = []
        self.runs: Counter[str] = Counter()
        self.received: set[tuple[str, int]] = set()

    def attach(self, stack: ExitStack) -> None:
        """Watch every block's hidden neurons while the stack is open."""
        for block in self.section.blocks:
            watched = partial(self._watch, block)
            name = block.upper if self.section.at == "activation" else block.gate or block.lower
            module = self.section.model.get_submodule(name or "")
            if self.section.at == "activation":
                handle = module.register_forward_pre_hook(
                    lambda _, given, watched=watched: (watched(given[0]), *given[1:])
                )
            else:
                handle = module.register_forward_hook(
                    lambda _, given, output, watched=watched: watched(output)
                )
            stack.callback(handle.remove)

    def _watch(self, block: Block, hidden: Tensor) -> Tensor:
        """The same values, whose gradient will be received."""
        if not hidden.requires_grad:
            hidden = hidden.detach().requires_grad_()
            self.leaves.append(hidden)
        run = self.runs[block.name]
        self.runs[block.name] += 1
        receive = partial(self._receive, block=block, run=run)
        hidden.register_hook(receive)  # type: ignore[no-untyped-call]
        return hidden

    def _receive(self, gradient: Tensor, block: Block, run: int) -> None:
        section = self.section
        if gradient.numel() % (self.shape[0] * self.shape[1]):
            raise InputError(
                f"token_salience: the neurons of layer {block.layer} ({block.name}) have shape "
                f"{tuple(gradient.shape)} for tokens of shape {self.shape}; one vector per token is needed."
            )
        gradient = gradient.reshape(*self.shape, -1)
        matrix = block.gate_matrix or block.lower_matrix
        if section.at == "pre_activation" and matrix is not None and matrix.piece.last is not None:
            # Gate and lower come out of one matrix.
            grouped = gradient.reshape(*self.shape, matrix.piece.groups, -1)
            gradient = grouped[..., matrix.piece.first : matrix.piece.last].flatten(2)
        if section.neurons is not None:
            wrong = [k for k in section.neurons if not 0 <= k < gradient.shape[2]]
            if wrong or not section.neurons:
                raise InputError(
                    f"token_salience: layer {block.layer} has neurons 0 to {gradient.shape[2] - 1}, not "
                    f"{wrong[0] if wrong else 'an empty list of them'}."
                )
            gradient = gradient[..., list(section.neurons)]
        sight, key = section.contexts[block.name], (block.name, run)
        if key not in section.sums:
            section.sums[key] = SalienceSums(
                section.chosen[sight], gradient.shape[2], context=sight, folds=section.folds
            )
        section.sums[key].add(self.found[sight], gradient)
        self.received.add(key)


def _minus_next_token_gradient(logits: Tensor, batch: TokenBatch) -> Tensor:
    """Minus that of the summed cross-entropy: one-hot less softmax, 0 where nothing is to be predicted.

    By hand, since autograd keeps and fills two more tensors of the logits' size.
    """
    if logits.shape[:2] != batch.tokens.shape:
        raise InputError(
            f"token_salience: logits of shape {tuple(logits.shape)} for tokens of shape "
            f"{tuple(batch.tokens.shape)}; give a model with logits at every position, or a loss."
        )
    predicts = (batch.mask & _has_next(batch.mask)).to(logits.device)
    following = torch.roll(batch.tokens, -1, 1).to(logits.device)
    precise = logits if logits.dtype == torch.float64 else logits.float()
    found = precise.softmax(-1).neg_()
    found.scatter_add_(-1, following[..., None], torch.ones_like(found[..., :1]))
    return found.masked_fill_(~predicts[..., None], 0.0).to(logits.dtype)


def _has_next(mask: Tensor) -> Tensor:
    return F.pad(mask[:, 1:], (0, 1))


def _is_causal(model: nn.Module, batches: list[TokenBatch]) -> bool:
    """Whether early outputs stay the same when a later token changes, by trying."""
    for batch in batches:
        for row, kept in zip(batch.tokens, batch.mask, strict=True):
            tokens = row[kept][:16]
            others = tokens[tokens != tokens[-1]]
            if tokens.numel() > 1 and others.numel():
                pair = torch.stack([tokens, tokens])
                pair[1, -1] = others[0]
                trial = TokenBatch(pair, torch.ones_like(pair, dtype=torch.bool))
                with torch.no_grad():
                    output = _states(run_batch(model, trial, logits=True))[:, :-1].double()
                if not bool(torch.isfinite(output).all()):
                    raise InputError(
                        "token_salience: the model's outputs on this text hold NaN or infinity; mend its "
                        "weights, or run it in float32."
                    )
                change, size = (output[0] - output[1]).abs().max(), output.abs().max()
                return bool(change <= 1e-3 * size)
    raise InputError(
        "token_salience: every sequence of this text repeats one token; give another, or context and loss."
    )


def _states(output: Output) -> Tensor:
    """What a model computed at each position: its logits, or its last hidden states."""
    found = (
        [output]
        if isinstance(output, Tensor)
        else [getattr(output, name, None) for name in ("logits", "last_hidden_state")]
    )
    for states in found:
        if isinstance(states, Tensor) and states.ndim == 3:
            return states
    raise InputError(
        f"token_salience: cannot tell from a {type(output).__name__} whether the model is causal; give "
        "context and loss."
    )


def _window(model: nn.Module, layer: int) -> int | None:
    """How many positions before its own a layer's attention sees, by the model's configuration."""
    config = getattr(model, "config", None)
    kinds = getattr(config, "layer_types", None) or getattr(config, "attention_layers", None)
    width = getattr(config, "sliding_window", None) or getattr(config, "window_size", None)
    if not isinstance(width, int) or width < 2 or getattr(config, "use_sliding_window", True) is False:
        return None
    if kinds is not None and (layer >= len(kinds) or kinds[layer] not in ("sliding_attention", "local")):
        return None
    return width - 1  # transformers counts the position itself


def _table(
    blocks: list[Block], sums: dict[tuple[str, int], SalienceSums], neurons: Sequence[int] | None
) -> pandas.DataFrame:
    import pandas as pd

    layers = {block.name: block.layer for block in blocks}
    order = {block.name: number for number, block in enumerate(blocks)}
    parts = []
    for name, run in sorted(sums, key=lambda key: (order[key[0]], key[1])):
        found = sums[name, run].table(neurons=None if neurons is None else range(len(neurons)))
        if neurons is not None:
            found["neuron"] = [neurons[k] for k in found["neuron"]]
        found.insert(0, "module", name)
        found.insert(0, "layer", layers[name] + run)
        parts.append(found)
    return pd.concat(parts, ignore_index=True)
