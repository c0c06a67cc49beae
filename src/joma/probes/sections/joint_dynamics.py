"""Theorem 1 of JoMA against the attention of a real model: the joint-dynamics index, head by head."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from joma.errors import InputError
from joma.measures.attention.visible_keys import take
from joma.measures.joint_dynamics import joint_dynamics_index, joint_dynamics_prediction, neuron_gram
from joma.probes.families.anatomy import Block, find_blocks, take_weight
from joma.probes.families.norm_gain import norm_gain
from joma.probes.reading.lent import checked_batches, chosen_blocks, untouched
from joma.probes.reading.passes import run_batch
from joma.probes.reading.texts import TokenBatch
from joma.probes.sections.correlation_table import IndexSums, bins_of, index_table
from joma.probes.watching.call import AttentionCall
from joma.probes.watching.capture import unobserved
from joma.probes.watching.owners import Place
from joma.probes.watching.watch import Watch

if TYPE_CHECKING:
    import pandas


def joint_dynamics(
    model: nn.Module,
    batches: Iterable[tuple[Tensor, Tensor]],
    *,
    layers: Iterable[int] | None = None,
    heads: Sequence[int] | None = None,
    draws: int = 8,
    rank_every: int = 32,
    seed: int = 0,
) -> pandas.DataFrame:
    """How log-attention goes with ``1/2 sum_k v_k(l)^2``, which JoMA Theorem 1 says it is (exp attention).

    ``v_k(l) = w_k . (W_O^h W_V^h u_l)``: u_l is what attention reads of token l, w_k a row of the lower MLP
    (of a gated MLP, the gate's) with the gain of the norm before it. In a block whose MLP does not read its
    own attention (parallel residuals), the MLP is the next block's. Queries and keys are those that the
    model computes, after rotary positions and with its scale, mask, soft cap and bias; the model's outputs
    are unchanged bit for bit.

    The columns that need a word:

    - ``metric``, ``scale``, ``given``, ``sink``: see :class:`joma.measures.joint_dynamics.Variant`. The
      ``null`` is a mean over the draws, ``null_spread`` the standard deviation between draws of the same
      mean: one shuffle's number is within about two of it.
    - ``head``: missing in the mean over the heads asked for.
    - ``position``, ``position_end``: a bin of the queries' positions (end excluded); missing: all.
    - ``value``: mean over the queries that have a value; ``standard_error``: between texts (NaN for one);
      ``count``: the number of queries.
    - ``reason``: why a layer could not be measured. It has one row then, with value NaN.

    Args:
        model: any transformer whose blocks :func:`joma.probes.families.anatomy.find_blocks` finds.
        batches: of tokens (batch, length) int64, and mask (batch, length) bool, False for padding; each row
            counts as one text.
        layers: numbers of the layers; all by default. heads: numbers of the heads to report; likewise.
        draws: shuffles for the null.
        rank_every: every so many queries have a rank correlation too; 0: none.
        seed: of the shuffles.

    Returns:
        One row per measurement: ``stack, layer, module, call, head, metric, scale, given, sink, position,
        position_end, value, standard_error, count, mlp_layer, dtype, reason``.

    Raises:
        InputError: see :func:`joma.probes.reading.lent.checked_batches` and ``chosen_blocks``; no layer that
            could be measured (and why); a head that does not exist.
    """
    where = "joint_dynamics"
    blocks = chosen_blocks(model, layers, where)
    kept = checked_batches(batches, model, where)
    readers = _mlp_readers(find_blocks(model))
    layers_found = [_Layer(model, block, readers.get(block.name)) for block in blocks]
    seen = _IndexWatch(model, layers_found, draws, rank_every, seed)
    with untouched(model):
        for batch in kept:
            seen.begin(batch)
            with seen.following():
                run_batch(model, batch)
    for layer in layers_found:
        if not layer.sums and not layer.problem:
            layer.problem = f"no attention was seen in {layer.block.attention}"
    if all(layer.problem for layer in layers_found):
        raise InputError(f"joint_dynamics: no layer can be measured; first {layers_found[0].problem}.")
    return index_table(
        [
            (
                {
                    "stack": layer.block.stack,
                    "layer": layer.block.layer,
                    "module": layer.block.attention or layer.block.name,
                    "mlp_layer": None if layer.reader is None else layer.reader.layer,
                    "dtype": layer.dtype,
                    "reason": layer.problem,
                },
                {} if layer.problem else layer.sums,
            )
            for layer in layers_found
        ],
        heads,
    )


def _mlp_readers(blocks: list[Block]) -> dict[str, Block]:
    """Block -> the first whose MLP reads what its attention wrote."""
    found = {}
    for number, block in enumerate(blocks):
        following = blocks[number + 1] if number + 1 < len(blocks) else None
        if not block.parallel:
            found[block.name] = block
        elif following is not None and following.stack == block.stack:
            found[block.name] = following
    return found


class _Layer:
    """One attention and the MLP that reads it: the Gram matrices, what is seen, and what goes wrong."""

    def __init__(self, model: nn.Module, block: Block, reader: Block | None) -> None:
        self.block, self.reader = block, reader
        self.sums: dict[int, IndexSums] = {}
        """By the number of the call within a pass (ALBERT's one block runs twelve times)."""
        self.dtype = ""
        self.problem = self._why_not()
        if self.problem:
            return
        try:
            self.gram, self.value = self._matrices(model)
        except InputError as error:
            self.problem = str(error)

    def _why_not(self) -> str:
        block, reader = self.block, self.reader
        if block.attention_problem:
            return block.attention_problem
        if reader is None:
            return f"{block.name} is parallel and the last: no MLP reads its attention"
        if reader.mlp_problem:
            return reader.mlp_problem
        return next(iter(reader.remarks), "")

    def _matrices(self, model: nn.Module) -> tuple[Tensor, Tensor]:
        block, reader = self.block, self.reader
        assert reader is not None
        neurons = reader.gate_matrix or reader.lower_matrix
        assert neurons is not None
        assert block.output_matrix is not None
        assert block.value_matrix is not None
        assert block.heads is not None
        lower, output = take_weight(model, neurons), take_weight(model, block.output_matrix)
        folded: dict[str, Any] = {}
        for prefix, name in (("", reader.mlp_norm), ("output_", block.output_norm)):
            if name is not None:
                gain, centres = norm_gain(model.get_submodule(name), lower.shape[1])
                folded |= {f"{prefix}gain": gain, f"{prefix}centres": centres}
        gram = neuron_gram(lower, output, block.heads, **folded)
        return gram, take_weight(model, block.value_matrix)

    def values(self, u: Tensor) -> Tensor:
        """``W_V u``, (batch, key-value heads, tokens, head width)."""
        weight = self.value.to(u)
        assert self.block.key_value_heads is not None
        by_head = torch.unflatten(u @ weight.T, -1, (self.block.key_value_heads, -1))
        return by_head.transpose(1, 2)


class _IndexWatch(Watch):
    """Sees the attentions of some layers with what they read, and keeps the sums of their correlations."""

    def __init__(
        self, model: nn.Module, layers: list[_Layer], draws: int, rank_every: int, seed: int
    ) -> None:
        super().__init__(
            model, layers=None, statistics=("entropy",), reduce="mean", rows=None, tolerance=None
        )
        self.draws, self.rank_every, self.seed = draws, rank_every, seed
        self.measurable = [layer for layer in layers if not layer.problem]
        modules = {name: id(module) for name, module in model.named_modules()}
        self.readers: dict[int, list[_Layer]] = {}
        self.norms: dict[int, list[_Layer]] = {}
        self.lowers: dict[int, list[_Layer]] = {}
        for layer in self.measurable:
            block, reader = layer.block, layer.reader
            assert reader is not None
            self.readers.setdefault(modules[str(block.value_reader)], []).append(layer)
            self.readers.setdefault(modules[block.name], []).append(layer)
            if reader.mlp_norm is not None:
                self.norms.setdefault(modules[reader.mlp_norm], []).append(layer)
                self.lowers.setdefault(modules[str(reader.lower)], []).append(layer)
        self.batch = TokenBatch(torch.empty(0, 0), torch.empty(0, 0))
        self.passes = 0
        self._read: dict[str, Tensor] = {}
        self._normed: dict[str, Tensor] = {}
        self._calls_of: dict[str, int] = {}

    def begin(self, batch: TokenBatch) -> None:
        """Say what the next pass runs on."""
        self.batch = batch
        self.passes += 1
        self._read.clear()
        self._calls_of.clear()

    def following(self) -> _Following:
        """A context in which a pass is followed."""
        return _Following(self)

    # Hooks on all modules, not on those of interest: see joma.probes.watching.owners.Owners.

    def before(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        """Keep what the values are made of; compare what the neurons read with what their norm gave."""
        for layer in self.readers.get(id(module), []):
            u = _what_values_read(module, args, is_block=self._is_block(module, layer))
            if u is not None:
                self._read[layer.block.name] = u.detach()
        if self.passes > 1:
            return
        for layer in self.lowers.get(id(module), []):
            normed = self._normed.pop(layer.block.name, None)
            same = normed is not None and bool(args) and torch.equal(normed, args[0])
            if not same and not layer.problem:
                assert layer.reader is not None
                layer.problem = f"{layer.reader.lower} does not read what {layer.reader.mlp_norm} gives"

    def after(self, module: nn.Module, args: Any, output: Any) -> None:
        """Keep what a norm gave, in the first pass."""
        if self.passes == 1 and isinstance(output, Tensor):
            for layer in self.norms.get(id(module), []):
                self._normed[layer.block.name] = output.detach()

    def _is_block(self, module: nn.Module, layer: _Layer) -> bool:
        return self._owners.named(module) == _plain(layer.block.name) and layer.block.value_reader != (
            layer.block.name
        )

    def _measure(self, call: AttentionCall, place: Place) -> None:
        layer = next((one for one in self.measurable if _owns(one.block, place.name, call)), None)
        if layer is None or layer.problem:
            return
        try:
            sums = self._index(call, layer)
        except InputError as error:
            layer.problem = layer.problem or str(error)
            return
        number = self._calls_of.get(layer.block.name, 0)
        self._calls_of[layer.block.name] = number + 1
        layer.dtype = str(call.dtype).removeprefix("torch.")
        layer.sums.setdefault(number, IndexSums()).add(sums)

    def _index(self, call: AttentionCall, layer: _Layer) -> IndexSums:
        _, heads, queries, keys = call.shape
        batch, length = self.batch.tokens.shape
        name = layer.block.attention
        if call.shape != (batch, layer.block.heads, length, length) or not call.positions:
            raise InputError(
                f"{name} attends from {queries} queries to {keys} keys with {heads} heads in a batch of "
                f"{(batch, length)} tokens: not tokens to tokens one by one"
            )
        u = self._read.get(layer.block.name)
        if u is None or u.shape[:2] != (batch, length):
            shape = None if u is None else tuple(u.shape)
            raise InputError(f"what {layer.block.value_reader} reads was not seen (shape: {shape})")
        mask = self.batch.mask.to(u.device)
        u = u.to(torch.promote_types(u.dtype, torch.float32)).masked_fill(~mask[..., None], 0.0)
        if not bool(u.isfinite().all()):
            raise InputError(f"{layer.block.value_reader} reads a value that is not finite")
        values = layer.values(u)
        groups = heads // values.shape[1]
        first = mask.to(torch.uint8).argmax(-1)
        found = joint_dynamics_index(
            lambda rows: score_rows(call, rows),
            joint_dynamics_prediction(values, layer.gram),
            value_norm=values.double().square().sum(-1).repeat_interleave(groups, 1),
            input_norm=u.double().square().sum(-1)[:, None],
            queries=queries,
            first=first,
            draws=self.draws,
            # Each pass has shuffles of its own.
            seed=self.seed + 1_000_003 * self.passes,
            rank_every=self.rank_every,
        )
        return IndexSums.of(found, mask, first, bins_of(length))


class _Following:
    """Enters the watch with two global hooks around it, and leaves both as they were."""

    def __init__(self, seen: _IndexWatch) -> None:
        self.seen = seen
        self.handles: list[Any] = []

    def __enter__(self) -> None:
        self.handles = [
            register_module_forward_pre_hook(self.seen.before),
            register_module_forward_hook(self.seen.after),
        ]
        self.seen.__enter__()

    def __exit__(self, *exception: Any) -> None:
        self.seen.__exit__(*exception)
        for handle in self.handles:
            handle.remove()


def _plain(name: str) -> str:
    """As :class:`joma.probes.watching.owners.Owners` names a compiled model's modules."""
    return name.replace("_orig_mod.", "").removesuffix("_orig_mod")


def _owns(block: Block, owner: str, call: AttentionCall) -> bool:
    attention = _plain(str(block.attention))
    # A fused fast path runs the whole block as one operation.
    return owner == attention or (call.route == "fused" and owner == _plain(block.name))


def _what_values_read(module: nn.Module, args: tuple[Any, ...], *, is_block: bool) -> Tensor | None:
    """(batch, tokens, width), from what a module is called with."""
    if is_block:
        if not isinstance(module, nn.TransformerEncoderLayer) or not args:
            return None
        # The fast path runs no module inside; elsewhere the attention's own call follows and counts.
        with unobserved():
            hidden: Tensor = module.norm1.forward(args[0]) if module.norm_first else args[0]
        return _batch_first(hidden, module.self_attn)
    if isinstance(module, nn.MultiheadAttention):
        return _batch_first(args[2], module) if len(args) > 2 else None
    return args[0] if args and isinstance(args[0], Tensor) else None


def _batch_first(hidden: Tensor, attention: nn.MultiheadAttention) -> Tensor | None:
    if hidden.is_nested or hidden.ndim < 2:
        return None
    if hidden.ndim == 2:
        return hidden[None]
    return hidden if attention.batch_first else hidden.transpose(0, 1)


def score_rows(call: AttentionCall, rows: slice) -> Tensor:
    """The logits of some queries as their softmax sees them, (batch, heads, rows, keys); -inf: hidden.

    In float32, or float64 where the model is. A learned sink (a column without a key) is left out.
    """
    everything = slice(None)
    if call.logits is not None:
        scores = call.logits[:, :, rows]
        scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    else:
        assert call.query is not None
        assert call.key is not None
        kind = torch.promote_types(call.query.dtype, torch.float32)
        query, key = call.query[:, :, rows].to(kind) * call.scale, call.key.to(kind)
        batch, heads, some, width = query.shape
        # The query heads that share a key head are rows of one product.
        grouped = query.reshape(batch, key.shape[1], -1, width)
        scores = torch.matmul(grouped, key.transpose(-1, -2)).view(batch, heads, some, -1)
    if call.softcap is not None:
        scores = torch.tanh(scores / call.softcap) * call.softcap
    if call.bias is not None:
        scores = scores + take(_four(call.bias), everything, everything, rows)
    if call.keep is not None:
        scores = scores.masked_fill(~take(_four(call.keep), everything, everything, rows), -torch.inf)
    if call.causal:
        place = torch.arange(scores.shape[-1], device=scores.device)
        scores = scores.masked_fill(place > place[rows, None], -torch.inf)
    return scores


def _four(tensor: Tensor) -> Tensor:
    return tensor[(None,) * (4 - tensor.ndim)]
