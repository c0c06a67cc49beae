"""What survives, what takes its place, and two remarks of Sec. 7."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from joma.claim import Claim, judge, within
from joma.experiments.embeddings import ATTENTION, Embeddings

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


def claims(settings: Embeddings, tables: Mapping[str, pd.DataFrame]) -> list[Claim]:
    """What survives, what takes its place, and two remarks of Sec. 7."""
    drift, found = tables["drift"].query("scale == @settings.scale"), []
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
                    f"end, largest of {settings.seeds} seeds.",
                )
            )
    found.append(_synonyms(settings, tables["course"]))
    reached = {
        scale: _speed(settings, tables["course"], scale) for scale in (settings.scale, settings.scale / 2)
    }
    found.append(
        judge(
            reached[settings.scale] > 1,
            id="embeddings.accelerates",
            source="JoMA Sec. 7",
            statement="Z = U W_Q W_K' U' may accelerate the training dynamics of Z.",
            expected="above 1: farther than free logits when those have moved half their way",
            measured=reached[settings.scale],
            tolerance=1.0,
            null=reached[settings.scale / 2],
            null_description="W_Q and W_K from half the scale: the initial scale alone decides",
            evidence="Exp attention, median of the seeds. dz/dt = (|W_Q u_q|^2 + U'W_K'W_K U) s, not s.",
        )
    )
    return found


def _synonyms(settings: Embeddings, course: pd.DataFrame) -> Claim:
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


def _speed(settings: Embeddings, course: pd.DataFrame, scale: float) -> float:
    motion = course[(course["metric"] == "motion") & (course["attention"] == "exp")]
    free = motion[motion["model"] == "free"].groupby("step")["value"].median()
    other = motion[(motion["model"] == "two matrices") & (motion["scale"] == scale)]
    half = free.index[int((free >= free.iloc[-1] / 2).argmax())]
    return float(other.groupby("step")["value"].median()[half] / free[half])
