"""Every statistic of the claims about hierarchy, on the tree and on the same pairs without it."""

from __future__ import annotations

import itertools
from functools import partial

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from joma.core.arguments import Array
from joma.core.progress import Progress
from joma.experiments.joma_paper.deep_hierarchy import SINGLE, DeepHierarchy
from joma.experiments.joma_paper.deep_hierarchy import TREE as WHOLE
from joma.experiments.joma_paper.deep_hierarchy.claims import half_times
from joma.experiments.joma_paper.deep_hierarchy.run import network, train_stack
from joma.experiments.joma_paper.deep_hierarchy.sequences import Questions, ask_for_tokens
from joma.experiments.joma_paper.fig5.rate_ratios import rebound
from joma.experiments.joma_paper.latent_depth import MODELS, LatentDepth
from joma.experiments.joma_paper.latent_depth.claims import far_to_near
from joma.experiments.joma_paper.latent_depth.run import train_layer
from joma.experiments.joma_paper.tree_null import LAWS, PAIRS, STOPS, TREE, TreeNull
from joma.experiments.joma_paper.tree_null.laws import Law, law_of_pairs, law_of_tree, tree
from joma.experiments.shared.tables import Row, Rows, by_table
from joma.experiments.shared.trees import ancestor_heights
from joma.measures.alignment import latent_neuron_alignment
from joma.models.stack import JomaStack
from joma.theory.block_salience import entropy
from joma.theory.drift import of_labels
from joma.training.loop import reproducible

SIBLING, COUSIN, FAR = 1, 2, 3
START, STEP, LEVEL = 0.02, 0.01, 0.2
"""The block's first weights, its steps, and the weight at which a token counts as associated; as ``fig5``."""
TASK = "tokens"


def run(settings: TreeNull, progress: Progress) -> dict[str, pd.DataFrame]:
    """Tables ``laws``, ``block`` and ``statistics``."""
    of_layer, of_stack = (
        range(settings.seed, settings.seed + count) for count in (settings.layer_seeds, settings.seeds)
    )
    parts = {"laws": partial(_laws, settings), "block": partial(_block, settings)}
    for number, seed in itertools.product(range(len(LAWS)), of_layer):
        parts[f"layer-{number}-{seed}"] = partial(_layer, settings, number, seed)
    for number, seed in itertools.product(range(len(LAWS)), of_stack):
        parts[f"stack-{number}-{seed}"] = partial(_stack, settings, number, seed)
    progress.note_device("cpu", "float64")
    return by_table(progress.parts(parts).values(), counted=("seed", "order"))


def laws(settings: TreeNull) -> tuple[dict[str, Law], Array]:
    """Both laws by name, and the latents that the tokens tell (2^8, 7)."""
    of_tree, latents = law_of_tree(tree(settings.edge_correlation))
    return {TREE: of_tree, PAIRS: law_of_pairs(of_tree)}, latents


def _laws(settings: TreeNull, progress: Progress) -> pd.DataFrame:
    """Every moment of up to four tokens under both laws."""
    both, _ = laws(settings)
    size = both[TREE].patterns.shape[1]
    rows: Rows = [
        {
            "table": "laws",
            "run": name,
            "order": order,
            "tokens": " ".join(map(str, tokens)),
            "value": law.moment(tokens),
        }
        for name, law in both.items()
        for order in (1, 2, 3, 4)
        for tokens in itertools.combinations(range(size), order)
    ]
    return pd.DataFrame(rows)


def _block(settings: TreeNull, progress: Progress) -> pd.DataFrame:
    """The block of fig5 on the exact contexts: when each height is associated, and the rebound."""
    rows: Rows = []
    for name, law in laws(settings)[0].items():
        heights = ancestor_heights(law.patterns.shape[1])[0, 1:]
        for kappa in progress.track(settings.kappas, f"block, {name}"):
            times, weights, course = _train_block(law, kappa, settings.time)
            numbers = {"rebound": rebound(course)}
            for height in (SIBLING, COUSIN, FAR):
                passed = (weights[:, heights == height].mean(axis=1) >= LEVEL).argmax()
                numbers[f"time of height {height}"] = float(times[passed]) if passed else np.inf
            rows += [
                {"table": "block", "run": name, "kappa": kappa, "metric": metric, "value": value}
                for metric, value in numbers.items()
            ]
    return pd.DataFrame(rows)


def _train_block(law: Law, kappa: float, end: float) -> tuple[Array, Array, Array]:
    """Times (S,), weights (S, n) and entropies (S,) of a ReLU unit with its loss's feedback, by Eq. 2."""
    contexts = law.contexts()
    drift = of_labels(*contexts)
    v = np.full((1, contexts[0].shape[1]), START)
    z, xi = 0.5 * kappa * v * v, np.zeros(1)
    times, weights, courses = [0.0], [v[0]], [entropy(z)[0]]
    for number in range(1, round(end / STEP) + 1):
        gain = np.exp(z)
        pull, push = drift(v * gain, xi)
        move = STEP * gain * pull
        z, v, xi = z + kappa * v * move, v + move, xi + STEP * push
        if number % 10 == 0:
            times.append(number * STEP)
            weights.append(v[0])
            courses.append(entropy(z)[0])
    return np.array(times), np.stack(weights), np.array(courses)


