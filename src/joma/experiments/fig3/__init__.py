"""JoMA Fig. 3: some components of a node's weights grow on, the others saturate."""

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
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from joma.claim import Claim
    from joma.progress import Progress

ATTENTION = ("trained", "frozen")
GROWING = 0.1
"""A component still grows if the last quarter of training changed it by more than this share."""
SHOWN = 4


@dataclass(frozen=True, kw_only=True)
class Fig3(Experiment):
    """The weights ``v_0`` of the node of class 0, token by token, in the training of Fig. 2.

    Linear nodes, softmax attention, cross-entropy. Theorem 2 is derived for exp attention with stationary
    gradients; it says that the token of the largest ``|Delta_.l|`` grows without bound and every other
    one stops at ``sqrt(2/kappa) erfinv(|Delta_.l| / |Delta_max|)``, ``kappa = eta_z / (eta_w T^2)``, along
    its own direction (K > 1, corrected). Here ``Delta`` is taken at the start of training. The null is
    the same training with attention frozen. The authors' code stops at 2,000 steps; this goes on to
    4,000, so that saturation can be told from slowness.

    Tables: ``components`` (v_0 in training), ``final`` (per token: weight and its growth in the last
    quarter, the norm over nodes and its growth, the drive, and Theorem 2's limits).
    """

    title = "Winner takes all under softmax attention: who grows, who saturates, where"
    reproduces = "JoMA Fig. 3"
    cost: ClassVar[Mapping[str, str]] = {"quick": "5 s", "paper": "20 s"}
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"quick": {}, "paper": {"runs": 20}}

    runs: int = setting(5, "number of seeds, trained side by side", at_least=1, at_most=1000)
    steps: int = setting(4000, "gradient steps", at_least=8, at_most=1_000_000)
    rate: float = setting(0.1, "learning rate of weights and logits", above=0.0, at_most=10.0)
    temperature: float = setting(0.5, "T of the attention", at_least=0.05, at_most=100.0)
    data: str = setting("smooth", "class-conditional frequencies", choices=("smooth", "random"))
    classes: int = setting(20, "classes, as many as hidden nodes", at_least=2)
    distinct: int = setting(10, "tokens of the wandering bump", at_least=1)
    common: int = setting(10, "tokens of noise", at_least=1)
    record_every: int = setting(20, "steps between two points of a curve", at_least=1)

    def run(self, progress: Progress) -> dict[str, pandas.DataFrame]:
        """Train with attention trained and frozen; a part each."""
        import pandas as pd

        parts = [
            progress.part(f"attention-{attention}", partial(self._measure, attention))
            for attention in progress.track(ATTENTION, "fig3")
        ]
        whole = pd.concat(parts, ignore_index=True)
        tables = {}
        for name in ("components", "final"):
            table = whole[whole["table"] == name].drop(columns="table").dropna(axis=1, how="all")
            counted = [column for column in ("step", "token") if column in table]
            tables[name] = table.astype(dict.fromkeys(counted, int)).reset_index(drop=True)
        return tables

    def _measure(self, attention: str) -> pandas.DataFrame:
        import numpy as np
        import pandas as pd

        from joma.experiments.classes_training import train_classes

        course = train_classes(
            self.data,  # type: ignore[arg-type]  # one of its literals, by the setting's choices
            seeds=[1000 * self.seed + run for run in range(self.runs)],
            steps=self.steps,
            rate=self.rate,
            attention_rate=self.rate if attention == "trained" else 0.0,
            temperature=self.temperature,
            nodes=self.classes,
            distinct=self.distinct,
            common=self.common,
        )
        quarter = 3 * self.steps // 4
        drawn = np.unique(np.append(np.arange(0, self.steps, self.record_every), self.steps))
        tokens = np.arange(course.node.shape[-1])
        tables = []
        for run in range(self.runs):
            node = course.node[:, run]
            step, token = np.meshgrid(course.steps[drawn], tokens, indexing="ij")
            curve = {"step": step.ravel(), "token": token.ravel(), "value": node[drawn].ravel()}
            labels = {"run": run, "attention": attention, "metric": "weight"}
            tables.append(pd.DataFrame({"table": "components", **labels, **curve}))
            norm = np.sqrt(course.squares[:, run])
            measured = {
                "weight": node[-1],
                "weight_growth": np.abs(node[-1] - node[quarter]) / np.abs(node[-1]),
                "norm": norm[-1],
                "norm_growth": np.abs(norm[-1] - norm[quarter]) / norm[-1],
                **self._theorem2(course.frequencies[run]),
            }
            for metric, values in measured.items():
                row = {"run": run, "attention": attention, "metric": metric, "token": tokens, "value": values}
                tables.append(pd.DataFrame({"table": "final", **row}))
        return pd.concat(tables, ignore_index=True).assign(layer=0, unit="1")

    def _theorem2(self, frequencies: np.ndarray) -> dict[str, np.ndarray]:
        """Drive and losers' limits (infinite for the winner) from the gradients at the start."""
        import numpy as np

        from joma.data.frequencies import drive
        from joma.theory.winner_take_all import WinnerTakeAll

        delta = drive(frequencies, np.eye(self.classes) - 1 / self.classes)
        theorem = WinnerTakeAll(
            drive=delta, attention_rate=self.rate, weight_rate=self.rate, temperature=self.temperature
        )
        limits = theorem.limits()
        return {
            "drive": np.linalg.norm(delta, axis=0),
            "weight_limit": limits[0],
            "norm_limit": np.linalg.norm(limits, axis=0),
        }

    def draw(self, tables: Mapping[str, pandas.DataFrame]) -> Figure:
        """Components of ``v_0`` of one seed, with and without attention; all seeds' losers and Theorem 2."""
        from joma.reporting.figures import panels

        figure, axes = panels(1, 3, width=4.4, height=3.6)
        figure.set_layout_engine("constrained", wspace=0.06)
        first, final = tables["components"].query("run == 0"), tables["final"]
        seeds = final["run"].nunique()
        limits = _pivot(final, "trained").xs(0, level="run")["weight_limit"]
        shown = list(range(min(SHOWN, len(limits))))
        # Where it ends largest, with attention trained: beside the first tokens, in both panels.
        ended = first.query("attention == 'trained' and step == step.max()").set_index("token")["value"]
        shown = list(dict.fromkeys([*shown, int(ended.abs().idxmax())]))
        axes[0, 1].sharey(axes[0, 0])
        for ax, attention in zip(axes[0, :2], ATTENTION, strict=True):
            curves = first.query("attention == @attention")
            _draw_components(ax, curves, shown, limits if attention == "trained" else None)
            ax.set_title(f"attention {attention} (first of {seeds} seeds)")
        axes[0, 0].legend(loc="lower left", fontsize=7.5)
        _draw_losers(axes[0, 2], _pivot(final, "trained"))
        axes[0, 2].set_title(f"losers against Theorem 2 ({seeds} seeds)")
        return figure

    def claims(self, tables: Mapping[str, pandas.DataFrame]) -> list[Claim]:
        """Saturation, and how far Theorem 2 foretells winner and losers."""
        return _claims(*(_pivot(tables["final"], attention) for attention in ATTENTION))


