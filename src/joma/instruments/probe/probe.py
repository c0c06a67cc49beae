"""``joma.probe``: what the papers speak of, measured on a real model that reads a text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn

from joma.checkpoints.ranks import weight_ranks
from joma.core.errors import InputError, JomaError, UnfinishedError, nearest
from joma.core.files import regular
from joma.core.progress import Progress
from joma.instruments.probe import ProbeSettings
from joma.instruments.probe.sections.attention import STATISTICS, AttentionSection
from joma.instruments.probe.sections.coherence import CoherenceSection
from joma.instruments.probe.sections.joint_dynamics import JointDynamicsSection, joint_dynamics
from joma.instruments.probe.sections.received import ReceivedSection
from joma.instruments.probe.sections.salience import SalienceSection
from joma.instruments.probe.summary import layer_summary
from joma.instruments.reading.lent import Anatomy
from joma.instruments.reading.loading import LoadedModel, load_model
from joma.instruments.reading.ready import Input, ReadyBatch, ReadyInputs
from joma.instruments.reading.settings import BATCH_TOKENS, ReadingSettings
from joma.instruments.reading.shared import Section, read
from joma.instruments.reading.texts import (
    Text,
    TokenBatch,
    Windows,
    windows,
)
from joma.instruments.reading.untrained import check_null, untrained_copy
from joma.runs.result import JobResult

if TYPE_CHECKING:
    import pandas
    from transformers import PreTrainedTokenizerBase as Tokenizer

SECTIONS = ("attention", "ranks", "coherence", "joint_dynamics", "salience", "received_attention")
"""What is measured: entropy and its like; stable ranks; cosines of representations; Theorem 1's prediction
against the attention; token salience (which runs the pass backward as well); what keys receive, which only
those who name it get."""
USUAL = SECTIONS[:-1]
"""What is measured where no section is named."""

_TABLES = {
    "attention": ("attention", "positions", "coverage"),
    "untrained": ("untrained_joint_dynamics",),
}
"""Those of a section; of all others it is one, with the section's name."""


@dataclass(frozen=True, repr=False)
class ProbeResult(JobResult):
    """A model, probed."""

    tables: dict[str, pandas.DataFrame]
    """``attention``, ``positions`` and ``coverage``, ``ranks``, ``coherence``, ``joint_dynamics``,
    ``received_attention``,
    ``untrained_joint_dynamics``, ``salience``, as far as they were asked for, one row per measurement,
    entropies in nats; ``layers``, the means of a layer that one looks at first; ``model``, what was probed;
    and ``not_measured``, where a section does not apply to this model, with the reason."""


