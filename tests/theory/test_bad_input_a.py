"""What is no number, no shape or no size that a result takes: refused by name, never NaN in silence."""

from __future__ import annotations

import numpy as np
import pytest

from joma.core import arguments
from joma.core.errors import InputError
from joma.dynamics import salience_flow as flow
from joma.theory import coherence, critical_points, isotropic, optimizers, salience
from joma.theory import salience_variants as variants
from joma.theory.attention import Attention
from joma.theory.isotropic import RELU, HomogeneousGate, SmoothGate
from joma.theory.isotropic_laws import Gaussian, LaplaceMarginal, MultivariateT, RadialLaw, UniformBall
from joma.theory.winner_take_all import WinnerTakeAll, erf_invariant, printed_invariant, softmax_weights

NAN = float("nan")
EXP = Attention(kind="exp")
FLOW = WinnerTakeAll(drive=[1.0, 0.5, 0.2])
LAWS = [Gaussian(), UniformBall(3), MultivariateT(3.0), LaplaceMarginal()]
PATH = np.zeros((3, 1, 2))

SALIENCE = [
    (lambda: salience.elapsed_time([1, 2], [1, 2, 3]), "shapes mu .2,., v0 .., log_inverse_delta .3,."),
    (lambda: salience.elapsed_time([1], [NAN]), "log_inverse_delta holds nan"),
    (lambda: salience.elapsed_time([1], [1], rate=-1.0), "rate"),
    (lambda: salience.F([0.1, 0.2], [1, 2, 3]), "do not broadcast"),
    (lambda: salience.F(0.5, NAN), "mu holds nan"),
    (lambda: salience.R(NAN), "mu holds nan"),
    (lambda: salience.solve("a", [1]), "mu = 'a' is not an array of real numbers"),
    (lambda: salience.solve([1 + 2j], [1]), "real numbers"),
    (lambda: salience.solve([[1], [2, 3]], [1]), "real numbers"),
    (lambda: salience.solve(None, [1]), "mu = None"),
    (lambda: salience.solve([2], "soon"), "times"),
    (lambda: salience.solve([2], [1], v0=NAN), "v0 holds nan"),
    (lambda: salience.solve([2], [1], v0=-1e200), "v0"),
    (lambda: salience.solve([1e-320], [1], v0=30.0), "1 - v0/mu"),
    (lambda: salience.solve([1e-300], [1], v0=1.0), "1 - v0/mu"),
    (lambda: salience.solve([30.0], [1e300]), "earlier times"),
    (lambda: salience.solve([2], [1], kappa="x"), "kappa"),
    (lambda: salience.asymptotic_ratio([1, 2], [1, 2, 3]), "do not broadcast"),
    (lambda: salience.asymptotic_ratio(NAN, 1), "mu_j holds nan"),
    (lambda: salience.asymptotic_ratio(100, 1), "no float64"),
    (lambda: salience.asymptotic_ratio(1, 2, kappa=-1), "kappa"),
    (lambda: salience.convergence_ratio(3.0, 2.0, NAN), "log_inverse_delta_k holds nan"),
    (lambda: salience.convergence_ratio([3.0, 1.0], 2.0, 1.0), "mu_j"),
    (lambda: salience.needed_convergence(NAN), "mu_k holds nan"),
    (lambda: salience.needed_convergence(100), "no float64"),
    (lambda: salience.needed_convergence(1, constant=-1), "constant"),
    (lambda: salience.needed_convergence_printed(NAN), "mu_k holds nan"),
    (lambda: salience.zeta(0.5, NAN), "mu holds nan"),
    (lambda: salience.zeta(2, 1), r"r lie in \[0, 1\]"),
    (lambda: salience.lemma_6(NAN), "y holds nan"),
    (lambda: salience.lemma_7(np.inf), "y holds inf"),
    (lambda: variants.linear_attention_ratio(1, 2, -9, 1), "must be positive"),
    (lambda: variants.linear_attention_ratio(1, 2, NAN, 1), "c_j holds nan"),
    (lambda: variants.linear_attention_offset(1, -5), "c must be positive"),
    (lambda: variants.linear_attention_time(NAN, 1, 1), "v holds nan"),
    (lambda: variants.linear_attention_time([0.1, 0.2], [1, 1, 1], 1), "do not broadcast"),
    (lambda: variants.solve_linear_attention([1e200], [1], c=1.0), "beyond float64"),
    (lambda: variants.solve_linear_attention([1, 2], [1], c=[1, 2, 3]), "c has shape"),
    (lambda: variants.softmax_attention_ratio(NAN, 1), "mu_j holds nan"),
    (lambda: variants.softmax_attention_ratio(2, 1, kappa=0), "kappa"),
    (lambda: variants.softmax_attention_ratio(2, 1, squared_norm=-1), "squared_norm"),
    (lambda: variants.softmax_attention_ratio(100, 1), "beyond float64"),
]

