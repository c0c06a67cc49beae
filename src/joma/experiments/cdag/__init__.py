"""The draft "Multi-layer Analysis" (CDAG), measured in a network: do gradients pass the task down?"""

from __future__ import annotations

import functools
import itertools
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

LEVELS = ("class", "upper latents", "lower latents")
ZERO = 1e-9


@dataclass(frozen=True, kw_only=True)
class Cdag(Experiment):
    """Correlations of latents with activations and back-propagated gradients, layer by layer in training.

    Tokens of HBLT(rho), L = 4, below D classes that each trigger a subtree of their own, enter a network of
    two equally wide hidden ReLU layers that learns the class (full batch, gradient ascent on the
    log-likelihood). At chosen steps every quadruple (node j, label alpha, child k, latent beta) is looked
    at: the draft's hypotheses corr(z_alpha, s_j), corr(z_beta, f_k), |corr(z_alpha, z_beta)| above a
    threshold, its conclusion corr(z_beta, g_jk) > 0, and the condition a + b + c < pi/2 on the three
    angles, which :func:`joma.theory.feature_graph.angle_sum` proves sharp. The gradient passed down is
    computed with the draft's weight corr(f_k, s_j) and with the network's own. Correlations are cosines
    over the samples, latents centred. Nulls: the untrained network; latents permuted over the samples.

    Tables: ``quadruples`` (shares, per step and layer), ``alignment`` (mean over latents of the best
    correlation, per step, layer and level of the hierarchy).
    """

    title = "Do back-propagated gradients hand lower latents down? The CDAG theorem inside a network"
    reproduces = "JoMA, appended draft (CDAG), Theorem 1 and its recursion"
    cost = {"quick": "10 s", "paper": "2 min"}
    presets = {
        "quick": {},
        "paper": {"seeds": 8, "samples": 4000, "steps": 2000, "width": 48},
    }

    classes: int = setting(4, "D, classes of the label", at_least=2, at_most=8)
    edge_correlation: float = setting(0.9, "rho", above=0.0, below=1.0)
    samples: int = setting(1000, "sequences, all in every step", at_least=10)
    width: int = setting(24, "nodes of each hidden layer", at_least=2)
    steps: int = setting(400, "gradient steps", at_least=4)
    learning_rate: float = setting(0.5, "step size", above=0.0)
    measurements: int = setting(9, "moments measured, the first and the last included", at_least=3)
    seeds: int = setting(3, "networks and data sets", at_least=1)
    least_correlation: float = setting(0.1, "C1 = C2 = C3 of the draft's hypotheses", at_least=0.0, below=1.0)

    def measured_steps(self) -> list[int]:
        """Step 0, then ever sparser."""
        import numpy as np

        later = np.geomspace(1, self.steps, self.measurements - 1).round().astype(int)
        return sorted({0, *later.tolist()})

    def run(self, progress: Progress) -> dict[str, pandas.DataFrame]:
        """Tables ``quadruples`` and ``alignment``."""
        import pandas as pd

        parts = [
            progress.part(f"seed-{seed}", functools.partial(_one_network, self, seed))
            for seed in progress.track(range(self.seed, self.seed + self.seeds), "cdag")
        ]
        table = pd.concat(parts, ignore_index=True)
        quadruples = table["level"].isna()
        return {
            "quadruples": table[quadruples].drop(columns="level").reset_index(drop=True),
            "alignment": table[~quadruples].reset_index(drop=True),
        }

    def draw(self, tables: Mapping[str, pandas.DataFrame]) -> Figure:
        """Left: how often the conclusion fails. Middle and right: alignment of activations and gradients."""
        from joma.reporting.figures import PALETTE, ink, panels

        figure: Figure
        figure, axes = panels(1, 3, width=4.3, height=3.9)
        shares = tables["quadruples"].query("latents == 'true'")
        lines = {
            "draft fails": ("hypotheses as drafted", "-"),
            "draft fails, own weight": ("as drafted, the network's weight", "--"),
            "condition fails, own weight": ("angles < π/2, the network's weight", ":"),
            "condition fails": ("angles < π/2", "-."),
        }
        for colour, layer in zip(PALETTE, ("output", "hidden 2"), strict=False):
            for metric, (_, dashes) in lines.items():
                part = shares[(shares["layer"] == layer) & (shares["metric"] == metric)]
                axes[0, 0].plot(part.groupby("step")["value"].mean(), dashes, color=colour)
            axes[0, 0].plot([], [], color=colour, label=f"from {layer}")
        for label, dashes in lines.values():
            axes[0, 0].plot([], [], dashes, color=ink(), label=label)
        axes[0, 0].set(ylabel="share with corr(z_β, g_jk) ≤ 0", title="Conclusion fails although ...")
        names = {"activation": "activation, corr(z, f)", "gradient": "gradient, corr(z, σ'g)"}
        for axis, (metric, label) in zip(axes[0, 1:], names.items(), strict=True):
            part = tables["alignment"]
            part = part[(part["metric"] == metric) & (part["latents"] == "true")]
            for colour, level in zip(PALETTE, LEVELS, strict=False):
                for layer, dashes in (("hidden 1", "--"), ("hidden 2", "-")):
                    curve = part[(part["level"] == level) & (part["layer"] == layer)]
                    axis.plot(curve.groupby("step")["value"].mean(), dashes, color=colour)
                axis.plot([], [], color=colour, label=level)
            axis.plot([], [], "--", color=ink(), label="hidden layer 1 (near the input)")
            axis.plot([], [], "-", color=ink(), label="hidden layer 2 (near the loss)")
            axis.set(ylabel="best correlation, mean over latents", title=label)
        for axis in axes[0]:
            axis.set_xscale("symlog", linthresh=1)
            axis.set_xlim(0, self.steps)
            axis.set_xlabel("gradient step")
            axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.18), fontsize=7.5)
        return figure

    def claims(self, tables: Mapping[str, pandas.DataFrame]) -> list[Claim]:
        """The draft's theorem, its corrected condition, and what it says of layers near input and loss."""
        from joma.claim import correct, judge, not_tested

        shares = tables["quadruples"]
        true = shares[shares["latents"] == "true"]
        worst = true.groupby("metric")["value"].max()
        permuted = shares[shares["latents"] == "permuted"].groupby("metric")["value"].mean()
        trained = true[true["step"] > 0].groupby(["metric", "layer", "step"])["value"].mean()
        meets = trained["meets the condition"].groupby("layer").max()
        claims = [
            correct(
                id="cdag.theorem",
                source="JoMA, CDAG Theorem 1",
                printed="corr(z_alpha, s_j), corr(z_beta, f_k), |corr(z_alpha, z_beta)| > C > 0 give "
                "corr(z_beta, g_jk) > 0.",
                right="With acos C1 + acos C2 + acos C3 < pi/2 they do.",
                printed_error=float(worst["draft fails"]),
                error=float(worst["condition fails"]),
                tolerance=ZERO,
                evidence="largest share of quadruples that meet the hypotheses and miss the conclusion, of "
                f"all steps, layers, seeds (permuted: {permuted.get('draft fails', float('nan')):.3f})",
            ),
            judge(
                bool((meets > 0).all()),
                id="cdag.condition_is_met",
                source="JoMA, CDAG: both cases can validate the condition of Theorem 1",
                statement="During training some quadruples of every layer meet the condition "
                "(else the theorem says nothing about it).",
                expected="a share above 0 of those that meet the hypotheses, in every layer, at some step",
                measured=float(meets.min()),
                tolerance=0.0,
                null=float(_first(true, "meets the condition").min()),
                null_description="the same in the untrained network",
                evidence="largest share along training, "
                + ", ".join(f"from {layer}: {share:.2g}" for layer, share in meets.items()),
            ),
        ]
        own = trained["condition fails, own weight"].dropna().groupby("layer").mean()
        facts: dict[str, Any] = {
            "id": "cdag.own_weights",
            "source": "JoMA, CDAG: w_jk should be a function of time",
            "statement": "Under the condition, the gradient passed with the network's own weight correlates "
            "with the latent too, during training.",
        }
        if own.empty:
            claims.append(not_tested(**facts, reason="no quadruple meets the condition during training"))
        else:
            before = _first(true, "condition fails, own weight").dropna()
            claims.append(
                judge(
                    bool(own.max() < 0.05),
                    **facts,
                    expected="fewer than one in twenty fail, mean over the measured steps",
                    measured=float(own.max()),
                    tolerance=0.05,
                    null=float(before.max()) if len(before) else 0.5,
                    null_description="the same in the untrained network"
                    if len(before)
                    else "weights of either sign (untrained, none meets the condition)",
                    evidence="share of those that meet the condition, by layer: "
                    + ", ".join(f"from {layer}: {share:.3f}" for layer, share in own.items()),
                )
            )
        return claims + _alignment_claims(tables["alignment"])


