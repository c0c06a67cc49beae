"""A claim: a sentence of a paper, tested. A statement says what is claimed, a criterion when it holds."""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal, Self, TypedDict, Unpack

from joma.core.errors import InputError
from joma.core.files import Json

Verdict = Literal["holds", "corrected", "fails", "not tested"]
VERDICTS: tuple[Verdict, ...] = ("holds", "corrected", "fails", "not tested")
Relation = Literal["at least", "at most", "above", "below", "exactly"]
_COMPARISONS: dict[Relation, Callable[[float, float], bool]] = {
    "at least": operator.ge,
    "at most": operator.le,
    "above": operator.gt,
    "below": operator.lt,
    "exactly": operator.eq,
}
Numbers = float | Iterable[float]
"""A number, or several, of which the worst decides."""


@dataclass(frozen=True, kw_only=True)
class Condition:
    """One comparison of a measured number with a threshold; made by ``at_least`` and its siblings."""

    quantity: str
    """What is measured, in words."""
    relation: Relation
    """How the measured number has to lie to the threshold."""
    measured: float | None
    """The deciding number. None: it was no number, and the condition does not hold."""
    threshold: float | None
    unit: str = ""
    """Of both numbers: ``nats``, ``steps``; empty where they have none."""
    than: str = ""
    """What the threshold is, in words, where it was measured too."""
    across: str = ""
    """Over what the deciding number is the worst: ``in every run``."""

    def __post_init__(self) -> None:
        if self.relation not in _COMPARISONS:
            raise InputError(f"the relation {self.relation!r} of a condition is none of {[*_COMPARISONS]}.")
        _check_types(self, "a condition", ("measured", "threshold"))

    @property
    def holds(self) -> bool:
        """Whether the measured number lies as it should; NaN never does."""
        return (
            self.measured is not None
            and self.threshold is not None
            and _COMPARISONS[self.relation](self.measured, self.threshold)
        )

    def bound(self) -> str:
        """Relation and threshold: ``at least 0.1 nats``, ``above the null (0.2)``."""
        number = f"{math.nan if self.threshold is None else self.threshold:.4g} {self.unit}".rstrip()
        return f"{self.relation} {self.than} ({number})" if self.than else f"{self.relation} {number}"


@dataclass(frozen=True)
class Criterion:
    """Conditions that all have to hold; ``a & b`` joins two criteria."""

    conditions: tuple[Condition, ...]
    tolerance: float | None = None
    """How large an error may be, where one of the conditions is about an error."""

    def __and__(self, other: Criterion) -> Criterion:
        tolerance = other.tolerance if self.tolerance is None else self.tolerance
        return Criterion((*self.conditions, *other.conditions), tolerance)

    @property
    def holds(self) -> bool:
        """Whether all conditions hold."""
        return all(condition.holds for condition in self.conditions)

    def words(self) -> str:
        """The criterion as a sentence: ``fall at least 0.1 nats in every run; share above 0.5``."""
        groups = groupby(self.conditions, key=lambda condition: (condition.quantity, condition.across))
        return "; ".join(
            f"{quantity} {' and '.join(condition.bound() for condition in same)} {across}".rstrip()
            for (quantity, across), same in groups
        )


class Scope(TypedDict, total=False):
    """What a condition says beside its quantity."""

    than: str
    """What the threshold is, unless it is a number fixed beforehand."""
    across: str
    """Of several numbers, over what they run: ``in every run``."""
    unit: str
    """Of both numbers."""


class Words(Scope):
    """How a condition is said."""

    of: str
    """What is measured; subject of the sentence that the claim shows."""


def at_least(threshold: Numbers, measured: Numbers, **words: Unpack[Words]) -> Criterion:
    """``measured >= threshold``.

    Args:
        threshold: one number, or as many as are measured, each for its own.
        measured: one number, or several, all of which have to comply: the one with the least margin decides,
            and is what is reported. Of no number at all nothing holds.
        words: ``of``, ``than``, ``across`` and ``unit`` (see ``Words``).

    Raises:
        InputError: several thresholds, but not as many as measured numbers.
    """
    return _criterion("at least", threshold, measured, **words)


def at_most(threshold: Numbers, measured: Numbers, **words: Unpack[Words]) -> Criterion:
    """``measured <= threshold``; arguments as of ``at_least``."""
    return _criterion("at most", threshold, measured, **words)


def above(threshold: Numbers, measured: Numbers, **words: Unpack[Words]) -> Criterion:
    """``measured > threshold``; arguments as of ``at_least``."""
    return _criterion("above", threshold, measured, **words)


def below(threshold: Numbers, measured: Numbers, **words: Unpack[Words]) -> Criterion:
    """``measured < threshold``; arguments as of ``at_least``."""
    return _criterion("below", threshold, measured, **words)


