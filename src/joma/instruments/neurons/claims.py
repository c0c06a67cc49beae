"""What fig10 and ``joma neurons`` claim of pattern superposition, judged from their tables."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from scipy.stats import binomtest, false_discovery_control

from joma.arguments import Array
from joma.claim import Claim, Facts, judge, not_tested
from joma.instruments.neurons import NeuronsRun
from joma.measures.superposition import null_probability

LEVEL = 0.05
SHARED = 0.1
SOURCE = "JoMA Fig. 10 and its appendix"


def claims(settings: NeuronsRun, tables: Mapping[str, pd.DataFrame]) -> list[Claim]:
    """Does superposition exist, is it frequent; are neurons selective at all?"""
    return superposition_claims(tables, "neurons")


def superposition_claims(tables: Mapping[str, pd.DataFrame], name: str) -> list[Claim]:
    """What needs no untrained network beside the model; ``name`` begins the claims' ids."""
    tested = (some_neuron, more_than_chance, unrelated, different_queries, selective)
    return [claim(tables, name) for claim in tested]


def some_neuron(tables: Mapping[str, pd.DataFrame], name: str) -> Claim:
    """There are neurons in superposition, more than the false discoveries and than an untrained network's."""
    facts: Facts = {
        "id": f"{name}.exists",
        "source": SOURCE,
        "statement": "the same MLP neuron can be activated by several unrelated combinations of tokens",
    }
    q = values_of(tables["neurons"], "q_value")
    if not len(q):
        return not_tested(**facts, reason="no neuron has contexts enough to be scored")
    significant = int((q <= LEVEL).sum())
    apart = int((_of_significant(tables["neurons"], "relatedness_p_value") >= 0.5).sum())
    null = _shuffled_share(tables["null"], corrected=True)
    evidence = f"{significant} of {len(q)} neurons in superposition, {apart} of them with unrelated patterns"
    untrained = 0.0
    if "untrained_neurons" in tables:
        other = values_of(tables["untrained_neurons"], "q_value")
        untrained = float((other <= LEVEL).mean()) if len(other) else 0.0
        evidence += f"; in the untrained network {int((other <= LEVEL).sum())} of {len(other)}"
    return judge(
        bool(apart > LEVEL * significant and significant / len(q) > max(untrained, np.nan_to_num(null))),
        **facts,
        expected=f"neurons at a false discovery rate of {LEVEL:.0%} (Benjamini-Hochberg), a larger share "
        "than "
        f"in the nulls; more than {LEVEL:.0%} of them with patterns no more alike in the embedding space "
        "than "
        "those of different neurons are in the median",
        measured=significant / len(q),
        null=null,
        null_description="share found in the same way among shuffled contexts (one half against the other)",
        evidence=evidence,
    )


def more_than_chance(tables: Mapping[str, pd.DataFrame], name: str) -> Claim:
    """The share of neurons with p of at most 5 % is more than 5 %."""
    facts: Facts = {
        "id": f"{name}.more_than_chance",
        "source": SOURCE + " (as a frequency: joma)",
        "statement": "neurons in pattern superposition are more frequent than shuffled contexts would show",
    }
    p = values_of(tables["neurons"], "p_value")
    if not len(p):
        return not_tested(**facts, reason="no neuron has contexts enough to be scored")
    hits = int((p <= LEVEL).sum())
    chance = binomtest(hits, len(p), LEVEL, alternative="greater").pvalue
    return judge(
        bool(chance < LEVEL),
        **facts,
        expected=f"a share of neurons with p <= {LEVEL:.0%} above {LEVEL:.0%}",
        measured=hits / len(p),
        null=_shuffled_share(tables["null"], corrected=False),
        null_description="share among shuffled contexts (one half against the other)",
        evidence=f"{hits} of {len(p)} neurons; binomial p = {chance:.2g}, as if neurons were independent "
        "(they share windows, so it is too small)",
    )