def _first(shares: pandas.DataFrame, metric: str) -> pandas.Series[float]:
    chosen = shares[(shares["step"] == 0) & (shares["metric"] == metric)]
    return chosen.groupby("layer")["value"].mean()


def _alignment_claims(alignment: pandas.DataFrame) -> list[Claim]:
    """What the draft says around its theorem, along training and at its end, against the first step."""
    from joma.claim import judge

    true = alignment[alignment["latents"] == "true"]
    permuted = alignment[alignment["latents"] == "permuted"]
    keys = ["metric", "layer", "level"]
    start, end = (true[true["step"] == s].groupby(keys)["value"].mean() for s in (0, true["step"].max()))
    along = true[true["step"] > 0].groupby(keys)["value"].mean()
    chance = permuted[permuted["step"] > 0].groupby(keys)["value"].mean()

    def gap(table: Any, metric: str, level: str, above: str, below: str) -> float:
        return float(table[metric, above, level] - table[metric, below, level])

    near_loss = ("gradient", "class", "hidden 2", "hidden 1")
    near_input = ("activation", "lower latents", "hidden 1", "hidden 2")
    gains = end["activation"] - start["activation"]
    worst = gains.idxmin()
    return [
        judge(
            gap(along, *near_loss) > 0,
            id="cdag.near_loss",
            source='JoMA, CDAG: "closer to the loss function, its C1 should be very high"',
            statement="The class correlates more with gradients near the loss than near the input.",
            expected="best correlation in hidden layer 2 above that in hidden layer 1, mean over the steps",
            measured=gap(along, *near_loss),
            tolerance=0.0,
            null=gap(start, *near_loss),
            null_description="the same difference in the untrained network",
            evidence=f"{along['gradient', 'hidden 2', 'class']:.3f} and "
            f"{along['gradient', 'hidden 1', 'class']:.3f}; at the end "
            f"{end['gradient', 'hidden 2', 'class']:.3f}, {end['gradient', 'hidden 1', 'class']:.3f}; chance "
            f"{chance['gradient', 'hidden 2', 'class']:.3f}",
        ),
        judge(
            gap(end, *near_input) > max(0.0, gap(start, *near_input)),
            id="cdag.near_input",
            source='JoMA, CDAG: "closer to the input, its C2 should be very high"',
            statement="Lower latents correlate more with activations near the input than near the loss, "
            "by learning.",
            expected="best correlation in hidden layer 1 above that in layer 2, by more than untrained",
            measured=gap(end, *near_input),
            tolerance=0.0,
            null=gap(start, *near_input),
            null_description="the same difference in the untrained network",
            evidence=f"after training {end['activation', 'hidden 1', 'lower latents']:.3f} and "
            f"{end['activation', 'hidden 2', 'lower latents']:.3f}",
        ),
        judge(
            bool(gains.min() > 0),
            id="cdag.latents_are_learned",
            source="JoMA Sec. 5, CDAG: nodes come to stand for latents",
            statement="Training raises the best correlation of the latents of every level with the nodes of "
            "every layer.",
            expected="a gain above 0 over the untrained network, for every level and layer",
            measured=float(gains.min()),
            tolerance=0.0,
            null=float(start["activation"][worst]),
            null_description="where it is smallest, the correlation in the untrained network",
            evidence="; ".join(f"{layer}, {level}: {value:+.3f}" for (layer, level), value in gains.items()),
        ),
    ]


