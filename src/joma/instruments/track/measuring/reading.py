"""What one checkpoint of a series does on a text: loss, attention, and the further sections of a probe."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import pandas as pd
import torch
from torch import nn
from torch.nn import functional

from joma.core.errors import InputError
from joma.core.files import regular
from joma.core.progress import Progress
from joma.instruments.probe.probe import check_sections, probe
from joma.instruments.reading.loading import load_model
from joma.instruments.reading.passes import logits_of, run_batch
from joma.instruments.reading.settings import ReadingSettings
from joma.instruments.reading.texts import Windows, windows
from joma.instruments.track.measuring.rows import Row
from joma.instruments.watch.measuring import check_statistics

DETAILS = ("coherence", "joint_dynamics", "salience", "received_attention")
"""Sections of a probe whose own tables are kept beside the curves."""
_CURVES = {"cosine": "coherence", "index": "joint_dynamics"}


def check_reading(reading: ReadingSettings, sections: Sequence[str], statistics: Sequence[str]) -> None:
    """Raises InputError where no model could be read with these settings: told once, not by checkpoint."""
    text = reading.arguments()["text"]
    if isinstance(text, Path):
        regular(text)
    check_sections(sections)
    check_statistics(statistics)


def text_tables(
    path: Path,
    reading: ReadingSettings,
    sections: Sequence[str],
    statistics: Sequence[str],
    layers: Sequence[int] | None,
) -> dict[str, pd.DataFrame]:
    """What the model does on the text.

    Returns:
        ``values``: loss; the attention's statistics by head; by layer the absolute cosine of distinct tokens
        (``coherence``), the index of the joint dynamics, and of the salience the mean over query and context
        tokens (and of its standard error, which is about what noise alone would show); by head what
        ``received_attention`` says of its keys; and of those sections the tables of ``joma.probe``
        themselves, by their names.

    Raises:
        InputError: a model or text that cannot be used.
    """
    given = reading.arguments()
    loaded = load_model(
        path,
        tokenizer=given["tokenizer"],
        device=given["device"],
        dtype=given["dtype"],
        trust_remote_code=given["trust_remote_code"],
    )
    cut = windows(
        given["text"],
        model=loaded.model,
        tokenizer=loaded.tokenizer,
        column=given["column"],
        length=given["length"],
        tokens=given["tokens"],
        batch_tokens=given["batch_tokens"],
    )
    loss = pd.DataFrame({"metric": ["loss"], "value": [text_loss(loaded.model, cut)], "unit": "nats"})
    tables = [loss.assign(layer=None)]
    found: dict[str, pd.DataFrame] = {}
    if sections:
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
            null="none",
            progress=Progress(quiet=True),
        ).tables
    if "attention" in found:
        tables.append(found["attention"].assign(matrix="attention"))
    for name, section in _CURVES.items():
        if section in found and name in found["layers"]:
            curve = found["layers"][["layer", name]].rename(columns={name: "value"})
            tables.append(curve.assign(metric=name, matrix=section))
    if "salience" in found:
        means = found["salience"].groupby("layer")[["salience", "standard_error"]].mean().reset_index()
        means = means.rename(columns={"standard_error": "salience_error"})
        tables.append(means.melt("layer", var_name="metric").assign(matrix="salience"))
    if "received_attention" in found:
        tables.append(found["received_attention"].assign(matrix="received_attention"))
    values = pd.concat([_tidy(table) for table in tables], ignore_index=True)
    values["dtype"] = str(loaded.dtype).removeprefix("torch.")
    return {"values": values, **{name: found[name] for name in DETAILS if name in found}}


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
    defaults: dict[str, str | None] = dict.fromkeys(Row._fields, "")
    defaults |= {"head": None, "error_bound": None}
    missing = {name: value for name, value in defaults.items() if name not in table}
    kinds: dict[str, Literal["Int64", "float64"]] = {
        "layer": "Int64",
        "head": "Int64",
        "value": "float64",
        "error_bound": "float64",
    }
    return table.assign(**missing)[list(Row._fields)].astype(kinds).reset_index(drop=True)