FLOWS = [
    (lambda: flow.integrate_following_softmax([1, 2], [1], z0=[1, 2, 3]), "z0 has shape"),
    (lambda: flow.integrate_following_softmax([1, 2], [1], z0=NAN), "z0 holds nan"),
    (lambda: flow.integrate_following_softmax([1, 2], [1], tolerance=0), "tolerance"),
    (lambda: flow.integrate([1, 2], [1], tolerance=0), "tolerance"),
    (lambda: flow.integrate([1, 2], [1], tolerance=NAN), "tolerance"),
    (lambda: flow.integrate([1, 2], [1], kappa=NAN), "kappa"),
    (lambda: flow.integrate([1, 2], [1], attention="softmax", bbar=[NAN, 0.5]), "bbar holds nan"),
    (lambda: flow.integrate([1, 2], [1], attention="linear", c=[1, 2, 3]), "c has shape"),
    (lambda: flow.integrate([1, 2], [1], v0=NAN), "v0 holds nan"),
    (lambda: flow.integrate("a", [1]), "mu = 'a'"),
    (lambda: flow.attention_entropy([]), "at least one"),
    (lambda: flow.attention_entropy([NAN, 1]), "v holds nan"),
    (lambda: flow.attention_entropy([1e200, 1]), "beyond float64"),
    (lambda: flow.acting_attention([0, 1, 2], [[0.1], [0.2]], [1.0]), "times"),
    (lambda: flow.acting_attention([0, 1], [[0.1], [0.2]], [1.0, 2.0]), "mu has shape"),
    (lambda: flow.acting_attention([0, 1], [[0.1], [0.1]], [1.0]), "times at which v moves"),
    (lambda: flow.integrate([2, 1], [1], attention="softmax", v0=1e160), "v0"),
    (lambda: flow.script_dynamics([1, 2], learning_rate=1e9), "the map diverges"),
    (lambda: flow.script_dynamics([1, 2], dtype=int), "dtype"),
    (lambda: flow.script_dynamics([1, 2], steps=2.5), "steps = 2.5"),
    (lambda: flow.script_dynamics([1, 2], w0=NAN), "w0"),
]

ISOTROPIC = [
    (lambda: RadialLaw(3, 2), "not a function"),
    (lambda: RadialLaw(lambda r: 1.0, 2, support=NAN), "support"),
    (lambda: UniformBall(2.5), "dimension = 2.5"),
    (lambda: MultivariateT(np.inf), "nu"),
    (lambda: MultivariateT(3.0).mean_excess(-1e300), "beyond float64"),
    (lambda: HomogeneousGate(minus=NAN), "minus"),
    (lambda: RELU(NAN), "x holds nan"),
    (lambda: SmoothGate(3), "not a function"),
    (lambda: isotropic.gate_moments(Gaussian(), SmoothGate(lambda x: NAN), 0.0, 1.0), "finite everywhere"),
    (lambda: isotropic.gate_moments(Gaussian(), "relu", 0.0, 1.0), "gate = 'relu'"),
    (lambda: isotropic.gate_moments(None, RELU, 0.0, 1.0), "law = None"),
    (lambda: isotropic.gate_moments_printed(Gaussian(), RELU, 0.0, 0.0), "norm"),
    (lambda: isotropic.gated_expectation(Gaussian(), RELU, [NAN, 1], [0, 0], 0.0), "v holds nan"),
    (lambda: isotropic.mixture_flow(Gaussian(), RELU, [1, 1], 0.0, np.zeros((0, 2)), []), "C > 0"),
    (lambda: isotropic.potential(Gaussian(), RELU, NAN), "rho holds nan"),
    (lambda: isotropic.theta_derivatives(Gaussian(), SmoothGate(np.tanh), 0.0), "HomogeneousGate"),
    (lambda: critical_points.G(None, 0.5), "law = None"),
    (lambda: critical_points.equation_58("t"), "law = 't'"),
    (lambda: critical_points.partner(MultivariateT(3.0), NAN), "rho_minus"),
    (lambda: critical_points.find_critical_points(Gaussian(), 1.0, grid=1), "grid = 1"),
    (lambda: critical_points.find_critical_points(Gaussian(), 1.0, high=np.inf), "high"),
    (lambda: critical_points.balancing_ratio(Gaussian(), NAN, 1.0), "rho_minus"),
    (
        lambda: critical_points.linearise(
            Gaussian(), norm=1e-200, rho_minus=0, distance=1, a_plus=1, a_minus=1
        ),
        "rescale",
    ),
    (
        lambda: critical_points.linearise(Gaussian(), norm=1, rho_minus=0, distance=1, a_plus=1, a_minus=NAN),
        "a_minus",
    ),
]