def unrelated(tables: Mapping[str, pd.DataFrame], name: str) -> Claim:
    """The patterns of a neuron are no more alike in meaning than those of different neurons."""
    facts: Facts = {
        "id": f"{name}.unrelated",
        "source": SOURCE,
        "statement": "the patterns of a neuron in superposition have no more to do with each other in "
        "meaning than those of different neurons",
    }
    p = _of_significant(tables["neurons"], "relatedness_p_value")
    if not len(p):
        return not_tested(
            **facts, reason="no neuron is in superposition, or the model's embeddings are not known"
        )
    related = int((p <= LEVEL).sum())
    test = binomtest(related, len(p), LEVEL, alternative="greater")
    highest = float(binomtest(related, len(p), alternative="less").proportion_ci(0.95).high)
    if test.pvalue >= LEVEL and highest > 2 * LEVEL:
        reason = f"{len(p)} neurons in superposition cannot tell: the share may be up to {highest:.0%}"
        return not_tested(**facts, reason=reason)
    null = None
    if "untrained_neurons" in tables:
        other = _of_significant(tables["untrained_neurons"], "relatedness_p_value")
        null = float((other <= LEVEL).mean()) if len(other) else None
    return judge(
        bool(highest <= 2 * LEVEL),
        **facts,
        expected=f"patterns more alike in the embedding space than 95 % of those of different neurons: in "
        f"{LEVEL:.0%} of the neurons in superposition (q <= {LEVEL:.0%}), at most {2 * LEVEL:.0%} with 95 % "
        "confidence",
        measured=related / len(p),
        tolerance=2 * LEVEL,
        null=null,
        null_description="" if null is None else "share among those of the untrained network",
        evidence=f"{related} of {len(p)} neurons have patterns related in meaning, {len(p) - related} have "
        f"not; binomial p = {test.pvalue:.2g}, at most {highest:.0%}; mean cosine between a neuron's "
        "patterns "
        f"{_of_significant(tables['neurons'], 'relatedness').mean():.3f}",
    )


def different_queries(tables: Mapping[str, pd.DataFrame], name: str) -> Claim:
    """Among the neurons in superposition, some have another query in each pattern."""
    facts: Facts = {
        "id": f"{name}.different_queries",
        "source": "JoMA appendix (pattern superposition)",
        "statement": "one neuron's weight holds several query vectors, each with its own pattern",
    }
    shared = _of_significant(tables["neurons"], "shared_queries")
    if not len(shared):
        return not_tested(**facts, reason="no neuron is in superposition at the level of the other claims")
    apart = int((shared <= SHARED).sum())
    null = None
    if "untrained_neurons" in tables:
        other = _of_significant(tables["untrained_neurons"], "shared_queries")
        null = float((other <= SHARED).mean()) if len(other) else None
    return judge(
        apart > LEVEL * len(shared),
        **facts,
        expected=f"more than {LEVEL:.0%} (false discoveries) of the neurons in superposition (q <= "
        f"{LEVEL:.0%}) "
        f"with the same query token in at most {SHARED:.0%} of the pairs of contexts from different patterns",
        measured=apart / len(shared),
        null=null,
        null_description="" if null is None else "share among those of the untrained network",
        evidence=f"{apart} of {len(shared)}; in {int((shared > 0.5).sum())} most pairs share the query: one "
        "query in different company",
    )


def selective(tables: Mapping[str, pd.DataFrame], name: str) -> Claim:
    """Neurons answer to what is attended to at all: their contexts are more alike than shuffled ones."""
    facts: Facts = {
        "id": f"{name}.selective",
        "source": "JoMA Sec. 3 (a neuron's weight is a pattern of attended tokens)",
        "statement": "neurons are selective: what is attended to in a neuron's contexts is more alike than "
        "in others of the same windows",
    }
    p = values_of(tables["neurons"], "similarity_p_value")
    if not len(p):
        return not_tested(**facts, reason="no neuron has contexts enough to be scored")
    share = float((p <= LEVEL).mean())
    null = None
    if "untrained_neurons" in tables:
        other = values_of(tables["untrained_neurons"], "similarity_p_value")
        null = float((other <= LEVEL).mean()) if len(other) else None
    return judge(
        share > LEVEL and (null is None or share > null),
        **facts,
        expected=f"a share of neurons with p <= {LEVEL:.0%} above {LEVEL:.0%}"
        + ("" if null is None else ", and above the untrained network's"),
        measured=share,
        null=LEVEL if null is None else null,
        null_description="by chance" if null is None else "the untrained network",
        evidence=f"{len(p)} neurons; mean cosine of attended tokens over pairs of a neuron's contexts",
    )


def values_of(neurons: pd.DataFrame, metric: str) -> Array:
    """(neurons that were scored,)"""
    return np.asarray(neurons[neurons["metric"] == metric]["value"].dropna())


def _of_significant(neurons: pd.DataFrame, metric: str) -> Array:
    """(neurons in superposition with that number,): the number."""
    wide = neurons.pivot(index=["layer", "stack", "neuron"], columns="metric", values="value")
    return np.asarray(wide[wide["q_value"] <= LEVEL][metric].dropna())


def _shuffled_share(null: pd.DataFrame, *, corrected: bool) -> float:
    """The share that the same test finds in one half of each layer's shuffles, with the other as null."""
    scores = null[null["metric"] == "superposition"]
    parts = []
    for _, part in scores.groupby(["layer", "stack"]):
        values = part["value"].to_numpy()
        if len(values) > 1:
            parts.append(null_probability(values[::2], values[1::2]))
    if not parts:
        return float("nan")
    p = np.concatenate(parts)
    return float(((false_discovery_control(p) if corrected else p) <= LEVEL).mean())
