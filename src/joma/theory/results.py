"""Where each result of the papers is: its functions, its checks, its experiments.

The list is generated into the site (``docs/results.py``) and held complete by a test.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Result:
    """A numbered statement, equation, figure or table of a paper, and where joma has it."""

    source: str
    """Paper and number: ``JoMA Theorem 4``."""
    says: str
    """What it is about, in a few words."""
    functions: tuple[str, ...] = ()
    """Dotted names below ``joma``."""
    checks: tuple[str, ...] = ()
    """Groups of ``joma check``."""
    experiments: tuple[str, ...] = ()
    """Names for ``joma run``."""
    note: str = ""
    """Why it has none of these, where it has none."""


RESULTS = (
    Result("JoMA Eq. 1, Eq. 2", "the block and its dynamics", ("theory.block.Block",), ("block",)),
    Result(
        "JoMA Assumption 1",
        "stationary back-propagated gradients",
        experiments=("fig5",),
        note="an assumption: each function that needs it says so",
    ),
    Result(
        "JoMA Sec. 2, value matrix",
        "W_V merged into the embeddings (`merge_values`), and when Theorem 1 survives it",
        ("theory.block.Embeddings",),
        ("value_matrix",),
    ),
    Result("JoMA Fig. 1", "overview of the framework", note="a drawing"),
    Result(
        "JoMA Theorem 1",
        "attention logits as a function of the lower MLP weights",
        (
            "theory.invariants.first_integral",
            "theory.invariants.predict_logits",
            "theory.invariants.softmax_logits",
            "dynamics.reduced_flow.forecast",
            "theory.optimizers.momentum_drift",
            "theory.coherence.predicted_drift",
        ),
        ("theorem1", "theorem1_softmax", "momentum", "weight_decay", "adam", "coherence"),
        ("fig2", "forecast", "optimizers", "almost_orthogonal", "embeddings", "joint_dynamics"),
    ),
    Result("JoMA Fig. 2", "Theorem 1 under softmax attention", (), ("theorem1_softmax",), ("fig2",)),
    Result(
        "JoMA Theorem 2",
        "linear MLP: the winner takes all",
        ("theory.winner_take_all.WinnerTakeAll", "theory.winner_take_all.erf_invariant"),
        ("theorem2",),
        ("fig3", "linear_agrees"),
    ),
    Result("JoMA Fig. 3", "growth of components in a linear MLP", (), (), ("fig3",)),
    Result(
        "JoMA Lemma 1",
        "expectations of a gate under isotropic laws",
        ("theory.isotropic.gate_moments", "theory.isotropic.gated_expectation"),
        ("lemma1",),
    ),
    Result(
        "JoMA Lemma 2",
        "the flow of a mixture of isotropic laws",
        ("theory.isotropic.mixture_flow",),
        ("lemma2",),
    ),
    Result(
        "JoMA Lemma 3", "theta_1, theta_2 and the potential F", ("theory.isotropic.potential",), ("lemma3",)
    ),
    Result(
        "JoMA Lemma 4",
        "when critical points exist",
        ("theory.critical_points.find_critical_points", "theory.critical_points.equation_58"),
        ("lemma4", "lemma4_gates"),
        ("fig9",),
    ),
    Result("JoMA Fig. 9", "the curve G(y)", ("theory.critical_points.G",), (), ("fig9",)),
    Result("JoMA Lemma 5", "derivatives of theta", ("theory.isotropic.theta_derivatives",), ("lemma5",)),
    Result(
        "JoMA Theorem 3",
        "the lower layer near a critical point",
        ("theory.critical_points.linearise",),
        ("theorem3", "theorem3_remainder"),
    ),
    Result(
        "JoMA Eq. 6",
        "salient components under attention, as printed",
        ("theory.salience.solve", "theory.salience.elapsed_time", "dynamics.salience_flow.integrate"),
        ("equation6",),
        ("fig4",),
    ),
    Result(
        "JoMA Theorem 1 at any depth",
        "invariants at every layer of a stack, and the stack without its attention",
        ("theory.stack.directions", "theory.stack.reduced_logits", "dynamics.stack_flow.solve"),
        ("theorem1_stack",),
    ),
    Result(
        "JoMA Theorem 1 with positions",
        "trained position biases: what is conserved",
        ("theory.positions.directions", "theory.positions.invariants", "dynamics.position_flow.solve"),
        ("theorem1_positions",),
    ),
    Result(
        "Eq. 6 of the block",
        "salient components under attention, as the block of Eq. 1 has it",
        (
            "theory.block_salience.rest",
            "theory.block_salience.solve",
            "theory.block_salience.weights_of_nodes",
            "theory.bounce_law.bounce_law",
            "theory.drift.plant",
            "dynamics.block_salience_flow.integrate_joint",
        ),
        ("block_flow", "block_bounce", "block_rank"),
        ("block_flow",),
    ),
    Result(
        "Eq. 6 of the block, with the paper's own C",
        "which data make attention bounce: the boundary in rho_-",
        ("theory.block_boundary.critical_ratio", "theory.block_boundary.slowest"),
        ("block_boundary",),
        ("block_flow",),
    ),
    Result(
        "JoMA Theorem 4, zero initialisation",
        "the gate is shut at v = 0: how long the way out takes",
        ("theory.escape_time.escape_time", "theory.escape_time.escape_time_asymptotic"),
        ("escape",),
        ("block_flow",),
    ),
    Result(
        "JoMA Sec. 4, mu and co-occurrence",
        "what makes a token salient: the log odds with the query over those without",
        ("theory.cooccurrence.token_salience", "theory.cooccurrence.query_bias"),
        ("token_salience",),
    ),
    Result(
        "JoMA A.4, signs",
        "when the critical distances have opposite signs",
        ("theory.critical_points.opposite_signs_from",),
        ("remark_a4",),
    ),
    Result("JoMA Lemma 6", "a bound of (1 - exp(-y^2))/y", ("theory.salience.lemma_6",), ("lemma6",)),
    Result("JoMA Lemma 7", "a bound of Gaussian integrals", ("theory.salience.lemma_7",), ("lemma7",)),
    Result(
        "JoMA Theorem 4",
        "convergence of salient and other components (of Eq. 6)",
        ("theory.salience.asymptotic_ratio", "theory.salience.needed_convergence"),
        ("theorem4",),
        ("theorem4",),
    ),
    Result(
        "JoMA Fig. 4",
        "the dip and the bounce (of Eq. 6)",
        ("dynamics.salience_flow.script_dynamics",),
        ("fig4",),
        ("fig4",),
    ),
    Result(
        "JoMA Lemma 8",
        "products of transition matrices",
        ("theory.latent_tree.transition_matrix",),
        ("lemma8",),
    ),
    Result(
        "JoMA Lemma 9", "a latent and its descendants", ("theory.latent_tree.pair_distribution",), ("lemma9",)
    ),
    Result(
        "JoMA Theorem 5",
        "co-occurrence in a hierarchical binary tree",
        ("theory.latent_tree.cooccurrence", "theory.class_labels.root_bias"),
        ("theorem5",),
        ("theorem5", "latent_depth"),
    ),
    Result(
        "JoMA Eq. 8",
        "Theorem 5 for nearly deterministic trees",
        ("theory.latent_tree.cooccurrence_expansion",),
        ("equation8",),
        ("theorem5",),
    ),
    Result(
        "JoMA Fig. 5",
        "which tokens are associated first, and in which layer",
        (
            "models.stack.JomaStack",
            "theory.drift.of_labels",
            "dynamics.block_salience_flow.integrate_attended",
        ),
        (),
        ("fig5", "latent_depth", "deep_hierarchy", "tree_null"),
    ),
    Result(
        "JoMA poster, over-parametrisation",
        "how many neurons until every latent has found one",
        (
            "theory.coverage.arrival_probability",
            "theory.coverage.coverage",
            "experiments.beyond.over_parametrisation.run.coupon_collector",
        ),
        ("coverage",),
        ("over_parametrisation",),
    ),
    Result(
        "JoMA poster, contextual sparsity",
        "attention leaves out tokens that do not co-occur with the query",
        (
            "measures.attention.received.attention.received_attention",
            "measures.attention.received.hitters.heavy_hitters",
        ),
        (),
        ("heavy_hitters", "eviction", "contextual_sparsity"),
    ),
    Result(
        "JoMA Fig. 6",
        "entropy of a trained decoder dips and bounces",
        ("measures.bounce.bounce",),
        (),
        ("fig6", "bounce_helps", "why_bounce", "attention_rate"),
    ),
    Result(
        "JoMA Fig. 7",
        "entropy and stable rank of published models",
        ("measures.ranks.stable_rank.stable_rank",),
        (),
        ("fig7",),
    ),
    Result("JoMA Fig. 8", "learning rates and sparsity", (), (), ("fig8",)),
    Result(
        "JoMA Table 1",
        "latents and hidden neurons",
        ("measures.alignment.latent_neuron_alignment",),
        (),
        ("table1",),
    ),
    Result(
        "JoMA Fig. 10", "pattern superposition", ("instruments.neurons.probe.probe_neurons",), (), ("fig10",)
    ),
    Result(
        "CDAG Theorem 1",
        "back-propagated gradients along a feature graph",
        ("theory.feature_graph.guaranteed_correlation", "theory.feature_graph.counterexample"),
        ("cdag",),
        ("cdag",),
    ),
    Result(
        "CDAG Sec. 1.2, f_j -> z_alpha",
        "whether a node comes to stand for its label",
        ("theory.feature_limit.background_response", "theory.feature_limit.spread_correlation"),
        ("cdag_feature",),
    ),
    Result(
        "Scan&Snap Y and Z",
        "dynamics of the reparametrised one-layer transformer",
        ("theory.scan_snap.equations.velocities", "dynamics.token_flow.token_flow"),
        ("snap_dynamics",),
        ("snap_embeddings", "snap_yz_layers", "snap_tfidf"),
    ),
    Result(
        "Scan&Snap Lemma 2",
        "sentences of many tokens",
        ("theory.scan_snap.equations.attended_mass",),
        ("snap_lemma2",),
    ),
    Result(
        "Scan&Snap Theorem 1",
        "the form of the decoder's gradient",
        (
            "theory.scan_snap.decoder.gradient_form",
            "theory.scan_snap.decoder.decoder_logit",
            "theory.scan_snap.decoder.steps_until_all_drawn",
        ),
        ("snap_theorem1", "snap_decoder", "snap_coupons"),
    ),
    Result(
        "Scan&Snap Theorem 2",
        "common tokens fall, distinct ones rise",
        ("theory.scan_snap.fates.pull_of_form",),
        ("snap_theorem2", "snap_local"),
        ("linear_agrees", "snap_fig4"),
    ),
    Result(
        "Scan&Snap Theorem 3",
        "the growth of distinct tokens",
        ("theory.scan_snap.fates.relative_gain", "theory.scan_snap.fates.gain_bounds"),
        ("snap_theorem3",),
        ("snap_phases",),
    ),
    Result(
        "Scan&Snap Theorem 4",
        "scanning, then snapping",
        ("theory.scan_snap.snapping.gain", "theory.scan_snap.snapping.gain_printed"),
        ("snap_theorem4",),
        ("snap_phases",),
    ),
    Result("Scan&Snap Fig. 4", "attention over training", (), (), ("snap_fig4",)),
    Result("Scan&Snap Fig. 6", "entropy against learning rates", (), (), ("snap_fig6",)),
    Result("Scan&Snap Fig. 7", "attention of a trained transformer", (), (), ("snap_fig7",)),
)