def _pivot(final: pandas.DataFrame, attention: str) -> pandas.DataFrame:
    """One row per run and token, one column per metric."""
    chosen = final[final["attention"] == attention]
    return chosen.pivot_table(index=["run", "token"], columns="metric", values="value", dropna=False)


def _claims(trained: pandas.DataFrame, frozen: pandas.DataFrame) -> list[Claim]:
    import numpy as np

    from joma.claim import judge

    caption = "JoMA Fig. 3, caption"
    growing = trained["norm_growth"] > GROWING
    node_growing = trained["weight_growth"] > GROWING
    # The winner has the largest drive; in each run, the tokens that still grow, against it alone.
    largest = trained["drive"] == trained.groupby("run")["drive"].transform("max")
    heaviest = trained["norm"] == trained.groupby("run")["norm"].transform("max")
    found = float((largest & heaviest).groupby("run").any().mean())
    winners = float(growing.groupby("run").sum().median())
    losers = trained[~growing & np.isfinite(trained["weight_limit"])]
    runs = trained.index.get_level_values("run").nunique()
    seeds = f"{runs} seeds"
    shuffled = losers["weight_limit"].sample(frac=1, random_state=0).to_numpy()
    correlation = float(np.corrcoef(losers["weight"], losers["weight_limit"])[0, 1])
    slope = float((losers["weight"] * losers["weight_limit"]).sum() / (losers["weight_limit"] ** 2).sum())
    return [
        judge(
            bool(node_growing.any()) and float((~node_growing).mean()) > 0.5,
            id="fig3.saturation",
            source=caption,
            statement="After convergence only some components of v_0 grow; the others are saturated.",
            expected=f"over half of the tokens, not all, change by under {GROWING:.0%} in the last quarter",
            measured=float((~node_growing).mean()),
            tolerance=0.5,
            null=float((frozen["weight_growth"] <= GROWING).mean()),
            null_description="the same share with attention frozen",
            evidence=f"share of saturated components of v_0, {seeds}",
        ),
        judge(
            winners == 1,
            id="fig3.one_winner",
            source="JoMA Thm 2, remarks; Fig. 3",
            statement="One component wins, that of the largest |Delta|, and the rest stays finite.",
            expected="1 growing token",
            measured=winners,
            tolerance=0.0,
            null=float((frozen["norm_growth"] > GROWING).groupby("run").sum().median()),
            null_description="growing tokens with attention frozen",
            evidence=f"median number of tokens whose |v_.l| still grows, {seeds}; the heaviest token has the "
            f"largest |Delta| in {found:.0%} of the runs",
        ),
        judge(
            correlation > 0.9,
            id="fig3.losers_order",
            source=caption + ", 'consistent with Theorem 2'",
            statement="The saturated components end in the order and with the signs that Theorem 2 says.",
            expected="correlation with Theorem 2's limits above 0.9",
            measured=correlation,
            tolerance=0.9,
            null=float(np.corrcoef(losers["weight"], shuffled)[0, 1]),
            null_description="limits shuffled among tokens and runs",
            evidence=f"v_0 of all saturated tokens, {seeds}, Delta taken at the start",
        ),
        judge(
            abs(slope - 1) < 0.1,
            id="fig3.losers_limits",
            source=caption + ", 'consistent with Theorem 2'",
            statement="The saturated components end at Theorem 2's limits (corrected).",
            expected="slope against the limits 1 within 0.1",
            measured=slope,
            tolerance=0.1,
            evidence="least squares through the origin; softmax attention and falling gradients are outside "
            "the theorem's hypotheses",
        ),
    ]


