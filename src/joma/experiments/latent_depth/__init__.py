"""The poster's deep and shallow latent distributions: does attention find out how deep the hierarchy is?"""

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
    from joma.theory.latent_tree import LatentTree

DATA = ("deep", "shallow")
MODELS = {"attention": "attention", "bag": "bag of tokens"}
SIGNIFICANT = 0.05
NEAR_BAYES = 0.1


@dataclass(frozen=True, kw_only=True)
class LatentDepth(Experiment):
    """One layer with the same settings on a deep and on a shallow hierarchy of the same tokens.

    Deep: a binary tree HBLT(rho) with 2^(L-1) tokens. Shallow: the same top latent, all tokens directly
    below it, with an edge correlation that gives the same mean correlation between two tokens. Every token
    m in turn is the query; from the other tokens of its sequence the layer predicts whether m is there,
    h_m = bias_m + sum_l b_ml v_ml with softmax attention b over the tokens present (and one that always
    is), logistic loss, full-batch gradient descent. The bag of tokens is the same with uniform attention
    for good. Losses are held-out and compared with the Bayes-optimal prediction, computed by message
    passing in the true tree: 0 is the optimum, 1 the prediction from the token's frequency alone.

    Tables: ``losses`` (per step), ``attention`` (at the end: attention logit and weight of every pair,
    with the height of its ancestor in the deep tree, which means nothing in the shallow one), ``growth``
    (association per height along training: attention, in units of uniform attention, times weight v).
    """

    title = "Deep and shallow latent distributions: hierarchy-agnostic learning, against a bag of tokens"
    reproduces = "JoMA poster (deep and shallow latent distribution), Sec. 5"
    cost = {"quick": "10 s", "paper": "10 min"}
    presets = {
        "quick": {},
        "paper": {"samples": 10_000, "seeds": 8, "steps": 3000},
    }

    depth: int = setting(
        5, "L of the deep tree, edges from the class label to a token", at_least=3, at_most=6
    )
    edge_correlation: float = setting(0.9, "rho of the deep tree", above=0.0, below=1.0)
    samples: int = setting(1000, "sequences trained on; as many are held out", at_least=20)
    steps: int = setting(1000, "gradient steps", at_least=10)
    learning_rate: float = setting(1.0, "step size of the mean loss per query", above=0.0)
    measure_every: int = setting(20, "steps between measurements", at_least=1)
    seeds: int = setting(3, "data sets and initial weights", at_least=2)

    def run(self, progress: Progress) -> dict[str, pandas.DataFrame]:
        """Tables ``losses``, ``attention`` and ``growth``."""
        import pandas as pd

        cells = list(itertools.product(DATA, MODELS, range(self.seed, self.seed + self.seeds)))
        parts = [
            progress.part(f"{data}-{model}-seed-{seed}", functools.partial(_train, self, data, model, seed))
            for data, model, seed in progress.track(cells, "latent_depth")
        ]
        table = pd.concat(parts, ignore_index=True)
        return {
            name: table[table["table"] == name]
            .dropna(axis="columns", how="all")
            .drop(columns="table")
            .reset_index(drop=True)
            for name in ("losses", "attention", "growth")
        }

    def draw(self, tables: Mapping[str, pandas.DataFrame]) -> Figure:
        """Left: relative excess loss. Middle: attention by height. Right: growth of near and far weights."""
        from joma.reporting.figures import PALETTE, ink, panels

        figure: Figure
        figure, axes = panels(1, 3, width=4.2, height=3.7)
        left, middle, right = axes[0]
        styles = {"attention": "-", "bag": "--"}
        for colour, data in zip(PALETTE, DATA, strict=False):
            for model, dashes in styles.items():
                part = tables["losses"].query("data == @data and model == @model")
                label = f"{data}, {MODELS[model]}"
                left.plot(part.groupby("step")["value"].mean(), dashes, color=colour, label=label)
            pairs = tables["attention"].query("data == @data and model == 'attention'")
            means = pairs.groupby(["seed", "height"])["attention"].mean().unstack("seed")
            middle.plot(means.mean(axis=1), "o-", color=colour, label=data)
        uniform = 1 / (2 ** (self.depth - 1) - 1)
        middle.axhline(uniform, color=ink(), lw=0.9, ls=":", label="uniform")
        growth = tables["growth"][tables["growth"]["data"] == "deep"]
        ends = {1: "sibling", self.depth - 1: "farthest"}
        for colour, (height, name) in zip(PALETTE[2:], ends.items(), strict=False):
            for model, dashes in styles.items():
                part = growth[(growth["model"] == model) & (growth["height"] == height)]
                curve = part.groupby("step")["value"].mean()
                right.plot(curve, dashes, color=colour, label=f"{name}, {MODELS[model]}")
        left.set(xlabel="gradient step", ylabel="excess loss (0: Bayes, 1: frequency)", ylim=(0, 1.05))
        left.set_title("Held-out loss")
        middle.set(xlabel="height of the common ancestor in the deep tree", ylabel="attention per token")
        middle.set(title="Learned attention", ylim=(0, None))
        middle.set_xticks(range(1, self.depth))
        right.set(
            xlabel="gradient step",
            ylabel="association: attention × v",
            title="Association, deep distribution",
        )
        for axis in axes[0]:
            axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=2, fontsize=8)
        return figure

    def claims(self, tables: Mapping[str, pandas.DataFrame]) -> list[Claim]:
        """Is learning agnostic of depth, is it attention that makes it so, and what does attention do?"""
        from joma.claim import judge

        losses, pairs = tables["losses"], tables["attention"]
        end = losses[losses["step"] == losses["step"].max()]
        last = end.set_index(["data", "model", "seed"])["value"].unstack("model")
        worst = {model: last[model].groupby("data").mean() for model in MODELS}
        gain = {data: last.loc[data, "bag"] - last.loc[data, "attention"] for data in DATA}
        more = gain["deep"] - gain["shallow"]
        height = pairs[pairs["model"] == "attention"].groupby(["data", "seed", "height"])["attention"].mean()
        others = 2 ** (self.depth - 1) - 1
        sibling = height.xs(1, level="height") * others
        ratios = _far_to_near(tables["growth"], self.depth - 1)
        slower = {data: ratios.loc[data, "bag"] - ratios.loc[data, "attention"] for data in DATA}
        return [
            judge(
                bool(worst["attention"].max() <= NEAR_BAYES),
                id="latent_depth.agnostic",
                source="JoMA poster: self-attention enables hierarchy-agnostic learning",
                statement="One layer of attention, with the same settings, comes close to the best possible "
                "prediction whether the latent distribution is deep or shallow.",
                expected=f"excess loss at most {NEAR_BAYES} (0: Bayes, 1: frequency alone) on both",
                measured=float(worst["attention"].max()),
                tolerance=NEAR_BAYES,
                null=float(worst["bag"].max()),
                null_description="the bag of tokens, on the same data",
                evidence=f"deep {worst['attention']['deep']:.3f}, "
                f"shallow {worst['attention']['shallow']:.3f}; "
                f"bag {worst['bag']['deep']:.3f}, {worst['bag']['shallow']:.3f}; {self.seeds} seeds",
            ),
            judge(
                bool(gain["deep"].mean() > _uncertainty(gain["deep"]) and more.mean() > _uncertainty(more)),
                id="latent_depth.attention_is_needed_for_depth",
                source="JoMA poster, Sec. 5",
                statement="Attention is what copes with depth: it beats a bag of tokens on the deep "
                "distribution, and by more than on the shallow one.",
                expected="a gain in excess loss on deep data, larger than that on shallow data by more than "
                "the seeds' uncertainty",
                measured=float(more.mean()),
                tolerance=_uncertainty(more),
                null=0.0,
                null_description="the same gain on both: attention helps, but not with depth",
                evidence=f"gain {gain['deep'].mean():.3f} on deep, {gain['shallow'].mean():.3f} on shallow; "
                f"means of {self.seeds} seeds",
            ),
            judge(
                bool(sibling.loc["deep"].min() > 2 > sibling.loc["shallow"].max()),
                id="latent_depth.attention_is_selective_where_data_are",
                source="JoMA poster: m associates with l first (deep); with all alike (shallow)",
                statement="Attention prefers the query's sibling in the deep distribution; in the shallow "
                "one, where the same token is no nearer than others, it does not.",
                expected="more than twice the uniform attention for the sibling (deep), less (shallow)",
                measured=float(sibling.loc["deep"].mean()),
                tolerance=2.0,
                null=float(sibling.loc["shallow"].mean()),
                null_description="the same pairs of tokens in the shallow distribution",
                evidence="attention to the sibling in units of uniform attention, mean over queries",
            ),
            judge(
                bool(slower["deep"].mean() > _uncertainty(slower["deep"])),
                id="latent_depth.far_is_slowed",
                source="JoMA poster: slowing down the association of tokens that are not directly correlated",
                statement="Attention slows the association of far tokens relative to near ones.",
                expected="farthest over sibling association, when the latter is half grown, lower than in "
                "the bag of tokens by more than the seeds' uncertainty",
                measured=float(slower["deep"].mean()),
                tolerance=_uncertainty(slower["deep"]),
                null=float(slower["shallow"].mean()),
                null_description="the same pairs of tokens in the shallow distribution",
                evidence=f"ratio {ratios.loc['deep', 'attention'].mean():.3f} with attention, "
                f"{ratios.loc['deep', 'bag'].mean():.3f} in the bag; shallow "
                f"{ratios.loc['shallow', 'attention'].mean():.3f}, {ratios.loc['shallow', 'bag'].mean():.3f}",
            ),
        ]


