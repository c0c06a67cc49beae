"""Momentum, Adam and weight decay: what each leaves of JoMA Theorem 1, which is about plain gradient flow."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.integrate import solve_ivp

from joma.core.claim import Claim, above, statements, within_error
from joma.dynamics import sgd
from joma.theory.activation import activation
from joma.theory.attention import Array, Attention, AttentionKind
from joma.theory.block import Block, Embeddings
from joma.theory.invariants import first_integral
from joma.theory.optimizers import (
    adam_pace,
    descent_under_decay,
    integral_under_decay,
    matched_decay,
    momentum_drift,
    resting_coefficient,
)

TOKENS, NODES, SAMPLES = 5, 2, 20
KINDS: tuple[AttentionKind, ...] = ("linear", "exp")
SOURCE = "JoMA Thm 1, beyond gradient flow"

STATEMENTS = statements(
    {
        "momentum.factor": f"{SOURCE} | Along the same course at the same effective rate, momentum drifts "
        "(1 + beta) / (1 - beta) times as far as plain descent.",
        "momentum.limit": f"{SOURCE} | Under momentum the invariant is conserved in the limit of small "
        "steps, at first order.",
        "weight_decay.rest": f"{SOURCE} | Exp attention at rest under equal decays: z = sum_k v_k^2 / T, "
        "twice what Theorem 1 says, whatever the rates and the start.",
        "adam.breaks": f"{SOURCE} | Under Adam Theorem 1's formula for the logits fails from the start.",
        "adam.pace": f"{SOURCE} | While gradients keep their signs, z_l = r(n) (eta_z/eta_w) |v_kl| for all "
        "tokens and nodes, with r(n) from Adam's two averages alone.",
        "adam.no_winner": "JoMA Thm 2, beyond gradient flow | Under Adam no token ever wins: with linear "
        "nodes and exp attention from zero all |v_kl| grow alike, however different their gradients.",
        "momentum.{kind}": f"{SOURCE} | {{kind}} attention, momentum {{beta}}: the invariant drifts by "
        "sum_s e_s (1 + 2 beta (1 - beta^(n-1-s)) / (1 - beta)), exactly.",
        "weight_decay.{kind}": f"{SOURCE} | {{kind}} attention: with the logits' decay rate{{twice}} that "
        "of the weights, c(t) = c(0) exp(-2 eta_w lambda t), exactly.",
        "weight_decay.{kind}_leak": f"{SOURCE} | {{kind}} attention, any two decays: dc/dt = -r c + (2 "
        "alpha_w - r) coef sum_k v_k^2.",
        "weight_decay.{kind}_steps": f"{SOURCE} | {{kind}} attention: discrete descent with decay moves c "
        "by an exact recursion.",
    },
    exact=True,
)


class _Problem:
    """One random data set, gradients and initial state for all the runs below."""

    def __init__(self, kind: AttentionKind, name: str = "gelu", *, zero: bool = False) -> None:
        rng = np.random.default_rng(0)
        self.attention = Attention(kind=kind, temperature=0.8)
        self.block = Block(Embeddings.orthonormal(TOKENS), self.attention, activation(name))
        self.frequencies = rng.dirichlet(np.ones(TOKENS), SAMPLES)
        self.gradient = 0.3 * rng.normal(size=(SAMPLES, NODES))
        self.weights = (0.0 if zero else 0.3) * rng.normal(size=(NODES, TOKENS + 1))
        self.logits = (0.0 if zero else 1.0) * (0.5 + np.abs(rng.normal(size=TOKENS)))

    def train(
        self, optimizer: sgd.Optimizer, steps: int, weight_rate: float, attention_rate: float
    ) -> sgd.Descent:
        return sgd.train(
            self.block,
            self.frequencies,
            self.gradient,
            weights=self.weights,
            logits=self.logits,
            steps=steps,
            weight_rate=weight_rate,
            attention_rate=attention_rate,
            optimizer=optimizer,
        )

    def decay(
        self,
        times: Array,
        weight_decay: float,
        attention_decay: float,
        weight_rate: float = 1.0,
        attention_rate: float = 1.0,
    ) -> tuple[Array, Array]:
        """Gradient flow with weight decay: v (S, K, M) and z (S, M)."""
        shape, size = self.weights.shape, self.weights.size
        probabilities = np.full(SAMPLES, 1 / SAMPLES)

        def velocity(_: float, state: Array) -> Array:
            w, z = state[:size].reshape(shape), state[size:]
            up = self.block.directions(self.frequencies, w, z, self.gradient, sample_weights=probabilities)
            dw = weight_rate * (up.weights - weight_decay * w)
            return np.concatenate([dw.ravel(), attention_rate * (up.logits - attention_decay * z)])

        start = np.concatenate([self.weights.ravel(), self.logits])
        course = solve_ivp(
            velocity, (0.0, times[-1]), start, t_eval=times, method="DOP853", rtol=1e-11, atol=1e-13
        ).y.T
        return course[:, :size].reshape(-1, *shape)[..., :TOKENS], course[:, size:]


def _largest(values: Array) -> float:
    return float(np.abs(values).max())


def momentum() -> list[Claim]:
    """Heavy-ball steps: an exact law for the drift, and how it compares with plain descent."""
    claims, beta, eta_w, eta_z = [], 0.9, 1e-3, 1.5e-3
    for kind in KINDS:
        problem = _Problem(kind)
        run = problem.train(sgd.Optimizer(kind="momentum", momentum=beta), 300, eta_w, eta_z)
        kept = first_integral(
            problem.attention, run.logits, run.context_weights, weight_rate=eta_w, attention_rate=eta_z
        )
        laws = [
            momentum_drift(
                problem.attention,
                run.context_weights,
                run.logits,
                momentum=value,
                weight_rate=eta_w,
                attention_rate=eta_z,
            )
            for value in (beta, 0.0)
        ]
        claims.append(
            STATEMENTS["momentum.{kind}"]
            .fill(kind=kind, beta=beta)
            .judge(
                within_error(1e-12, _largest(kept - kept[0] - laws[0])),
                null=_largest(kept - kept[0] - laws[1]),
                null_description="the law of plain descent, sum_s e_s",
                evidence=f"300 steps on random data, gelu nodes; the drift itself is "
                f"{_largest(kept - kept[0]):.3g}.",
            )
        )
    problem, drifts = _Problem("exp"), {}
    for value, rate in ((0.0, 2.5e-4), (0.8, 5e-4), (0.8, 2.5e-4)):
        step = rate * (1 - value)
        run = problem.train(sgd.Optimizer(kind="momentum", momentum=value), round(1.5 / rate), step, step)
        kept = first_integral(problem.attention, run.logits, run.context_weights)
        drifts[value, rate] = float((kept[-1] - kept[0]).sum())
    ratio = drifts[0.8, 2.5e-4] / drifts[0.0, 2.5e-4]
    halving = drifts[0.8, 5e-4] / drifts[0.8, 2.5e-4]
    claims.append(
        STATEMENTS["momentum.factor"].judge(
            within_error(0.01, abs(ratio / 9 - 1)),
            evidence=f"beta = 0.8, eta / (1 - beta) = 2.5e-4: a factor {ratio:.3f} against 9.",
        )
    )
    claims.append(
        STATEMENTS["momentum.limit"].judge(
            within_error(0.01, abs(halving / 2 - 1)),
            evidence=f"Halving the rate divides the drift by {halving:.3f}.",
        )
    )
    return claims


def weight_decay() -> list[Claim]:
    """Exponential forgetting, leakage, and the coefficient at rest."""
    claims, decay, eta_w, eta_z = [], 0.4, 0.9, 1.2
    times = np.linspace(0.0, 2.0, 401)
    for kind in KINDS:
        problem = _Problem(kind)
        matched = matched_decay(problem.attention, decay, weight_rate=eta_w, attention_rate=eta_z)
        v, z = problem.decay(times, decay, matched, eta_w, eta_z)
        kept = first_integral(problem.attention, z, v, weight_rate=eta_w, attention_rate=eta_z)
        forgotten = kept[0] * np.exp(-2 * eta_w * decay * times)[:, None]
        twice = "" if kind == "linear" else " twice"
        claims.append(
            STATEMENTS["weight_decay.{kind}"]
            .fill(kind=kind, twice=twice)
            .judge(
                within_error(1e-9, _largest(kept - forgotten)),
                null=_largest(kept - kept[0]),
                null_description="c constant, as without decay",
                evidence=f"Flow on random data to t = {times[-1]:g}, lambda_w = {decay}, lambda_z = "
                f"{matched:.3g}, eta = ({eta_z}, {eta_w}), gelu nodes.",
            )
        )
        other = 0.1
        v, z = problem.decay(times, decay, other, eta_w, eta_z)
        kept = first_integral(problem.attention, z, v, weight_rate=eta_w, attention_rate=eta_z)
        law = integral_under_decay(
            problem.attention,
            times,
            v,
            kept[0],
            weight_decay=decay,
            attention_decay=other,
            weight_rate=eta_w,
            attention_rate=eta_z,
        )
        claims.append(
            STATEMENTS["weight_decay.{kind}_leak"]
            .fill(kind=kind)
            .judge(
                within_error(2e-6, _largest(kept - law)),
                null=_largest(kept - kept[0]),
                null_description="c constant, as without decay",
                evidence=f"lambda_w = {decay}, lambda_z = {other}; trapezoid rule over 400 intervals.",
            )
        )
        step = 0.02
        run = problem.train(sgd.Optimizer(weight_decay=decay), 100, step, step)
        kept = first_integral(problem.attention, run.logits, run.context_weights)
        law = descent_under_decay(
            problem.attention,
            run.context_weights,
            run.logits,
            weight_decay=decay,
            attention_decay=decay,
            weight_rate=step,
            attention_rate=step,
        )
        claims.append(
            STATEMENTS["weight_decay.{kind}_steps"]
            .fill(kind=kind)
            .judge(
                within_error(1e-12, _largest(kept - law)),
                null=_largest(kept - kept[0]),
                null_description="c constant, as without decay",
                evidence=f"100 steps of {step}, lambda = {decay}.",
            )
        )
    problem = _Problem("exp", "tanh")
    equal = 0.05
    v, z = problem.decay(np.array([0.0, 4000.0]), equal, equal)
    squares = np.square(v[-1]).sum(axis=0)
    factor = resting_coefficient(problem.attention, weight_decay=equal, attention_decay=equal)
    size = _largest(z[-1])
    claims.append(
        STATEMENTS["weight_decay.rest"].judge(
            within_error(1e-6, _largest(z[-1] - factor * squares) / size),
            null=_largest(z[-1] - factor / 2 * squares) / size,
            null_description="Theorem 1's coefficient, c = 0",
            evidence=f"tanh nodes, lambda = {equal}, t = 4000; relative error, largest logit {size:.3g}.",
        )
    )
    return claims


def adam() -> list[Claim]:
    """Adam breaks Theorem 1 from the first steps on; one universal curve takes its place for a while."""
    problem, rate, steps = _Problem("exp", "linear", zero=True), 1e-5, 2000
    run = problem.train(sgd.Optimizer(kind="adam", epsilon=0.0), steps, rate, rate)
    plain = problem.train(sgd.Optimizer(), steps, 1e-3, 1e-3)
    size = np.abs(run.context_weights[1:])
    pace = adam_pace(steps)
    ratio = run.logits[2:, None] / size[1:]  # the first step leaves the logits where they are: r(1) = 0
    theorem = np.square(run.context_weights[-1]).sum(axis=0) / (2 * problem.attention.temperature)
    theorem_plain = np.square(plain.context_weights[-1]).sum(axis=0) / (2 * problem.attention.temperature)
    off = float(np.linalg.norm(run.logits[-1] - theorem) / np.linalg.norm(run.logits[-1]))
    off_plain = float(np.linalg.norm(plain.logits[-1] - theorem_plain) / np.linalg.norm(plain.logits[-1]))
    far = np.abs(
        problem.train(sgd.Optimizer(kind="adam", epsilon=0.0), steps, 1e-3, 1e-3).context_weights[-1]
    )
    spread = float(far.max() / far.min())
    spread_plain = np.abs(plain.context_weights[-1])
    return [
        STATEMENTS["adam.breaks"].judge(
            above(0.9, off, of="relative error of the formula"),
            null=off_plain,
            null_description="plain descent on the same data",
            evidence=f"Exp attention from zero, {steps} steps of rate {rate:g}.",
        ),
        STATEMENTS["adam.pace"].judge(
            within_error(0.01, np.abs(ratio / pace[1:, None, None] - 1).max()),
            evidence=f"Relative error over {steps} steps, {NODES} nodes, {TOKENS} tokens; r goes from 0 to "
            f"{pace.max():.3f} and is {pace[-1]:.3f} at the end.",
        ),
        STATEMENTS["adam.no_winner"].judge(
            within_error(1e-9, spread - 1),
            null=float(spread_plain.max() / spread_plain.min()) - 1,
            null_description="plain descent on the same data",
            evidence=f"Largest over smallest |v|, minus one, at |v| = {far[0, 0]:.3g} ({steps} steps of rate "
            "1e-3): Adam divides each gradient by its own size, and so takes out the only thing that tells "
            "tokens apart.",
        ),
    ]


CHECKS: dict[str, Callable[[], list[Claim]]] = {
    "momentum": momentum,
    "weight_decay": weight_decay,
    "adam": adam,
}