def _draw_components(
    ax: Axes, curves: pandas.DataFrame, shown: list[int], limits: pandas.Series[Any] | None
) -> None:
    """Courses of the tokens ``shown``; where given, Theorem 2's limit of each, in the legend if infinite."""
    import numpy as np

    from joma.reporting.figures import ink

    wide = curves.pivot_table(index="step", columns="token", values="value")
    for token in shown:
        label = f"token {token}"
        if limits is not None and not np.isfinite(limits[token]):
            label += f" (limit {'−' if limits[token] < 0 else '+'}∞)"
        (line,) = ax.plot(wide.index.to_numpy(), wide[token].to_numpy(), label=label)
        if limits is not None and np.isfinite(limits[token]):
            ax.axhline(limits[token], color=line.get_color(), linestyle=":", linewidth=1.2)
    if limits is not None:
        ax.plot([], [], color=ink(), linestyle=":", linewidth=1.2, label="Theorem 2's limit, if finite")
    ax.set(xlabel="gradient steps", ylabel=r"components of $v_0$")


def _draw_losers(ax: Axes, final: pandas.DataFrame) -> None:
    import numpy as np

    from joma.reporting.figures import ink

    losers = final[(final["norm_growth"] <= GROWING) & np.isfinite(final["weight_limit"])]
    ax.plot(losers["weight_limit"], losers["weight"], "o", ms=4, alpha=0.7, label="saturated tokens")
    reach = 1.1 * float(losers["weight_limit"].abs().max())
    ax.plot([-reach, reach], [-reach, reach], color=ink(), linestyle="--", linewidth=1, label="equal")
    ax.set(xlabel="Theorem 2's limit", ylabel="$v_0$ at the end")
    ax.legend(loc="upper left")