def _uncertainty(values: Any) -> float:
    """Half of the one-sided 95 % interval of a mean over seeds (Student's t)."""
    from scipy.stats import t

    return float(t.isf(SIGNIFICANT, len(values) - 1) * values.std(ddof=1) / len(values) ** 0.5)


def _far_to_near(growth: pandas.DataFrame, farthest: int) -> pandas.DataFrame:
    """|Farthest| over sibling association at the first moment when the sibling's is half of its largest."""
    import pandas as pd

    rows = {}
    for key, part in growth.groupby(["data", "seed", "model"]):
        curve = part.set_index(["step", "height"])["value"].unstack("height")
        half = curve[1] >= curve[1].max() / 2
        at = curve[half].iloc[0]
        rows[key] = float(abs(at[farthest]) / at[1])
    return pd.Series(rows).rename_axis(["data", "seed", "model"]).unstack("model")


def trees(depth: int, edge_correlation: float) -> dict[str, LatentTree]:
    """The deep tree, and the shallow one with the same marginals and mean correlation of two tokens."""
    import numpy as np

    from joma.experiments.trees import tree_below_classes
    from joma.theory.latent_tree import LatentTree

    # Two classes: the top latent is on in half of the sequences.
    deep = tree_below_classes(classes=2, depth=depth, edge_correlation=edge_correlation)
    size = len(deep.leaves)
    moments = deep.second_moments[np.ix_(deep.leaves, deep.leaves)]
    mean = (moments.sum() - size) / (size * (size - 1))
    shallow = LatentTree(
        class_probabilities=deep.class_probabilities,
        zero_given_class=deep.zero_given_class,
        parents=(0,) * size,
        correlations=np.full(size, np.sqrt(mean)),
    )
    return {"deep": deep, "shallow": shallow}