def _layer(settings: TreeNull, number: int, seed: int, progress: Progress) -> pd.DataFrame:
    """The layer of latent_depth, with attention and as a bag of tokens."""
    name = LAWS[number]
    law = laws(settings)[0][name]
    tokens = law.draw(2 * settings.samples, [seed, number, 7])
    best = law.given_others(tokens[settings.samples :])
    layer = LatentDepth(depth=4, samples=settings.samples, steps=settings.layer_steps)
    found = by_table(
        train_layer(layer, tokens.astype(np.float64), best, data=name, model=model, seed=seed)
        for model in MODELS
    )
    losses = found["losses"]
    last = losses[losses["step"] == losses["step"].max()].set_index("model")["value"]
    pairs = found["attention"].query("model == 'attention' and height == @SIBLING")
    far = far_to_near(found["growth"], FAR).loc[(name, seed)]
    numbers = {
        "layer: excess loss of attention": last["attention"],
        "layer: gain over the bag": last["bag"] - last["attention"],
        "layer: attention to the sibling": pairs["attention"].mean() * (tokens.shape[1] - 1),
        "layer: far slowed": far["bag"] - far["attention"],
    }
    return _statistics(name, seed, numbers)


def _stack(settings: TreeNull, number: int, seed: int, progress: Progress) -> pd.DataFrame:
    """The stack of deep_hierarchy: order, families, depth, the bounce; and its units beside the latents."""
    name = LAWS[number]
    both, latents = laws(settings)
    law = both[name]
    asked = ask_for_tokens(law.draw(settings.sequences, [seed, number, 8]))
    height = ancestor_heights(law.patterns.shape[1])
    stack = DeepHierarchy(
        levels=2, layers=2, steps=settings.stack_steps, rate=settings.stack_rate, sequences=settings.sequences
    )
    train = partial(_train, stack, asked, height, seed, progress)
    whole, trained = train(WHOLE, settings.stack_steps + 1)
    curve = whole.query("table == 'entropy'")
    dip = int(curve["step"].iloc[int(curve["value"].argmin())])
    ends = {when: _excess(train(WHOLE, round(times * dip))[0]) for when, times in STOPS.items()}
    single = _excess(train(SINGLE, settings.stack_steps + 1)[0])
    associations = whole.query("table == 'associations'").assign(task=TASK, run=name, seed=seed)
    when = half_times(associations).droplevel(["task", "run", "seed"])
    last = associations[associations["step"] == associations["step"].max()]
    grown = last.set_index(["layer", "height"])["value"]
    with reproducible(seed):
        untrained = network(stack, WHOLE, len(height))
    aligned = {
        when_: _alignment(one, law, latents)
        for when_, one in (("untrained", untrained), ("trained", trained))
    }
    numbers = {
        "stack: cousins after siblings, layer by layer": when[2, COUSIN] / when[1, SIBLING],
        "stack: families meet": grown[2, COUSIN] / grown[2, SIBLING],
        "stack: depth helps": single - _excess(whole),
        "stack: bounce is of use": (ends["dip"] - ends["later"]) - (ends["earlier"] - ends["dip"]),
        "stack: rebound": float(curve["value"].iloc[-1] - curve["value"].min()),
        "neurons: NCorr": aligned["trained"],
        "neurons: learned": aligned["trained"] - aligned["untrained"],
    }
    return _statistics(name, seed, numbers)


def _train(
    stack: DeepHierarchy,
    asked: Questions,
    height: NDArray[np.int64],
    seed: int,
    progress: Progress,
    name: str,
    stop: int,
) -> tuple[pd.DataFrame, JomaStack]:
    return train_stack(stack, asked, height, task=TASK, name=name, seed=seed, stop=stop, progress=progress)


def _excess(found: pd.DataFrame) -> float:
    return float(found.query("table == 'losses'")["value"].iloc[-1])


def _alignment(stack: JomaStack, law: Law, latents: Array) -> float:
    """NCorr of the latents that the tokens tell with the units of layer 1 (all queries at hand)."""
    x = torch.from_numpy(law.patterns.astype(np.float64))
    with torch.no_grad():
        units = stack(x, torch.ones_like(x))[0].flatten(1).numpy()
    return float(latent_neuron_alignment(latents, units, weights=law.probability, sign="absolute").mean)


def _statistics(name: str, seed: int, numbers: Row) -> pd.DataFrame:
    return pd.DataFrame(
        [
            {"table": "statistics", "run": name, "seed": seed, "metric": metric, "value": value}
            for metric, value in numbers.items()
        ]
    ).astype({"value": float})
