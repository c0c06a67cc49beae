"""Theorem 1 under the optimizers that are really used: momentum, Nesterov, weight decay, Adam."""

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
    from joma.dynamics.sgd import Descent
    from joma.progress import Progress

ATTENTION = ("linear", "exp")
OPTIMIZERS = ("sgd", "momentum", "nesterov", "weight decay", "adam", "adamw")
WITH_LAW = ("sgd", "momentum", "weight decay")
CONSTANTS = {"linear": "c = z² − Σₖ vₖ²", "exp": "c = z − Σₖ vₖ²/(2T)"}
"""Theorem 1's constant, as the figure has it."""


@dataclass(frozen=True, kw_only=True)
class Optimizers(Experiment):
    """The block trained on class-conditional data by six optimizers; how far Theorem 1's constant moves.

    The theorem is about gradient flow. Here the same data, initial states and cross-entropy gradient go
    through discrete training with each optimizer, and the constant ``c = z - sum_k v_k^2 / (2T)`` (exp
    attention; ``z^2 - sum_k v_k^2``, linear) is followed. Where :mod:`joma.theory.optimizers` has a law for
    its drift (plain descent, momentum, weight decay), what the law leaves is followed too. Each run is
    repeated with smaller steps over the same course: a drift that is owed to the steps vanishes with them.

    Rates: momentum and Nesterov run at ``rate * (1 - beta)``, Adam at ``adam_rate``; weight decay acts on
    weights and logits alike. Tables: ``drift`` (courses, relative to how far the MLP's side moved), ``rates``
    (drift at the end against the step size), ``attention`` (entropy of the attention in nats; spread of |v|
    over the tokens).
    """

    title = "Theorem 1's invariant under momentum, weight decay and Adam"
    reproduces = "JoMA Thm 1 beyond gradient flow (an open question of the paper)"
    cost: ClassVar[Mapping[str, str]] = {"quick": "20 s", "paper": "10 min"}
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "quick": {},
        "paper": {"classes": 20, "tokens": 20, "seeds": 10, "steps": 2000, "halvings": 3},
    }

    seeds: int = setting(4, "data sets and initial states, trained side by side", at_least=1, at_most=1000)
    classes: int = setting(8, "classes, and MLP nodes", at_least=2, at_most=200)
    tokens: int = setting(10, "contextual tokens", at_least=2, at_most=400)
    steps: int = setting(600, "steps at the largest rate", at_least=10, at_most=100_000)
    rate: float = setting(0.05, "learning rate of plain descent", above=0.0)
    adam_rate: float = setting(0.002, "learning rate of Adam", above=0.0)
    momentum: float = setting(0.9, "beta of momentum and Nesterov", at_least=0.0, below=1.0)
    weight_decay: float = setting(0.03, "lambda of weight decay and AdamW", at_least=0.0)
    halvings: int = setting(2, "how often the steps are halved", at_least=1, at_most=8)

    def run(self, progress: Progress) -> dict[str, pandas.DataFrame]:
        """Every attention, optimizer and step size."""
        import pandas as pd

        cells = [
            (attention, optimizer, halving)
            for attention in ATTENTION
            for optimizer in OPTIMIZERS
            for halving in range(self.halvings + 1)
        ]
        parts = [
            progress.part(
                f"{attention}_{optimizer}_{halving}".replace(" ", "_"),
                partial(self._cell, attention, optimizer, halving),
            )
            for attention, optimizer, halving in progress.track(cells, "optimizers")
        ]
        everything = pd.concat(parts, ignore_index=True)
        tables = {name: everything[everything["table"] == name] for name in ("drift", "rates", "attention")}
        return {name: table.drop(columns="table").reset_index(drop=True) for name, table in tables.items()}

    def _cell(self, attention: str, optimizer: str, halving: int) -> pandas.DataFrame:
        import numpy as np
        import pandas as pd

        from joma.theory.attention import Attention
        from joma.theory.invariants import first_integral, logit_coefficient

        kind = Attention(kind=attention)  # type: ignore[arg-type]  # one of ATTENTION
        run, rate = self._train(kind, optimizer, 0.5**halving)
        v, z = run.context_weights, run.logits
        kept = first_integral(kind, z, v)
        side = logit_coefficient(kind) * np.square(v).sum(axis=-2)
        moved = np.linalg.norm(side - side[0], axis=-1)
        metrics = {"constant": kept - kept[0]}
        law = self._law(kind, optimizer, run, kept[0], rate)
        if law is not None:
            metrics["law"] = kept - law
        labels = {"attention": attention, "optimizer": optimizer, "rate": rate, "dtype": "float64"}
        shown = np.unique(np.geomspace(1, len(run.times) - 1, 60).astype(int))
        frames = []
        for metric, gap in metrics.items():
            size = np.linalg.norm(gap, axis=-1) / np.where(moved > 0, moved, 1.0)
            for seed in range(self.seeds):
                if halving == 0:
                    course = {"table": "drift", "step": run.times[shown], "value": size[shown, seed]}
                    frames.append(pd.DataFrame(course).assign(run=seed, metric=metric, unit="relative"))
                end = {"table": "rates", "step": run.times[-1:], "value": size[-1:, seed]}
                frames.append(pd.DataFrame(end).assign(run=seed, metric=metric, unit="relative"))
        if halving == 0:
            for metric, unit, values in self._attention(kind, run):
                for seed in range(self.seeds):
                    course = {"table": "attention", "step": run.times[shown], "value": values[shown, seed]}
                    frames.append(pd.DataFrame(course).assign(run=seed, metric=metric, unit=unit))
        return pd.concat(frames).assign(**labels)

    def _train(self, kind: Any, optimizer: str, scale: float) -> tuple[Descent, float]:
        import numpy as np

        from joma.data.frequencies import random_classes
        from joma.dynamics import sgd
        from joma.theory.block import Block, CrossEntropyGradient, Embeddings

        rules = {
            "sgd": sgd.Optimizer(),
            "momentum": sgd.Optimizer(kind="momentum", momentum=self.momentum),
            "nesterov": sgd.Optimizer(kind="nesterov", momentum=self.momentum),
            "weight decay": sgd.Optimizer(weight_decay=self.weight_decay),
            "adam": sgd.Optimizer(kind="adam"),
            "adamw": sgd.Optimizer(kind="adam", weight_decay=self.weight_decay, decoupled=True),
        }
        rate = scale * (self.adam_rate if optimizer.startswith("adam") else self.rate)
        if optimizer in ("momentum", "nesterov"):
            rate *= 1 - self.momentum
        rng = np.random.default_rng(self.seed)
        x = np.stack(
            [random_classes(self.classes, tokens=self.tokens, seed=self.seed + s) for s in range(self.seeds)]
        )
        run = sgd.train(
            Block(Embeddings.orthonormal(self.tokens), kind),
            x,
            CrossEntropyGradient(tuple(range(self.classes))),
            weights=0.1 * rng.normal(size=(self.seeds, self.classes, self.tokens + 1)),
            logits=np.full((self.seeds, self.tokens), 1.0),
            steps=round(self.steps / scale),
            weight_rate=rate,
            attention_rate=rate,
            optimizer=rules[optimizer],
        )
        return run, rate

    def _law(
        self, kind: Any, optimizer: str, run: Descent, initial: np.ndarray, rate: float
    ) -> np.ndarray | None:
        """Where the constant should be, by the theory's law for that optimizer."""
        from joma.theory.optimizers import descent_under_decay, momentum_drift

        if optimizer == "weight decay":
            return descent_under_decay(
                kind,
                run.context_weights,
                run.logits,
                weight_decay=self.weight_decay,
                attention_decay=self.weight_decay,
                weight_rate=rate,
                attention_rate=rate,
            )
        if optimizer not in WITH_LAW:
            return None
        beta = self.momentum if optimizer == "momentum" else 0.0
        drift = momentum_drift(kind, run.context_weights, run.logits, momentum=beta)
        return initial + drift

    def _attention(self, kind: Any, run: Descent) -> list[tuple[str, str, np.ndarray]]:
        """Entropy of each seed's mean attention, and how unlike the tokens' weights are."""
        import numpy as np

        from joma.data.frequencies import random_classes

        x = np.stack(
            [random_classes(self.classes, tokens=self.tokens, seed=self.seed + s) for s in range(self.seeds)]
        )
        scores = np.abs(kind.scores(np.broadcast_to(x, (len(run.times), *x.shape)), run.logits))
        shares = (scores / scores.sum(axis=-1, keepdims=True)).mean(axis=-2)
        entropy = -(shares * np.log(np.maximum(shares, 1e-300))).sum(axis=-1)
        sizes = np.linalg.norm(run.context_weights, axis=-2)
        spread = sizes.std(axis=-1) / sizes.mean(axis=-1)
        return [("entropy", "nats", entropy), ("spread", "relative", spread)]

    def draw(self, tables: Mapping[str, pandas.DataFrame]) -> Figure:
        """Drift of c along training, what the laws leave of it, and its end against the step size."""
        from joma.reporting.figures import PALETTE, ink, panels

        figure: Figure
        figure, axes = panels(2, 2, width=5.0, height=3.5)
        figure.set_layout_engine("constrained", wspace=0.05)
        for row, attention in zip(axes, ATTENTION, strict=True):
            for colour, optimizer in zip(PALETTE, OPTIMIZERS, strict=False):
                curve = _select(tables["drift"], attention, optimizer, "constant").groupby("step")["value"]
                dash = "--" if optimizer in ("nesterov", "adamw") else "-"  # on momentum's and adam's
                row[0].plot(curve.median(), dash, color=colour, label=optimizer)
                if optimizer in WITH_LAW:
                    left = _select(tables["drift"], attention, optimizer, "law").groupby("step")["value"]
                    row[0].plot(left.median().clip(lower=1e-17), color=colour, ls=":")
                ends = _select(tables["rates"], attention, optimizer, "constant")
                share = ends.groupby("rate")["value"].median()
                row[1].plot(share.index / share.index.max(), share, f"o{dash}", color=colour)
            row[0].set(xscale="log", yscale="log", ylim=(1e-16, 1e2), xlabel="step")
            row[0].set(
                ylabel="|c − c(0)| / |change of its v² term|",
                title=f"{attention} attention: {CONSTANTS[attention]}",
            )
            row[1].set(xscale="log", yscale="log", xlabel="step size / its largest")
            row[1].set(
                ylabel="|c − c(0)| / |change of its v² term|",
                title=f"{attention} attention: at the end of the course",
            )
            halves = range(self.halvings, -1, -1)
            row[1].set_xticks([0.5**h for h in halves], [f"1/{2**h}" if h else "1" for h in halves])
            row[1].minorticks_off()
        handles, labels = axes[0, 0].get_legend_handles_labels()
        handles += axes[0, 0].plot([], [], ":", color=ink())
        labels.append(f"what the law leaves ({', '.join(WITH_LAW)};\nfor the others none is known)")
        figure.legend(handles, labels, loc="outside lower center", ncols=4)
        figure.suptitle(f"Median of {tables['drift']['run'].nunique()} seeds")
        return figure

    def claims(self, tables: Mapping[str, pandas.DataFrame]) -> list[Claim]:
        """First order in the step for descent and momentum; forgotten under decay; gone under Adam."""
        from joma.claim import judge, within

        found: list[Claim] = []
        source = "JoMA Thm 1, beyond gradient flow"
        for attention in ATTENTION:
            for optimizer in ("sgd", "momentum"):
                law = float(_select(tables["rates"], attention, optimizer, "law")["value"].max())
                constant = float(_select(tables["rates"], attention, optimizer, "constant")["value"].median())
                slope = _order(tables["rates"], attention, optimizer)
                found += [
                    within(
                        law,
                        1e-9,
                        id=f"optimizers.{optimizer}_{attention}_law",
                        source=source,
                        statement=f"{attention} attention, {optimizer}: the drift of the constant is "
                        "known exactly.",
                        null=constant,
                        null_description="the drift itself",
                        evidence="Relative to what the MLP's side moved, largest over seeds and step sizes.",
                    ),
                    judge(
                        abs(slope - 1) < 0.2,
                        id=f"optimizers.{optimizer}_{attention}_order",
                        source=source,
                        statement=f"{attention} attention, {optimizer}: the constant is conserved in "
                        "the limit of small "
                        "steps, at first order.",
                        expected="log-log slope of the drift in the step size of 1",
                        measured=slope,
                        tolerance=0.2,
                        null=_order(tables["rates"], attention, "adam"),
                        null_description="the slope under Adam",
                        evidence=f"Same course, steps down to 1/{2**self.halvings}.",
                    ),
                ]
            decay = float(_select(tables["rates"], attention, "weight decay", "law")["value"].max())
            ignored = _smallest(tables["rates"], attention, "weight decay", "constant")
            found.append(
                within(
                    decay,
                    1e-9,
                    id=f"optimizers.weight_decay_{attention}",
                    source=source,
                    statement=f"{attention} attention, weight decay: the constant is forgotten, and "
                    "where it is at "
                    "each step is known exactly.",
                    null=ignored,
                    null_description="c constant, smallest steps",
                    evidence="Relative to what the MLP's side moved, largest over seeds and step sizes.",
                )
            )
            adam = _smallest(tables["rates"], attention, "adam", "constant")
            slope = _order(tables["rates"], attention, "adam")
            found.append(
                judge(
                    adam > 0.1 and abs(slope) < 0.3,
                    id=f"optimizers.adam_{attention}",
                    source=source,
                    statement=f"{attention} attention: Adam keeps nothing of Theorem 1, however small "
                    "its steps.",
                    expected="relative drift above 0.1 at the smallest steps, slope in the step size near 0",
                    measured=adam,
                    tolerance=0.1,
                    null=_smallest(tables["rates"], attention, "sgd", "constant"),
                    null_description="plain descent at its smallest steps",
                    evidence=f"Slope {slope:.2f} in the step size: the drift is not owed to the steps.",
                )
            )
        return found


def _select(table: pandas.DataFrame, attention: str, optimizer: str, metric: str) -> pandas.DataFrame:
    return table[
        (table["attention"] == attention) & (table["optimizer"] == optimizer) & (table["metric"] == metric)
    ]


def _order(table: pandas.DataFrame, attention: str, optimizer: str) -> float:
    """Log-log slope of the drift at the end in the step size."""
    import numpy as np

    ends = _select(table, attention, optimizer, "constant").groupby("rate")["value"].median()
    return float(np.polyfit(np.log(ends.index), np.log(ends), 1)[0])


def _smallest(table: pandas.DataFrame, attention: str, optimizer: str, metric: str) -> float:
    """Median over the seeds at the smallest steps."""
    chosen = _select(table, attention, optimizer, metric)
    return float(chosen[chosen["rate"] == chosen["rate"].min()]["value"].median())
