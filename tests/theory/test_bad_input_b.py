"""Bad input of attention, block, invariants, trees, graphs and Scan&Snap: one clear sentence each."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from joma.core.errors import DivergenceError, InputError
from joma.theory import class_labels, invariants
from joma.theory import feature_graph as graph
from joma.theory import latent_tree as tree
from joma.theory.attention import Attention
from joma.theory.block import Block, Embeddings, superpose_patterns, weights_from_parts
from joma.theory.scan_snap import decoder, equations, fates, snapping

NAN = float("nan")
X, Z, P = np.ones((4, 3)), np.zeros(3), np.full(4, 0.25)
V, W = np.ones((2, 3)), np.ones((2, 4))
EXP, LINEAR = Attention(kind="exp"), Attention(kind="linear")
BLOCK = Block(Embeddings.orthonormal(3))
ROOT = tree.LatentTree(class_probabilities=[0.5, 0.5], zero_given_class=[[0.2, 0.7], [0.4, 0.9]])
STEPS = {"squared_weight_steps": np.ones(2), "squared_logit_steps": np.ones(3)}
RATES = {"eta_y": 1.0, "classes": 2, "outputs": 5}
FLOW = {"initial_logits": Z, "drive": np.ones(3)}


def velocities(**changed: np.ndarray) -> object:
    given = {
        "conditional": np.full((2, 3), 1 / 3),
        "last_of_next": np.array([0, 0]),
        "class_probability": np.full(2, 0.5),
    }
    return equations.velocities(np.zeros((3, 2)), np.zeros((1, 3)), eta_y=1.0, eta_z=1.0, **(given | changed))


@pytest.mark.parametrize(
    "call",
    [
        lambda: Attention(temperature="warm"),
        lambda: Attention().scores([[1.0, NAN]], [0.0, 0.0]),
        lambda: Attention().scores([[1.0, 1.0]], [NAN, 0.0]),
        lambda: LINEAR.scores([[1.0, 1.0]], [NAN, 0.0]),
        lambda: Attention().scores([[2.0, -1.0]], [0.0, 0.0]),
        lambda: Attention().scores([["a", "b"]], [0.0, 0.0]),
        lambda: Attention().scores(np.ones((2, 4, 3)), np.zeros((5, 3))),
        lambda: Attention().scores(np.ones((0, 3)), Z),
        lambda: Attention().pull_back(X, X, np.ones((5, 3))),
        lambda: LINEAR.pull_back(X, X, NAN * X),
        lambda: Embeddings(np.array([["a"]]), np.zeros(1)),
        lambda: Embeddings.orthonormal(2.5),
        lambda: BLOCK.forward(X, np.ones((2, 3)), Z),
        lambda: BLOCK.forward(X, NAN * W, Z),
        lambda: BLOCK.forward(np.ones((4, 2)), W, np.zeros(2)),
        lambda: BLOCK.directions(X, W, Z, np.ones((4, 3)), sample_weights=P),
        lambda: BLOCK.directions(X, W, Z, NAN * np.ones((4, 2)), sample_weights=P),
        lambda: BLOCK.per_node_loss(X, W, Z, np.ones((4, 2)), sample_weights=np.ones(3)),
        lambda: weights_from_parts(W, np.ones((2, 2)), np.ones(2), BLOCK.embeddings),
        lambda: superpose_patterns(np.ones((2, 3)), np.ones(3), np.ones((4, 3)), np.ones((4, 2))),
        lambda: invariants.logit_coefficient(EXP, weight_rate="fast"),
        lambda: invariants.first_integral(EXP, np.zeros(4), V),
        lambda: invariants.first_integral(EXP, [NAN, 0.0, 0.0], V),
        lambda: invariants.first_integral(EXP, Z, np.ones(3)),
        lambda: invariants.first_integral(Attention(), Z, V, correction=np.zeros(2)),
        lambda: invariants.predict_logits(EXP, V, initial_context_weights=np.ones((2, 4)), initial_logits=Z),
        lambda: invariants.softmax_logits(
            V, np.ones(4), initial_context_weights=V, initial_logits=Z, form="signed"
        ),
        lambda: invariants.softmax_logits(V, Z, initial_context_weights=V, initial_logits=Z, form="exact"),
        lambda: invariants.softmax_logits(V, Z, initial_context_weights=V, initial_logits=Z, bias=np.ones(3)),
        lambda: invariants.descent_drift(EXP, **STEPS),
        lambda: invariants.descent_drift(LINEAR, **STEPS),
        lambda: invariants.factorisation_gap(np.ones((5, 2)), X, P),
        lambda: invariants.closed_form_gap(np.ones((4, 2)), X, P, np.ones((2, 2))),
        lambda: invariants.rigidity(X, np.ones(3)),
        lambda: invariants.rigidity(NAN * X, P),
        lambda: invariants.linear_attention_solution([NAN], **FLOW),
        lambda: invariants.linear_attention_solution([1e9], **FLOW),
        lambda: invariants.linear_attention_solution([1.0], **FLOW, temperature=-1),
        lambda: invariants.linear_attention_solution([1.0], initial_logits=Z, drive=np.ones(2)),
        lambda: tree.transition_matrix([0.1, 0.2]),
        lambda: tree.marginal("biased"),
        lambda: class_labels.sparse_root_bias(2.5),
        lambda: tree.cooccurrence([0.5, 0.2], [0.1, 0.2, 0.3], depth=4, ancestor_height=1),
        lambda: tree.cooccurrence(0.5, 0.2, depth=[4, 5], ancestor_height=[1, 1, 1]),
        lambda: tree.cooccurrence_across_root([0.5, 0.2], [0.1, 0.1, 0.1], 0.5, depth=2),
        lambda: tree.cooccurrence_expansion(5, depth=4, ancestor_height=1),
        lambda: tree.cooccurrence_expansion(1.0, depth=100, ancestor_height=3),
        lambda: tree.cooccurrence_expansion(NAN, depth=4, ancestor_height=1),
        lambda: ROOT.cooccurrence([7]),
        lambda: ROOT.cooccurrence([-1]),
        lambda: ROOT.cooccurrence([0.5]),
        lambda: ROOT.joint(0, 0.5),
        lambda: tree.LatentTree(
            class_probabilities=[1.0], zero_given_class=[[0.5]], parents=("a",), correlations=[0.5]
        ),
        lambda: graph.correlation([], []),
        lambda: graph.correlation(np.ones((2, 3)), np.ones((4, 3))),
        lambda: graph.violation_rate(2.5),
        lambda: graph.guaranteed_correlation([0.9, 0.8], [0.9, 0.8, 0.7], 0.9),
        lambda: graph.guaranteed_correlation("large", 0.9, 0.9),
        lambda: graph.guaranteed_without_label([0.9, 0.8], [0.9, 0.8, 0.7]),
        lambda: graph.gated_correlation_bound([0.9, 0.8], [0.9, 0.8, 0.7]),
        lambda: graph.extremal_signals([0.9, 0.9], 0.9, 0.9),
        lambda: graph.onset([1.0], [1.0], start=NAN),
        lambda: graph.onset([1.0], [1.0], start=0.0, rate=-1.0),
        lambda: graph.weight_flow([1.0], [1.0], times=[-1.0]),
        lambda: graph.weight_flow([1.0], [1.0], times=[1.0], rate=-1.0),
        lambda: graph.weight_flow([1.0], [1.0], times=[NAN]),
        lambda: graph.weight_flow([[1.0], [1.0]], [1.0], times=[1.0]),
        lambda: graph.weight_gradient([NAN, 2.0], np.ones((3, 2)), np.ones(3)),
        lambda: graph.recursion_depth(0.9, 0.9, 0.9, most=-1),
        lambda: graph.recursion_depth(0.9, 0.9, 0.9, most=2.5),
        lambda: equations.attended_mass([1.0, 1.0], [0.0, 0.0, 0.0]),
        lambda: equations.unit([0.0, 0.0]),
        lambda: equations.unit([NAN, 1.0]),
        lambda: equations.distinct_entropy([[0.5, NAN]], [[True, True]]),
        lambda: equations.distinct_entropy([[0.5, 0.5]], [[True, True, False]]),
        lambda: equations.predictions(np.ones((3, 2)), np.ones((2, 4))),
        lambda: equations.predictions(NAN * np.ones((3, 2)), np.ones((2, 3))),
        lambda: equations.predictions(np.ones((3, 2)), np.ones((2, 3)), [1.0, 0.0]),
        lambda: equations.lumped_multiplicity(2.5, 5),
        lambda: equations.attention_pull(np.ones(3), np.ones(2)),
        lambda: velocities(last_of_next=np.array([0, 1])),
        lambda: velocities(last_of_next=np.array([0, -1])),
        lambda: velocities(class_probability=np.ones(3)),
        lambda: decoder.decoder_logit("late", **RATES),
        lambda: decoder.decoder_logit(1.0, eta_y="fast", classes=2, outputs=5),
        lambda: decoder.right_probability(0.0, 1),
        lambda: decoder.right_probability(NAN, 5),
        lambda: decoder.gradient_form(NAN * V, V),
        lambda: fates.pull_of_form(np.ones(3), np.ones((3, 3))),
        lambda: fates.pull_of_form(NAN * V, np.ones((2, 2))),
        lambda: fates.relative_gain([1.0, 2.0], [1.0, 2.0, 3.0]),
        lambda: fates.gain_factor(NAN),
        lambda: fates.gain_bounds([0.5, 0.5], [1.0, 2.0, 3.0]),
        lambda: fates.distinct_clock(1.0, 0.0),
        lambda: fates.losers_limit(0.0, 0.0),
        lambda: fates.losers_limit(NAN, 1.0),
        lambda: snapping.gain(1.0, **RATES, eta_z=np.inf, constant=1.0),
        lambda: snapping.scanning_gain(NAN, eta_y=1.0, eta_z=1.0, classes=2, constant=1.0),
        lambda: snapping.scanning_gain(-1.0, eta_y=1.0, eta_z=1.0, classes=2, constant=1.0),
        lambda: snapping.snap_time_printed(eta_y=0.0, classes=2, outputs=5),
        lambda: snapping.overlap_exponent(0.5, [NAN], 1),
        lambda: snapping.overlap_exponent(0.5, [0.5], 1.5),
        lambda: snapping.fitted_exponent([1.0, 2.0], [NAN, 1.0]),
    ],
)
def test_bad_input_is_told_in_one_sentence(call: Callable[[], object]) -> None:
    with pytest.raises(InputError, match=r"^[^:]+: .+"):
        call()


def test_a_state_that_is_not_finite_is_divergence_to_a_solver() -> None:
    with pytest.raises(DivergenceError):
        Attention().scores(X, NAN * Z)
    with pytest.raises(DivergenceError):
        BLOCK.forward(X, NAN * W, Z)
