"""``joma.sparsity``: for each token the heads and the neurons that keep its next-token loss."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

from joma.core.errors import InputError
from joma.core.progress import Progress
from joma.instruments.reading.lent import Anatomy, leave_untouched
from joma.instruments.reading.loading import load_model
from joma.instruments.reading.passes import device_of, logits_of, run_batch
from joma.instruments.reading.settings import BATCH_TOKENS, ReadingSettings
from joma.instruments.reading.texts import Text, TokenBatch, windows
from joma.instruments.sparsity import EPSILON, SparsitySettings
from joma.instruments.sparsity.gates import KINDS, Gate, attach, make_gates
from joma.runs.result import JobResult

if TYPE_CHECKING:
    import pandas
    from transformers import PreTrainedTokenizerBase as Tokenizer

TOKENS = 512
"""Read by default."""
CHOICES = ("own", "static", "random", "output norm")
"""Each token's own set; one for all tokens; a drawn one; the units with the largest outputs at the token."""
_ALIKE = 0.01
"""Times the logits' standard deviation: what rounding may change."""


@dataclass(frozen=True, repr=False)
class SparsityResult(JobResult):
    """What a model's tokens need."""

    tables: dict[str, pandas.DataFrame]
    """``sets`` (kind, choice: share of the units kept, rise of the mean loss, share of the tokens within
    epsilon), ``tokens`` (kind, batch, sample, position: units kept, loss, rise), ``layers`` (kind, layer:
    mean share kept)."""


def sparsity(
    model: str | Path | nn.Module,
    text: Text,
    *,
    tokenizer: Tokenizer | str | Path | None = None,
    revision: str | None = None,
    column: str | None = None,
    length: int | None = None,
    tokens: int | None = None,
    batch_tokens: int = BATCH_TOKENS,
    layers: Sequence[int] | None = None,
    epsilon: float = EPSILON,
    seed: int = 0,
    device: str = "auto",
    dtype: str | None = None,
    trust_remote_code: bool = False,
    progress: Progress | None = None,
) -> SparsityResult:
    """For each token a set of heads, and one of MLP neurons, that keeps its next-token loss within epsilon.

    Units are ordered, token by token, by the first-order change of the text's loss when they are left out;
    how many a token keeps is found by bisection, all tokens at once, and verified by one pass with all
    positions masked. It is an upper bound: another choice may need fewer. Beside it stand sets of the same
    sizes: the same for all tokens, random ones, and the units with the largest outputs. Heads and neurons are
    treated one kind after the other.

    Args:
        model: see ``joma.instruments.reading.loading.load_model``, like tokenizer, revision, device, dtype
            and trust_remote_code.
        text: see ``joma.instruments.reading.texts.windows``, like column, length and batch_tokens.
        tokens: how many are read, by default about 512.
        layers: numbers of those whose units may be left out; all by default.
        epsilon: nats that the loss of a token may rise by.
        seed: of the random sets.
        progress: shows a bar and keeps finished batches.

    Raises:
        InputError: a model that does not predict the next token or whose units are not known, an epsilon that
            is not positive, layers that are not there, a text without two tokens.
        UnfinishedError: out of memory.

    Examples:
        >>> model = Decoder(50, layers=2, width=16, hidden=32, heads=2).eval()
        >>> text = np.random.default_rng(0).integers(0, 50, 60)
        >>> found = joma.sparsity(model, text, length=20, epsilon=0.05)
        >>> found.tables["tokens"]["rise"].max() <= 0.05
        np.True_
    """
    given: object = epsilon
    if not isinstance(given, float | int) or not 0 < given < float("inf"):
        raise InputError(f"epsilon = {epsilon!r} in sparsity; no set keeps it: give a positive number.")
    loaded = load_model(
        model, tokenizer=tokenizer, revision=revision, device=device, dtype=dtype,
        trust_remote_code=trust_remote_code,
    )  # fmt: skip
    pieces = windows(
        text, model=loaded.model, tokenizer=loaded.tokenizer, column=column, length=length, tokens=tokens,
        batch_tokens=batch_tokens, at_most=TOKENS,
    )  # fmt: skip
    progress = progress or Progress()
    gates = make_gates(loaded.model, Anatomy(loaded.model).choose(layers, "sparsity"))
    batches = list(pieces)
    _check_causal(loaded.model, batches[0])
    import pandas

    parts = []
    for number, batch in enumerate(progress.track(batches, "batches")):
        make = partial(_of_batch, loaded.model, batch, gates, epsilon, seed + number)
        parts.append(progress.part(f"batch-{number}", make).assign(batch=number))
    rows = pandas.concat(parts, ignore_index=True)
    tables = {
        "sets": _sets(rows[rows["choice"] != ""], epsilon),
        "tokens": _tokens(rows[rows["choice"] == "own"]),
        "layers": rows[rows["choice"] == ""].groupby(["kind", "layer"], as_index=False)["share"].mean(),
    }
    settings = SparsitySettings(reading=ReadingSettings(model=str(loaded.name)), epsilon=epsilon, seed=seed)
    return SparsityResult(settings, tables)


