"""Scan&Snap Fig. 4: attention leaves the common tokens and gathers on the strongest distinct ones."""

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
    from joma.progress import Progress

PICTURED = (0, 2, 4, 6, 8, 10, 48)
"""Steps that the paper's picture shows; the one it calls final is step 48 of 100."""


@dataclass(frozen=True, kw_only=True)
class SnapFig4(Experiment):
    """c_n over training, token by token, in the Y/Z model from zero weights.

    The authors' setting: two last tokens with one next token each, 10 common tokens, 10 distinct tokens of
    graded probability for each next token, eta_Y = eta_Z = 1, momentum 0.9, 100 steps of 128 sequences of
    length 128. They show one run (seed 2); the claims here are judged over ``seeds`` runs, and again in
    the theorem's limit of infinitely long sequences (``length`` inf in the table), because in sequences
    of 128 the rarest distinct tokens, seen about once in each, do not all rise.

    Tables: ``tokens`` (attention mass c_n and logit z of every token of every class at recorded steps).
    """

    title = "Common tokens are suppressed, distinct ones win: attention mass over training"
    reproduces = "Scan&Snap Fig. 4"
    cost: ClassVar[Mapping[str, str]] = {"quick": "2 s", "paper": "2 s"}
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"quick": {}, "paper": {}}

    last_tokens: int = setting(2, "number of last tokens", at_least=1)
    next_per_last: int = setting(1, "next tokens for each last token", at_least=1)
    common: int = setting(10, "common tokens", at_least=1)
    distinct: int = setting(10, "distinct tokens of each next token", at_least=2)
    eta_y: float = setting(1.0, "learning rate of Y", above=0.0)
    eta_z: float = setting(1.0, "learning rate of Z", above=0.0)
    seeds: int = setting(10, "runs, with seeds from seed + 1 on", at_least=1)
    steps: int = setting(100, "SGD steps", at_least=1)
    batch: int = setting(128, "sequences in a batch", at_least=1)
    length: int = setting(128, "length of a sequence, the last token included", at_least=2)
    momentum: float = setting(0.9, "momentum of SGD, for Y and Z", at_least=0.0, below=1.0)

    def run(self, progress: Progress) -> dict[str, pandas.DataFrame]:
        """All seeds at once, every second step recorded."""
        import pandas as pd

        parts = [
            progress.part("finite", partial(self._tokens, self.length)),
            progress.part("infinite", partial(self._tokens, None)),
        ]
        return {"tokens": pd.concat(parts, ignore_index=True)}

    def _tokens(self, length: int | None) -> pandas.DataFrame:
        import numpy as np
        import pandas as pd

        from joma.data.next_token import graded_tokens
        from joma.dynamics.token_sgd import token_sgd
        from joma.experiments.snap_fig6 import authors_classes

        data = graded_tokens(
            last_tokens=self.last_tokens,
            next_per_last=self.next_per_last,
            common=self.common,
            distinct=self.distinct,
        )
        seeds = [self.seed + 1 + k for k in range(self.seeds)]
        runs = token_sgd(
            data,
            eta_y=self.eta_y,
            eta_z=self.eta_z,
            seeds=seeds,
            steps=self.steps,
            batch=self.batch,
            length=length,
            momentum=self.momentum,
            start="zero",
            classes=np.stack([authors_classes(data, seed, self.steps, self.batch) for seed in seeds]),
            record=range(0, self.steps + 1, 2),
            dtype="float64",
        )
        classes, tokens = np.nonzero(data.conditional)
        kinds = np.where(data.common[tokens], "common", "distinct")
        mass = np.stack([runs.mass(k)[:, 0] for k in range(runs.steps.size)])[:, :, classes, tokens]
        logits = runs.logits[:, :, 0][:, :, data.last_of_next[classes], tokens]
        step, run, entry = (axis.ravel() for axis in np.indices(mass.shape))
        frame = pd.DataFrame(
            {
                "run": runs.seeds[run],
                "length": float("inf") if length is None else float(length),
                "step": runs.steps[step],
                "next_token": classes[entry],
                "token": tokens[entry],
                "kind": kinds[entry],
                "probability": data.conditional[classes, tokens][entry],
            }
        )
        return pd.concat(
            [
                frame.assign(metric="attention mass", value=mass.ravel(), unit=""),
                frame.assign(metric="attention logit", value=logits.ravel(), unit="nats"),
            ],
            ignore_index=True,
        ).assign(dtype="float64")

    def draw(self, tables: Mapping[str, pandas.DataFrame]) -> Figure:
        """Left, the paper's picture (its seed); right, the mass on common and on distinct tokens."""
        from joma.reporting.figures import PALETTE, ink, panels

        mass = tables["tokens"].query("metric == 'attention mass' and length < inf")
        runs = mass["run"].unique()
        shown = 2 if 2 in runs else int(runs.min())
        first = mass[(mass["run"] == shown) & (mass["next_token"] == mass["next_token"].min())]
        picture = first[first["step"].isin({*PICTURED, mass["step"].max()})]
        grid = picture.pivot(index="step", columns="token", values="value")
        figure, axes = panels(1, 2, width=5.6, height=3.9)
        figure.set_layout_engine("constrained", wspace=0.06)
        left, right = axes[0]
        image = left.imshow(grid.to_numpy(), aspect="auto", cmap="viridis", interpolation="nearest")
        commons = int((picture.drop_duplicates("token")["kind"] == "common").sum())
        left.axvline(commons - 0.5, color="white", linestyle="--", linewidth=1.2)
        # A gap wherever the rows skip more steps than above it: they are not evenly spaced.
        skipped = grid.index.to_numpy()[1:] - grid.index.to_numpy()[:-1]
        for row in (skipped > skipped.min()).nonzero()[0]:
            left.axhline(row + 0.5, color=left.get_facecolor(), linewidth=3)
        left.set_yticks(range(len(grid)), [f"step {step}" for step in grid.index])
        distinct = grid.shape[1] - commons
        left.set_xticks(range(grid.shape[1]), [*range(1, commons + 1), *range(1, distinct + 1)], fontsize=7.5)
        middles = [commons / 2 - 0.5, commons + distinct / 2 - 0.5]
        left.set_xticks(middles, ["common tokens", "distinct tokens, rarest first"], minor=True)
        left.tick_params(axis="x", which="minor", length=0, pad=16)
        left.grid(False)
        whose = ", the paper's" if shown == 2 else ""
        left.set_title(rf"$c_n$ of the first class (seed {shown}{whose})")
        figure.colorbar(image, ax=left, label="attention mass of a token", pad=0.02)

        total = mass.groupby(["kind", "run", "next_token", "step"])["value"].sum().reset_index()
        for colour, (kind, part) in zip((PALETTE[1], PALETTE[0]), total.groupby("kind"), strict=True):
            course = part.groupby("step")["value"].agg(["mean", "min", "max"])
            right.plot(course.index, course["mean"], color=colour, label=f"{kind} tokens, together")
            right.fill_between(course.index, course["min"], course["max"], color=colour, alpha=0.2, lw=0)
        top = mass[mass["kind"] == "distinct"]
        top = top[top["probability"] == top["probability"].max()]
        course = top.groupby("step")["value"].agg(["mean", "min", "max"])
        right.plot(course["mean"], color=ink(), linestyle=":", label="the strongest distinct token")
        right.fill_between(course.index, course["min"], course["max"], color=ink(), alpha=0.15, lw=0)
        right.set_ylim(0, 1)
        right.set_xlabel("step")
        right.set_ylabel("attention mass")
        right.set_title(f"all classes, {len(runs)} seeds (mean and range)")
        right.legend(loc="upper right")
        return figure

    def claims(self, tables: Mapping[str, pandas.DataFrame]) -> list[Claim]:
        """The fates of Theorem 2, and that growth is graded by co-occurrence."""
        from joma.claim import judge

        tokens = tables["tokens"]
        finite = tokens["length"] < float("inf")
        common_mass = tokens[finite & (tokens["metric"] == "attention mass") & (tokens["kind"] == "common")]
        on_common = common_mass.groupby(["run", "next_token", "step"])["value"].sum().groupby("step").mean()
        ended = tokens[(tokens["metric"] == "attention logit") & (tokens["step"] == tokens["step"].max())]
        common, distinct = (ended[ended["kind"] == kind] for kind in ("common", "distinct"))
        fell = float((common[common["length"] < float("inf")]["value"] < 0).mean())
        short, limit = (
            distinct[distinct["length"] < float("inf")],
            distinct[distinct["length"] == float("inf")],
        )
        stayed = short[short["value"] <= 0]
        order, shuffled = _rank_correlations(short, self.seed)
        untrained = "before training (z = 0)"
        return [
            judge(
                fell == 1,
                id="snap_fig4.common_suppressed",
                source="Scan&Snap Fig. 4, Thm 2b",
                statement="Attention to common tokens is suppressed, though there are ten of them.",
                expected="z < 0 for every common token in every run",
                measured=fell,
                null=0.0,
                null_description=untrained,
                evidence=f"mean mass on them: {on_common.iloc[0]:.3f}, then {on_common.iloc[-1]:.3f}",
            ),
            judge(
                bool((limit["value"] > 0).all()),
                id="snap_fig4.distinct_rise",
                source="Scan&Snap Thm 2a",
                statement="Every distinct token's attention logit rises, in the limit T -> infinity.",
                expected="z > 0 for all of them",
                measured=float((limit["value"] > 0).mean()),
                null=0.0,
                null_description=untrained,
                evidence=f"{len(limit)} distinct tokens over all runs and classes",
            ),
            judge(
                stayed.empty,
                id="snap_fig4.distinct_rise_finite",
                source="Scan&Snap Fig. 4, Thm 2a",
                statement="Every distinct token's attention logit rises in the sequences of the figure.",
                expected="z > 0 for all of them",
                measured=float((short["value"] > 0).mean()),
                null=0.0,
                null_description=untrained,
                evidence=f"{len(stayed)} of {len(short)} do not; the commonest of these has "
                f"P(l|n) = {stayed['probability'].max():.3g}"
                if len(stayed)
                else f"{len(short)} distinct tokens over all runs and classes",
            ),
            judge(
                order > 0.9,
                id="snap_fig4.graded",
                source="Scan&Snap, winners-emergence (c)",
                statement="z_ml grows faster with larger P(l|m,n).",
                expected="mean rank correlation of z with P(l|n) over a class's distinct tokens above 0.9",
                measured=order,
                null=shuffled,
                null_description="the same with the tokens' probabilities shuffled",
            ),
        ]


def _rank_correlations(distinct: pandas.DataFrame, seed: int) -> tuple[float, float]:
    """Mean Spearman correlation of z with P(l|n), by run and class; and with P shuffled.

    Logits that are all equal have no order: they count as 0.
    """
    import numpy as np
    from scipy.stats import spearmanr

    random = np.random.default_rng([seed, 4])
    real: list[float] = []
    null: list[float] = []
    for _, part in distinct.groupby(["run", "next_token"]):
        z: np.ndarray = part["value"].to_numpy()
        probability: np.ndarray = part["probability"].to_numpy()
        for values, against in ((real, probability), (null, random.permutation(probability))):
            values.append(float(spearmanr(z, against).statistic) if np.ptp(z) > 0 else 0.0)
    return float(np.mean(real)), float(np.mean(null))
