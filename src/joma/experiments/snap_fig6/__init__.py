"""Scan&Snap Fig. 6: how sparse attention gets, against the two learning rates and the number of classes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from joma.experiments.base import Experiment
from joma.runs.job import setting

if TYPE_CHECKING:
    import numpy as np
    import pandas
    from matplotlib.figure import Figure

    from joma.claim import Claim
    from joma.data.next_token import NextTokenData
    from joma.progress import Progress

CELL = ["last_tokens", "eta_z", "ratio"]
PAGE = {
    "last_tokens": "last_tokens",
    "learning_rate_z": "eta_z",
    "ratio_y_over_z": "ratio",
    "entropy_mean_nats": "authors_mean",
    "entropy_std": "authors_std",
    "seeds": "authors_seeds",
}
"""Columns that a table of the authors' results must have -> their names here."""


@dataclass(frozen=True, kw_only=True)
class SnapFig6(Experiment):
    """Entropy of c_n over the distinct tokens of n, after 100 SGD steps of the Y/Z model, mean over n.

    The authors' setting: 10 common tokens, 10 distinct tokens of graded probability for each next token,
    two next tokens for each last token, weights uniform in +-1/sqrt(M), batches of 128 sequences of length
    128, momentum 0.9, eta_Y = ratio * eta_Z. Their ten runs of a cell are not ten fresh draws: seeds 1 to
    10 fix the initial weights and the order of the classes for all rates alike, and the largest rates
    leave heavy tails. So the default ``streams="authors"`` takes both from the same generators (PyTorch's
    for the weights, Python's for the classes), seeds counted from ``seed + 1``; only the contextual tokens
    are drawn anew. With ``streams="fresh"`` everything is; then cells of one panel are off together.

    Tables: ``entropy`` (a row for each run, before and after training), ``cells`` (mean, deviation and
    standard error over seeds), ``authors`` (the table given as ``authors_table``, or empty).
    """

    title = "Sparsity of attention against learning rates and number of classes (64 cells x 10 seeds)"
    reproduces = "Scan&Snap Fig. 6"
    cost: ClassVar[Mapping[str, str]] = {"quick": "40 s", "paper": "40 s"}
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"quick": {}, "paper": {}}

    last_tokens: tuple[int, ...] = setting((1, 3, 5, 10), "numbers of last tokens", at_least=1)
    eta_z: tuple[float, ...] = setting((0.5, 1.0, 2.0, 3.0), "learning rates of Z", above=0.0)
    ratios: tuple[float, ...] = setting((1.0, 2.0, 5.0, 10.0), "eta_Y over eta_Z", above=0.0)
    seeds: int = setting(10, "runs of each cell", at_least=2)
    steps: int = setting(100, "SGD steps", at_least=1)
    batch: int = setting(128, "sequences in a batch", at_least=1)
    length: int = setting(128, "length of a sequence, the last token included", at_least=2)
    momentum: float = setting(0.9, "momentum of SGD, for Y and Z", at_least=0.0, below=1.0)
    streams: str = setting("authors", "where random numbers come from", choices=("authors", "fresh"))
    authors_table: str = setting("", "CSV of the authors' means to compare with; empty for none")

    def run(self, progress: Progress) -> dict[str, pandas.DataFrame]:
        """Every cell with every seed: all pairs of rates of one seed at once."""
        import pandas as pd

        authors = self._authors()
        seeds = [self.seed + 1 + k for k in range(self.seeds)]
        jobs = [(last, seed) for last in self.last_tokens for seed in seeds]
        entropy = pd.concat(
            [
                progress.part(f"last{last}-seed{seed}", partial(self._runs, last, seed))
                for last, seed in progress.track(jobs, "snap_fig6")
            ],
            ignore_index=True,
        )
        end = entropy[entropy["step"] == self.steps]
        cells = end.groupby(CELL, as_index=False)["value"].agg(mean="mean", std="std", seeds="count")
        cells["standard_error"] = cells["std"] / cells["seeds"] ** 0.5
        cells["unit"] = "nats"
        return {"entropy": entropy, "cells": cells, "authors": authors}

    def _runs(self, last_tokens: int, seed: int) -> pandas.DataFrame:
        """Entropies of all pairs of rates, one seed."""
        import numpy as np
        import pandas as pd

        from joma.data.next_token import graded_tokens
        from joma.dynamics.token_sgd import token_sgd
        from joma.theory.scan_snap.equations import distinct_entropy

        data = graded_tokens(last_tokens=last_tokens)
        pairs = [(eta_z, ratio) for eta_z in self.eta_z for ratio in self.ratios]
        eta_z, ratio = np.array(pairs, dtype=np.float64).T
        authors = self.streams == "authors"
        runs = token_sgd(
            data,
            eta_y=eta_z * ratio,
            eta_z=eta_z,
            seeds=[seed],
            steps=self.steps,
            batch=self.batch,
            length=self.length,
            momentum=self.momentum,
            start=authors_start(data, seed) if authors else "uniform",
            classes=authors_classes(data, seed, self.steps, self.batch)[None] if authors else None,
            record=(0,),
        )
        distinct = data.require_distinct("snap_fig6")
        values = [distinct_entropy(runs.mass(k)[0], distinct).mean(axis=-1) for k in range(2)]
        return pd.DataFrame(
            {
                "run": seed,
                "last_tokens": last_tokens,
                "next_tokens": data.classes,
                "eta_z": np.tile(eta_z, 2),
                "ratio": np.tile(ratio, 2),
                "step": np.repeat(runs.steps, len(pairs)),
                "metric": "entropy over distinct tokens",
                "value": np.concatenate(values),
                "unit": "nats",
                "dtype": "float32",
            }
        )

    def _authors(self) -> pandas.DataFrame:
        """The given table under this experiment's column names; empty where none is given."""
        import pandas as pd

        from joma.errors import InputError

        if not self.authors_table:
            return pd.DataFrame(columns=list(PAGE.values()), dtype=float)
        try:
            table = pd.read_csv(self.authors_table)
        except (OSError, ValueError) as error:
            raise InputError(
                f"snap_fig6: setting authors_table = {self.authors_table!r} cannot be read ({error}); give a "
                "CSV file or leave it empty."
            ) from error
        missing = sorted(set(PAGE) - set(table.columns))
        if missing:
            raise InputError(
                f"snap_fig6: authors_table {self.authors_table!r} lacks the columns {', '.join(missing)}; it "
                f"needs {', '.join(PAGE)}."
            )
        return table.rename(columns=PAGE)[list(PAGE.values())].astype(float)

    def draw(self, tables: Mapping[str, pandas.DataFrame]) -> Figure:
        """A panel for each number of last tokens; the authors' means, where given, as open circles."""
        from joma.reporting.figures import PALETTE, ink, panels

        cells, authors = tables["cells"], tables["authors"]
        columns = sorted(cells["last_tokens"].unique())
        figure, axes = panels(1, len(columns), width=3.3, height=3.5, sharey=True)
        for axis, last in zip(axes[0], columns, strict=True):
            panel = cells[cells["last_tokens"] == last]
            groups = list(panel.groupby("eta_z"))
            for k, (colour, (eta_z, line)) in enumerate(zip(PALETTE * 9, groups, strict=False)):
                aside = 1.045 ** (k - (len(groups) - 1) / 2)  # bars beside each other, not upon each other
                axis.errorbar(
                    aside * line["ratio"],
                    line["mean"],
                    yerr=line["standard_error"],
                    color=colour,
                    marker="o",
                    markersize=3.5,
                    capsize=2,
                    label=rf"$\eta_Z$ = {eta_z:g}",
                )
                theirs = authors[(authors["last_tokens"] == last) & (authors["eta_z"] == eta_z)]
                axis.plot(
                    aside * theirs["ratio"],
                    theirs["authors_mean"],
                    "o",
                    mfc="none",
                    mec=colour,
                    markersize=8,
                    mew=1.1,
                )
            ratios = sorted(panel["ratio"].unique())
            axis.set_xscale("log")
            axis.set_xticks(ratios, [f"{ratio:g}" for ratio in ratios])
            axis.minorticks_off()
            classes = last * 2
            axis.set_title(f"{last} last, {classes} next tokens")
            axis.set_xlabel(r"$\eta_Y/\eta_Z$")
        axes[0, 0].set_ylabel("entropy of $c_n$ over\ndistinct tokens (nats)")
        handles, labels = axes[0, 0].get_legend_handles_labels()
        if len(authors):
            (ring,) = axes[0, 0].plot([], [], "o", mfc="none", mec=ink(), markersize=8, mew=1.1)
            handles, labels = [*handles, ring], [*labels, "the authors' mean"]
        title = f"mean of {cells['seeds'].max()} seeds, ± one standard error"
        figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), title=title)
        return figure

    def claims(self, tables: Mapping[str, pandas.DataFrame]) -> list[Claim]:
        """The slides' two statements on the rates, and the authors' numbers."""
        entropy = tables["entropy"]
        large = entropy[entropy["ratio"] >= 2]
        return [
            _trend(
                entropy,
                along="eta_z",
                sign=-1,
                id="snap_fig6.sparser_with_eta_z",
                source="Scan&Snap, slide of Thm 4, (1), and Fig. 6",
                statement="At a fixed ratio eta_Y/eta_Z, larger rates leave attention sparser.",
            ),
            _trend(
                large,
                along="ratio",
                sign=1,
                id="snap_fig6.denser_with_ratio",
                source="Scan&Snap, slide of Thm 4, (2), and Fig. 6",
                statement="At a fixed eta_Z, a larger eta_Y leaves attention denser, where eta_Y >= 2 eta_Z.",
            ),
            _trend(
                entropy,
                along="ratio",
                sign=1,
                id="snap_fig6.denser_with_ratio_everywhere",
                source="Scan&Snap, slide of Thm 4, (2), and Fig. 6",
                statement="At a fixed eta_Z, a larger eta_Y leaves attention denser, at every ratio.",
            ),
            _reproduction(tables["cells"], tables["authors"]),
        ]


