"""JoMA's linear case and Scan&Snap: the same dynamics, but for one normalisation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from joma.experiments.base import Experiment
from joma.runs.job import setting

if TYPE_CHECKING:
    import numpy as np
    import pandas
    from matplotlib.figure import Figure

    from joma.claim import Claim
    from joma.data.next_token import NextTokenData
    from joma.dynamics.token_flow import TokenTrajectory
    from joma.progress import Progress

JOMA, PLAIN, NORMALISED = "JoMA block", "Y/Z", "Y/Z normalised"
KEYS = ["next_tokens", "common_weight", "eta_z"]


@dataclass(frozen=True, kw_only=True)
class LinearAgrees(Experiment):
    """The block of JoMA with linear activation and softmax attention beside Scan&Snap's Y and Z.

    JoMA's hidden nodes are the logits of a cross-entropy loss, its contextual tokens the frequencies P(l|n):
    then w_k is column k of Y and z is Z's row, and both theories speak of one flow, except that Scan&Snap
    divides what attention gathers by its length. Three flows from Y = Z = 0 on the same data: the block
    (simulated by JoMA's equations, all M nodes), Y/Z without that division, Y/Z with it.

    Tables: ``agreement`` (differences, invariants and fates for each data set and eta_Z), ``curves``
    (entropies and the common token's share over time), ``logits`` (where each token's logit ends),
    ``uninformative`` (the change of entropy where the context says nothing about the next token, because
    all share one distribution: the null).
    """

    title = "JoMA's linear case beside Scan&Snap: one flow, but for a normalisation"
    reproduces = "JoMA Sec. 1 and 4 (linear activation), Scan&Snap Thm 2"
    cost: ClassVar[Mapping[str, str]] = {"quick": "20 s", "paper": "2 min"}
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "quick": {},
        "paper": {"next_tokens": (2, 3, 5), "common_weights": (0.5, 1.0, 2.0, 5.0)},
    }

    next_tokens: tuple[int, ...] = setting((2, 3), "K of the data sets", at_least=2)
    common_weights: tuple[float, ...] = setting(
        (0.5, 5.0), "weight of the common token before normalisation; distinct ones 0.1 to 1", above=0.0
    )
    eta_z: tuple[float, ...] = setting(
        (0.01, 0.1, 1.0), "learning rates of attention; eta_Y = 1", above=0.0, at_most=100.0
    )
    distinct: int = setting(6, "distinct tokens of each next token", at_least=2)
    horizon: float = setting(1e4, "time at the end", at_least=10.0, at_most=1e6)

    def run(self, progress: Progress) -> dict[str, pandas.DataFrame]:
        """Three flows for each data set and rate."""
        from functools import partial

        import pandas as pd

        cells = [(k, w, z) for k in self.next_tokens for w in self.common_weights for z in self.eta_z]
        parts = []
        for k, w, z in progress.track(cells, "data sets and rates"):
            compute = partial(_cell, self._data(k, w), z, self.horizon)
            cell = progress.part(f"flows-{k}-{w:g}-{z:g}", compute)
            parts.append(cell.assign(next_tokens=k, common_weight=w, eta_z=z))
        everything = pd.concat(parts, ignore_index=True)
        names = ("agreement", "curves", "logits", "uninformative")
        return {
            name: everything[everything["table"] == name]
            .drop(columns="table")
            .dropna(axis=1, how="all")
            .reset_index(drop=True)
            for name in names
        }

    def _data(self, classes: int, weight: float) -> NextTokenData:
        from joma.data.next_token import graded_tokens

        return graded_tokens(next_per_last=classes, common=1, distinct=self.distinct, common_weight=weight)

    def draw(self, tables: Mapping[str, pandas.DataFrame]) -> Figure:
        """Where attention goes over time, how sparse it is, and how each token ends."""
        from joma.reporting.figures import PALETTE, ink, panels

        last = tables["agreement"][KEYS].iloc[-1]
        curves, logits = (
            table[(table[KEYS] == last).all(axis=1)] for table in (tables["curves"], tables["logits"])
        )
        figure, axes = panels(1, 3, width=4.2, height=3.5)
        looks: dict[str, dict[str, Any]] = {
            PLAIN: {"color": PALETTE[0], "label": "Y/Z, not normalised"},
            JOMA: {"color": ink(), "label": "JoMA's block, linear", "linestyle": "none", "marker": "."},
            NORMALISED: {"color": PALETTE[1], "label": "Scan&Snap (Y/Z, normalised)"},
        }
        for column, (metric, label, title) in enumerate(
            (
                ("common share", "share of attention", "The common token"),
                ("entropy of distinct tokens", "entropy (nats)", "Attention among the distinct tokens"),
            )
        ):
            for name, look in looks.items():
                line = curves[(curves["run"] == name) & (curves["metric"] == metric) & (curves["time"] > 0)]
                axes[0, column].semilogx(line["time"], line["value"], **look)
            axes[0, column].set(xlabel="time $t$ ($\\eta_Y$ = 1)", ylabel=label, title=title)
        axes[0, 0].set_ylim(0, 1.35)
        axes[0, 0].legend(loc="upper left")
        for name, look in looks.items():
            ends = logits[(logits["run"] == name) & (logits["kind"] == "distinct")]
            marker = {"marker": "o", "linestyle": "none", "markersize": 4, **look, "label": None}
            axes[0, 2].plot(ends["probability"], ends["value"], **marker)
            common = logits[(logits["run"] == name) & (logits["kind"] == "common")]["value"].iloc[0]
            style = ":" if name == JOMA else "--"
            axes[0, 2].axhline(common, color=look["color"], linewidth=1, linestyle=style)
        axes[0, 2].set(
            xlabel="probability $P(l\\,|\\,n)$ of a distinct token",
            ylabel="attention logit $z_l$ at the end",
            title="Fates (dashed: the common token)",
        )
        return figure

    def claims(self, tables: Mapping[str, pandas.DataFrame]) -> list[Claim]:
        """Where the two theories are one, and where they are not."""
        from joma.claim import correct, judge, within

        numbers = tables["agreement"].pivot_table(index=KEYS, columns=["run", "metric"], values="value")
        cells, null = len(numbers), tables["uninformative"]["value"]
        source = "JoMA Sec. 1"

        def column(metric: str, *runs: str) -> pandas.DataFrame:
            return numbers[[(run, metric) for run in runs]]

        difference = float(column("logits, difference to Y/Z", JOMA).to_numpy().max())
        moved = column("attention moved against the block", NORMALISED).to_numpy()
        sparser = column("entropy of distinct tokens, change", JOMA).to_numpy()
        whole = column("entropy, change", JOMA, NORMALISED).to_numpy()
        fates = column("common falls and distinct rise", JOMA, NORMALISED).mean()
        winner = column("strongest token gains most", JOMA, NORMALISED).to_numpy()
        return [
            correct(
                id="linear_agrees.coincide",
                source=source,
                printed="For linear activation, JoMA coincides with Scan&Snap.",
                right="It is Scan&Snap without the division by |c_n|, exactly; with that division attention "
                "goes elsewhere.",
                printed_error=float(moved.max()),
                error=difference,
                tolerance=1e-6,
                evidence=f"{cells} data sets and rates, softmax attention, cross-entropy. Right: largest "
                "difference of logits between the block and plain Y/Z. Printed: share of attention elsewhere "
                f"with the normalisation ({moved.min():.2g} to {moved.max():.2g})",
            ),
            judge(
                bool(sparser.max() < 0),
                id="linear_agrees.sparse",
                source=source,
                statement="For linear activation attention becomes sparse (entropy among distinct tokens).",
                expected="a negative change (nats) everywhere",
                measured=float(sparser.max()),
                tolerance=0.0,
                null=float(null.median()),
                null_description="same tokens, context that says nothing of the next token (median)",
                evidence=f"{cells} data sets and rates: {sparser.min():.2g} to {sparser.max():.2g} (block); "
                f"the null falls in {int((null < 0).sum())} of {cells}",
            ),
            judge(
                bool(whole.max() < 0),
                id="linear_agrees.sparse_as_a_whole",
                source=source,
                statement="The entropy of attention over all tokens falls, normalised or not.",
                expected="a negative change (nats) everywhere",
                measured=float(whole.max()),
                tolerance=0.0,
                evidence=f"it falls in {int((whole[:, 0] < 0).sum())} of {cells} runs of the block and in "
                f"{int((whole[:, 1] < 0).sum())} with normalisation: a heavy common token that falls "
                "spreads attention over the others",
            ),
            judge(
                bool(winner.min() == 1),
                id="linear_agrees.winner",
                source="JoMA Thm 2; Scan&Snap Thm 3",
                statement="Of a next token's distinct tokens the most frequent gains most, in both.",
                expected="true everywhere",
                measured=float(winner.mean()),
                tolerance=1.0,
                evidence=f"share of {2 * cells} runs",
            ),
            judge(
                bool(fates.loc[(JOMA, "common falls and distinct rise")] == 1),
                id="linear_agrees.fates",
                source="Scan&Snap Thm 2, for JoMA's linear case",
                statement="The common token falls and every distinct token rises.",
                expected="true in every run, as it is with normalisation",
                measured=float(fates.loc[(JOMA, "common falls and distinct rise")]),
                tolerance=1.0,
                null=float(fates.loc[(NORMALISED, "common falls and distinct rise")]),
                null_description="the share with Scan&Snap's normalisation",
                evidence=f"share of {cells} runs of JoMA's block: without normalisation weak distinct ones "
                "fall and a heavy common token may rise",
            ),
            within(
                float(column("integral, residual", JOMA, NORMALISED).to_numpy().max()),
                1e-9,
                null=float(
                    column("integral without correction, residual", JOMA, NORMALISED).to_numpy().min()
                ),
                null_description="without the correction",
                id="linear_agrees.integral",
                source="JoMA Thm 1, softmax",
                statement="z' = (eta_Z/eta_Y) d/dt [sum_k v_k^2/2] less a correction: JoMA's exact integral "
                "is Scan&Snap's too, normalised or not.",
                evidence="relative residual at every stored state; correction c (c . g), or f^2 (f . g) with "
                "f = c/|c|",
            ),
            within(
                float(column("sum of logits, drift", JOMA, NORMALISED).to_numpy().max()),
                1e-6,
                id="linear_agrees.sum",
                source="JoMA Thm 1, softmax",
                statement="The sum of the attention logits is conserved, normalised or not.",
                evidence=f"largest |1'z(t) - 1'z(0)| over {cells} data sets and rates",
            ),
        ]


def _cell(data: NextTokenData, eta_z: float, horizon: float) -> pandas.DataFrame:
    """All tables' rows of one data set and rate, told apart by the column ``table``."""
    import numpy as np
    import pandas as pd

    from joma.data.next_token import NextTokenData
    from joma.dynamics.token_flow import strongest_distinct, token_flow

    times = np.concatenate([[0.0], np.geomspace(0.1, horizon, 61)])
    flows = {
        name: token_flow(data, eta_y=1.0, eta_z=eta_z, times=times, normalised=name == NORMALISED)
        for name in (PLAIN, NORMALISED)
    }
    logits = {
        JOMA: _block_logits(data, eta_z, times),
        **{name: flow.logits[:, 0] for name, flow in flows.items()},
    }
    own, strongest = np.flatnonzero(data.distinct[0]), int(strongest_distinct(data)[0])
    common = int(np.flatnonzero(data.common)[0])
    share = {name: _share(data, z) for name, z in logits.items()}
    rows: list[dict[str, Any]] = []
    for name, z in logits.items():
        entropies = {
            "entropy": _entropy(share[name]),
            "entropy of distinct tokens": _entropy(share[name][:, own]),
        }
        flow = flows[NORMALISED if name == NORMALISED else PLAIN]
        moved = np.abs(share[name] - share[JOMA]).sum(axis=1).max() / 2
        numbers = {
            "logits, difference to Y/Z": np.abs(z - logits[PLAIN]).max(),
            "attention moved against the block": moved,
            "sum of logits, drift": np.abs(z.sum(axis=1)).max(),
            "integral, residual": _integral_residual(flow),
            "integral without correction, residual": _integral_residual(flow, corrected=False),
            "common falls and distinct rise": z[-1, common] < 0 and z[-1, own].min() > 0,
            "strongest token gains most": own[z[-1, own].argmax()] == strongest,
            **{f"{metric}, change": curve[-1] - curve[0] for metric, curve in entropies.items()},
        }
        rows += [
            {"table": "agreement", "run": name, "metric": metric, "value": float(value)}
            for metric, value in numbers.items()
        ]
        for metric, curve in {**entropies, "common share": share[name][:, common]}.items():
            unit = "nats" if "entropy" in metric else "1"
            label = {"table": "curves", "run": name, "metric": metric, "unit": unit}
            rows += [{**label, "time": t, "value": float(v)} for t, v in zip(times, curve, strict=True)]
        for token in (common, *own.tolist()):
            rows.append(
                {
                    "table": "logits",
                    "run": name,
                    "token": token,
                    "kind": "common" if token == common else "distinct",
                    "probability": float(data.conditional[0, token]),
                    "value": float(z[-1, token]),
                }
            )
    mean = np.tile(data.prior @ data.conditional, (data.classes, 1))
    same = NextTokenData(mean, data.last_of_next, outputs=data.logits)
    alike = token_flow(
        same, eta_y=1.0, eta_z=eta_z, times=times[[0, -1]], normalised=False, rtol=1e-6, atol=1e-9
    )
    entropy = _entropy(alike.mass[:, 0][:, own])
    change = {"metric": "entropy of distinct tokens, change", "value": float(entropy[1] - entropy[0])}
    rows.append({"table": "uninformative", "run": PLAIN, **change})
    return pd.DataFrame(rows)


def _block_logits(data: NextTokenData, eta_z: float, times: np.ndarray) -> np.ndarray:
    """z(t) (times, C) of JoMA's block: linear activation, softmax attention, a node for every logit."""
    import numpy as np

    from joma.dynamics import block_flow
    from joma.theory.block import Block, CrossEntropyGradient, Embeddings

    embeddings = Embeddings.orthonormal(data.contextual_tokens, residual=False)
    trajectory = block_flow.solve(
        Block(embeddings),
        data.conditional,
        CrossEntropyGradient(tuple(range(data.classes))),
        weights=np.zeros((data.logits, embeddings.dimension)),
        logits=np.zeros(data.contextual_tokens),
        times=times,
        sample_weights=data.prior,
        attention_rate=eta_z,
        rtol=1e-9,
        atol=1e-12,
    )
    return np.asarray(trajectory.logits)


def _share(data: NextTokenData, logits: np.ndarray) -> np.ndarray:
    """c_0(t) (times, C): the attention of next token 0."""
    from joma.theory.scan_snap.equations import attended

    return attended(data.conditional[0], logits)


def _entropy(share: np.ndarray) -> np.ndarray:
    """Entropy in nats of the shares along the last axis, scaled to sum one."""
    import numpy as np
    from scipy.special import entr

    total = share.sum(axis=-1, keepdims=True)
    return np.asarray(entr(share / total).sum(axis=-1))


def _integral_residual(flow: TokenTrajectory, *, corrected: bool = True) -> float:
    """How far z'/eta_Z is from JoMA's Theorem 1, sum_k Y_k Y_k'/eta_Y - E[correction], relative.

    ``corrected=False`` leaves the correction out, as exp attention would have it.
    """
    import numpy as np

    worst = 0.0
    for index in range(1, flow.times.size):
        v = flow.at(index)
        along = (v.features * v.backpropagated).sum(axis=1, keepdims=True)
        dropped = flow.data.prior @ (v.features**2 * along if flow.normalised else v.features * along)
        gathered = (flow.decoder[index] * v.decoder * flow.multiplicity).sum(axis=1) / flow.eta_y
        gap = np.abs(v.logits[0] / flow.eta_z - (gathered - corrected * dropped)).max()
        worst = max(worst, float(gap / max(np.abs(gathered).max(), np.abs(dropped).max())))
    return worst