def _tokens(rows: pandas.DataFrame) -> pandas.DataFrame:
    whole = ["batch", "sample", "position", "kept", "of"]
    columns = ["kind", *whole, "loss", "rise"]
    return rows[columns].astype(dict.fromkeys(whole, int)).assign(unit="nats").reset_index(drop=True)


def _sets(rows: pandas.DataFrame, epsilon: float) -> pandas.DataFrame:
    import pandas

    found = []
    for (kind, choice), part in rows.groupby(["kind", "choice"], sort=False):
        found.append(
            {
                "kind": kind,
                "choice": choice,
                "share_kept": (part["kept"] / part["of"]).mean(),
                "of": int(part["of"].iloc[0]),
                "loss_rise": part["rise"].mean(),
                "within_epsilon": (part["rise"] <= epsilon).mean(),
                "unit": "nats",
            }
        )
    return pandas.DataFrame(found)


def _losses(model: nn.Module, batch: TokenBatch) -> Tensor:
    """(batch, length - 1): next-token losses, 0 where there is no next token."""
    logits = logits_of(run_batch(model, batch, logits=True)).float()
    tokens, mask = batch.tokens.to(logits.device), batch.mask.to(logits.device)
    each = functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten(), reduction="none")
    return each.view(tokens[:, 1:].shape) * mask[:, 1:]


def _check_causal(model: nn.Module, batch: TokenBatch) -> None:
    """Raises InputError where a token's logits know of the token that they should predict."""
    tokens = batch.tokens[:1].clone()
    tokens[0, -1] = tokens[0, 0] if tokens[0, -1] != tokens[0, 0] else (tokens[0, 0] + 1) % 2
    other = batch._replace(tokens=tokens, mask=batch.mask[:1])
    one = batch._replace(tokens=batch.tokens[:1], mask=batch.mask[:1])
    with leave_untouched(model), torch.no_grad():
        before, after = (logits_of(run_batch(model, b, logits=True))[0, :-1].float() for b in (one, other))
    if float((before - after).abs().max()) > _ALIKE * float(before.std()):
        raise InputError(
            f"sparsity: {type(model).__name__} reads the token that it should predict, and has no next-token "
            "loss; give a causal language model."
        )


def _of_batch(
    model: nn.Module,
    batch: TokenBatch,
    gates: list[Gate],
    epsilon: float,
    seed: int,
    progress: Progress | None = None,
) -> pandas.DataFrame:
    """One row a token, kind and choice; and one a kind and layer."""
    import pandas

    with attach(gates):
        full, slopes = _first_order(model, batch, gates)
        rows: list[dict[str, object]] = []
        with leave_untouched(model), torch.no_grad():
            norms = [gate.output_norm for gate in gates]
            for kind in KINDS:
                rows += _of_kind(model, batch, gates, kind, (full, slopes, norms), epsilon, seed)
    return pandas.DataFrame(rows)


