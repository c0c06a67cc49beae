"""JoMA Theorem 5, measured: how the co-occurrence of two tokens falls with the height of their ancestor."""

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

TOLERANCE = 1e-12
FALSE_ALARM = 1e-3


@dataclass(frozen=True, kw_only=True)
class Theorem5(Experiment):
    """P[y_l = 1 | y_m = 1] of two tokens of HBLT(rho) whose common latent ancestor is H edges above them.

    D equally likely classes trigger one subtree each; rho_0 = 1 - 2/D (Theorem 5's own definition gives
    1 - 1/D). Four routes to the same number: enumeration of every state of a small tree; messages passed
    along the path between the tokens (2 x 2 matrices, any depth); tokens drawn from the top down, counted;
    the theorem's formula, as printed and as corrected. Drawn tokens yield one independent pair per sequence,
    so that the standard errors are right.

    Tables: ``cooccurrence`` (rho, H, and one row per route), ``expansion`` (Eq. 8's error for rho = rho_0
    = 1 - eps, as printed and with the term it drops).
    """

    title = "Tokens with a low common ancestor co-occur most: Theorem 5, exact, sampled and as printed"
    reproduces = "JoMA Thm 5, Eq. 8"
    cost = {"quick": "1 s", "paper": "10 s"}
    presets = {
        "quick": {},
        "paper": {"samples": 2_000_000, "depth": 8},
    }

    depth: int = setting(6, "L, edges from the class label to a token", at_least=3, at_most=12)
    edge_correlations: tuple[float, ...] = setting(
        (0.98, 0.9, 0.7), "rho, one curve each", above=0.0, below=1.0
    )
    classes: int = setting(10, "D, classes of the label", at_least=2)
    samples: int = setting(400_000, "sequences drawn", at_least=1000)
    enumerated_depth: int = setting(
        4, "L of the tree that is enumerated (2^(2^L - 1) states)", at_least=3, at_most=4
    )
    expansion: tuple[float, ...] = setting(
        (1e-1, 1e-2, 1e-3, 1e-4, 1e-5), "eps of Eq. 8, falling", above=0.0, below=0.5
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, least in (("edge_correlations", 1), ("expansion", 2)):
            given = getattr(self, name)
            if len(given) < least:
                raise InputError(
                    f"theorem5: setting {name} = {given!r} needs at least {least} different values."
                )

    def run(self, progress: Progress) -> dict[str, pandas.DataFrame]:
        """Tables ``cooccurrence`` and ``expansion``."""
        import pandas as pd

        parts = [
            progress.part(f"rho-{rho:g}", functools.partial(_one_correlation, self, rho))
            for rho in progress.track(self.edge_correlations, "theorem5")
        ]
        return {"cooccurrence": pd.concat(parts, ignore_index=True), "expansion": _expansion(self)}

    def draw(self, tables: Mapping[str, pandas.DataFrame]) -> Figure:
        """Left: co-occurrence against H. Right: the error of Eq. 8, printed and completed."""
        from joma.reporting.figures import PALETTE, ink, panels

        figure: Figure
        figure, axes = panels(1, 2, width=4.9, height=3.9)
        left, right = axes[0]
        deep = tables["cooccurrence"].query("depth == @self.depth")
        for colour, (rho, of_rho) in zip(PALETTE, deep.groupby("edge_correlation", sort=False), strict=False):
            by = {route: rows.set_index("ancestor_height") for route, rows in of_rho.groupby("metric")}
            left.plot(by["formula"]["value"], color=colour, label=f"ρ = {rho:g}")
            left.plot(by["printed formula"]["value"], "--", lw=1.1, color=colour)
            drawn = by["sampled"]
            left.errorbar(
                drawn.index,
                drawn["value"],
                yerr=2 * drawn["standard_error"],
                fmt="o",
                ms=4.5,
                color=colour,
            )
            left.axhline(by["marginal"]["value"].iloc[0], color=colour, lw=0.8, ls=":")
        left.plot([], [], "o", color=ink(), ms=4.5, label="sampled")
        left.plot([], [], "-", color=ink(), label="corrected ρ₀")
        left.plot([], [], "--", color=ink(), lw=1.1, label="printed ρ₀")
        left.plot([], [], ":", color=ink(), lw=0.8, label="P[yₗ = 1], unrelated")
        left.set(xlabel=f"H, height of the common ancestor (L = {self.depth} edges in all)")
        left.set(ylabel="P[yₗ = 1 | yₘ = 1]", title="Co-occurrence falls with the ancestor's height")
        left.set_xticks(range(1, self.depth))
        left.legend(loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=3)
        shown = tables["expansion"]
        names = {"printed": "1 − H/L, as printed", "completed": "with + ε H(2H − L)/(2L)"}
        for colour, (which, label) in zip(PALETTE, names.items(), strict=False):
            for height, curve in shown[shown["metric"] == which].groupby("ancestor_height"):
                right.plot(
                    curve["eps"],
                    curve["value"].abs(),
                    "o-",
                    ms=3.5,
                    lw=1.2,
                    color=colour,
                    alpha=0.75,
                    label=label if height == 1 else None,
                )
        eps = sorted(self.expansion)
        right.plot(eps, [e / 4 for e in eps], ":", color=ink(), label="slopes 1 and 2")
        right.plot(eps, [e**2 / 4 for e in eps], ":", color=ink())
        right.set(xscale="log", yscale="log", xlabel="ε = 1 − ρ = 1 − ρ₀")
        right.set(ylabel="|error| of P", title=f"Eq. 8: its remainder is O(ε), L = {self.depth}")
        right.legend(loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=2)
        return figure

    def claims(self, tables: Mapping[str, pandas.DataFrame]) -> list[Claim]:
        """The formula against enumeration, messages and samples; the print; the order of Eq. 8."""
        import numpy as np
        from scipy.stats import norm

        from joma.claim import correct, judge, within

        table = tables["cooccurrence"]
        wide = table.pivot(
            index=["depth", "edge_correlation", "ancestor_height"], columns="metric", values="value"
        )
        errors = table[table["metric"] == "sampled"].set_index(wide.index.names)["standard_error"]
        small, deep = wide.loc[[self.enumerated_depth]], wide.loc[[self.depth]]
        drawn = deep.dropna(subset="sampled")
        deviation = ((drawn["sampled"] - drawn["formula"]).abs() / errors.loc[drawn.index]).max()
        printed = ((drawn["sampled"] - drawn["printed formula"]).abs() / errors.loc[drawn.index]).max()
        limit = float(norm.isf(FALSE_ALARM / 2 / len(drawn)))
        falls = -deep["sampled"].groupby("edge_correlation").diff().dropna()
        # Counted on the same sequences, two heights deviate together: this noise is on the safe side.
        noise = np.sqrt(errors**2 + errors.groupby("edge_correlation").shift() ** 2).loc[falls.index]
        gain = float((deep.xs(1, level="ancestor_height")["sampled"] / deep["marginal"]).min())
        slopes = _slopes(tables["expansion"])
        return [
            within(
                float((small["enumerated"] - small["formula"]).abs().max()),
                TOLERANCE,
                id="theorem5.enumerated",
                source="JoMA Thm 5 (rho_0 corrected)",
                statement="P[y_l = 1 | y_m = 1] is a function of rho, rho_0, L and H alone.",
                evidence=f"every state of the tree with L = {self.enumerated_depth}, {len(small)} cases",
                null=float((small["enumerated"] - small["marginal"]).abs().min()),
                null_description="the least error of taking the tokens for independent",
            ),
            within(
                float((deep["messages"] - deep["formula"]).abs().max()),
                TOLERANCE,
                id="theorem5.messages",
                source="JoMA Thm 5 (rho_0 corrected)",
                statement="The same in the deep tree, where states are too many to be enumerated.",
                evidence=f"messages along the path, L = {self.depth}, {len(deep)} cases",
            ),
            within(
                float(deviation),
                limit,
                id="theorem5.sampled",
                source="JoMA Thm 5 (rho_0 corrected)",
                statement="Tokens drawn from the tree co-occur as the corrected formula says.",
                evidence=f"largest of {len(drawn)} deviations in standard errors; the tolerance is exceeded "
                f"by chance once in {1 / FALSE_ALARM:.0f} runs",
                null=float(printed),
                null_description="the printed formula's largest deviation",
            ),
            correct(
                id="theorem5.printed_bias",
                source="JoMA Thm 5",
                printed="rho_0 = sum_k P[y_0 = k] P[y_l = 0 | y_0 = k].",
                right="rho_0 = sum_k P[y_0 = k] (2 P[y_l = 0 | y_0 = k] - 1).",
                printed_error=float((small["enumerated"] - small["printed formula"]).abs().max()),
                error=float((small["enumerated"] - small["formula"]).abs().max()),
                tolerance=TOLERANCE,
                evidence=f"enumeration, L = {self.enumerated_depth}, D = {self.classes}",
            ),
            judge(
                bool((falls / noise).min() > limit),
                id="theorem5.falls",
                source="JoMA Sec. 5",
                statement="Two tokens co-occur the more, the lower their common ancestor.",
                expected=f"every step up lowers the sampled one by more than {limit:.2g} standard errors",
                measured=float((falls / noise).min()),
                tolerance=limit,
                null=1.0,
                null_description="one standard error: the typical difference where height does not matter",
                evidence=f"{len(falls)} steps up, the smallest lowers it by {falls.min():.3g}; siblings "
                f"co-occur at least {gain:.2f} times as often as unrelated tokens",
            ),
            correct(
                id="theorem5.order_of_equation_8",
                source="JoMA Eq. 8",
                printed="P = 1 - H/L + O(eps^2): the error falls with the square of eps.",
                right="P = 1 - H/L + eps H(2H - L)/(2L) + O(eps^2): the print's own error is O(eps).",
                printed_error=float((2 - slopes["printed"]).max()),
                error=float(abs(2 - slopes["completed"]).max()),
                tolerance=0.09,
                evidence="2 minus the slope of log |error| against log eps at the two smallest eps, "
                f"every H with 2H != L, L = {self.depth}",
            ),
        ]


def _one_correlation(experiment: Theorem5, rho: float) -> pandas.DataFrame:
    """Every route to the co-occurrence, for one rho: the small tree and the deep one."""
    import pandas as pd

    from joma.experiments.trees import ancestor_heights, enumerate_states, sample, tree_below_classes

    rows: list[dict[str, Any]] = []
    for depth in sorted({experiment.enumerated_depth, experiment.depth}):
        tree = tree_below_classes(classes=experiment.classes, depth=depth, edge_correlation=rho)
        heights = ancestor_heights(len(tree.leaves))[0]
        first, partners = tree.leaves[0], {h: tree.leaves[2 ** (h - 1)] for h in range(1, depth)}
        assert all(heights[2 ** (h - 1)] == h for h in partners)
        found: dict[tuple[str, int], tuple[float, float | None]] = {}
        for height, value in _formulas(experiment, rho, depth).items():
            found |= {(route, height): (number, None) for route, number in value.items()}
            found["messages", height] = (_messages(experiment.classes, rho, depth, height), None)
        if depth == experiment.enumerated_depth:
            states, probability = enumerate_states(tree)
            present = states[:, first] == 1
            appears = float(probability[present].sum())
            for height, partner in partners.items():
                both = float(probability[present & (states[:, partner] == 1)].sum())
                found["enumerated", height] = (both / appears, None)
        if depth == experiment.depth:
            seed = [experiment.seed, round(rho * 1e9)]
            _, values = sample(tree, experiment.samples, seed)
            present = values[values[:, first] == 1]
            if not len(present):
                raise InputError(
                    f"theorem5: token m never appeared in {experiment.samples} samples; draw more."
                )
            for height, partner in partners.items():
                share = float(present[:, partner].mean())
                found["sampled", height] = (share, (share * (1 - share) / len(present)) ** 0.5)
        rows += [
            {
                "run": f"rho-{rho:g}",
                "edge_correlation": rho,
                "depth": depth,
                "ancestor_height": height,
                "metric": route,
                "value": value,
                "standard_error": error,
                "unit": "probability",
            }
            for (route, height), (value, error) in found.items()
        ]
    return pd.DataFrame(rows).astype({"standard_error": "float64"})


def _formulas(experiment: Theorem5, rho: float, depth: int) -> dict[int, dict[str, float]]:
    """H -> the formula with either rho_0, and P[y_l = 1], which unrelated tokens would have."""
    import numpy as np

    from joma.theory.class_labels import printed_root_bias, root_bias
    from joma.theory.latent_tree import cooccurrence

    prior = np.full(experiment.classes, 1 / experiment.classes)
    zero = 1 - np.eye(experiment.classes)[0]
    biases = {"formula": root_bias(prior, zero), "printed formula": printed_root_bias(prior, zero)}
    marginal = (1 - rho ** (depth - 1) * biases["formula"]) / 2
    return {
        height: {
            route: float(cooccurrence(rho, bias, depth=depth, ancestor_height=height))
            for route, bias in biases.items()
        }
        | {"marginal": marginal}
        for height in range(1, depth)
    }


def _messages(classes: int, rho: float, depth: int, height: int) -> float:
    """The same by sum-product along the path, without signs or moments: P[child | parent] as matrices."""
    import numpy as np

    edge = np.array([[1 + rho, 1 - rho], [1 - rho, 1 + rho]]) / 2
    ancestor = np.array([1 - 1 / classes, 1 / classes])
    for _ in range(depth - 1 - height):
        ancestor = edge @ ancestor
    present = np.array([0.0, 1.0])
    for _ in range(height):
        present = edge.T @ present
    return float((present * present * ancestor).sum() / (present * ancestor).sum())


def _expansion(experiment: Theorem5) -> pandas.DataFrame:
    """Eq. 8's error at each eps and H, printed and completed."""
    import pandas as pd

    from joma.theory.latent_tree import cooccurrence, cooccurrence_expansion

    depth, rows = experiment.depth, []
    for eps in sorted(experiment.expansion, reverse=True):
        for height in range(1, depth):
            exact = float(cooccurrence(1 - eps, 1 - eps, depth=depth, ancestor_height=height))
            guesses = {
                "printed": 1 - height / depth,
                "completed": float(cooccurrence_expansion(eps, depth=depth, ancestor_height=height)),
            }
            rows += [
                {
                    "depth": depth,
                    "eps": eps,
                    "ancestor_height": height,
                    "metric": name,
                    "value": exact - guess,
                }
                for name, guess in guesses.items()
                if 2 * height != depth
            ]
    return pd.DataFrame(rows)


def _slopes(expansion: pandas.DataFrame) -> dict[str, NDArray[Any]]:
    """Local slope of log |error| against log eps at the two smallest eps whose errors are above rounding."""
    import numpy as np

    slopes: dict[str, list[float]] = {}
    for (metric, _), curve in expansion.groupby(["metric", "ancestor_height"]):
        seen = curve[curve["value"].abs() > 1e-9].sort_values("eps").head(2)
        x, y = np.log(seen["eps"]), np.log(seen["value"].abs())
        slopes.setdefault(str(metric), []).append(float((y.iloc[1] - y.iloc[0]) / (x.iloc[1] - x.iloc[0])))
    return {metric: np.array(values) for metric, values in slopes.items()}
