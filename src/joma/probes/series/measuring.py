"""One checkpoint of a series measured: its weights, its change, and what it does on a text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import pandas as pd
import torch
from torch import nn
from torch.nn import functional

from joma.errors import InputError
from joma.probes.families.matrices import find_matrices
from joma.probes.families.roles import ATTENTION_ROLES, MLP_ROLES
from joma.probes.probe import probe
from joma.probes.reading.loading import load_model
from joma.probes.reading.passes import logits_of, run_batch
from joma.probes.reading.settings import Reading
from joma.probes.reading.texts import Windows, windows
from joma.probes.series.changes import changes
from joma.probes.series.source import Wanted
from joma.probes.weights.checkpoints import open_checkpoint
from joma.probes.weights.omissions import OMITTED
from joma.probes.weights.ranks import probe_weights
from joma.progress import Progress

COLUMNS = (
    *("layer", "stack", "expert", "head", "matrix", "metric", "against"),
    *("value", "unit", "error_bound", "dtype"),
)
ROLES = (*MLP_ROLES, *ATTENTION_ROLES)


def _stems(name: str) -> set[str]:
    """Beginnings of a tensor's name that may be a weight's: ``a.b.`` and ``a.b`` of ``a.b_scale``."""
    parts = name.replace("_scale", ".scale").split(".")
    heads = {".".join(parts[:count]) for count in range(1, len(parts) + 1)}
    return heads | {f"{head}." for head in heads}


def wanted_tensors(layers: Sequence[int] | None) -> Wanted:
    """Which tensors the weights alone need: lower MLP, gate, queries, keys, values, outputs."""

    def wanted(shapes: Mapping[str, tuple[int, ...]], config: Mapping[str, object]) -> set[str]:
        stems = {
            matrix.tensor.removesuffix("weight")
            for matrix in find_matrices(shapes, config)
            if matrix.role in ROLES and (layers is None or matrix.layer in layers)
        }
        # With what stands beside them: scales, masks, packed parts.
        return {name for name in shapes if _stems(name) & stems}

    return wanted


def weights_table(path: Path, layers: Sequence[int] | None) -> pd.DataFrame:
    """Stable rank and spectral norm of every matrix, as :func:`joma.probe_weights` finds them.

    What it leaves out is named by its warning and is no row here.
    """
    table = probe_weights(path, attention=True, layers=layers, progress=Progress(quiet=True))
    return _tidy(table[table["metric"] != OMITTED])


def changes_table(
    path: Path, earlier: Sequence[tuple[str, Path]], layers: Sequence[int] | None
) -> pd.DataFrame:
    """What :func:`joma.probes.series.changes.changes` finds."""
    others = [(name, open_checkpoint(other)) for name, other in earlier]
    table, _ = changes(open_checkpoint(path), others, ROLES)
    return _tidy(table if layers is None else table[table["layer"].isin(layers)])


def text_table(
    path: Path,
    reading: Reading,
    sections: Sequence[str],
    statistics: Sequence[str],
    layers: Sequence[int] | None,
) -> pd.DataFrame:
    """What the model does on the text: loss, attention by head, further sections by layer.

    Raises:
        InputError: a model or text that cannot be used.
    """
    given = reading.arguments()
    loaded = load_model(path, tokenizer=given["tokenizer"], device=given["device"], dtype=given["dtype"])
    found = probe(
        loaded.model,
        given["text"],
        tokenizer=loaded.tokenizer,
        column=given["column"],
        length=given["length"],
        tokens=given["tokens"],
        batch_tokens=given["batch_tokens"],
        sections=sections,
        statistics=statistics,
        layers=layers,
        progress=Progress(quiet=True),
    ).tables
    dtype = str(loaded.dtype).removeprefix("torch.")
    tables = []
    if "attention" in found:
        tables.append(found["attention"].assign(matrix="attention"))
    others = [name for name in sections if name not in ("attention", "ranks")]
    if others:
        kept = [name for name in found["layers"] if name in ("layer", "cosine", "index")]
        tables.append(found["layers"][kept].melt("layer", var_name="metric").assign(matrix=""))
    cut = windows(
        given["text"],
        model=loaded.model,
        tokenizer=loaded.tokenizer,
        column=given["column"],
        length=given["length"],
        tokens=given["tokens"],
        batch_tokens=given["batch_tokens"],
    )
    loss = pd.DataFrame(
        [
            {
                "layer": None,
                "matrix": "",
                "metric": "loss",
                "value": text_loss(loaded.model, cut),
                "unit": "nats",
            }
        ]
    )
    return _tidy(
        pd.concat([_tidy(table) for table in (*tables, loss)], ignore_index=True).assign(dtype=dtype)
    )


@torch.no_grad()
def text_loss(model: nn.Module, text: Windows) -> float:
    """Mean next-token loss in nats, over every position of the windows but their first.

    Raises:
        InputError: a model without logits.
    """
    total, count = 0.0, 0
    for batch in text:
        logits = logits_of(run_batch(model, batch, logits=True))
        targets = batch.tokens.to(logits.device)[:, 1:].masked_fill(
            ~batch.mask.to(logits.device)[:, 1:], -100
        )
        flat = logits[:, :-1].reshape(-1, logits.shape[-1]).float()
        total += float(functional.cross_entropy(flat, targets.reshape(-1), reduction="sum"))
        count += int((targets != -100).sum())
    if count == 0:
        raise InputError(
            "the text has no window of two tokens, so it has no next-token loss; give a longer one."
        )
    return total / count


def _tidy(table: pd.DataFrame) -> pd.DataFrame:
    defaults: dict[str, str | None] = {"stack": "", "expert": "", "head": None, "matrix": "", "against": ""}
    defaults |= {"unit": "", "error_bound": None, "dtype": ""}
    missing = {name: value for name, value in defaults.items() if name not in table}
    kinds: dict[str, Literal["Int64", "float64"]] = {
        "layer": "Int64",
        "head": "Int64",
        "value": "float64",
        "error_bound": "float64",
    }
    return table.assign(**missing)[list(COLUMNS)].astype(kinds).reset_index(drop=True)