def _first_order(model: nn.Module, batch: TokenBatch, gates: list[Gate]) -> tuple[Tensor, list[Tensor]]:
    """Losses, and of each gate how much the text's loss changes, to first order, when a unit is left out."""
    shape = batch.tokens.shape
    with leave_untouched(model, differentiable=True):
        for gate in gates:
            gate.open = torch.ones(*shape, gate.units, device=device_of(model), requires_grad=True)
            gate.record = True
        losses = _losses(model, batch)
        opened = [gate.open for gate in gates if gate.open is not None]
        slopes = torch.autograd.grad(losses.sum(), opened)
    for gate in gates:
        gate.open, gate.record = None, False
    return losses.detach().double(), [slope.detach().abs() for slope in slopes]


def _of_kind(
    model: nn.Module,
    batch: TokenBatch,
    gates: list[Gate],
    kind: str,
    seen: tuple[Tensor, list[Tensor], list[Tensor | None]],
    epsilon: float,
    seed: int,
) -> list[dict[str, object]]:
    full, slopes, norms = seen
    mine = [number for number, gate in enumerate(gates) if gate.kind == kind]
    own = torch.cat([slopes[n] for n in mine], -1)
    units = own.shape[-1]
    counted = batch.mask.to(own.device)

    def rises(ranks: Tensor, kept: Tensor) -> Tensor:
        at = 0
        for n in mine:
            part = ranks[..., at : at + gates[n].units]
            gates[n].open = (part < kept[..., None]).float()
            at += gates[n].units
        rise = _losses(model, batch).double() - full
        for n in mine:
            gates[n].open = None
        return rise

    ranks = _ranks(own)
    kept = _bisect(partial(rises, ranks), units, counted.shape, epsilon, own.device)
    static = _ranks(own.mean((0, 1), keepdim=True)).expand_as(ranks)
    drawn = torch.rand(own.shape, generator=torch.Generator().manual_seed(seed)).to(own.device)
    largest = torch.cat([_present(norms[n]) for n in mine], -1)
    orders = dict(zip(CHOICES, (ranks, static, _ranks(drawn), _ranks(largest)), strict=True))
    some = (counted[:, 1:] & counted[:, :-1]).nonzero().tolist()
    rows: list[dict[str, object]] = []
    for choice, order in orders.items():
        rise = rises(order, kept)
        for sample, position in some:
            rows.append(
                {
                    "kind": kind,
                    "choice": choice,
                    "sample": sample,
                    "position": position,
                    "kept": int(kept[sample, position]),
                    "of": units,
                    "loss": float(full[sample, position]),
                    "rise": float(rise[sample, position]),
                }
            )
    at = 0
    for n in mine:
        part = ranks[..., at : at + gates[n].units] < kept[..., None]
        at += gates[n].units
        share = float(part[counted.bool()].double().mean())
        rows.append({"kind": kind, "choice": "", "layer": gates[n].layer, "share": share})
    return rows


def _present(norm: Tensor | None) -> Tensor:
    if norm is None:
        raise InputError("sparsity: a layer with gates did not run; leave it out of layers.")
    return norm


def _ranks(scores: Tensor) -> Tensor:
    """0 for the largest of the last dimension, 1 for the next, ..."""
    order = scores.argsort(dim=-1, descending=True, stable=True)
    places = torch.arange(scores.shape[-1], dtype=torch.int32, device=scores.device).expand_as(order)
    return torch.empty_like(places.contiguous()).scatter_(-1, order, places.contiguous())


def _bisect(
    rises: Callable[[Tensor], Tensor], units: int, shape: torch.Size, epsilon: float, device: torch.device
) -> Tensor:
    """(batch, length): how many units every token keeps, so that a pass with all sets is within epsilon."""
    low = torch.zeros(shape, dtype=torch.int64, device=device)
    high = torch.full(shape, units, dtype=torch.int64, device=device)
    for _ in range(units.bit_length()):
        middle = (low + high) // 2
        good = rises(middle) <= epsilon
        good = functional.pad(good, (0, 1), value=True)
        high = torch.where(good, middle, high)
        low = torch.where(good, low, middle)
    # What held beside other sets need not hold beside these: tokens that miss get more, the others a little.
    kept = high
    while bool((missing := rises(kept) > epsilon).any()):
        missing = functional.pad(missing, (0, 1), value=False)
        more = torch.where(missing, 2 * kept + 1, kept + kept // 8 + 1)
        kept = more.clamp_max(units)
        if bool((kept == units).all()):
            break
    return kept