def probe(
    model: str | Path | nn.Module,
    text: Text | None = None,
    *,
    batches: Iterable[Mapping[str, Input]] | None = None,
    tokenizer: Tokenizer | str | Path | None = None,
    revision: str | None = None,
    column: str | None = None,
    length: int | None = None,
    tokens: int | None = None,
    batch_tokens: int = BATCH_TOKENS,
    sections: Sequence[str] | None = None,
    statistics: Sequence[str] = STATISTICS,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    rows: float | None = None,
    attention_matrices: bool = False,
    null: str = "untrained",
    seed: int = 0,
    device: str | torch.device = "auto",
    dtype: str | torch.dtype | None = None,
    trust_remote_code: bool = False,
    progress: Progress | None = None,
) -> ProbeResult:
    """Measure a model on a text: attention entropy, stable ranks, coherence, joint dynamics, salience.

    The model itself is not changed, and its outputs are those it has without being probed.

    Args:
        model: see ``joma.instruments.reading.loading.load_model``.
        tokenizer: see ``joma.instruments.reading.loading.load_model``.
        revision: see ``joma.instruments.reading.loading.load_model``.
        device: see ``joma.instruments.reading.loading.load_model``.
        dtype: see ``joma.instruments.reading.loading.load_model``.
        trust_remote_code: see ``joma.instruments.reading.loading.load_model``.
        text: see ``reading.texts.windows``. A string is the text itself; a file is given as a
            ``Path``.
        batches: in place of a text, the model's inputs ready and by name: ``[{"pixel_values": ...}, ...]``.
            Without ``input_ids`` only the attention and the ranks can be measured.
        column: see there.
        length: see there.
        tokens: see there.
        batch_tokens: see there.
        sections: of ``SECTIONS``. By default ``USUAL``; one that this model does not allow (joint dynamics
            of experts, say) is then listed in the table ``not_measured``, where one that was asked for by
            name raises.
        statistics: of the attention, see ``joma.watch``.
        rows: of the attention, see ``joma.watch``.
        layers: numbers of those to measure; all by default.
        heads: numbers of those to measure; all by default.
        attention_matrices: stable ranks of query, key, value and output matrices, too.
        null: ``untrained``: the joint dynamics of a network of the model's shape with weights drawn anew are
            measured beside, on a quarter of the windows and without shuffles (table
            ``untrained_joint_dynamics``); or ``none``.
        seed: of the weights drawn anew, and of the shuffles of the joint dynamics.
        progress: shows bars and keeps finished sections; by default bars alone.

    Raises:
        InputError: a model, text or setting that cannot be used as it is, and whatever could not be measured.
        UnfinishedError: out of memory.

    Examples:
        >>> model = Decoder(50, layers=2, width=16, hidden=32, heads=2).eval()
        >>> text = np.random.default_rng(0).integers(0, 50, 400)
        >>> found = joma.probe(model, text, length=20, sections=["attention", "ranks"])
        >>> found.table()["layer"].tolist()
        [0, 1]
    """
    wanted = check_sections(sections)
    check_null(null)
    progress = progress or Progress()
    if (text is None) == (batches is None):
        raise InputError("probe needs a text or batches (a model's inputs, ready and by name), and not both.")
    if isinstance(text, Path):
        regular(text)  # before a model is loaded
    ready = None if batches is None else ReadyInputs(tuple(map(ReadyBatch.of, batches)))
    if ready is not None and not ready.batches:
        raise InputError("batches is empty in probe; give at least one, such as {'pixel_values': ...}.")
    reading = _Reading(
        lambda: load_model(
            model,
            tokenizer=tokenizer,
            revision=revision,
            device=device,
            dtype=dtype,
            trust_remote_code=trust_remote_code,
        ),
        lambda loaded: (
            ready
            or windows(
                "" if text is None else text,
                model=loaded.model,
                tokenizer=loaded.tokenizer,
                column=column,
                length=length,
                tokens=tokens,
                batch_tokens=batch_tokens,
            )
        ),
    )
    chosen = None if layers is None else list(layers)

    makers: dict[str, Callable[[], Section]] = {
        "attention": lambda: AttentionSection(
            reading.module, statistics=statistics, layers=chosen, heads=heads, rows=rows
        ),
        "received_attention": lambda: ReceivedSection(reading.module, layers=chosen, heads=heads, rows=rows),
        "coherence": lambda: CoherenceSection(reading.anatomy, reading.batches, layers=chosen),
        "joint_dynamics": lambda: JointDynamicsSection(
            reading.anatomy, reading.batches, layers=chosen, heads=heads, seed=seed
        ),
        "salience": lambda: SalienceSection(reading.anatomy, reading.batches, layers=chosen),
    }
    passes = _Passes(reading, {name: makers[name] for name in wanted if name in makers}, progress)

    def ranks() -> dict[str, pandas.DataFrame]:
        table = weight_ranks(
            reading.module,
            attention=attention_matrices,
            layers=chosen,
            device=reading.loaded.device,
            progress=progress,
        )
        return {"ranks": table}

    def measure_untrained() -> dict[str, pandas.DataFrame]:
        fresh = untrained_copy(reading.module, seed=seed)
        batches = progress.track(_quarter(reading.windows), "joint dynamics, untrained")
        # It is a null itself: its index is compared, and needs neither shuffles nor ranks.
        table = joint_dynamics(fresh, batches, layers=chosen, heads=heads, draws=0, rank_every=0)
        return {"untrained_joint_dynamics": table}

    apart = {"untrained": measure_untrained, "ranks": ranks}
    found: dict[str, pandas.DataFrame] = {}
    failures: dict[str, str] = {}
    if "joint_dynamics" in wanted and null != "none":
        wanted.insert(wanted.index("joint_dynamics") + 1, "untrained")
    # The weights last: a pass that is over is kept before they are read.
    for section in sorted(wanted, key=lambda name: name in apart):
        if section == "untrained" and "joint_dynamics" in failures:
            continue
        compute = apart.get(section) or partial(passes.tables, section)
        try:
            found |= _keep_tables(_TABLES.get(section, (section,)), compute, progress)
        except InputError as error:
            # What was asked for by name, and what a probe is for in the first place, must not be missing.
            if section == "attention" or (sections is not None and section != "untrained"):
                raise
            failures[section] = str(error)
    tables = {name: found[name] for one in wanted for name in _TABLES.get(one, (one,)) if name in found}
    tables["layers"] = layer_summary(tables)
    tables["model"] = reading.describe()
    if failures:
        failed = {name: failures[name] for name in wanted if name in failures}
        tables["not_measured"] = _failures(failed)
    return ProbeResult(
        ProbeSettings(reading=ReadingSettings(model=str(reading.loaded.name)), null=null), tables
    )


