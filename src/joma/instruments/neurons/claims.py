"""What fig10 and ``joma neurons`` claim of pattern superposition, judged from their tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypedDict

import numpy as np
import pandas as pd
from scipy.stats import binomtest, false_discovery_control, fisher_exact, t

from joma.core.arguments import Array
from joma.core.claim import Claim, Statement, above, at_most, statements
from joma.core.tables import rows
from joma.instruments.neurons import NeuronsSettings
from joma.instruments.neurons.measured import COPIES
from joma.measures.superposition import null_probability

LEVEL = 0.05
SHARED = 0.1
SOURCE = "JoMA Fig. 10 and its appendix"

STATEMENTS = statements(
    {
        "{name}.exists": f"{SOURCE} | the same MLP neuron can be activated by several unrelated "
        "combinations of tokens, as it is not before training",
        "{name}.unrelated": f"{SOURCE} | the patterns of a neuron in superposition have no more to do with "
        "each other in meaning than those of different neurons",
        "{name}.different_queries": "JoMA appendix (pattern superposition) | one neuron's weight holds "
        "several query vectors, each with its own pattern",
        "{name}.learned": f"{SOURCE} (implied: patterns are learned) | the patterns are learned: "
        "superposition is more frequent than in untrained networks",
        "{name}.selective": "JoMA Sec. 3 (a neuron's weight is a pattern of attended tokens) | neurons "
        "learn to be selective: what is attended to in a neuron's contexts is more alike than in others of "
        "the same windows, in more neurons than untrained",
    }
)


def claims(settings: NeuronsSettings, tables: Mapping[str, pd.DataFrame]) -> list[Claim]:
    """Is superposition there, frequent, between unrelated patterns; are neurons selective: by learning?"""
    if "untrained_neurons" not in tables:
        return superposition_claims(tables, "neurons", ())
    copies = [copy for _, copy in tables["untrained_neurons"].groupby("copy")]
    return superposition_claims(tables, "neurons", copies)


def superposition_claims(
    tables: Mapping[str, pd.DataFrame], name: str, untrained: Sequence[pd.DataFrame]
) -> list[Claim]:
    """What is judged of one network beside untrained ones of its shape.

    Args:
        tables: ``neurons`` and ``null`` of the network.
        name: what the claims' ids begin with.
        untrained: the table ``neurons`` of each untrained network.
    """
    neurons, there = tables["neurons"], _is_there(tables, untrained)
    learned, selective = (STATEMENTS[id].fill(name=name) for id in ("{name}.learned", "{name}.selective"))
    return [
        _exists(tables, name, untrained),
        _more_than_untrained(neurons, untrained, "p_value", learned),
        _judge_unrelated(neurons, name, untrained, there),
        _different_queries(neurons, name, untrained, there),
        _more_than_untrained(neurons, untrained, "similarity_p_value", selective),
    ]


def _exists(tables: Mapping[str, pd.DataFrame], name: str, untrained: Sequence[pd.DataFrame]) -> Claim:
    """There are neurons in superposition, more than false discoveries and than in untrained networks."""
    statement = STATEMENTS["{name}.exists"].fill(name=name)
    q = values_of(tables["neurons"], "q_value")
    if reason := _why_not(q, untrained):
        return statement.not_tested(reason)
    significant = int((q <= LEVEL).sum())
    share = significant / len(q)
    what = f"share of the neurons at a false discovery rate of {LEVEL:.0%} (Benjamini-Hochberg)"
    apart = int((_of_significant(tables["neurons"], "relatedness_p_value") >= 0.5).sum())
    shuffled = float(np.nan_to_num(_shuffled_share(tables["null"])))
    beyond, chance, others = _compare_shares(q, [values_of(one, "q_value") for one in untrained])
    return statement.judge(
        above(beyond, share, of=what, than="what 95 % of untrained networks stay below")
        & above(shuffled, share, of=what, than="that among shuffled contexts")
        & at_most(LEVEL, chance, of="p of Fisher's exact test against untrained networks")
        & above(
            LEVEL * significant,
            apart,
            of="number of them with patterns no more alike in the embedding space than those of "
            "different neurons are in the median",
            than=f"{LEVEL:.0%} of them",
        ),
        null=others.mean(),
        null_description=f"mean share in {len(others)} untrained networks of the same shape",
        evidence=f"{significant} of {len(q)} neurons in superposition, {apart} of them with unrelated "
        f"patterns; untrained {_list_shares(others)}; among shuffled contexts (one half against the other) "
        f"{_shuffled_share(tables['null']):.2%}",
    )


def _is_there(tables: Mapping[str, pd.DataFrame], untrained: Sequence[pd.DataFrame]) -> bool:
    """Is superposition, related or not, more frequent than in untrained networks and shuffled contexts?"""
    q = values_of(tables["neurons"], "q_value")
    if _why_not(q, untrained):
        return False
    beyond, chance, _ = _compare_shares(q, [values_of(one, "q_value") for one in untrained])
    share = float((q <= LEVEL).mean())
    return chance <= LEVEL and share > max(beyond, _shuffled_share(tables["null"]))


def _more_than_untrained(
    neurons: pd.DataFrame, untrained: Sequence[pd.DataFrame], metric: str, statement: Statement
) -> Claim:
    """The share of neurons with a p-value of at most 5 % is above what untrained networks have."""
    p = values_of(neurons, metric)
    if reason := _why_not(p, untrained):
        return statement.not_tested(reason)
    beyond, chance, others = _compare_shares(p, [values_of(one, metric) for one in untrained])
    share, what = float((p <= LEVEL).mean()), f"share of the neurons with p <= {LEVEL:.0%}"
    return statement.judge(
        above(beyond, share, of=what, than="what 95 % of untrained networks stay below")
        & above(LEVEL, share, of=what)
        & at_most(LEVEL, chance, of="p of Fisher's exact test against untrained networks"),
        null=others.mean(),
        null_description=f"mean share in {len(others)} untrained networks of the same shape",
        evidence=f"{len(p)} neurons; untrained {_list_shares(others)}; Fisher's exact test against all of "
        f"them p = {chance:.2g}, as if neurons were independent",
    )


def _judge_unrelated(
    neurons: pd.DataFrame, name: str, untrained: Sequence[pd.DataFrame], there: bool
) -> Claim:
    """The patterns of a neuron are no more alike in meaning than those of different neurons."""
    statement = STATEMENTS["{name}.unrelated"].fill(name=name)
    p = _of_significant(neurons, "relatedness_p_value")
    if reason := _why_no_patterns(p, there):
        return statement.not_tested(reason)
    related = int((p <= LEVEL).sum())
    test = binomtest(related, len(p), LEVEL, alternative="greater")
    highest = float(binomtest(related, len(p), alternative="less").proportion_ci(0.95).high)
    if test.pvalue >= LEVEL and highest > 2 * LEVEL:
        reason = f"{len(p)} neurons in superposition cannot tell: the share may be up to {highest:.0%}"
        return statement.not_tested(reason)
    return statement.judge(
        at_most(
            2 * LEVEL,
            highest,
            of=f"share (95 % confidence limit) of the neurons in superposition (q <= {LEVEL:.0%}) "
            "with patterns more alike in the embedding space than 95 % of those of different neurons",
        ),
        measured=related / len(p),
        **_share_untrained(untrained, "relatedness_p_value", LEVEL),
        evidence=f"{related} of {len(p)} neurons have patterns related in meaning, {len(p) - related} have "
        f"not; binomial p = {test.pvalue:.2g}, at most {highest:.0%}; mean cosine between a neuron's "
        f"patterns {_of_significant(neurons, 'relatedness').mean():.3f}",
    )


def _different_queries(
    neurons: pd.DataFrame, name: str, untrained: Sequence[pd.DataFrame], there: bool
) -> Claim:
    """Among the neurons in superposition, some have another query in each pattern."""
    statement = STATEMENTS["{name}.different_queries"].fill(name=name)
    shared = _of_significant(neurons, "shared_queries")
    if reason := _why_no_patterns(shared, there):
        return statement.not_tested(reason)
    apart = int((shared <= SHARED).sum())
    return statement.judge(
        above(
            LEVEL,
            apart / len(shared),
            of=f"share of the neurons in superposition (q <= {LEVEL:.0%}) with the "
            f"same query token in at most {SHARED:.0%} of the pairs of contexts from different patterns",
        ),
        **_share_untrained(untrained, "shared_queries", SHARED),
        evidence=f"{apart} of {len(shared)}; in {int((shared > 0.5).sum())} most pairs share the query: one "
        "query in different company",
    )


class _Null(TypedDict):
    null: float | None
    null_description: str


def _share_untrained(untrained: Sequence[pd.DataFrame], metric: str, level: float) -> _Null:
    values = np.concatenate([_of_significant(one, metric) for one in untrained])
    if not len(values):
        return {"null": None, "null_description": "untrained networks have no neuron in superposition"}
    return {
        "null": float((values <= level).mean()),
        "null_description": f"share among the {len(values)} neurons in superposition of untrained networks",
    }


def _why_not(values: Array, untrained: Sequence[pd.DataFrame]) -> str:
    """Why nothing can be said; empty where something can."""
    if not len(values):
        return "no neuron has contexts enough to be scored"
    if len(untrained) < COPIES:
        return (
            f"it speaks of learning, and of {COPIES} untrained networks {len(untrained)} are there to compare"
        )
    return ""


def _why_no_patterns(values: Array, there: bool) -> str:
    if not there:
        return "there is no superposition beyond that of an untrained network whose patterns could be judged"
    return "" if len(values) else "the model's embeddings are not known"


def _compare_shares(values: Array, untrained: Sequence[Array]) -> tuple[float, float, Array]:
    """Is a share of small p-values larger than untrained networks have it?

    Returns:
        What a further untrained network stays below in 95 % (Student's prediction interval from the copies'
        shares, whose spread holds what neurons share); Fisher's p-value against all copies; their shares.
    """
    shares = np.array([(one <= LEVEL).mean() if len(one) else 0.0 for one in untrained])
    count = len(shares)
    quantile = float(t.ppf(1 - LEVEL, count - 1))
    beyond = float(shares.mean() + quantile * shares.std(ddof=1) * np.sqrt(1 + 1 / count))
    hits, others = int((values <= LEVEL).sum()), sum(int((one <= LEVEL).sum()) for one in untrained)
    total = sum(len(one) for one in untrained)
    counts = np.array([[hits, len(values) - hits], [others, total - others]])
    return beyond, float(fisher_exact(counts, alternative="greater").pvalue), shares


def _list_shares(shares: Array) -> str:
    return ", ".join(f"{share:.2%}" for share in shares)


def values_of(neurons: pd.DataFrame, metric: str) -> Array:
    """(neurons that were scored,)"""
    return np.asarray(rows(neurons, metric=metric)["value"].dropna())


def _of_significant(neurons: pd.DataFrame, metric: str) -> Array:
    """(neurons in superposition with that number,): the number."""
    wide = neurons.pivot(index=["layer", "stack", "neuron"], columns="metric", values="value")
    return np.asarray(wide[wide["q_value"] <= LEVEL][metric].dropna())


def _shuffled_share(null: pd.DataFrame) -> float:
    """The share that the same test finds in one half of each layer's shuffles, with the other as null."""
    scores = rows(null, metric="superposition")
    parts = []
    for _, part in scores.groupby(["layer", "stack"]):
        values = part["value"].to_numpy()
        if len(values) > 1:
            parts.append(null_probability(values[::2], values[1::2]))
    if not parts:
        return 0.0
    return float((false_discovery_control(np.concatenate(parts)) <= LEVEL).mean())
