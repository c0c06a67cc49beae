"""JoMA Fig. 5(b): which tokens of a latent tree a query associates with first, and do the rest follow?"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from joma.errors import InputError
from joma.experiments.base import Experiment
from joma.runs.job import setting

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from joma.claim import Claim
    from joma.progress import Progress

SIGNIFICANT = 0.05
LEAST_REBOUND = 0.1
WINNER = 0.99
STEP = 0.01
RUNS = {
    "eq6": "Eq. 6, μ from the tree",
    "relu-constant": "ReLU, constant g",
    "linear-constant": "linear, constant g",
    "relu-feedback": "ReLU, g = y − σ(h)",
    "linear-feedback": "linear, g = y − σ(h)",
}


@dataclass(frozen=True, kw_only=True)
class Fig5(Experiment):
    """The order in which a query m is associated with the tokens of its tree, and what the bounce adds.

    The exact distribution of HBLT(rho) below one class: contexts with and without token m, equally
    weighted. One hidden unit behind exp attention learns to tell them apart, by Eq. 2 (the flow, or with
    feedback steps of 0.01) from equal small weights: with g = +1 and -1 held constant (what Theorem 2
    assumes) and with the feedback of a logistic loss, g = y - sigma(h); with ReLU and, as the control,
    linear. Beside them stands what the paper argues with, Eq. 6, its mu proportional to the same contrast
    Delta_l = E[g x_l] = (P[y_l = 1 | y_m = 1] - P[y_l = 1 | y_m = 0]) / 2. The paper's text calls P(l | m)
    alone the signal; without contexts that lack m there would be nothing to tell apart.

    Attention is softmax(z) over the tokens. The null shuffles the tree: the tokens' heights are
    permuted over the tokens, in every way that is different.

    Tables: ``curves`` (run, time, token, height, weight v and logit z), ``entropy`` (run, time),
    ``order`` (run, token: time at which v passes a common level).
    """

    title = "Tokens under the query's lowest ancestor are associated first; do the others follow?"
    reproduces = "JoMA Fig. 5(b), Sec. 5"
    cost = {"quick": "5 s", "paper": "10 s"}
    presets = {"quick": {}, "paper": {"moments": 1500, "time": 600.0}}

    depth: int = setting(4, "L, edges from the class label to a token", at_least=3, at_most=4)
    edge_correlation: float = setting(0.9, "rho", above=0.0, below=1.0)
    classes: int = setting(4, "D, classes of the label", at_least=2)
    time: float = setting(120.0, "end of the flows", above=0.0)
    moments: int = setting(300, "moments recorded", at_least=20)
    start: float = setting(0.02, "initial weight v of every token", above=0.0, at_most=0.5)
    level: float = setting(0.2, "weight at which a token counts as associated", above=0.0)
    largest_target: float = setting(3.0, "largest mu of Eq. 6", above=0.0, at_most=4.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.start < self.level < self.largest_target:
            raise InputError(
                f"fig5: settings start = {self.start}, level = {self.level}, largest_target = "
                f"{self.largest_target}; level must lie between the other two."
            )

    def run(self, progress: Progress) -> dict[str, pandas.DataFrame]:
        """Tables ``curves``, ``entropy`` and ``order``."""
        import pandas as pd

        parts = [
            progress.part(name, functools.partial(_one_run, self, name))
            for name in progress.track(RUNS, "fig5")
        ]
        curves = pd.concat(parts, ignore_index=True)
        return {"curves": curves, "entropy": _entropy(curves), "order": _order(curves, self.level)}

    def draw(self, tables: Mapping[str, pandas.DataFrame]) -> Figure:
        """Attention to the tokens of each height, run by run; last, the entropies."""
        from joma.reporting.figures import PALETTE, panels

        figure: Figure
        figure, axes = panels(2, 3, width=4.1, height=3.0)
        flat = list(axes.ravel())
        for axis, (run, label) in zip(flat, RUNS.items(), strict=False):
            part = tables["curves"][tables["curves"]["run"] == run]
            for colour, (height, tokens) in zip(PALETTE, part.groupby("height"), strict=False):
                mean = tokens.groupby("time")["attention"].mean()
                axis.plot(mean, color=colour, label=f"H = {height}")
            axis.set(title=label, xlabel="time", ylabel="attention per token", ylim=(0, 1))
            axis.set_xscale("log")
        flat[0].legend(loc="upper right")
        for colour, (run, curve) in zip(PALETTE, tables["entropy"].groupby("run", sort=False), strict=False):
            flat[5].plot(curve["time"], curve["value"], color=colour, label=RUNS[str(run)])
        flat[5].set(xscale="log", xlabel="time", ylabel="attention entropy (nats)", title="Does it bounce?")
        flat[5].set_ylim(0, 1.2 * tables["entropy"]["value"].max())
        flat[5].legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2, fontsize=7.5)
        return figure

    def claims(self, tables: Mapping[str, pandas.DataFrame]) -> list[Claim]:
        """Order for each run; whether the rest follow, in Eq. 6 and in the block; the linear control."""
        from joma.claim import judge

        rebounds = {run: _rebound(part) for run, part in tables["entropy"].groupby("run")}
        shares = {run: _sibling_share(part) for run, part in tables["curves"].groupby("run")}
        associated = tables["order"].query("run == 'eq6'")["time"].notna().mean()
        orders = [_order_claim(run, tables["order"]) for run in RUNS]
        return [
            *orders,
            judge(
                bool(rebounds["eq6"] >= LEAST_REBOUND and associated == 1),
                id="fig5.rest_follows_in_equation_6",
                source="JoMA Sec. 5, Fig. 5(b), Eq. 6",
                statement="Under Eq. 6 attention spreads again: it gradually reaches out to the tokens that "
                "co-occur less.",
                expected=f"attention entropy rises by at least {LEAST_REBOUND} nats after its dip and every "
                "token is associated",
                measured=rebounds["eq6"],
                tolerance=LEAST_REBOUND,
                null=rebounds["linear-constant"],
                null_description="rebound of the block with linear activation and constant g",
                evidence=f"{associated:.0%} of the tokens are associated by the end",
            ),
            judge(
                rebounds["relu-feedback"] >= LEAST_REBOUND,
                id="fig5.rest_follows_in_block",
                source="JoMA Sec. 5, Fig. 5(b)",
                statement="In the block itself, trained through ReLU with the feedback of its loss, "
                "attention spreads again.",
                expected=f"attention entropy rises by at least {LEAST_REBOUND} nats after its dip",
                measured=rebounds["relu-feedback"],
                tolerance=LEAST_REBOUND,
                null=rebounds["linear-feedback"],
                null_description="the same with linear activation",
                evidence=f"nats; with constant g {rebounds['relu-constant']:.3g}",
            ),
            judge(
                shares["linear-constant"] >= WINNER and rebounds["linear-constant"] < LEAST_REBOUND,
                id="fig5.linear_control",
                source="JoMA Thm 2",
                statement="With linear activation and constant g the sibling takes all attention and the "
                "rest never follow.",
                expected=f"the sibling ends with at least {WINNER} of the attention, without a rebound",
                measured=shares["linear-constant"],
                tolerance=WINNER,
                null=1 / (2 ** (self.depth - 1) - 1),
                null_description="its share at the start",
                evidence=f"rebound {rebounds['linear-constant']:.3g} nats, up to the blow-up",
            ),
            judge(
                rebounds["relu-constant"] >= LEAST_REBOUND > rebounds["linear-constant"],
                id="fig5.nonlinearity_alone",
                source="JoMA Sec. 4, Sec. 5",
                statement="It is the nonlinearity that lets the rest follow: with the same constant g, ReLU "
                "rebounds where linear does not.",
                expected=f"rebound of at least {LEAST_REBOUND} nats with ReLU, less with linear",
                measured=rebounds["relu-constant"],
                tolerance=LEAST_REBOUND,
                null=rebounds["linear-constant"],
                null_description="rebound with linear activation",
                evidence=f"the sibling ends with {shares['relu-constant']:.3f} of the attention under ReLU, "
                f"{shares['linear-constant']:.3f} under linear",
            ),
        ]


def contexts(experiment: Fig5) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any]]:
    """All contexts of token m, exactly: y (2N, M), whether m is there (2N,), probability (2N,), heights (M,).

    Contexts with m and without it weigh one half each.
    """
    import numpy as np

    from joma.experiments.trees import ancestor_heights, enumerate_states, tree_below_classes

    tree = tree_below_classes(
        classes=experiment.classes, depth=experiment.depth, edge_correlation=experiment.edge_correlation
    )
    states, probability = enumerate_states(tree)
    size = len(tree.leaves)
    codes = states[:, tree.leaves].astype(np.int64) @ (1 << np.arange(size))
    weights = np.bincount(codes, weights=probability, minlength=2**size)
    patterns = (np.arange(2**size)[:, None] >> np.arange(size)) & 1
    present = patterns[:, 0]
    for value in (0, 1):
        weights[present == value] /= 2 * weights[present == value].sum()
    return patterns[:, 1:].astype(np.float64), present, weights, ancestor_heights(size)[0, 1:]


def _one_run(experiment: Fig5, name: str) -> pandas.DataFrame:
    """One flow as a table: time, token, height, v, z, attention."""
    import numpy as np
    import pandas as pd
    from scipy.special import softmax

    present, is_there, weights, heights = contexts(experiment)
    sign = 2.0 * is_there - 1
    times = np.concatenate([[0.0], np.geomspace(experiment.time / 1e4, experiment.time, experiment.moments)])
    tokens = len(heights)
    if name == "eq6":
        from joma.dynamics.salience_flow import integrate

        contrast = (weights * sign) @ present
        mu = experiment.largest_target * contrast / contrast.max()
        # Past the convergence of the slowest component nothing changes any more.
        course = integrate(mu, times, v0=experiment.start)
        v = np.asarray(mu * (1 - course.side * np.exp(-course.log_inverse_delta)))
        z = v**2 / 2
    else:
        from scipy.special import expit

        from joma.dynamics.block_flow import Trajectory, solve
        from joma.dynamics.sgd import train
        from joma.theory.activation import activation
        from joma.theory.attention import Attention
        from joma.theory.block import Activity, Block, Embeddings

        kind, feedback = name.split("-")

        def gradient(_: float, activity: Activity) -> NDArray[Any]:
            if feedback == "constant":
                return np.broadcast_to(sign[:, None], activity.hidden.shape)
            return is_there[:, None] - np.asarray(expit(activity.hidden))

        weight = np.full((1, tokens + 1), experiment.start)
        # The bias starts at zero: it is the query's own component.
        weight[0, -1] = 0.0
        logits = np.full(tokens, experiment.start**2 / 2)
        block = Block(Embeddings.orthonormal(tokens), Attention(kind="exp"), activation(kind))
        found: Trajectory
        chosen: Any = slice(None)
        if feedback == "constant":
            state: dict[str, Any] = {"weights": weight, "logits": logits, "sample_weights": weights}
            ended = solve(block, present, gradient, times=times, **state).blow_up_time
            if ended is not None:
                # The winner takes all in the last instants.
                near = ended - np.geomspace(0.1 * ended, 1e-9 * ended, 60)
                times = np.union1d(times[times < ended], near)
            found = solve(block, present, gradient, times=times, **state)
            times = found.times
        else:
            # Small steps rather than the flow, which slides along ReLU's kink.
            found = train(
                block,
                present,
                gradient,
                weights=weight,
                logits=logits,
                steps=round(experiment.time / STEP),
                weight_rate=STEP,
                attention_rate=STEP,
                sample_weights=weights,
            )
            chosen = np.unique((times / STEP).round().astype(int))
            times = found.times[chosen] * STEP
        v, z = found.context_weights[chosen, 0], found.logits[chosen]
    attention = softmax(z, axis=-1)
    steps, token = np.meshgrid(np.arange(len(times)), np.arange(tokens), indexing="ij")
    return pd.DataFrame(
        {
            "run": name,
            "time": times[steps.ravel()],
            "token": token.ravel(),
            "height": heights[token.ravel()],
            "weight": v.ravel(),
            "logit": z.ravel(),
            "attention": attention.ravel(),
        }
    )


def _entropy(curves: pandas.DataFrame) -> pandas.DataFrame:
    """Attention entropy (nats) over time."""
    from scipy.special import entr

    terms = curves.assign(value=entr(curves["attention"]))
    return terms.groupby(["run", "time"], sort=False)["value"].sum().reset_index().assign(unit="nats")


def _order(curves: pandas.DataFrame, level: float) -> pandas.DataFrame:
    """When each token's weight first passes the level, between moments linearly; missing if never."""
    import numpy as np
    import pandas as pd

    rows = []
    for (run, token), part in curves.groupby(["run", "token"], sort=False):
        v, t = part["weight"].to_numpy(), part["time"].to_numpy()
        above = np.flatnonzero(v >= level)
        when = None
        if len(above) and above[0] > 0:
            i = above[0]
            when = t[i - 1] + (t[i] - t[i - 1]) * (level - v[i - 1]) / (v[i] - v[i - 1])
        rows.append({"run": run, "token": token, "height": part["height"].iloc[0], "time": when})
    return pd.DataFrame(rows).astype({"time": "float64"})


