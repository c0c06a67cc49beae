"""The answer first: one to three sentences about a run, made from its claims and tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from joma.core.claim import Claim, Verdict
from joma.runs.directory import Run

_ABOUT_PAPERS: dict[Verdict, str] = {
    "holds": "holds",
    "corrected": "corrected",
    "fails": "fails",
    "not tested": "not tested",
}
_ABOUT_A_MODEL: dict[Verdict, str] = {
    "holds": "as the paper says",
    "corrected": "as corrected",
    "fails": "unlike the paper",
    "not tested": "not tested",
}
SENTENCES = 3
"""Most sentences of an answer on a first screen."""


def verdict_words(subject: str) -> dict[Verdict, str]:
    """What a reader sees for each verdict: about a user's own model, nothing has failed."""
    return _ABOUT_A_MODEL if subject == "model" else _ABOUT_PAPERS


def subject_of(run: Run) -> str:
    """``model`` where a run is about a user's model, else ``papers``."""
    return str(run.settings.get("subject", "papers"))


def answer_of(run: Run) -> list[str]:
    """The run's own sentences, or what its claims say in general."""
    own = [str(sentence) for sentence in run.settings.get("answer") or []]
    return own or summary(run.claims)


def overall(runs: Sequence[Run]) -> list[str]:
    """What a page of several runs says first: the sentences of the first runs that have their own."""
    if len(runs) == 1:
        return answer_of(runs[0])[:SENTENCES]
    own = [run for run in runs if run.settings.get("answer")]
    claims = [claim for run in runs for claim in run.claims]
    return [answer_of(run)[0] for run in own[: SENTENCES - 1]] + summary(claims)[:1]


def summary(claims: Sequence[Claim]) -> list[str]:
    """How many statements hold, are misprints, fail; then the first that fails."""
    counts = Counter(claim.verdict for claim in claims)
    if not claims:
        return []
    tested = len(claims) - counts["not tested"]
    if not tested:
        return [f"None of {_statements(len(claims))} could be tested: {claims[0].evidence}."]
    parts = [f"{counts['holds']} of {_statements(tested)} that were tested hold here"]
    if counts["corrected"]:
        verb = "holds" if counts["corrected"] == 1 else "hold"
        parts.append(f"{counts['corrected']} {verb} in a corrected form only")
    if counts["fails"]:
        parts.append(f"{counts['fails']} {'fails' if counts['fails'] == 1 else 'fail'}")
    sentences = [", ".join(parts[:-1]) + (" and " if len(parts) > 1 else "") + parts[-1] + "."]
    failed = [claim for claim in claims if claim.verdict == "fails"]
    if failed:
        sentences.append(f"What fails: {in_a_line(failed[0])}.")
    return sentences


def in_a_line(claim: Claim) -> str:
    """A claim's statement with the number that decided."""
    text = claim.statement.rstrip(".")
    if claim.measured is None:
        return text
    null = "" if claim.null is None else f", null {claim.null:.3g}"
    return f"{text} (measured {claim.measured:.3g}{null}; expected: {claim.expected})"


def _statements(count: int) -> str:
    return f"{count} statement{'' if count == 1 else 's'}"
