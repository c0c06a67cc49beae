"""The sampled block, the population's flow, and the flow with C = I."""

from __future__ import annotations

from functools import partial

import numpy as np
import pandas as pd

from joma.core.progress import Progress
from joma.dynamics.block_end import FROM
from joma.dynamics.block_salience_flow import BlockAttention, JointTrajectory, integrate_joint
from joma.experiments.beyond.block_flow import BlockFlow, boundary, sharp
from joma.experiments.beyond.block_flow.cases import Array, Case, cases, make
from joma.theory import block_salience, salience
from joma.theory.block_boundary import critical_ratio
from joma.theory.block_salience import entropy, lambert
from joma.theory.bounce_law import bounce_law, bounce_of_flow
from joma.theory.drift import Drift, Mixture, of_samples, towards
from joma.theory.isotropic import RELU
from joma.theory.isotropic_laws import Gaussian, MultivariateT, UniformBall

# A flow starts where the gate reads the share FROM of mu, not at v = 0, where the gate is shut and nothing
# ever moves (joma.theory.escape_time); what the share changes is the table ``starts``.

# Time constants of its slowest direction that a flow is given to come to rest.
PATIENCE = 12.0


def run(settings: BlockFlow, progress: Progress) -> dict[str, pd.DataFrame]:
    """Every table; the sampled block in one part a case."""
    sampled = {
        f"rests_{index}": partial(rests, settings=settings, index=index) for index in range(settings.cases)
    }
    parts = progress.parts(
        {
            **sampled,
            "law": partial(law, settings=settings),
            "phases": partial(phases, settings=settings),
            "boundary": partial(boundary.boundary, count=settings.blocks, seed=settings.seed),
        }
    )
    example = make(Gaussian(), RELU, settings.components, 12.0, 0.34)
    return {
        "rests": pd.concat([parts[name] for name in sampled], ignore_index=True),
        "courses": courses(example),
        "rates": rates(),
        "costs": costs(settings),
        "centres": centres(settings),
        "law": parts["law"],
        "phases": parts["phases"],
        "boundary": parts["boundary"],
        "starts": boundary.starts(settings.components, settings.starts),
    }


def start(case: Case) -> Array:
    """v(0) at which the gate reads FROM mu, on the invariant z = kappa v^2/2."""
    u = FROM * case.mu
    return np.asarray(u * np.exp(-0.5 * lambert(case.kappa * u * u)))


def horizon(case: Case, attention: str) -> float:
    """Time enough to rest: PATIENCE over the least rate, (1 + W) e^W times C's with attention."""
    c = case.planted.stiffness
    gain = block_salience.convergence_rate(case.mu, kappa=case.kappa).min() if attention == "exp" else 1.0
    return float(PATIENCE / (min(c.along, c.transverse) * gain))


def rests(progress: Progress, settings: BlockFlow, index: int) -> pd.DataFrame:
    """Exp and uniform attention on the same samples, to rest."""
    case = cases(settings.cases)[index]
    rows = []
    other: Array | None = None
    for seed in range(settings.seeds):
        numbers, uniform = one_sample(case, settings.samples, settings.seed + seed)
        apart = np.nan if other is None else np.abs(uniform - other).max()
        numbers["uniform's rest on the sample before"] = float(apart)
        other = uniform
        rows += [{"run": case.name, "seed": seed, "metric": m, "value": v} for m, v in numbers.items()]
    return pd.DataFrame(rows)


def one_sample(case: Case, samples: int, seed: int) -> tuple[dict[str, float], Array]:
    """What is measured on one sample, and where uniform attention rests on it (n,)."""
    x, g = case.planted.mixture.sample(samples, seed)
    drift = of_samples(x, g, case.planted.mixture.gate, width=case.width)
    v0 = start(case)
    flows: dict[str, JointTrajectory] = {
        attention: integrate_joint(
            drift,
            v0 if attention == "exp" else FROM * case.mu,
            np.concatenate([[0.0], horizon(case, attention) * np.logspace(-3, 0, 60)]),
            attention=attention,
            kappa=case.kappa,
            z0=0.5 * case.kappa * v0 * v0 if attention == "exp" else 0.0,
            bias=case.planted.bias,
            rtol=1e-7,
            atol=1e-9,
        )
        for attention in ("exp", "frozen")
    }
    block, frozen = flows["exp"], flows["frozen"]
    uniform = frozen.v[-1, 0]
    law_gap = np.abs(block_salience.rest(case.mu, kappa=case.kappa)[0] - case.mu).max()
    numbers = {
        "attended weight's distance from uniform's rest": np.abs(block.attended[-1, 0] - uniform).max(),
        "weight's distance from uniform's rest": np.abs(block.v[-1, 0] - uniform).max(),
        "distance of the two laws": law_gap,
        "drift of z - kappa v^2/2": np.abs(block.logits - 0.5 * case.kappa * block.v[:, 0] ** 2).max(),
        "rebound": rebound(entropy(block.logits)),
        "rebound, frozen": rebound(entropy(frozen.logits)),
        **sharp.rests(x, g, case, v0, FROM * case.mu, (horizon(case, "exp"), horizon(case, "frozen"))),
    }
    return {metric: float(value) for metric, value in numbers.items()}, uniform