def _one_network(experiment: Cdag, seed: int) -> pandas.DataFrame:
    """Draw the data, train, and measure on the way."""
    import numpy as np
    import pandas as pd

    from joma.experiments.trees import sample, tree_below_classes

    tree = tree_below_classes(
        classes=experiment.classes, depth=4, edge_correlation=experiment.edge_correlation, with_all=True
    )
    labels, values = sample(tree, experiment.samples, [seed, 1])
    classes = len(np.unique(labels))
    if classes < experiment.classes:
        raise InputError(
            f"cdag: {experiment.samples} samples hold {classes} of {experiment.classes} classes; draw more."
        )
    latents = np.split(values, np.cumsum([experiment.classes * 2**level for level in range(3)]), axis=1)
    inputs = latents.pop().astype(np.float64)
    signals = [_unit(level - level.mean(axis=0)) for level in latents]
    shuffle = np.random.default_rng([seed, 2]).permutation(experiment.samples)
    wanted, rows = set(experiment.measured_steps()), []
    network = _Network(inputs, labels, experiment.width, np.random.default_rng([seed, 3]))
    for step in range(experiment.steps + 1):
        activations, gradients = network.passes()
        if step in wanted:
            for name, known in (("true", signals), ("permuted", [z[shuffle] for z in signals])):
                measured = _quadruples(experiment, network, activations, gradients, known)
                measured += _alignment(activations, gradients, known)
                rows += [{"latents": name, "step": step, **row} for row in measured]
        network.ascend(activations, gradients, experiment.learning_rate)
    table = pd.DataFrame(rows).assign(run=f"seed-{seed}", seed=seed, dtype="float64")
    return table[["run", "seed", "latents", "step", "layer", "level", "metric", "value", "dtype"]]