def equal(threshold: Numbers, measured: Numbers, **words: Unpack[Words]) -> Criterion:
    """``measured == threshold``, for counts and shares; arguments as of ``at_least``."""
    return _criterion("exactly", threshold, measured, **words)


def between(low: float, high: float, measured: Numbers, **words: Unpack[Words]) -> Criterion:
    """``low <= measured <= high``; arguments as of ``at_least``."""
    return at_least(low, measured, **words) & at_most(high, measured, **words)


def within_error(tolerance: float, error: Numbers, *, of: str = "error", **words: Unpack[Scope]) -> Criterion:
    """``error <= tolerance``, where the tolerance is one of the claim; arguments as of ``at_least``."""
    return dataclasses.replace(at_most(tolerance, error, of=of, **words), tolerance=float(tolerance))


def _criterion(
    relation: Relation,
    threshold: Numbers,
    measured: Numbers,
    *,
    of: str,
    than: str = "",
    across: str = "",
    unit: str = "",
) -> Criterion:
    values, thresholds = _as_list(measured) or [math.nan], _as_list(threshold) or [math.nan]
    if len(thresholds) == 1:
        thresholds *= len(values)
    if len(thresholds) != len(values):
        raise InputError(f"{of}: {len(thresholds)} thresholds for {len(values)} measured numbers.")
    pairs = zip(values, thresholds, strict=True)
    worst, limit = min(pairs, key=lambda pair: _margin(relation, *pair))
    condition = Condition(
        quantity=of,
        relation=relation,
        measured=worst,
        threshold=limit,
        unit=unit,
        than=than,
        across=across,
    )
    return Criterion((condition,))


def _as_list(numbers: Numbers) -> list[float]:
    try:
        return [float(number) for number in numbers]  # type: ignore[union-attr]
    except TypeError:
        return [float(numbers)]  # type: ignore[arg-type]


def _margin(relation: Relation, measured: float, threshold: float) -> float:
    """How far the measured number is on the right side; what is not a number is the worst of all."""
    if measured == threshold:
        return 0.0
    distance = measured - threshold
    if math.isnan(distance):
        return -math.inf
    signed = {"at least": distance, "above": distance, "exactly": -abs(distance)}
    return signed.get(relation, -distance)


class NullAndEvidence(TypedDict, total=False):
    """What stands beside the number that decides; see the fields of ``Claim``."""

    null: float | None
    null_description: str
    evidence: str


