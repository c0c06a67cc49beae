"""Members that say of themselves that they are averages of others: those lie where no training went."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from joma.checkpoints.families.sizes import Config
from joma.checkpoints.series.audit.content import MemberContent

_AVERAGE = re.compile(
    r"(?<![a-z])(avg|average[ds]?|averaging|ema|swa|soup|mean|merged?|model[-_ ]?stock)(?![a-z])", re.I
)
_DEPTH = 2


def averages_among(members: Sequence[MemberContent]) -> set[int]:
    """The places of those whose name says so, or whose settings do where those of most members do not."""
    words = [_words(one.config) for one in members]
    held = Counter(word for own in words for word in own)
    return {
        place
        for place, one in enumerate(members)
        if _AVERAGE.search(one.member.name)
        or _AVERAGE.search(one.path.name)
        or any(2 * held[word] < len(members) for word in words[place])
    }


def _words(config: Config | None) -> set[str]:
    """What the settings say with such a word, as ``key=value``."""
    return {f"{key}={value}" for key, value in _settings(config or {}, _DEPTH) if _says_so(key, value)}


def _settings(config: Config, depth: int) -> Iterator[tuple[str, object]]:
    for key, value in config.items():
        if isinstance(value, dict) and depth > 1:
            yield from _settings(value, depth - 1)
        yield key, value


def _says_so(key: str, value: object) -> bool:
    return bool(value) and bool(_AVERAGE.search(value if isinstance(value, str) else key))