def _order_claim(run: str, order: pandas.DataFrame) -> Claim:
    """Rank correlation of height and moment, against every way to shuffle the tree."""
    import numpy as np
    from scipy.stats import rankdata, spearmanr

    from joma.claim import judge
    from joma.experiments.fig5.permutations import distinct_permutations

    part = order[order["run"] == run]
    heights, times = part["height"].to_numpy(), part["time"].to_numpy()
    # Moments that differ by the solver's error are the same moment: the tokens of one height are alike.
    moments = np.array([float(f"{t:.6g}") if np.isfinite(t) else np.inf for t in times])
    ranks = rankdata(moments)
    if len(set(ranks)) < 2:
        found, shuffled = 0.0, np.zeros(1)
    else:
        found = float(spearmanr(heights, ranks).statistic)
        shuffled = np.array([spearmanr(h, ranks).statistic for h in distinct_permutations(heights)])
    by_height = part.assign(time=moments).groupby("height")["time"].mean()
    probability = float(np.mean(shuffled >= found - 1e-9))
    first = bool((heights[moments == moments.min()] == heights.min()).all())
    listed = ", ".join(f"H = {h}: {t:.3g}" for h, t in by_height.items())
    return judge(
        first and probability < SIGNIFICANT,
        id=f"fig5.order_{run.replace('-', '_')}",
        source="JoMA Sec. 5, Fig. 5(b)",
        statement=f"Tokens under the query's lowest ancestor are associated first ({RUNS[run]}).",
        expected=f"the sibling first, moments ordered by height beyond a shuffled tree, p < {SIGNIFICANT}",
        measured=found,
        tolerance=None,
        null=float(np.quantile(shuffled, 1 - SIGNIFICANT)),
        null_description="rank correlation that 1 in 20 shuffled trees exceeds",
        evidence=f"moments {listed} (inf: never); p = {probability:.2g} of {len(shuffled)} trees",
    )


def _rebound(entropy: pandas.DataFrame) -> float:
    value = entropy.sort_values("time")["value"].to_numpy()
    return float(value[value.argmin() :].max() - value.min())


def _sibling_share(curves: pandas.DataFrame) -> float:
    last = curves[curves["time"] == curves["time"].max()]
    return float(last[last["height"] == last["height"].min()]["attention"].sum())
