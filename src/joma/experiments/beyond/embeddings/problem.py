"""The block with its attention and embeddings parametrised in one of several ways, trained by autograd."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from scipy.integrate import solve_ivp

from joma.core.arguments import Array
from joma.core.errors import DivergenceError
from joma.experiments.beyond.embeddings import Embeddings

State = dict[str, torch.Tensor]


class Problem:
    """Data, model and loss of one run; states are dicts of float64 tensors."""

    def __init__(self, settings: Embeddings, attention: str, logits: str, scale: float, seed: int) -> None:
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
        """``z`` (tokens,), by the model's parametrisation."""
        embeddings, query = state["embeddings"], state["query"]
        if self.logit_kind == "free":
            return state["logits"]
        if self.logit_kind == "matrix":
            return embeddings.T @ (state["matrix"] @ query)
        return embeddings.T @ (state["key"].T @ (state["query_matrix"] @ query))

    def nodes(self, state: State) -> torch.Tensor:
        """The MLP's nodes (classes, nodes) before the loss."""
        z = self.logits(state) / self.temperature
        b = self.frequencies * (z if self.attention == "linear" else z.exp())
        if self.attention == "softmax":
            b = b / b.sum(dim=1, keepdim=True)
        return (b @ state["embeddings"].T + state["query"]) @ state["weights"].T

    def loss(self, state: State) -> torch.Tensor:
        """Cross-entropy of the nodes against the classes (nats)."""
        return torch.nn.functional.cross_entropy(self.nodes(state), self.labels)

    def ascent(self, state: State, learned: list[str]) -> State:
        """Minus the loss's gradient with respect to what is learned."""
        leaves = {name: state[name].detach().requires_grad_() for name in learned}
        gradients = torch.autograd.grad(-self.loss(state | leaves), list(leaves.values()))
        return dict(zip(learned, gradients, strict=True))

    def flow(self, learned: list[str], end: float, moments: int) -> Iterator[tuple[float, State]]:
        """Gradient flow of what is learned: the state at each moment."""
        shapes = [self.start[name].shape for name in learned]
        ends = np.cumsum([shape.numel() for shape in shapes])[:-1]

        def unpack(flat: Array) -> State:
            parts = np.split(flat, ends)
            tensors = [torch.tensor(part).reshape(shape) for part, shape in zip(parts, shapes, strict=True)]
            return self.start | dict(zip(learned, tensors, strict=True))

        def pack(state: State) -> Array:
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
        """Metric, value and unit: loss, motion of the logits, cosines of synonyms and of other tokens."""
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
