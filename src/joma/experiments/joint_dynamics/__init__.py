"""JoMA Theorem 1 put to the test in training: does attention follow the squares of what its neurons see?"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joma.experiments.base import Experiment
from joma.runs.job import setting

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

    from joma.claim import Claim
    from joma.progress import Progress


@dataclass(frozen=True, kw_only=True)
class JointDynamics(Experiment):
    """The joint-dynamics index in the theory's own block and in decoders trained from scratch.

    Theorem 1 (exp attention, equal rates) gives the logits ``z_m(l) = 1/2 sum_k v_k(l)^2 + c``. The index is
    the correlation over the context tokens l, query by query, of log-attention with ``1/2 sum_k v_k(l)^2``,
    where in a real layer ``v_k(l) = w_k . (W_O^h W_V^h u_l)``, head by head
    (:mod:`joma.measures.joint_dynamics`).

    *Block flow*, the positive control: the population gradient flow of Eq. 2 with constant random gradients
    and zero logits at first, with exp and with softmax attention. With exp the theorem holds exactly: from
    zero weights the index must be 1; from random ones it approaches it, as ``c = -1/2 sum_k v_k(l)^2`` of
    the start fades beside what has grown.

    *Decoders*: the paper's (post-norm, softmax) learn to predict the next word of a real text, as in
    Fig. 6. At chosen steps the index is measured on held-out windows, with the first token left out, beside
    its nulls (the prediction shuffled over the tokens; the untrained decoders, whose index is farther from
    zero than shuffles within windows tell, since words recur in all of them), what is left of it when the
    size of the values ``|W_V^h u_l|`` or the position is held fixed, and the index of that size itself.
    """

    title = "Joint dynamics: does attention follow the neurons that it feeds, as Theorem 1 says?"
    reproduces = "JoMA Thm 1 (not in the paper)"
    cost = {"quick": "3 min", "paper": "hours"}
    presets = {
        "quick": {},
        "paper": {
            "corpus": "wikitext-2",
            "vocabulary_size": None,
            "layers": (1, 2, 5),
            "seeds": 3,
            "steps": 20_000,
            "learning_rate": 1e-4,
            "width": 200,
            "hidden": 200,
            "measure_every": 1000,
        },
    }

    corpus: str = setting(
        "world-english-bible", "corpus name, text file, or folder of train/valid/test files"
    )
    vocabulary_size: int | None = setting(
        2000, "most frequent words kept, <unk> included (none: all)", at_least=2
    )
    layers: tuple[int, ...] = setting((1, 3), "depths of the decoders that are trained", at_least=1)
    seeds: int = setting(2, "runs per depth, with seeds seed, seed + 1, ...", at_least=1)
    steps: int = setting(800, "minibatches", at_least=1)
    learning_rate: float = setting(1e-3, "Adam's learning rate", above=0)
    width: int = setting(128, "embedding size d", at_least=2)
    hidden: int = setting(128, "width of the MLP's hidden layer", at_least=1)
    heads: int = setting(2, "attention heads", at_least=1)
    dropout: float = setting(0.2, "dropout probability", at_least=0, below=1)
    batch: int = setting(20, "windows in a minibatch", at_least=1)
    length: int = setting(35, "tokens in a window (bptt)", at_least=16)
    measure_every: int = setting(100, "steps between measurements (five times as dense at first)", at_least=1)
    windows: int = setting(100, "held-out windows measured", at_least=2)
    draws: int = setting(8, "shuffles of the tokens for the null", at_least=2)
    block_tokens: int = setting(30, "contextual tokens M of the block flow", at_least=12)
    block_neurons: int = setting(10, "hidden neurons K of the block flow", at_least=1)
    block_runs: int = setting(8, "block flows, with data and gradients of their own", at_least=2)

    def measured_steps(self) -> list[int]:
        """Steps at which the decoder is measured."""
        early = range(0, min(2 * self.measure_every, self.steps), max(1, self.measure_every // 5))
        return sorted({*early, *range(0, self.steps + 1, self.measure_every), self.steps})

    def run(self, progress: Progress) -> dict[str, pandas.DataFrame]:
        """Tables ``block`` (the flow), ``curves`` (decoders), ``turns`` (where a sign turns)."""
        import pandas as pd

        from joma.experiments.joint_dynamics.block import block_flows

        # Read once here, so that a bad text is an error before any process is started.
        _read_text(self)
        runs = {
            f"layers-{depth}-seed-{seed}": functools.partial(_train_one, self, depth, seed)
            # The deepest first: they take longest, and the others fill the gaps.
            for depth in sorted(self.layers, reverse=True)
            for seed in range(self.seed, self.seed + self.seeds)
        }
        tables = progress.parts(runs)
        curves = pd.concat([tables[name] for name in sorted(tables)], ignore_index=True)
        block = block_flows(
            tokens=self.block_tokens,
            neurons=self.block_neurons,
            runs=self.block_runs,
            draws=self.draws,
            seed=self.seed,
        )
        return {"block": block, "curves": curves, "turns": _turns(curves)}

    def draw(self, tables: Mapping[str, pandas.DataFrame]) -> Figure:
        """Above: the block flow, and the index of each layer along training with its null. Below: heads at
        the end, and what is left of the index when the size of the values is held fixed."""
        from joma.experiments.joint_dynamics.figure import draw

        return draw(tables, Path(self.corpus).name, self.learning_rate)

    def claims(self, tables: Mapping[str, pandas.DataFrame]) -> list[Claim]:
        """Theorem 1's sign, in the block and in decoders, each against its null."""
        from joma.experiments.joint_dynamics import claims

        curves = tables["curves"]
        return [
            claims.exp_flow(tables["block"]),
            claims.positive_at_first(curves, 2 * self.measure_every),
            claims.positive_when_trained(curves),
            claims.grows_with_training(curves),
            claims.sign_of_the_values(curves),
        ]


