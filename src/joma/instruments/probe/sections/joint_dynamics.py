"""Theorem 1 of JoMA against the attention of a real model: the joint-dynamics index, head by head."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from joma.checkpoints.families.norm_gain import norm_gain
from joma.core.errors import InputError
from joma.instruments.probe.sections.correlation_table import Identity, IndexSums, bins_of, index_table
from joma.instruments.reading.anatomy import Block
from joma.instruments.reading.lent import Anatomy
from joma.instruments.reading.passes import Output
from joma.instruments.reading.shared import Batches, Part, TokenSection, as_function
from joma.instruments.reading.texts import TokenBatch
from joma.instruments.watch.call import AttentionCall
from joma.instruments.watch.capture.observer import leave_unobserved
from joma.instruments.watch.owners import Place
from joma.instruments.watch.score_rows import score_rows
from joma.instruments.watch.watch import Watch
from joma.measures.joint_dynamics import joint_dynamics_index, joint_dynamics_prediction, neuron_gram

if TYPE_CHECKING:
    import pandas


_WHERE = "joint_dynamics"


class JointDynamicsSection(TokenSection):
    """How log-attention goes with ``1/2 sum_k v_k(l)^2``, which JoMA Theorem 1 says it is (exp attention).

    ``v_k(l) = w_k . (W_O^h W_V^h u_l)``: u_l is what attention reads of token l, w_k a row of the lower MLP
    (of a gated MLP, the gate's) with the gain of the norm before it. In a block whose MLP does not read its
    own attention (parallel residuals), the MLP is the next block's. Queries and keys are those that the
    model computes, after rotary positions and with its scale, mask, soft cap and bias; the model's outputs
    are unchanged bit for bit.

    The columns that need a word:

    - ``metric``, ``scale``, ``given``, ``sink``: see ``joma.measures.joint_dynamics.Variant``. The
      ``null`` is a mean over the draws, ``null_spread`` the standard deviation between draws of the same
      mean: one shuffle's number is within about two of it.
    - ``head``: missing in the mean over the heads asked for.
    - ``position``, ``position_end``: a bin of the queries' positions (end excluded); missing: all.
    - ``value``: mean over the queries that have a value; ``standard_error``: between texts (NaN for one);
      ``count``: the number of queries.
    - ``reason``: why a layer could not be measured. It has one row then, with value NaN.

    Args:
        anatomy: of any transformer whose blocks ``joma.instruments.reading.anatomy.find_blocks`` finds.
        batches: of tokens (batch, length) int64, and mask (batch, length) bool, False for padding; each row
            counts as one text.
        layers: numbers of the layers; all by default. heads: numbers of the heads to report; likewise.
        draws: shuffles for the null.
        rank_every: every so many queries have a rank correlation too; 0: none.
        seed: of the shuffles.

    The table has one row per measurement: ``stack, layer, module, call, head, metric, scale, given, sink,
    position, position_end, value, standard_error, count, mlp_layer, dtype, reason``.

    Raises:
        InputError: see ``joma.instruments.reading.lent.checked_batches`` and
            ``joma.instruments.reading.lent.Anatomy.choose``; no layer that
            could be measured (and why); a head that does not exist.
    """

    def __init__(
        self,
        anatomy: Anatomy,
        batches: Batches,
        *,
        layers: Iterable[int] | None = None,
        heads: Sequence[int] | None = None,
        draws: int = 8,
        rank_every: int = 32,
        seed: int = 0,
    ) -> None:
        super().__init__(anatomy, batches, _WHERE)
        blocks, self.heads = anatomy.choose(layers, _WHERE), heads
        readers = _mlp_readers(anatomy.blocks)
        self.layers = [_Layer(anatomy, block, readers.get(block.name)) for block in blocks]
        self._seen = _IndexWatch(anatomy.model, self.layers, draws, rank_every, seed)

    @contextmanager
    def around_pass(self, part: Part) -> Iterator[None]:
        """Watch the pass, with two global hooks around the watch."""
        self._seen.begin(part)
        handles = (
            register_module_forward_pre_hook(self._seen.before),
            register_module_forward_hook(self._seen.after),
        )
        try:
            with self._seen:
                yield
        finally:
            for handle in handles:
                handle.remove()

    def after_pass(self, part: Part, output: Output) -> None:
        """Nothing is left to do."""

    def make_tables(self) -> dict[str, pandas.DataFrame]:
        """``joint_dynamics``: one row per measurement."""
        for layer in self.layers:
            if not layer.sums and not layer.problem:
                layer.problem = f"no attention was seen in {layer.block.attention}"
        if all(layer.problem for layer in self.layers):
            raise InputError(f"joint_dynamics: no layer can be measured; first {self.layers[0].problem}.")
        identified: list[tuple[Identity, dict[int, IndexSums]]] = [
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
            for layer in self.layers
        ]
        return {"joint_dynamics": index_table(identified, self.heads)}


joint_dynamics = as_function(JointDynamicsSection)
"""The table of a model and batches: see ``JointDynamicsSection``."""


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

    def __init__(self, anatomy: Anatomy, block: Block, reader: Block | None) -> None:
        self.block, self.reader = block, reader
        self.sums: dict[int, IndexSums] = {}
        """By the number of the call within a pass (ALBERT's one block runs twelve times)."""
        self.dtype = ""
        self.problem = self._why_not()
        if self.problem:
            return
        try:
            self.gram, self.value = self._matrices(anatomy)
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

    def _matrices(self, anatomy: Anatomy) -> tuple[Tensor, Tensor]:
        block, reader = self.block, self.reader
        assert reader is not None
        neurons = reader.gate_matrix or reader.lower_matrix
        assert neurons is not None
        assert block.output_matrix is not None
        assert block.value_matrix is not None
        assert block.heads is not None
        lower, output = anatomy.take(neurons), anatomy.take(block.output_matrix)
        (gain, centres), (output_gain, output_centres) = (
            (None, False) if name is None else norm_gain(anatomy.model.get_submodule(name), lower.shape[1])
            for name in (reader.mlp_norm, block.output_norm)
        )
        gram = neuron_gram(
            lower,
            output,
            block.heads,
            gain=gain,
            centres=centres,
            output_gain=output_gain,
            output_centres=output_centres,
        )
        return gram, anatomy.take(block.value_matrix)

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
        none = TokenBatch(torch.empty(0, 0), torch.empty(0, 0))
        self.part = Part(none, none, -1)
        self.shuffles = torch.empty(0)
        self.passes = 0
        self._read: dict[str, Tensor] = {}
        self._normed: dict[str, Tensor] = {}
        self._calls_of: dict[str, int] = {}

    def begin(self, part: Part) -> None:
        """Say what the next pass runs on. Each batch has shuffles of its own."""
        self.part = part
        self.passes += 1
        generator = torch.Generator().manual_seed(self.seed + 1_000_003 * (part.number + 1))
        shuffles = torch.rand(self.draws, *part.whole.tokens.shape, generator=generator, dtype=torch.float64)
        self.shuffles = shuffles[:, part.first : part.first + len(part.batch.tokens)]
        self._read.clear()
        self._calls_of.clear()

    # Hooks on all modules, not on those of interest: see joma.instruments.watch.owners.Owners.

    def before(self, module: nn.Module, args: tuple[Tensor, ...]) -> None:
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

    def after(self, module: nn.Module, args: tuple[Tensor, ...], output: Output) -> None:
        """Keep what a norm gave, in the first pass."""
        if self.passes == 1 and isinstance(output, Tensor):
            for layer in self.norms.get(id(module), []):
                self._normed[layer.block.name] = output.detach()

    def _is_block(self, module: nn.Module, layer: _Layer) -> bool:
        return self._owners.name_of(module) == _plain(layer.block.name) and layer.block.value_reader != (
            layer.block.name
        )

    def _measure(self, call: AttentionCall, place: Place) -> None:
        layer = next((one for one in self.measurable if _owns(one.block, place.name, call)), None)
        if layer is None or layer.problem:
            return
        number = self._calls_of.get(layer.block.name, 0)
        try:
            self._add(call, layer, layer.sums.setdefault(number, IndexSums()))
        except InputError as error:
            layer.problem = layer.problem or str(error)
            return
        self._calls_of[layer.block.name] = number + 1
        layer.dtype = str(call.dtype).removeprefix("torch.")

    def _add(self, call: AttentionCall, layer: _Layer, sums: IndexSums) -> None:
        _, heads, queries, keys = call.shape
        batch, length = self.part.batch.tokens.shape
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
        mask = self.part.batch.mask.to(u.device)
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
            shuffles=self.shuffles,
            rank_every=self.rank_every,
        )
        sums.add(found, mask, first, bins_of(length))


def _plain(name: str) -> str:
    """As ``joma.instruments.watch.owners.Owners`` names a compiled model's modules."""
    return name.replace("_orig_mod.", "").removesuffix("_orig_mod")


def _owns(block: Block, owner: str, call: AttentionCall) -> bool:
    attention = _plain(str(block.attention))
    # A fused fast path runs the whole block as one operation.
    return owner == attention or (call.route == "fused" and owner == _plain(block.name))


def _what_values_read(module: nn.Module, args: tuple[Tensor, ...], *, is_block: bool) -> Tensor | None:
    """(batch, tokens, width), from what a module is called with."""
    if is_block:
        if not isinstance(module, nn.TransformerEncoderLayer) or not args:
            return None
        # The fast path runs no module inside; elsewhere the attention's own call follows and counts.
        with leave_unobserved():
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
