"""JoMA Sec. 7: Theorem 1 when embeddings learn too, and when logits are U W_Q W_K' U' instead of free."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from joma.experiments.base import Experiment
from joma.runs.job import setting

if TYPE_CHECKING:
    import numpy as np
    import pandas
    import torch
    from matplotlib.figure import Figure

    from joma.claim import Claim
    from joma.progress import Progress

    State = dict[str, torch.Tensor]

ATTENTION = ("linear", "exp", "softmax")
# How the logits are made, and whether the embeddings learn.
MODELS = {
    "free": ("free", False),
    "one matrix": ("matrix", False),
    "two matrices": ("factors", False),
    "free, embeddings learn": ("free", True),
    "two matrices, embeddings learn": ("factors", True),
}
# As the figure has it: a model's logits, and a law's constant for exp attention.
TITLES = {
    "free": "z free (Theorem 1's case)",
    "one matrix": r"$z = U^\top A\,u_q$",
    "two matrices": r"$z = U^\top W_K^\top W_Q\,u_q$",
    "free, embeddings learn": "z free, embeddings learn",
    "two matrices, embeddings learn": r"$z = U^\top W_K^\top W_Q\,u_q$, embeddings learn",
}
LAWS = {
    "theorem 1": r"$z - \Sigma_k v_k^2/(2T)$ (Theorem 1)",
    "norm": r"$z - |u|^2/(2T)$",
    "balance": r"$W_K W_K^\top - W_Q W_Q^\top$",
    "block": r"$U U^\top + u_q u_q^\top - W^\top W$",
}
READERS = (
    r"$\, -\, W_K^\top W_K - W_Q^\top W_Q$"  # which the block law has too where there are these matrices
)
# (model, law) -> the claim's name, and what it states.
STATEMENTS = {
    ("one matrix", "theorem 1"): (
        "one_matrix",
        "With z = U' A u_q and fixed orthonormal embeddings Theorem 1 holds, at the rate eta |u_q|^2.",
    ),
    ("free, embeddings learn", "norm"): (
        "norm",
        "When embeddings learn, each token's logit is half the square of its embedding (linear: its "
        "size), up to a constant.",
    ),
    ("two matrices", "balance"): (
        "balance",
        "With z = U' W_K' W_Q u_q the matrix W_K W_K' - W_Q W_Q' is constant.",
    ),
    ("two matrices, embeddings learn", "block"): (
        "block",
        "When everything learns, U U' + u_q u_q' - W' W - W_K' W_K - W_Q' W_Q is constant.",
    ),
}


@dataclass(frozen=True, kw_only=True)
class Embeddings(Experiment):
    """The block of Eq. 1 with its attention and its embeddings parametrised as in a real transformer.

    The paper keeps the embeddings fixed and the logits free, and leaves the rest to future work (Sec. 7).
    Five models are trained by gradient flow (autograd, an adaptive Runge-Kutta method, float64) on the same
    data from orthonormal embeddings, cross-entropy on the hidden units, residual query included, all rates 1:

    - logits free; ``z = U' A u_q`` with one matrix; ``z = U' W_K' W_Q u_q`` with two; embeddings fixed;
    - free and two-matrix logits with the embeddings (the query's too) trained.

    Followed are Theorem 1's constants and what takes their place. Differentiating the loss gives:

    - one matrix: Theorem 1 as it stands, at the rate ``eta |u_q|^2``;
    - embeddings trained, logits free: ``z_l - |u_l|^2 / (2T)`` (exp) and ``z_l^2 - |u_l|^2`` (linear) are
      constant, token by token: attention goes with the *norm of the embedding*, not with the MLP's weights;
    - two matrices: ``W_K W_K' - W_Q W_Q'`` is constant, whatever else is trained;
    - embeddings trained: the matrix ``U U' + u_q u_q' - W' W - W_K' W_K - W_Q' W_Q`` is constant, for every
      kind of attention: what the embeddings gain, the matrices that read them gain together.

    Tables: ``drift`` (each constant's drift, relative to how far its terms moved), ``course`` (loss,
    motion of the logits, cosine of synonyms and of unrelated tokens).
    """

    title = "Theorem 1 with trained embeddings and with logits from W_Q, W_K"
    reproduces = "JoMA Sec. 7 (training embedding vectors; self-attention computed from embeddings)"
    cost: ClassVar[Mapping[str, str]] = {"quick": "40 s", "paper": "5 min"}
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "quick": {},
        "paper": {"tokens": 20, "dimension": 32, "classes": 10, "seeds": 5},
    }

    seeds: int = setting(2, "data sets and initial states", at_least=1, at_most=100)
    tokens: int = setting(8, "contextual tokens, in pairs of synonyms", at_least=4, at_most=200)
    classes: int = setting(4, "classes, and MLP nodes", at_least=2, at_most=100)
    dimension: int = setting(12, "embedding and key dimension, above tokens", at_least=5, at_most=1000)
    temperature: float = setting(1.0, "T of the attention logits", above=0.0)
    end: float = setting(15.0, "training time", above=0.0)
    moments: int = setting(61, "moments at which the constants are read", at_least=2, at_most=10_000)
    scale: float = setting(1.0, "entries of W_Q, W_K at the start: scale / sqrt(dimension)", above=0.0)

    def __post_init__(self) -> None:
        from joma.errors import InputError

        super().__post_init__()
        if self.dimension <= self.tokens:
            raise InputError(
                f"embeddings: setting dimension = {self.dimension} must exceed tokens = {self.tokens}, "
                "so that all embeddings and the query's start orthonormal."
            )
        if self.tokens % 2:
            raise InputError(
                f"embeddings: setting tokens = {self.tokens} must be even: synonyms come in pairs."
            )

    def run(self, progress: Progress) -> dict[str, pandas.DataFrame]:
        """Every attention, model and seed; the two-matrix model once more from half the scale."""
        import pandas as pd

        cells = [(attention, model, self.scale) for attention in ATTENTION for model in MODELS]
        cells += [("exp", "two matrices", self.scale / 2)]
        parts = []
        for attention, model, scale in progress.track(cells, "embeddings"):
            for seed in range(self.seeds):
                name = f"{attention}_{model}_{scale:g}_{seed}".replace(" ", "_").replace(",", "")
                parts.append(progress.part(name, partial(self._cell, attention, model, scale, seed)))
        everything = pd.concat(parts, ignore_index=True)
        is_drift = everything["metric"].isin(list(LAWS))
        return {
            "drift": everything[is_drift].reset_index(drop=True),
            "course": everything[~is_drift].reset_index(drop=True),
        }

    def _cell(self, attention: str, model: str, scale: float, seed: int) -> pandas.DataFrame:
        import pandas as pd

        logits, learns = MODELS[model]
        problem = _Problem(self, attention, logits, scale, self.seed + seed)
        first = {name: _terms(terms) for name, terms in problem.quantities(problem.start, learns).items()}
        learned = [name for name in problem.start if learns or name not in ("embeddings", "query")]
        rows = []
        for time, state in problem.flow(learned, self.end, self.moments):
            for name, terms in problem.quantities(state, learns).items():
                constant, sides = _terms(terms)
                moved = float((sides - first[name][1]).norm())
                gap = float((constant - first[name][0]).norm())
                rows.append((time, name, gap / moved if moved > 0 else 0.0, "relative"))
            rows += [(time, *row) for row in problem.measures(state)]
        table = pd.DataFrame(rows, columns=["step", "metric", "value", "unit"])
        return table.assign(attention=attention, model=model, scale=scale, run=seed, dtype="float64")

    def draw(self, tables: Mapping[str, pandas.DataFrame]) -> Figure:
        """What each model keeps under exp attention, and what its embeddings learn."""
        from joma.reporting.figures import PALETTE, panels

        figure, axes = panels(2, 3, width=4.4, height=3.3)
        drift = tables["drift"].query("attention == 'exp' and scale == @self.scale")
        colours = dict(zip(LAWS, PALETTE, strict=False))
        for axis, (model, title) in zip(axes.ravel(), TITLES.items(), strict=False):
            for law, name in LAWS.items():
                one = drift[(drift["model"] == model) & (drift["metric"] == law) & (drift["step"] > 0)]
                if one.empty:
                    continue
                curve = one.groupby("step")["value"].median().clip(lower=1e-14)
                name += READERS if law == "block" and MODELS[model][0] == "factors" else ""
                dash = "--" if law == "block" else "-"  # it lies upon others
                axis.plot(curve, dash, color=colours[law], label=name)
            axis.set(yscale="log", ylim=(1e-14, 1e2), title=title)
            axis.set(xlabel="training time", ylabel="drift / what the terms moved")
            axis.legend(loc="center", bbox_to_anchor=(0.5, 0.62))
        last = axes[1, 2]
        course = tables["course"].query("attention == 'exp' and model == 'free, embeddings learn'")
        for metric, name in {"synonyms": "synonyms", "unrelated": "unrelated tokens"}.items():
            last.plot(course[course["metric"] == metric].groupby("step")["value"].median(), label=name)
        last.set(xlabel="training time", ylabel="mean cosine of embeddings", title="z free, embeddings learn")
        last.legend(loc="upper left")
        figure.suptitle(f"exp attention, median of {drift['run'].nunique()} seeds")
        return figure

    def claims(self, tables: Mapping[str, pandas.DataFrame]) -> list[Claim]:
        """What survives, what takes its place, and two remarks of Sec. 7."""
        from joma.claim import judge, within

        drift, found = tables["drift"].query("scale == @self.scale"), []
        tolerance = 1e-6  # the integration's: 1e-9 a step

        def worst(model: str, law: str, attention: str) -> float:
            chosen = drift.query("model == @model and metric == @law and attention == @attention")
            return float(chosen.groupby("run")["value"].last().max())

        for (model, law), (name, statement) in STATEMENTS.items():
            own = "two matrices" if law == "theorem 1" else model
            for attention in ATTENTION if law in ("balance", "block") else ATTENTION[:2]:
                has_null = attention != "softmax"  # Theorem 1 has no such constant there
                found.append(
                    within(
                        worst(model, law, attention),
                        tolerance,
                        id=f"embeddings.{name}_{attention}",
                        source="JoMA Sec. 7, Thm 1",
                        statement=statement,
                        null=worst(own, "theorem 1", attention) if has_null else None,
                        null_description=f"Theorem 1's constant in the model '{own}'" if has_null else "",
                        evidence=f"{attention} attention: drift over how far the terms moved, at the "
                        f"end, largest of {self.seeds} seeds.",
                    )
                )
        found.append(self._synonyms(tables["course"]))
        reached = {scale: self._speed(tables["course"], scale) for scale in (self.scale, self.scale / 2)}
        found.append(
            judge(
                reached[self.scale] > 1,
                id="embeddings.accelerates",
                source="JoMA Sec. 7",
                statement="Z = U W_Q W_K' U' may accelerate the training dynamics of Z.",
                expected="above 1: farther than free logits when those have moved half their way",
                measured=reached[self.scale],
                tolerance=1.0,
                null=reached[self.scale / 2],
                null_description="W_Q and W_K from half the scale: the initial scale alone decides",
                evidence="Exp attention, median of the seeds. dz/dt = (|W_Q u_q|^2 + U'W_K'W_K U) s, not s.",
            )
        )
        return found

    def _synonyms(self, course: pandas.DataFrame) -> Claim:
        from joma.claim import judge

        chosen = course[course["model"] == "free, embeddings learn"]
        last = chosen.groupby(["metric", "attention", "run"])["value"].last()
        together, apart = float(last["synonyms"].min()), float(last["unrelated"].max())
        return judge(
            together > 0.1 and together > 2 * abs(apart),
            id="embeddings.synonyms",
            source="JoMA Sec. 7",
            statement="Concepts with similar semantics will learn similar embeddings.",
            expected="mean cosine of synonyms above 0.1 and twice that of unrelated tokens (0 at the start)",
            measured=together,
            tolerance=0.1,
            null=apart,
            null_description="tokens of unlike frequencies",
            evidence="Least over kinds of attention and seeds, largest for the null; synonyms have the same "
            "frequencies in all classes.",
        )

    def _speed(self, course: pandas.DataFrame, scale: float) -> float:
        motion = course[(course["metric"] == "motion") & (course["attention"] == "exp")]
        free = motion[motion["model"] == "free"].groupby("step")["value"].median()
        other = motion[(motion["model"] == "two matrices") & (motion["scale"] == scale)]
        half = free.index[int((free >= free.iloc[-1] / 2).argmax())]
        return float(other.groupby("step")["value"].median()[half] / free[half])


class _Problem:
    """Data, model and loss of one run; states are dicts of float64 tensors."""

    def __init__(self, settings: Embeddings, attention: str, logits: str, scale: float, seed: int) -> None:
        import numpy as np
        import torch

        self.attention, self.logit_kind, self.temperature = attention, logits, settings.temperature
        m, d, k = settings.tokens, settings.dimension, settings.classes
        rng = np.random.default_rng([seed, 7])
        pairs = rng.dirichlet(np.full(m // 2, 0.5), k)
        self.frequencies = torch.tensor(np.repeat(pairs, 2, axis=1) / 2)
        self.labels = torch.arange(k)
        frame = np.linalg.qr(rng.normal(size=(d, d)))[0]
        embeddings, query = frame[:, :m], frame[:, m]
        start = {"weights": 0.3 * rng.normal(size=(k, d))}
        # Linear attention needs logits away from zero to move at all.
        wanted = np.full(m, 1.0 if attention == "linear" else 0.0)
        if logits == "free":
            start["logits"] = wanted
        elif logits == "matrix":
            start["matrix"] = embeddings @ np.outer(wanted, query)
        else:
            start["key"] = scale * rng.normal(size=(d, d)) / np.sqrt(d)
            start["query_matrix"] = scale * rng.normal(size=(d, d)) / np.sqrt(d)
        start |= {"embeddings": embeddings, "query": query}
        self.start: State = {name: torch.tensor(value) for name, value in start.items()}

    def logits(self, state: State) -> torch.Tensor:
        embeddings, query = state["embeddings"], state["query"]
        if self.logit_kind == "free":
            return state["logits"]
        if self.logit_kind == "matrix":
            return embeddings.T @ (state["matrix"] @ query)
        return embeddings.T @ (state["key"].T @ (state["query_matrix"] @ query))

    def hidden(self, state: State) -> torch.Tensor:
        z = self.logits(state) / self.temperature
        b = self.frequencies * (z if self.attention == "linear" else z.exp())
        if self.attention == "softmax":
            b = b / b.sum(dim=1, keepdim=True)
        return (b @ state["embeddings"].T + state["query"]) @ state["weights"].T

    def loss(self, state: State) -> torch.Tensor:
        import torch

        return torch.nn.functional.cross_entropy(self.hidden(state), self.labels)

    def ascent(self, state: State, learned: list[str]) -> State:
        """Minus the loss's gradient with respect to what is learned."""
        import torch

        leaves = {name: state[name].detach().requires_grad_() for name in learned}
        gradients = torch.autograd.grad(-self.loss(state | leaves), list(leaves.values()))
        return dict(zip(learned, gradients, strict=True))

    def flow(self, learned: list[str], end: float, moments: int) -> Iterator[tuple[float, State]]:
        """Gradient flow of what is learned: the state at each moment."""
        import numpy as np
        import torch
        from scipy.integrate import solve_ivp

        from joma.errors import DivergenceError

        shapes = [self.start[name].shape for name in learned]
        ends = np.cumsum([shape.numel() for shape in shapes])[:-1]

        def unpack(flat: np.ndarray) -> State:
            parts = np.split(flat, ends)
            tensors = [torch.tensor(part).reshape(shape) for part, shape in zip(parts, shapes, strict=True)]
            return self.start | dict(zip(learned, tensors, strict=True))

        def pack(state: State) -> np.ndarray:
            return np.concatenate([state[name].numpy().ravel() for name in learned])

        course = solve_ivp(
            lambda _, flat: pack(self.ascent(unpack(flat), learned)),
            (0.0, end),
            pack(self.start),
            method="DOP853",
            t_eval=np.linspace(0.0, end, moments),
            rtol=1e-9,
            atol=1e-12,
        )
        if not course.success:
            raise DivergenceError(
                f"embeddings: the flow stopped at t = {course.t[-1]:.4g}; set a smaller end."
            )
        yield from zip(course.t.tolist(), map(unpack, course.y.T), strict=True)

    def quantities(self, state: State, learns: bool) -> dict[str, tuple[torch.Tensor, ...]]:
        """Constants as (positive term, negative terms ...): their difference should stay."""
        import torch

        found: dict[str, tuple[torch.Tensor, ...]] = {}
        w, u, q, z = state["weights"], state["embeddings"], state["query"], self.logits(state)
        if self.attention != "softmax":
            side = z**2 if self.attention == "linear" else 2 * self.temperature * z
            found["theorem 1"] = (side, ((w @ u) ** 2).sum(dim=0))
            if learns and self.logit_kind == "free":
                found["norm"] = (side, (u**2).sum(dim=0))
        readers = [w.T @ w]
        if self.logit_kind == "factors":
            key, other = state["key"], state["query_matrix"]
            found["balance"] = (key @ key.T, other @ other.T)
            readers += [key.T @ key, other.T @ other]
        if learns:
            found["block"] = (u @ u.T + torch.outer(q, q), *readers)
        return found

    def measures(self, state: State) -> list[tuple[str, float, str]]:
        import torch

        u = torch.nn.functional.normalize(state["embeddings"], dim=0)
        cosines = u.T @ u
        m = len(cosines)
        pair = torch.arange(m) // 2
        off = ~torch.eye(m, dtype=torch.bool)
        same = (pair[:, None] == pair) & off
        motion = (self.logits(state) - self.logits(self.start)).norm()
        return [
            ("loss", float(self.loss(state)), "nats"),
            ("motion", float(motion), "logits"),
            ("synonyms", float(cosines[same].mean()), "cosine"),
            ("unrelated", float(cosines[off & ~same].mean()), "cosine"),
        ]


def _terms(terms: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    """A constant, and all of its terms side by side (to see how far they moved)."""
    import torch

    constant = terms[0].clone()
    for term in terms[1:]:
        constant = constant - term
    return constant, torch.stack(terms)
