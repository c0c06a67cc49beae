"""Eq. 6 is not the flow of its own block: what the gate reads, where it rests, how fast, how it bounces."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from joma.core.arguments import Array
from joma.core.claim import Claim, above, at_most, below, statements, within_error
from joma.dynamics.block_salience_flow import integrate_joint, integrate_salience
from joma.theory import block_salience, salience
from joma.theory.activation import activation
from joma.theory.attention import Attention
from joma.theory.block import Block, Embeddings
from joma.theory.bounce_law import bounce_law, bounce_of_flow
from joma.theory.drift import of_samples, plant, towards
from joma.theory.isotropic import RELU
from joma.theory.isotropic_laws import Gaussian

MU = np.array([2.373, 1.56, 0.809])

STATEMENTS = statements(
    {
        "block_flow.gate": "JoMA Eq. 6 ('we simply add back the attention term') | With exp attention v' = "
        "e^z o Delta(v), Delta(u) = E[g phi'(u.x + xi) x] the drift under uniform attention (there C (mu - "
        "v)).",
        "block_flow.rest": "JoMA Sec. 4, after Eq. 6 | With attention the critical point v* = mu does not "
        "change.",
        "block_flow.time": "JoMA Eq. 79, of the block | From v(0) = 0 the time of ln 1/|1 - u/mu| = L is "
        "int_0^L e^{-w}/(1 + w) dL, w = W(kappa u^2).",
        "block_flow.ratio": "JoMA Thm 4, Eq. 7 | Components converge at rates in the ratio exp((mu_j^2 - "
        "mu_k^2)/2).",
        "block_flow.linear": "JoMA Eq. 6 with linear attention, of the block | With z = sqrt(v^2 + c) and u "
        "= v z, u' = sqrt(c^2 + 4 u^2) (mu - u), in closed form; v* z* = mu.",
        "block_flow.softmax": "JoMA Eq. 6 with softmax attention, of the block | With attention a = n "
        "softmax(z) the block, trained by gradient descent on half |mu - v o a|^2, rests where v o a = mu.",
        "block_bounce.law": "JoMA Fig. 4, of the block | The rebound of attention entropy follows from mu "
        "in closed form, without integration.",
        "block_bounce.always": "JoMA Sec. 4, 'the attention dips and bounces back' | With C = I (for "
        "Gaussian data rho_- = -1) the entropy ends rising unless all |mu| are alike.",
        "block_bounce.figure_4": "JoMA Fig. 4 | With the figure's mu attention dips by more than two nats "
        "before it bounces back.",
    },
    exact=True,
)


def block_flow() -> list[Claim]:
    """The gate, the rest, the rates, the time, and other attentions."""
    return [_gate(), _rest(), *_rates(), _time(), *_other_attentions()]


def _gate() -> Claim:
    """Eq. 2 of the block itself beside both readings of Eq. 6."""
    rng = np.random.default_rng(0)
    x, g = rng.normal(0.4, 1.0, (500, 4)), rng.normal(size=500)
    block = Block(Embeddings.orthonormal(4), Attention(kind="exp"), activation("relu"))
    v, z, xi = rng.normal(size=4), rng.normal(0.0, 0.5, 4), -0.3
    step = block.directions(x, np.append(v, xi)[None], z, g[:, None], sample_weights=np.full(500, 1 / 500))
    drift, gain = of_samples(x, g, RELU), np.exp(z)
    errors = []
    for read in (v, v * gain):
        pull = gain * drift(read[None], np.array([xi]))[0][0]
        errors.append(float(np.abs(pull - step.weights[0, :4]).max()))
    uniform = block.directions(
        x, np.append(v, xi)[None], 0 * z, g[:, None], sample_weights=np.full(500, 1 / 500)
    )
    null = float(np.abs(drift(v[None], np.array([xi]))[0][0] - uniform.weights[0, :4]).max())
    return STATEMENTS["block_flow.gate"].correct(
        "v' = e^z o Delta(v o e^z): the gate reads the attended input, v.b = (v o e^z).x.",
        printed_error=errors[0],
        error=errors[1],
        tolerance=1e-12,
        evidence="Eq. 2 of the block of Eq. 1, ReLU, 500 samples, any v and z",
        null=null,
        null_description="error of the printed form under uniform attention, z = 0, where it is right",
    )


def _rest() -> Claim:
    planted = plant(Gaussian(), RELU, MU, distance=1.1, rho_minus=-0.5)
    start = 0.3 * MU
    drift = planted.mixture.drift()
    flow = integrate_joint(drift, start, [0.0, 600.0], z0=0.5 * start**2, bias=planted.bias)
    frozen = integrate_joint(drift, start, [0.0, 600.0], attention="frozen", bias=planted.bias)
    return STATEMENTS["block_flow.rest"].correct(
        "v* e^{z*} = mu: v* = sqrt(W/kappa), z* = W/2, W = W(kappa mu^2), Lambert's function.",
        printed_error=np.abs(flow.v[-1, 0] - MU).max(),
        error=np.abs(flow.v[-1, 0] - block_salience.rest(MU)[0]).max(),
        tolerance=1e-4,
        evidence="joint flow of (v, z), ReLU, Gaussian classes, fixed bias, to time 600",
        null=np.abs(frozen.v[-1, 0] - MU).max(),
        null_description="error of the printed rest under uniform attention, where it is right",
    )


def _rates() -> list[Claim]:
    pair = np.array([3.0, 2.0])
    # Late enough for a rate, early enough for 1 - u/mu to be told from rounding.
    times = np.array([1.5, 1.6])
    course = integrate_joint(towards(pair), np.zeros(2), np.array([0.0, *times]), rtol=1e-12, atol=1e-14)
    remaining = 1 - course.attended[1:, 0] / pair
    slopes = -np.diff(np.log(remaining), axis=0)[0] / 0.1
    frozen = integrate_joint(
        towards(pair), np.zeros(2), np.array([0.0, *times]), attention="frozen", rtol=1e-12, atol=1e-14
    )
    alike = -np.diff(np.log(1 - frozen.v[1:, 0] / pair), axis=0)[0]
    law = block_salience.convergence_rate(pair)
    return [
        STATEMENTS["block_flow.ratio"].correct(
            "At rates (1 + W) e^W: in the ratio ((1 + W_j) e^{W_j})/((1 + W_k) e^{W_k}).",
            printed_error=abs(float(slopes[0] / slopes[1] / salience.asymptotic_ratio(3.0, 2.0)) - 1),
            error=np.abs(slopes / law - 1).max(),
            tolerance=2e-3,
            evidence="mu = (3, 2), slopes of ln 1/|1 - u/mu| in the joint flow: "
            f"{slopes[0]:.4f}, {slopes[1]:.4f}",
            null=np.abs(alike / law - 1).min(),
            null_description="the least error of that law for uniform attention",
        )
    ]


def _time() -> Claim:
    worst = 0.0
    for size in (0.1, 1.0, 50.0, 1e3, 1e6):
        times = np.array([0.3, 1.0, 1.3, 3.0]) / max(size, 1.0)
        exact = block_salience.solve([size, 0.6 * size], times).log_inverse_delta
        found = integrate_salience([size, 0.6 * size], times).log_inverse_delta
        worst = max(worst, float(np.abs(found / exact - 1).max()))
    return STATEMENTS["block_flow.time"].judge(
        within_error(1e-8, worst),
        evidence="L, relative, by quadrature and by DOP853; sqrt(kappa) mu from 0.06 to 1e6",
    )


def _other_attentions() -> list[Claim]:
    times = np.linspace(0.0, 3.0, 7)
    linear = integrate_joint(towards(MU), np.zeros(3), times, attention="linear", z0=0.4)
    _, v = block_salience.solve_linear_attention_block(MU, times, c=0.16)
    late = integrate_joint(towards(MU), np.zeros(3), [0.0, 200.0], attention="softmax")
    frozen = integrate_joint(towards(MU), np.zeros(3), [0.0, 200.0], attention="frozen")
    return [
        STATEMENTS["block_flow.linear"].judge(
            within_error(1e-7, np.abs(linear.v[:, 0] - v).max()),
            null=np.abs(linear.v[-1, 0] - MU).max(),
            null_description="distance of the weights from the printed rest v* = mu at the end",
            evidence="against the joint flow of (v, z), z(0) = 0.4",
        ),
        STATEMENTS["block_flow.softmax"].judge(
            within_error(1e-5, np.abs(late.attended[-1, 0] - MU).max())
            & at_most(1e-4, _softmax_speed(), of="relative error of z's speed beside the gradient"),
            null=np.abs(late.v[-1, 0] - frozen.v[-1, 0]).max(),
            null_description="distance of its weights from those of frozen attention, which rest at mu",
            evidence="joint flow to time 200; z's speed at random v and z against central differences of the "
            "loss",
        ),
    ]


def _softmax_speed() -> float:
    """The flow's z' beside the gradient of half |mu - v o n softmax(z)|^2 by differences, at random v, z."""
    rng = np.random.default_rng(3)
    v, z = rng.uniform(0.3, 2.0, MU.size), rng.normal(size=MU.size)

    def loss(logits: Array) -> float:
        weights = np.exp(logits) / np.exp(logits).mean()
        return float(0.5 * np.sum(np.square(MU - v * weights)))

    step = 1e-5
    nudges = step * np.eye(MU.size)
    slope = np.array([(loss(z + one) - loss(z - one)) / (2 * step) for one in nudges])
    span = 1e-6
    flow = integrate_joint(
        towards(MU), v, [0.0, span], attention="softmax", z0=z, rtol=1e-12, atol=1e-14
    ).logits
    speed = (flow[1] - flow[0]) / span
    return float(np.abs(speed + slope).max() / np.abs(slope).max())


def block_bounce() -> list[Claim]:
    """The law of the bounce, and that every block with C = I bounces."""
    rng = np.random.default_rng(11)
    drawn = []
    for _ in range(16):
        largest = np.exp(rng.uniform(np.log(2.0), np.log(1e3)))
        mu = largest * rng.uniform(rng.uniform(0.05, 0.9), 1.0, rng.integers(2, 20))
        drawn.append((bounce_law(mu), bounce_of_flow(mu)))
    deep = [(law, flow) for law, flow in drawn if flow.rebound > 0.05]
    laws, flows = (np.array([pair[which].rebound for pair in deep]) for which in (0, 1))
    errors = [float(np.abs(laws / np.roll(flows, shift) - 1).max()) for shift in range(len(deep))]
    alike = abs(bounce_of_flow(np.full(5, 3.0)).rebound)
    rebounds = [flow.rebound for _, flow in drawn]
    figure = np.array([1.265432, 1.396091, 1.922268, 2.366884, 2.470280, 2.488770, 2.896919, 2.902236])
    figure = np.append(figure, [3.304665, 3.689334])
    printed = np.array(
        [block_salience.entropy(0.5 * salience.solve(figure, [t]).v ** 2)[0] for t in np.linspace(0, 1, 400)]
    )
    flow = bounce_of_flow(figure)
    return [
        STATEMENTS["block_bounce.law"].judge(
            within_error(0.01, errors[0]),
            evidence=f"relative, against the flow; the {len(deep)} of 16 random mu that rebound by 0.05 nats",
            null=min(errors[1:]),
            null_description="the same beside the flows of other mu, least",
        ),
        STATEMENTS["block_bounce.always"].judge(
            above(1e-9, rebounds, of="rebound", across="for every mu drawn", unit="nats")
            & below(1e-9, alike, of="rebound of five components alike", unit="nats"),
            null=alike,
            null_description="five components alike",
        ),
        STATEMENTS["block_bounce.figure_4"].correct(
            f"The block's dips by {flow.dip:.3f} and rebounds by {flow.rebound:.3f}: the figure is Eq. 6's.",
            printed_error=abs(float(np.log(10) - printed.min()) - flow.dip),
            error=abs(bounce_law(figure).dip - flow.dip),
            tolerance=4e-4,
            evidence="entropy of softmax(z), nats; printed: Eq. 6 solved; corrected: the closed form",
            null=bounce_of_flow(np.full(10, figure.mean())).dip,
            null_description="dip of the block with ten components alike",
        ),
    ]


CHECKS: dict[str, Callable[[], list[Claim]]] = {"block_flow": block_flow, "block_bounce": block_bounce}