@dataclass(frozen=True)
class Statement:
    """What a source states, before it is judged; written once, whatever becomes of it."""

    id: str
    """Dotted name, the group or experiment first: ``theorem2.trajectory``, ``fig6.rebound``."""
    source: str
    """Where it is stated: ``JoMA Thm 2, Eq. 4``."""
    words: str
    """The statement as printed (or as tested), in one sentence."""
    exact: bool = False
    """Whether it is a statement of mathematics, which a wrong formula fails: nothing is learned, and no null
    could be drawn. Every other statement has garbage that must turn its verdict (``tests/garbage.py``)."""

    def fill(self, **parts: object) -> Statement:
        """One of a family of statements, whose id and words have ``{part}`` in places: with these parts."""
        id_, source, words = (text.format(**parts) for text in (self.id, self.source, self.words))
        return Statement(id_, source, words, self.exact)

    def judge(
        self, criterion: Criterion, *, measured: float | None = None, **beside: Unpack[NullAndEvidence]
    ) -> Claim:
        """The claim, tested: it ``holds`` where all conditions do, else it ``fails``.

        Args:
            criterion: the conditions. Verdict and expected sentence follow from them.
            measured: the number to tell, where it is not that of the first condition.
            beside: null and evidence.
        """
        told = criterion.conditions[0].measured if measured is None else measured
        holds = criterion.holds and told is not None and not math.isnan(told)
        return self._claim("holds" if holds else "fails", criterion, told, **beside)

    def correct(
        self,
        right: str,
        *,
        printed_error: float,
        error: float,
        tolerance: float,
        also: Criterion | None = None,
        **beside: Unpack[NullAndEvidence],
    ) -> Claim:
        """The claim, a misprint: the printed statement must fail where the corrected one holds.

        It is ``corrected`` if the corrected statement's ``error`` is within ``tolerance``, the printed
        statement's is more than ten times that tolerance, and what is ``also`` asked holds. Else it fails,
        where the printed statement is not wrong by that much, too: no reader must be told of a misprint.
        """
        criterion = within_error(tolerance, error, of="error as corrected")
        criterion &= above(10 * tolerance, printed_error, of="error as printed")
        criterion = criterion if also is None else criterion & also
        judged = self._claim("corrected" if criterion.holds else "fails", criterion, error, **beside)
        return dataclasses.replace(judged, correction=right, printed_error=float(printed_error))

    def not_tested(self, reason: str) -> Claim:
        """The claim that a run could not test, with the reason."""
        return self._claim("not tested", Criterion(()), None, evidence=reason)

    def _claim(
        self,
        verdict: Verdict,
        criterion: Criterion,
        measured: float | None,
        **beside: Unpack[NullAndEvidence],
    ) -> Claim:
        null = beside.get("null")
        numbers: NullAndEvidence = {**beside, "null": None if null is None else float(null)}
        return Claim(
            id=self.id,
            source=self.source,
            statement=self.words,
            expected=criterion.words(),
            measured=None if measured is None else float(measured),
            tolerance=criterion.tolerance,
            verdict=verdict,
            exact=self.exact,
            criterion=criterion.conditions,
            **numbers,
        )


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What a source states, what was expected of it, and what was measured.

    Build one from a ``Statement``, which derives the verdict from the numbers, rather than by hand.
    """

    id: str
    """As ``Statement.id``."""
    source: str
    """As ``Statement.source``."""
    statement: str
    """As ``Statement.words``."""
    expected: str
    """The criterion in words."""
    measured: float | None
    """The number that decides. For ``corrected``: the error of the corrected statement."""
    tolerance: float | None
    """How large an error may be, where the criterion is about an error."""
    verdict: Verdict
    exact: bool = False
    """As ``Statement.exact``; False, too, in run directories from before it was kept."""
    criterion: tuple[Condition, ...] = ()
    """The conditions that decide; empty if not tested, and in run directories before format 3."""
    correction: str = ""
    """What is right instead (verdict ``corrected``)."""
    printed_error: float | None = None
    """Error of the printed statement, beside ``measured`` (verdict ``corrected``)."""
    null: float | None = None
    """The same number where the statement must *not* show: untrained, shuffled, time-shuffled."""
    null_description: str = ""
    """Which null it was."""
    evidence: str = ""
    """How it was computed, or, for ``not tested``, why it was not."""

    def __post_init__(self) -> None:
        if self.verdict not in VERDICTS:
            raise InputError(f"claim {self.id}: verdict {self.verdict!r} is none of {VERDICTS}.")
        numbers = ("measured", "tolerance", "printed_error", "null")
        _check_types(self, f"claim {self.id}", numbers, ("criterion",), ("exact",))

    def as_dict(self) -> dict[str, Json]:
        """The fields, ready for JSON (which knows no NaN or infinity: they become None)."""
        fields = dataclasses.asdict(self)
        return _finite({**fields, "criterion": [_finite(condition) for condition in fields["criterion"]]})

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Self:
        """The claim of ``as_dict``, also of one from before claims had a criterion.

        Raises:
            TypeError: a field is unknown or missing.
            InputError: a field has another type.
        """
        conditions = tuple(Condition(**condition) for condition in fields.get("criterion", ()))
        return cls(**{**fields, "criterion": conditions})


def statements(table: Mapping[str, str], *, exact: bool | Collection[str] = False) -> dict[str, Statement]:
    """The statements of a module by their ids, from ``{"fig6.falls": "JoMA Fig. 6 | the entropy falls"}``.

    Args:
        table: id -> source, " | " and words.
        exact: which of them are mathematics (``Statement.exact``): all, none, or those of these ids.

    Raises:
        InputError: ``exact`` names an id that the table does not have.
    """
    if not isinstance(exact, bool) and (unknown := set(exact) - set(table)):
        raise InputError(f"statements: exact names {sorted(unknown)}, which the table does not have.")
    chosen = (set(table) if exact else set()) if isinstance(exact, bool) else set(exact)
    parts = {id: text.partition(" | ") for id, text in table.items()}
    return {id: Statement(id, source, words, id in chosen) for id, (source, _, words) in parts.items()}


def withhold(claims: Iterable[Claim], reason: str) -> list[Claim]:
    """The claims, none of them judged: of those that were, the reason comes before their evidence."""
    return [
        claim
        if claim.verdict == "not tested"
        else Statement(claim.id, claim.source, claim.statement, claim.exact).not_tested(
            f"{reason}; {claim.evidence}"
        )
        for claim in claims
    ]


def _check_types(
    item: Claim | Condition,
    name: str,
    numbers: Iterable[str],
    others: Iterable[str] = (),
    flags: Iterable[str] = (),
) -> None:
    for field in dataclasses.fields(item):
        value = getattr(item, field.name)
        kind = int | float | None if field.name in numbers else bool if field.name in flags else str
        if field.name not in others and not isinstance(value, kind):
            raise InputError(f"{name}: {field.name} = {value!r} has the wrong type.")


def _finite(fields: dict[str, Any]) -> dict[str, Json]:
    return {
        key: None if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in fields.items()
    }