def rebound(course: Array) -> float:
    """From an entropy's least value to its last, in nats."""
    return float(course[-1] - course.min())


def population(
    case: Case, times: Array, attention: BlockAttention, drift: Drift | None = None
) -> JointTrajectory:
    """The population's flow, or that of a model of its drift, from the share FROM of mu."""
    v0 = FROM * case.mu if attention == "frozen" else start(case)
    return integrate_joint(
        drift or case.planted.mixture.drift(),
        v0,
        times,
        attention=attention,
        kappa=case.kappa,
        z0=0.0 if attention == "frozen" else 0.5 * case.kappa * v0 * v0,
        bias=case.planted.bias,
        rtol=1e-10,
        atol=1e-12,
    )


def courses(case: Case) -> pd.DataFrame:
    """Entropy of attention in time, and when each component is half learned, for four flows."""
    times = np.concatenate([[0.0], horizon(case, "exp") * np.logspace(-3.5, 0, 400)])
    rate = case.planted.stiffness.transverse
    printed = salience.solve(case.mu, times, v0=start(case), kappa=case.kappa, rate=rate).v
    flows = {
        "block": population(case, times, "exp"),
        "corrected law": population(case, times, "exp", towards(case.mu, rate * np.eye(case.mu.size))),
        "frozen": population(case, times * horizon(case, "frozen") / times[-1], "frozen"),
    }
    told = {name: (flow.times, flow.attended[:, 0], flow.logits) for name, flow in flows.items()}
    told["Eq. 6"] = times, printed, 0.5 * case.kappa * np.square(printed)
    rows = []
    for name, (moments, read, logits) in told.items():
        left = np.abs(read / case.mu - 1)
        reached = moments[np.argmax(left < 0.5 * left[0], axis=0)]
        rows += [
            pd.DataFrame({"run": name, "step": moments, "metric": "entropy", "value": entropy(logits)}),
            pd.DataFrame({"run": name, "step": case.mu, "metric": "half learned", "value": reached}),
        ]
    return pd.concat(rows, ignore_index=True)


def rates() -> pd.DataFrame:
    """Final rates of the population's block: eigenvalues at its rest, beside both laws."""
    rows = []
    for law, rho in (
        (Gaussian(), -1.0),
        (Gaussian(), -0.5),
        (UniformBall(3), -1.0),
        (MultivariateT(5.0), -1.0),
    ):
        case = make(law, RELU, 3, 6.0, 0.34, rho)
        at = block_salience.rest(case.mu, kappa=case.kappa)[0]
        nearby = [at + sign * 1e-6 * e for e in np.eye(at.size) for sign in (1, -1)]
        speeds = np.array([velocity(case, v) for v in nearby])
        jacobian = (speeds[::2] - speeds[1::2]).T / 2e-6
        found = np.sort(np.abs(np.linalg.eigvals(jacobian)))
        c = case.planted.stiffness
        numbers = {
            "measured": found[-1] / found[0],
            "frozen": max(c.along, c.transverse) / min(c.along, c.transverse),
            "law": block_salience.asymptotic_ratio(case.mu.max(), case.mu.min(), kappa=case.kappa),
            "printed": salience.asymptotic_ratio(case.mu.max(), case.mu.min(), kappa=case.kappa),
        }
        name = f"{law.name}, rho_- = {rho:g}"
        rows += [{"run": name, "metric": metric, "value": float(value)} for metric, value in numbers.items()]
    return pd.DataFrame(rows)


def velocity(case: Case, v: Array) -> Array:
    """v' of the population's block on the invariant z = kappa v^2/2."""
    gain = np.exp(0.5 * case.kappa * v * v)
    pull, _ = case.planted.mixture.drift()((v * gain)[None], np.array([case.planted.bias]))
    return np.asarray(gain * pull[0])