def bayes_probabilities(tree: LatentTree, tokens: NDArray[Any]) -> NDArray[Any]:
    """``P[y_m = 1 | all other tokens]`` for every token of every sequence: (sequences, tokens)."""
    import numpy as np

    result = np.empty(tokens.shape)
    for m in range(tokens.shape[1]):
        likelihood = []
        for value in (0, 1):
            changed = tokens.copy()
            changed[:, m] = value
            likelihood.append(_likelihood(tree, changed))
        result[:, m] = likelihood[1] / (likelihood[0] + likelihood[1])
    return result


def _likelihood(tree: LatentTree, tokens: NDArray[Any]) -> NDArray[Any]:
    """P[tokens] (sequences,), by messages from the leaves up."""
    import numpy as np

    messages = np.ones((tree.nodes, 2, len(tokens)))
    for column, leaf in enumerate(tree.leaves):
        messages[leaf] = [tokens[:, column] == 0, tokens[:, column] == 1]
    zero = np.atleast_2d(np.asarray(tree.zero_given_class))
    edges = list(zip(tree.parents, np.asarray(tree.correlations), strict=True))
    for node in range(tree.nodes - 1, len(zero) - 1, -1):
        parent, rho = edges[node - len(zero)]
        edge = np.array([[1 + rho, 1 - rho], [1 - rho, 1 + rho]]) / 2
        messages[parent] *= edge @ messages[node]
    of_roots = [messages[i][0] * z[:, None] + messages[i][1] * (1 - z[:, None]) for i, z in enumerate(zero)]
    prior = np.asarray(tree.class_probabilities, dtype=np.float64)
    return np.asarray(prior @ np.prod(of_roots, axis=0))


