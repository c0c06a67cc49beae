"""A probe as a run directory: settings, tables, figure, the papers' claims, a section of the report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from joma.errors import InputError
from joma.instruments.text_run import TextRun
from joma.runs.job import setting

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

    from joma.claim import Claim
    from joma.probes.probe import Probe
    from joma.progress import Progress
    from joma.runs.directory import Run


_NEARLY = 2.0
_CLEAR = 3.0


@dataclass(frozen=True, kw_only=True)
class ProbeRun(TextRun):
    """A real model measured on a real text; the settings are those of :func:`joma.probe`."""

    title: ClassVar[str] = "a model probed on a text"
    subject: ClassVar[Literal["papers", "model"]] = "model"
    reproduces: ClassVar[str] = "instruments for JoMA Sec. 3.1, 4 and 7"

    length: int | None = setting(None, "tokens of a window (default: 512, or the model's positions)")
    tokens: int | None = setting(None, "tokens to read, in whole windows (default: about 8192)")
    batch_tokens: int = setting(2048, "tokens of a batch", at_least=2)
    sections: tuple[str, ...] | None = setting(None, "what to measure (default: all)")
    statistics: tuple[str, ...] | None = setting(None, "statistics of the attention")
    layers: tuple[int, ...] | None = setting(None, "numbers of the layers (default: all)")
    heads: tuple[int, ...] | None = setting(None, "numbers of the heads (default: all)")
    rows: float | None = setting(None, "share of the attention's rows to measure", above=0, below=1)
    attention_matrices: bool = setting(False, "stable ranks of query, key, value, output matrices too")

    @classmethod
    def name(cls) -> str:
        """``probe``."""
        return "probe"

    def heading(self) -> str:
        """Which model, and which text."""
        name = Path(self.model).name or self.model
        return f"{name}, probed on {Path(self.text).name}" if self.text else f"{name}, probed"

    def run(self, progress: Progress) -> dict[str, pandas.DataFrame]:
        """The tables of :class:`joma.probes.probe.Probe`."""
        from joma.probes.probe import probe
        from joma.probes.sections.attention import STATISTICS

        return probe(
            **self.reading(),
            length=self.length,
            tokens=self.tokens,
            batch_tokens=self.batch_tokens,
            sections=self.sections,
            statistics=STATISTICS if self.statistics is None else self.statistics,
            layers=self.layers,
            heads=self.heads,
            rows=self.rows,
            attention_matrices=self.attention_matrices,
            progress=progress,
        ).tables

    def draw(self, tables: Mapping[str, pandas.DataFrame]) -> Figure:
        """Heat maps of layer and head, entropy by position, profiles over layers."""
        from joma.reporting.probe_figure import draw_probe

        return draw_probe(tables)

    def answer(self, tables: Mapping[str, pandas.DataFrame]) -> list[str]:
        """A sentence a section."""
        from joma.reporting.probe_text import probe_sentences

        return probe_sentences(tables)

    def claims(self, tables: Mapping[str, pandas.DataFrame]) -> list[Claim]:
        """Theorem 1's prediction for the attention, and the embeddings' orthogonality."""
        return [_joint_dynamics_claim(tables), _orthogonality_claim(tables)]


def write_probe(found: Probe, directory: str | Path, *, overwrite: bool = False) -> Run:
    """Write what :func:`joma.probe` found as a run directory, which ``joma report`` can show.

    Raises:
        RunDirectoryError: the directory holds something already, or cannot be written.
    """
    from joma.runs.directory import record_run

    if not found.tables:
        raise InputError("this probe has no table to write.")
    name = str(found.tables["model"]["model"].iloc[0])
    return record_run(ProbeRun(model=name), Path(directory), found.tables, overwrite=overwrite)


def _joint_dynamics_claim(tables: Mapping[str, pandas.DataFrame]) -> Claim:
    from joma.claim import judge, not_tested

    identity: dict[str, Any] = {
        "id": "probe.joint_dynamics",
        "source": "JoMA Thm 1",
        "statement": "attention's logits grow with half the sum of squares of what the hidden neurons see of "
        "a context token through the head",
    }
    if "joint_dynamics" not in tables:
        return not_tested(**identity, reason=_why_missing(tables, "joint_dynamics"))
    rows = tables["joint_dynamics"]
    rows = rows[rows["position"].isna() & rows["head"].notna() & (rows["sink"] == "out")]
    index = rows[(rows["metric"] == "index") & (rows["given"] == "nothing")]
    linear = index[index["scale"] == "linear"]["value"].dropna()
    null = rows[(rows["metric"] == "null") & (rows["scale"] == "linear")]["value"].dropna()
    if linear.empty or null.empty:
        return not_tested(**identity, reason="no query sees enough keys for a correlation")
    log = index[index["scale"] == "log"]["value"]
    partial = rows[(rows["metric"] == "index") & (rows["given"] == "position and value_norm")]
    partial = partial[partial["scale"] == "linear"]["value"]
    positive = float((linear > 0).mean())
    measured = float(linear.mean())
    return judge(
        measured > _CLEAR * float(null.abs().mean()) and positive > 0.5,
        **identity,
        expected=f"a positive correlation, {_CLEAR:g} times that of shuffled tokens, in most heads",
        measured=measured,
        null=float(null.abs().mean()),
        null_description="mean |correlation| with the prediction shuffled over the tokens",
        evidence=f"log-attention against the prediction, query by query, first key left out; positive in "
        f"{positive:.0%} of {len(linear)} heads; log against log {log.mean():.3f}; with position and the "
        f"value's norm held fixed {partial.mean():.3f}. The theorem is for exp attention and equal rates",
    )


def _orthogonality_claim(tables: Mapping[str, pandas.DataFrame]) -> Claim:
    from joma.claim import judge, not_tested

    identity: dict[str, Any] = {
        "id": "probe.orthogonality",
        "source": "JoMA Sec. 2 and 7",
        "statement": "the embeddings of distinct tokens are nearly orthogonal",
    }
    if "coherence" not in tables:
        return not_tested(**identity, reason=_why_missing(tables, "coherence"))
    rows = tables["coherence"]
    rows = rows[(rows["metric"] == "mean_absolute_cosine") & (rows["pairs"] == "different")]
    table = rows[(rows["place"] == "embedding")].set_index("centred")
    if table.empty:
        return not_tested(**identity, reason="the model has no table of embeddings that could be found")
    inputs = rows[(rows["place"] == "input") & (rows["layer"] == rows["other_layer"]) & ~rows["centred"]]
    measured, random = float(table.loc[False, "value"]), float(table.loc[False, "random"])
    return judge(
        measured <= _NEARLY * random,
        **identity,
        expected=f"mean |cos| at most {_NEARLY:g} times that of random directions",
        measured=measured,
        null=random,
        null_description=f"independent random directions in {int(table.loc[False, 'width'])} dimensions",
        evidence=f"embedding table; with the mean vector removed {float(table.loc[True, 'value']):.3f}; at "
        f"the layers' inputs {inputs['value'].min():.3f} to {inputs['value'].max():.3f}",
    )


def _why_missing(tables: Mapping[str, pandas.DataFrame], section: str) -> str:
    if "not_measured" in tables:
        rows = tables["not_measured"]
        reasons = rows[rows["section"] == section]["reason"]
        if len(reasons):
            return str(reasons.iloc[0])
    return f"the section {section} was not asked for"