def authors_start(data: NextTokenData, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """(Y, z) at the start of the authors' run ``seed``: two M x M linear layers drawn one after the other.

    The first holds Y transposed, the second Z; rows and columns that the data never use are dropped. The
    vocabulary is contextual, last, next tokens in this order, but a decoder column is a next token here,
    so Y's columns are put in the order next tokens first.
    """
    import numpy as np
    import torch

    size = data.logits
    generator = torch.Generator().manual_seed(seed)
    first, second = (
        torch.empty(size, size).uniform_(-(size**-0.5), size**-0.5, generator=generator).numpy()
        for _ in range(2)
    )
    tokens = data.contextual_tokens
    return (
        np.roll(first.T[:tokens], data.classes, axis=1),
        second[tokens : tokens + data.last_tokens, :tokens],
    )


def authors_classes(data: NextTokenData, seed: int, steps: int, batch: int) -> np.ndarray:
    """The class of every sequence of the authors' run ``seed``, shape (steps, batch)."""
    import random

    import numpy as np

    choose = random.Random(seed).choice
    classes = range(data.classes)
    return np.array([choose(classes) for _ in range(steps * batch)], dtype=np.int64).reshape(steps, batch)


def _trend(
    entropy: pandas.DataFrame, *, along: str, sign: int, id: str, source: str, statement: str
) -> Claim:
    """Whether entropy goes one way from each cell to its neighbour, in differences paired by seed."""
    from joma.claim import judge

    last = entropy["step"].max()
    forward, backward, total = _steps(entropy[entropy["step"] == last], along, sign)
    untrained = _steps(entropy[entropy["step"] == 0], along, sign)
    return judge(
        total > 0 and backward == 0 and forward >= total / 2,
        id=id,
        source=source,
        statement=statement,
        expected="more than two standard errors the stated way in at least half of the steps from a cell to "
        "its neighbour, and the other way in none",
        measured=forward / total if total else float("nan"),
        tolerance=0.5,
        null=untrained[0] / total if total else None,
        null_description="the same before training",
        evidence=f"{forward} of {total} steps the stated way, {backward} the other, paired by seed",
    )


def _steps(entropy: pandas.DataFrame, along: str, sign: int) -> tuple[int, int, int]:
    """Steps to the next cell ``along`` that go significantly the way of ``sign``, the other way, and all."""
    other = [name for name in CELL if name != along]
    forward = backward = total = 0
    for _, line in entropy.groupby(other):
        differences = sign * line.pivot(index="run", columns=along, values="value").diff(axis=1).iloc[:, 1:]
        mean, error = differences.mean(), differences.std() / len(differences) ** 0.5
        forward += int((mean > 2 * error).sum())
        backward += int((mean < -2 * error).sum())
        total += differences.shape[1]
    return forward, backward, total


def _reproduction(cells: pandas.DataFrame, authors: pandas.DataFrame) -> Claim:
    """How many cells agree with the authors' within two combined standard errors."""
    from joma.claim import judge, not_tested

    named = {
        "id": "snap_fig6.authors_numbers",
        "source": "Scan&Snap Fig. 6",
        "statement": "The authors' mean entropies, cell by cell.",
    }
    both = cells.merge(authors, on=CELL)
    if both.empty:
        reason = (
            "no cell in common with authors_table"
            if len(authors)
            else "no table given (setting authors_table)"
        )
        return not_tested(**named, reason=reason)

    def agreeing(theirs: Any) -> float:
        error = both["standard_error"] ** 2 + both["authors_std"] ** 2 / both["authors_seeds"]
        return float(((both["mean"] - theirs).abs() <= 2 * error**0.5).mean())

    measured = agreeing(both["authors_mean"])
    swapped = both.sort_values([*CELL[:2], "ratio"], ascending=[True, True, False])["authors_mean"]
    return judge(
        measured >= 60 / 64,
        **named,
        expected="at least 60 of 64 cells (0.9375) within two combined standard errors",
        measured=measured,
        tolerance=4 / 64,
        null=agreeing(swapped.set_axis(both.sort_values(CELL).index)),
        null_description="the authors' cells with the order of their ratios reversed",
        evidence=f"{len(both)} cells",
    )