WINNERS = [
    (lambda: WinnerTakeAll(drive="a"), "drive = 'a'"),
    (lambda: WinnerTakeAll(drive=[[1, 2], [3]]), "real numbers"),
    (lambda: WinnerTakeAll(drive=[1e300, 1]), "squares of drive"),
    (lambda: WinnerTakeAll(drive=[1e-300, 1]), "squares of drive"),
    (lambda: WinnerTakeAll(drive=[1, 1], initial_weights=[1e200, 1]), "squares of initial_weights"),
    (lambda: WinnerTakeAll(drive=[1], normaliser="a"), "normaliser"),
    (lambda: WinnerTakeAll(drive=[1], temperature=1e-200), "beyond float64"),
    (lambda: FLOW.logits([NAN, 1, 1]), "weights holds nan"),
    (lambda: FLOW.logits([1e200, 1, 1]), "beyond float64"),
    (lambda: FLOW.winners(NAN), "relative_gap"),
    (lambda: FLOW.winners(2.0), "relative_gap"),
    (lambda: FLOW.limits(-1.0), "relative_gap"),
    (lambda: erf_invariant([NAN, 2], [1, 1]), "weights holds nan"),
    (lambda: erf_invariant([1, 2], [1, 1], kappa=-1), "kappa"),
    (lambda: printed_invariant([1, NAN], [1, 1]), "weights holds nan"),
    (lambda: softmax_weights(FLOW, [0.3, 0.3, 0.4], 1e300), "earlier times"),
    (lambda: softmax_weights(FLOW, [0.3, 0.3, 0.4], "late"), "time = 'late'"),
]

OTHERS = [
    (lambda: optimizers.adam_pace(2.5), "steps = 2.5"),
    (lambda: optimizers.adam_pace(3, betas=(0.9,)), "two numbers"),
    (lambda: optimizers.matched_decay(EXP, -1), "weight_decay = -1"),
    (lambda: optimizers.matched_decay(None, 1), "attention = None"),
    (lambda: optimizers.matched_decay(EXP, 1.0, attention_rate=0.0), "attention_rate"),
    (lambda: optimizers.resting_coefficient(EXP, weight_decay=np.inf, attention_decay=1), "weight_decay"),
    (lambda: optimizers.momentum_drift(EXP, PATH, np.full((3, 2), NAN), momentum=0.5), "logits holds nan"),
    (lambda: optimizers.momentum_drift(EXP, PATH[:0], np.zeros((0, 2)), momentum=0.5), "match"),
    (
        lambda: optimizers.integral_under_decay(
            EXP, [0, 1, 2], PATH, [0, 0, 0], weight_decay=0.1, attention_decay=0.1
        ),
        "initial has shape",
    ),
    (lambda: coherence.random_dimension(10, 1e-9), "2.53 dimensions"),
    (lambda: coherence.printed_dimension(10, 1e-200), "epsilon"),
    (lambda: coherence.printed_dimension(1, "small"), "epsilon = 'small'"),
    (lambda: coherence.random_embeddings(3, 4, seed=-1), "seed = -1"),
    (lambda: coherence.random_embeddings(2.5, 4, seed=0), "tokens = 2.5"),
    (lambda: coherence.coherence("a"), "embeddings = 'a'"),
    (lambda: coherence.attention_side(EXP, NAN), "logits holds nan"),
    (lambda: coherence.drift(np.zeros((3, 3)), PATH), "side"),
    (lambda: coherence.predicted_drift(np.eye(3), PATH), "2 tokens"),
    (lambda: coherence.path_drift(np.eye(2), PATH, query_overlap=[0.1], bias=np.zeros((3, 1))), "overlap"),
    (lambda: coherence.drift_bound(0.1, [[NAN]], [[1.0]]), "largest_weights holds nan"),
    (lambda: coherence.drift_bound(0.1, [[1.0]], [[1.0]], bias_lengths=[1, 2]), "bias_lengths"),
    (lambda: coherence.typical_drift([[NAN]], 3), "weights holds nan"),
    (lambda: arguments.whole("here", "n", 2**60), "at most"),
    (lambda: arguments.number("here", "x", [1.0]), "one finite number"),
]


@pytest.mark.parametrize(("call", "words"), [*SALIENCE, *FLOWS, *ISOTROPIC, *WINNERS, *OTHERS])
def test_refused_by_name(call, words: str) -> None:
    with pytest.raises(InputError, match=words):
        call()


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.name)
@pytest.mark.parametrize(
    "function",
    ["theta_1", "theta_2", "F", "log_theta_1", "log_F", "mean_excess", "density", "theta_1_inverse"],
)
def test_laws_refuse_what_is_not_finite(law, function: str) -> None:
    for value in (NAN, [0.1, NAN], "x"):
        with pytest.raises(InputError, match=f"{function}|mean_excess|log_theta_1"):
            getattr(law, function)(value)


def test_far_out_where_a_result_exists_it_is_still_given() -> None:
    """Large is not bad: squares may overflow where the result does not."""
    assert salience.lemma_6(1e200) == 1e-200
    assert salience.zeta(1.0, 1e200) == pytest.approx(np.sqrt(np.pi / 2))
    assert Gaussian().density(1e200) == 0.0
    assert UniformBall(3).density(1e200) == 0.0
    assert coherence.random_dimension(10, 1e-6) == pytest.approx(6.33e12, rel=0.2)
    late = softmax_weights(FLOW, [0.3, 0.3, 0.4], 1e100)
    assert late[0] == pytest.approx(1e100 / 0.3)
    assert late[1:] == pytest.approx(FLOW.limits()[1:])


def test_whole_numbers_of_numpy_are_whole_numbers() -> None:
    assert UniformBall(np.int64(3)).dimension == 3
    assert optimizers.adam_pace(np.int32(4)).shape == (4,)
