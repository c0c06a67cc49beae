"""``joma neurons`` as a run directory: tables, figure, claims, and the neurons' contexts in the report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from joma.instruments.text_run import TextRun
from joma.runs.job import setting

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

    from joma.claim import Claim
    from joma.progress import Progress


@dataclass(frozen=True, kw_only=True)
class NeuronsRun(TextRun):
    """Pattern superposition in a real model; the settings are those of :func:`joma.probe_neurons`."""

    subject: ClassVar[Literal["papers", "model"]] = "model"
    title: ClassVar[str] = "neurons that answer to unrelated patterns"
    reproduces: ClassVar[str] = "JoMA Fig. 10"

    length: int = setting(128, "tokens of a window", at_least=2)
    tokens: int | None = setting(None, "tokens to read (default: at most 50000)", at_least=2)
    batch_tokens: int = setting(1024, "tokens of a batch", at_least=2)
    layers: tuple[int, ...] | None = setting(None, "numbers of the layers (default: all)")
    neurons: tuple[int, ...] | None = setting(None, "numbers of the neurons in each layer (default: all)")
    top: int = setting(16, "contexts kept for each neuron", at_least=4)
    smallest: int = setting(3, "contexts that make a pattern", at_least=2)
    show: int = setting(24, "neurons whose contexts are written out", at_least=1)

    @classmethod
    def name(cls) -> str:
        """``neurons``."""
        return "neurons"

    def heading(self) -> str:
        """Which model, and which text."""
        return f"the neurons of {self.model} on {self.text}: {self.title}"

    def run(self, progress: Progress) -> dict[str, pandas.DataFrame]:
        """The tables of :class:`joma.probes.neurons.probe.Neurons`."""
        from joma.probes.neurons.probe import probe_neurons

        return probe_neurons(
            **self.reading(),
            length=self.length,
            tokens=self.tokens,
            batch_tokens=self.batch_tokens,
            layers=self.layers,
            neurons=self.neurons,
            top=self.top,
            smallest=self.smallest,
            show=self.show,
            seed=self.seed,
            progress=progress,
        ).tables

    def draw(self, tables: Mapping[str, pandas.DataFrame]) -> Figure:
        """Scores beside the null's, by layer, and a few neurons' contexts."""
        from joma.reporting.neurons_figure import draw_neurons

        return draw_neurons(tables)

    def claims(self, tables: Mapping[str, pandas.DataFrame]) -> list[Claim]:
        """Are there neurons in superposition, and more than by chance?"""
        from joma.experiments.fig10.claims import (
            different_queries,
            more_than_chance,
            selective,
            some_neuron,
            unrelated,
        )

        tested = (some_neuron, more_than_chance, unrelated, different_queries, selective)
        return [claim(tables, "neurons") for claim in tested]


def neurons_as_text(tables: Mapping[str, pandas.DataFrame], *, neurons: int = 3, contexts: int = 3) -> str:
    """For the terminal: the layers, and a few neurons' patterns with attended tokens between asterisks."""
    layers = tables["layers"].rename(
        columns={
            "superposition": "score",
            "superposition_of_shuffled": "of_shuffled",
            "share_p_below_5_percent": "p<=5%",
            "share_q_below_5_percent": "q<=5%",
            "share_similar_p_below_5_percent": "similar_p<=5%",
        }
    )
    if not layers["stack"].astype(bool).any():
        layers = layers.drop(columns="stack")
    lines = [layers.to_string(index=False, float_format=lambda value: f"{value:.3f}")]
    keys = ["layer", "stack", "neuron"]
    values = tables["neurons"].pivot(index=keys, columns="metric", values="value")
    shown = list(tables["contexts"].groupby(keys, sort=False))[:neurons]
    for key, part in shown:
        row = values.loc[key]
        place = " ".join(f"{word} {value}" for word, value in zip(keys, key, strict=True) if value != "")
        lines.append(f"\n{place}: score {row['superposition']:.2f}, p {row['p_value']:.2g}")
        for pattern, of_pattern in part[part["pattern"] >= 0].groupby("pattern"):
            for text in of_pattern["text"].head(contexts):
                lines.append(f"  {chr(ord('A') + int(pattern) % 26)} {' '.join(str(text).split())}")
    if "not_measured" in tables:
        for missing in tables["not_measured"].itertuples():
            lines.append(f"\nnot measured: {missing.block}: {missing.reason}")
    return "\n".join(lines)