def _shares(logits: NDArray[Any], heights: NDArray[Any]) -> NDArray[Any]:
    """Attention of every query to every other token, were all of them present: (queries, tokens)."""
    import numpy as np
    from scipy.special import softmax

    return np.asarray(softmax(np.where(heights > 0, logits[:, : len(heights)], -np.inf), axis=1))


def _train(experiment: LatentDepth, data: str, model: str, seed: int) -> pandas.DataFrame:
    """One layer, all queries at once, trained and measured."""
    import numpy as np
    import pandas as pd
    import torch
    from torch.nn.functional import binary_cross_entropy_with_logits as cross_entropy

    from joma.experiments.trees import ancestor_heights, sample
    from joma.training.loop import reproducible

    tree = trees(experiment.depth, experiment.edge_correlation)[data]
    _, values = sample(tree, 2 * experiment.samples, [seed, DATA.index(data)])
    tokens = values[:, tree.leaves].astype(np.float64)
    train, held_out = tokens[: experiment.samples], tokens[experiment.samples :]
    best = bayes_probabilities(tree, held_out)
    bayes = float(-np.log(np.where(held_out == 1, best, 1 - best)).mean())
    frequency = train.mean(axis=0)
    if not ((frequency > 0) & (frequency < 1)).all():
        raise InputError(f"latent_depth: a token never varies in {experiment.samples} sequences; draw more.")
    marginal = float(-np.log(np.where(held_out == 1, frequency, 1 - frequency)).mean())
    size = tokens.shape[1]
    heights = ancestor_heights(size)
    rows: list[dict[str, Any]] = []
    with reproducible(seed):
        logits = torch.zeros(size, size + 1, dtype=torch.float64, requires_grad=model == "attention")
        start = 0.01 * torch.rand(size, size + 1, dtype=torch.float64)
        weights, bias = start.requires_grad_(), torch.zeros(size, dtype=torch.float64, requires_grad=True)
        learned = [p for p in (logits, weights, bias) if p.requires_grad]
        visible = torch.cat([1 - torch.eye(size), torch.ones(size, 1)], dim=1).double()

        def predict(present: NDArray[Any]) -> torch.Tensor:
            x = torch.from_numpy(np.concatenate([present, np.ones((len(present), 1))], axis=1))
            strength = visible * logits.exp()
            # sum_l x_l e^z_ml v_ml / sum_l x_l e^z_ml: no array of (sequences, queries, tokens) is needed.
            mixed: torch.Tensor = (x @ (strength * weights).T) / (x @ strength.T)
            return mixed + bias

        for step in range(experiment.steps + 1):
            if step % experiment.measure_every == 0 or step == experiment.steps:
                with torch.no_grad():
                    loss = float(cross_entropy(predict(held_out), torch.from_numpy(held_out)))
                    association = (_shares(logits.numpy(), heights) * weights[:, :size].numpy()) * (size - 1)
                excess = (loss - bayes) / (marginal - bayes)
                rows.append({"table": "losses", "step": step, "loss": loss, "bayes": bayes, "value": excess})
                rows += [
                    {
                        "table": "growth",
                        "step": step,
                        "height": h,
                        "value": float(association[heights == h].mean()),
                    }
                    for h in range(1, experiment.depth)
                ]
            loss_now = cross_entropy(predict(train), torch.from_numpy(train)) * size
            gradients = torch.autograd.grad(loss_now, learned)
            with torch.no_grad():
                for parameter, gradient in zip(learned, gradients, strict=True):
                    parameter -= experiment.learning_rate * gradient
        z, v = logits.detach().numpy()[:, :size], weights.detach().numpy()[:, :size]
        share = _shares(logits.detach().numpy(), heights)
    rows += [
        {
            "table": "attention",
            "query": m,
            "token": t,
            "height": int(heights[m, t]),
            "logit": z[m, t],
            "weight": v[m, t],
            "attention": share[m, t],
        }
        for m, t in itertools.permutations(range(size), 2)
    ]
    return pd.DataFrame(rows).assign(
        run=f"{data}-{model}-seed-{seed}", data=data, model=model, seed=seed, dtype="float64"
    )
