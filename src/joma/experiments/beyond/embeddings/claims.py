"""What survives, what takes its place, and two remarks of Sec. 7."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from joma.core.claim import Claim, Statement, above, statements, within_error
from joma.core.tables import rows
from joma.experiments.beyond.embeddings import ATTENTION, Embeddings

# (model, law) -> the claim's name, and what it states.
LAWS = {
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
STATEMENTS = statements(
    {
        "embeddings.synonyms": "JoMA Sec. 7 | Concepts with similar semantics will learn similar embeddings.",
        "embeddings.accelerates": "JoMA Sec. 7 | Z = U W_Q W_K' U' may accelerate the training dynamics of "
        "Z, beyond a faster start.",
    }
)


def claims(settings: Embeddings, tables: Mapping[str, pd.DataFrame]) -> list[Claim]:
    """What survives, what takes its place, and two remarks of Sec. 7."""
    drift, found = tables["drift"].query("scale == @settings.scale"), []
    tolerance = 1e-6  # the integration's: 1e-9 a step

    def worst(model: str, law: str, attention: str) -> float:
        chosen = drift.query("model == @model and metric == @law and attention == @attention")
        return float(chosen.groupby("run")["value"].last().max())

    for (model, law), (name, statement) in LAWS.items():
        own = "two matrices" if law == "theorem 1" else model
        for attention in ATTENTION if law in ("balance", "block") else ATTENTION[:2]:
            has_null = attention != "softmax"  # Theorem 1 has no such constant there
            found.append(
                Statement(
                    f"embeddings.{name}_{attention}",
                    "JoMA Sec. 7, Thm 1",
                    f"{statement[:-1]} ({attention} attention).",
                    exact=True,
                ).judge(
                    within_error(tolerance, worst(model, law, attention)),
                    null=worst(own, "theorem 1", attention) if has_null else None,
                    null_description=f"Theorem 1's constant in the model '{own}'" if has_null else "",
                    evidence=f"{attention} attention: drift over how far the terms moved, at the end, "
                    f"largest of {settings.seeds} seeds."
                    + ("" if has_null else " No null: under softmax Theorem 1 has no constant to break."),
                )
            )
    found.append(_synonyms(settings, tables["course"]))
    found.append(_accelerates(settings, tables["course"]))
    return found


def _synonyms(settings: Embeddings, course: pd.DataFrame) -> Claim:
    chosen = rows(course, model="free, embeddings learn")
    last = chosen.groupby(["metric", "attention", "run"])["value"].last()
    together, apart = float(last["synonyms"].min()), float(last["unrelated"].max())
    of = "mean cosine of synonyms"
    return STATEMENTS["embeddings.synonyms"].judge(
        above(0.1, together, of=of)
        & above(2 * abs(apart), together, of=of, than="twice that of unrelated tokens"),
        null=apart,
        null_description="tokens of unlike frequencies",
        evidence="Least over kinds of attention and seeds, largest for the null; synonyms have the same "
        "frequencies in all classes.",
    )


def _accelerates(settings: Embeddings, course: pd.DataFrame) -> Claim:
    """The scale of W_Q, W_K sets how fast the logits start; what the claim is about is what comes then."""
    scales = (settings.scale, settings.scale / 2)
    reached = {scale: _relative_motion(course, "two matrices", scale) for scale in scales}
    listed = ", ".join(f"scale {scale:g}: {r.min():.2f} to {r.max():.2f}" for scale, r in reached.items())
    least = min(float(r.min()) for r in reached.values())
    return STATEMENTS["embeddings.accelerates"].judge(
        above(
            1.01, least, of="least motion over free logits', these half their way, from equal initial speed,"
        ),
        null=float(_relative_motion(course, "one matrix", settings.scale).max()),
        null_description="one matrix, under which the logits move as free ones",
        evidence=f"Exp attention, least of {settings.seeds} seeds and two scales ({listed}). dz/dt = "
        "(|W_Q u_q|^2 + U'W_K'W_K U) s, not s: at equal learning rates the scale alone decides.",
    )


def _relative_motion(course: pd.DataFrame, model: str, scale: float) -> pd.Series[float]:
    """Motion of the logits over that of free ones, seed by seed, each on a clock of equal initial speed."""
    motion = rows(course, metric="motion", attention="exp")

    def of(model: str, scale: float, run: int) -> pd.Series[float]:
        return rows(motion, model=model, scale=scale, run=run).set_index("step")["value"]

    found = {}
    for run in motion["run"].unique():
        free, other = of("free", motion["scale"].max(), run), of(model, scale, run)
        half = free.index[int((free >= free.iloc[-1] / 2).argmax())]
        faster = other.iloc[1] / free.iloc[1]
        found[run] = float(np.interp(half / faster, other.index, other)) / free[half]
    return pd.Series(found)