@dataclass
class _Reading:
    """The model and its text, loaded when the first section needs them."""

    load: Callable[[], LoadedModel]
    cut: Callable[[LoadedModel], Windows | ReadyInputs]

    @cached_property
    def loaded(self) -> LoadedModel:
        return self.load()

    @cached_property
    def windows(self) -> Windows | ReadyInputs:
        return self.cut(self.loaded)

    @cached_property
    def batches(self) -> list[TokenBatch]:
        return list(self.windows)

    @cached_property
    def anatomy(self) -> Anatomy:
        return Anatomy(self.module)

    @property
    def module(self) -> nn.Module:
        return self.loaded.model

    def describe(self) -> pandas.DataFrame:
        import pandas

        row = {
            "model": self.loaded.name,
            "parameters": sum(p.numel() for p in self.module.parameters()),
            "tokens": self.windows.tokens,
            "windows": self.windows.samples,
            "longest_window": self.windows.length,
            "device": str(self.loaded.device),
            "dtype": str(self.loaded.dtype).removeprefix("torch."),
        }
        return pandas.DataFrame([row])


def _quarter(read: Windows | ReadyInputs) -> Windows | ReadyInputs:
    """Every fourth window, the first included; of ready inputs, every fourth batch."""
    if isinstance(read, Windows):
        return replace(read, pieces=read.pieces[::4])
    return replace(read, batches=read.batches[::4])


class _Passes:
    """One pass for all sections that are not kept from an earlier try."""

    def __init__(
        self, reading: _Reading, makers: Mapping[str, Callable[[], Section]], progress: Progress
    ) -> None:
        self.reading, self.makers, self.progress = reading, makers, progress
        self.sections: dict[str, Section] = {}
        self.failures: dict[str, JomaError] = {}

    def tables(self, section: str) -> dict[str, pandas.DataFrame]:
        """Those of a section; its turn comes after those before it."""
        if section not in self.sections and section not in self.failures:
            names = list(self.makers)
            self._read(names[names.index(section) :])
        if section in self.failures:
            raise self.failures[section]
        tables = self.sections.pop(section).tables()
        if section == "salience":
            tables[section] = _with_words(tables[section], self.reading.loaded.tokenizer)
        return tables

    def _read(self, names: Sequence[str]) -> None:
        sections: dict[str, Section] = {}
        for name in names:
            try:
                sections[name] = self.makers[name]()
            except InputError as error:
                self.failures[name] = error
        try:
            read(self.reading.module, self.reading.batches, list(sections.values()), self.progress)
        except UnfinishedError as error:
            plain = [name for name, section in sections.items() if not section.differentiable]
            if not plain or len(plain) == len(sections):
                raise
            # Gradients take more memory than all else: what can be had without them is.
            self.failures |= {name: error for name in sections if name not in plain}
            self._read(plain)
            return
        self.sections |= sections


def _keep_tables(
    names: Sequence[str], compute: Callable[[], dict[str, pandas.DataFrame]], progress: Progress
) -> dict[str, pandas.DataFrame]:
    """The tables of a section, computed once, or found where an earlier try has kept them."""
    found: dict[str, pandas.DataFrame] = {}

    def one(name: str) -> pandas.DataFrame:
        if not found:
            found.update(compute())
        return found[name]

    return {name: progress.part(name, partial(one, name)) for name in names}


def check_sections(sections: Sequence[str] | None) -> list[str]:
    """The sections in their order, if all are known; all by default.

    Raises:
        InputError: an unknown one, or none at all.
    """
    if sections is None:
        return list(USUAL)
    names = [sections] if isinstance(sections, str) else list(sections)
    for name in names:
        if name not in SECTIONS:
            raise InputError(f"probe knows no section {name!r}; {nearest(name, SECTIONS)}")
    if not names:
        raise InputError(f"sections is empty; choose of {', '.join(SECTIONS)}.")
    return [name for name in SECTIONS if name in names]


def _with_words(table: pandas.DataFrame, tokenizer: Tokenizer | None) -> pandas.DataFrame:
    """What the tokens stand for, beside their ids, where a tokenizer tells."""
    if tokenizer is None:
        return table
    for name in ("query", "context"):
        ids = table[f"{name}_token"].unique().tolist()
        words = {i: tokenizer.decode([i]) for i in ids}
        table.insert(table.columns.get_loc(f"{name}_token") + 1, name, table[f"{name}_token"].map(words))
    return table


def _failures(failures: dict[str, str]) -> pandas.DataFrame:
    import pandas

    return pandas.DataFrame({"section": list(failures), "reason": list(failures.values())})