@functools.lru_cache(maxsize=1)
def _read_text(experiment: JointDynamics) -> Any:
    """The token text, once per process; the settings are the key."""
    from joma.data.corpora import load_corpus
    from joma.data.text import Batches, tokenize, validation_windows

    text = tokenize(load_corpus(experiment.corpus), vocabulary_size=experiment.vocabulary_size)
    Batches(text.training, experiment.batch, experiment.length, "random", experiment.seed)
    validation_windows(text.validation, length=experiment.length, most=experiment.windows)
    return text


def _train_one(experiment: JointDynamics, depth: int, seed: int, progress: Progress) -> pandas.DataFrame:
    from joma.models.decoder import Decoder
    from joma.training.loop import Recipe, reproducible, train

    text = _read_text(experiment)
    name = f"layers-{depth}-seed-{seed}"
    recipe = Recipe(
        steps=experiment.steps,
        learning_rate=experiment.learning_rate,
        batch=experiment.batch,
        length=experiment.length,
        seed=seed,
    )
    with reproducible(seed):
        model = Decoder(
            text.vocabulary_size,
            layers=depth,
            width=experiment.width,
            hidden=experiment.hidden,
            heads=experiment.heads,
            dropout=experiment.dropout,
            longest=experiment.length,
        )
        rows = train(
            model,
            text,
            recipe,
            measure=functools.partial(_measure, experiment, text),
            measure_at=experiment.measured_steps(),
            progress=progress,
            label=f"joint_dynamics: {depth} layer{'s' if depth > 1 else ''}, seed {seed}",
            checkpoints=progress.checkpoint_folder(name),
        )
    return rows.assign(run=name, depth=depth, seed=seed)


def _measure(experiment: JointDynamics, text: Any, model: Any, step: int) -> list[dict[str, Any]]:
    """The index of every layer and head, and of the mean over heads (head missing)."""
    import torch

    from joma.data.text import validation_windows
    from joma.probes.sections.joint_dynamics import joint_dynamics

    inputs, _ = validation_windows(text.validation, length=experiment.length, most=experiment.windows)
    batches = [(part, torch.ones_like(part, dtype=torch.bool)) for part in torch.split(inputs, 50)]
    found = joint_dynamics(
        model, batches, draws=experiment.draws, rank_every=0, seed=experiment.seed + 7919 * step
    )
    whole = found[found["position"].isna()]
    kept = ["layer", "head", "metric", "scale", "given", "sink", "value", "standard_error", "count", "dtype"]
    rows: list[dict[str, Any]] = []
    for row in whole[kept].to_dict("records"):
        head = None if row["head"] is None or row["head"] != row["head"] else row["head"]
        rows.append(
            {
                "step": step,
                **{str(key): value for key, value in row.items()},
                "layer": int(row["layer"]),
                "head": None if head is None or str(head) == "<NA>" else int(head),
                "count": int(row["count"]),
                "unit": "",
            }
        )
    return rows


def of_layers(curves: pandas.DataFrame, metric: str = "index", given: str = "nothing") -> pandas.DataFrame:
    """One variant of the curves: linear, without the first token, mean over heads."""
    chosen = (curves["metric"] == metric) & (curves["given"] == given) & (curves["scale"] == "linear")
    return curves[chosen & (curves["sink"] == "out") & curves["head"].isna()]


def _turns(curves: pandas.DataFrame) -> pandas.DataFrame:
    """One row per run and layer: the index untrained and at the end, its extremes, and where its sign turns.

    ``turns`` is the first measured step from which on the sign is that of the end; none where it had that
    sign from the start on.
    """
    import pandas as pd

    rows = []
    for (run, layer), part in of_layers(curves).groupby(["run", "layer"], sort=True):
        values = part.sort_values("step").set_index("step")["value"]
        same = (values > 0) == (values.iloc[-1] > 0)
        others = same.index[~same]
        rows.append(
            {
                "run": run,
                "depth": part["depth"].iloc[0],
                "seed": part["seed"].iloc[0],
                "layer": int(layer),
                "untrained": values.iloc[0],
                "lowest": values.min(),
                "lowest_step": values.idxmin(),
                "highest": values.max(),
                "highest_step": values.idxmax(),
                "end": values.iloc[-1],
                "turns": None if others.empty else values.index[values.index > others[-1]][0],
            }
        )
    return pd.DataFrame(rows).astype({"turns": "Int64"})