class _Network:
    """Two hidden ReLU layers and a softmax; ``g`` ascends the log-likelihood, as in the draft."""

    def __init__(self, inputs: NDArray[Any], labels: NDArray[Any], width: int, random: Any) -> None:
        import numpy as np

        self.inputs = inputs
        self.targets = np.eye(labels.max() + 1)[labels]
        sizes = [inputs.shape[1], width, width, self.targets.shape[1]]
        self.weights = [
            random.normal(0, np.sqrt(2 / fan_in), (fan_out, fan_in))
            for fan_in, fan_out in itertools.pairwise(sizes)
        ]
        self.biases = [np.zeros(size) for size in sizes[1:]]

    def passes(self) -> tuple[list[NDArray[Any]], list[NDArray[Any]]]:
        """``f`` of input and hidden layers, and ``s = sigma' g`` of hidden layers and output."""
        import numpy as np
        from scipy.special import softmax

        layers = list(zip(self.weights, self.biases, strict=True))
        activations = [self.inputs]
        for weight, bias in layers[:-1]:
            activations.append(np.maximum(activations[-1] @ weight.T + bias, 0))
        weight, bias = layers[-1]
        gradients = [self.targets - softmax(activations[-1] @ weight.T + bias, axis=1)]
        for weight, reached in zip(self.weights[:0:-1], activations[:0:-1], strict=True):
            gradients.insert(0, (gradients[0] @ weight) * (reached > 0))
        return activations, gradients

    def ascend(self, activations: list[NDArray[Any]], gradients: list[NDArray[Any]], rate: float) -> None:
        """One step of gradient ascent."""
        for number, (f, s) in enumerate(zip(activations, gradients, strict=True)):
            self.weights[number] = self.weights[number] + rate * s.T @ f / len(f)
            self.biases[number] = self.biases[number] + rate * s.mean(axis=0)


def _unit(signals: NDArray[Any]) -> NDArray[Any]:
    """Columns of length one; a signal that is zero everywhere stays zero and correlates with nothing."""
    import numpy as np

    length = np.linalg.norm(signals, axis=0)
    return np.asarray(signals / np.where(length > 0, length, 1))


def _quadruples(
    experiment: Cdag,
    network: _Network,
    activations: list[NDArray[Any]],
    gradients: list[NDArray[Any]],
    signals: list[NDArray[Any]],
) -> list[dict[str, Any]]:
    """Per layer of parents j: shares over all (alpha, j, beta, k), alpha and beta any latent or class."""
    import numpy as np

    latents = np.concatenate(signals, axis=1)
    related, rows, least = np.abs(latents.T @ latents), [], experiment.least_correlation
    for layer, parent in (("output", 2), ("hidden 2", 1)):
        asked, feature = _unit(gradients[parent]), _unit(activations[parent])
        c1, c2 = latents.T @ asked, latents.T @ feature
        first_step = (feature.T @ asked).T
        # Axes: alpha, j, beta, k.
        hypotheses = (
            (c1 > least)[:, :, None, None] & (c2 > least)[None, None] & (related > least)[:, None, :, None]
        )
        angles = [np.arccos(np.clip(c, 0, 1)) for c in (c1, c2, related)]
        total = angles[0][:, :, None, None] + angles[1][None, None] + angles[2][:, None, :, None]
        condition = hypotheses & (total < np.pi / 2)
        passed = {"": first_step, ", own weight": network.weights[parent]}
        shares = {"meets the condition": _share(condition, hypotheses)}
        for name, weight in passed.items():
            # corr(z_beta, w_jk s_j) has the sign of w_jk corr(z_beta, s_j).
            fails = (weight.T[None, :, :] * c1[:, None, :] <= 0).transpose(2, 0, 1)[None]
            shares |= {
                f"draft fails{name}": _share(hypotheses & fails, hypotheses),
                f"condition fails{name}": _share(condition & fails, condition),
            }
        rows += [{"layer": layer, "metric": metric, "value": value} for metric, value in shares.items()]
    return rows


def _share(part: NDArray[Any], whole: NDArray[Any]) -> float | None:
    total = int(whole.sum())
    return int(part.sum()) / total if total else None


def _alignment(
    activations: list[NDArray[Any]], gradients: list[NDArray[Any]], signals: list[NDArray[Any]]
) -> list[dict[str, Any]]:
    """Mean over the latents of a level of the best correlation with a layer's nodes."""
    rows = []
    for layer, number in (("hidden 1", 1), ("hidden 2", 2)):
        nodes = {"activation": activations[number], "gradient": gradients[number - 1]}
        for metric, values in nodes.items():
            for level, known in zip(LEVELS, signals, strict=True):
                best = float((known.T @ _unit(values)).max(axis=1).mean())
                rows.append({"layer": layer, "level": level, "metric": metric, "value": best})
    return rows