def costs(settings: BlockFlow) -> pd.DataFrame:
    """Rebound of the population's block, with the full C(mu), and without mu mu' (C = I but for time)."""
    rows = []
    for rho in (-1.5, -1.0, -0.7, -0.5):
        case = make(Gaussian(), RELU, settings.components, 12.0, 0.34, rho)
        c = case.planted.stiffness
        times = np.concatenate([[0.0], horizon(case, "exp") * np.logspace(-3.5, 0, 400)])
        drifts = {
            "population": None,
            "full C": towards(case.mu, c.matrix(case.mu)),
            "C = beta_1 I": towards(case.mu, c.transverse * np.eye(case.mu.size)),
        }
        for name, drift in drifts.items():
            course = entropy(population(case, times, "exp", drift).logits)
            numbers = {"dip": course[0] - course.min(), "rebound": rebound(course)}
            rows += [
                {"run": name, "rho_minus": rho, "metric": metric, "value": float(value)}
                for metric, value in numbers.items()
            ]
    return pd.DataFrame(rows)


def centres(settings: BlockFlow) -> pd.DataFrame:
    """Sine of the angle from a critical point to the nearest cluster's centre, two and three components."""
    rows = []
    for seed in range(settings.seeds):
        rng = np.random.default_rng(settings.seed + seed)
        case = make(Gaussian(), RELU, 4, 2.0, 0.5)
        two = case.planted.mixture
        third = two.centres[1] + 0.6 * rng.standard_normal(4)
        three = Mixture(
            two.law, two.gate, np.vstack([two.centres, third]), np.append(two.amplitudes * [1.4, 1.0], 0.5)
        )
        shifted = Mixture(two.law, two.gate, two.centres + 0.3 * rng.standard_normal(4), two.amplitudes)
        for name, mixture in (("two", two), ("two, off the origin", shifted), ("three", three)):
            flow = integrate_joint(
                mixture.drift(), case.mu, [0.0, 400.0], attention="frozen", bias=case.planted.bias
            )
            mu = flow.v[-1, 0]
            left = np.linalg.norm(mixture.drift()(mu[None], np.array([case.planted.bias]))[0])
            numbers = {
                "sine to the nearest centre": sine(mu, mixture.centres),
                "sine of a random direction": sine(rng.standard_normal(4), mixture.centres),
                "drift that is left": float(left),
            }
            rows += [{"run": name, "seed": seed, "metric": m, "value": v} for m, v in numbers.items()]
    return pd.DataFrame(rows)


def sine(direction: Array, centres: Array) -> float:
    """Least sine of the angle between a direction and the centres other than 0."""
    away = centres[np.linalg.norm(centres, axis=1) > 0]
    cosine = (away @ direction) / np.linalg.norm(away, axis=1) / np.linalg.norm(direction)
    return float(np.sqrt(np.maximum(1 - np.max(cosine) ** 2, 0.0)))


def law(progress: Progress, settings: BlockFlow) -> pd.DataFrame:
    """Random mu: dip and rebound by the law and by the flow."""
    rng = np.random.default_rng([settings.seed, 20_261_128])
    rows = []
    for index in progress.track(range(settings.drawn), "random mu"):
        largest = float(np.exp(rng.uniform(np.log(0.5), np.log(3e3))))
        mu = largest * rng.uniform(rng.uniform(0.02, 0.95), 1.0, rng.integers(2, 25))
        for name, found in (("law", bounce_law(mu)), ("flow", bounce_of_flow(mu))):
            for metric in ("dip", "rebound"):
                rows.append(
                    {
                        "run": name,
                        "draw": index,
                        "largest": largest,
                        "metric": metric,
                        "value": getattr(found, metric),
                    }
                )
    return pd.DataFrame(rows)


def phases(progress: Progress, settings: BlockFlow) -> pd.DataFrame:
    """Dip and rebound with C = I, and the boundary chi_c, over saliency and spread min mu/max mu."""
    rows = []
    for largest in progress.track(np.logspace(0.0, 3.0, settings.phase_points), "phases"):
        # The last one, all components alike, is the null.
        for spread in [*np.linspace(0.05, 0.95, settings.phase_points), 1.0]:
            mu = largest * np.linspace(spread, 1.0, settings.components)
            found = bounce_of_flow(mu)
            numbers = {"dip": found.dip, "rebound": found.rebound}
            if spread < 1:
                numbers["boundary"] = critical_ratio(mu)
            for metric, value in numbers.items():
                rows.append({"saliency": largest, "spread": spread, "metric": metric, "value": value})
    return pd.DataFrame(rows)
