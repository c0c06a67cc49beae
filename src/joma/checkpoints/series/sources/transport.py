"""Answers of the hub, ranges of files and listings: bounded in size and time, and tried again."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from huggingface_hub import get_session
from huggingface_hub.utils._headers import build_hf_headers
from huggingface_hub.utils._http import hf_raise_for_status

from joma.checkpoints.hub_words import BrokenOffError, in_words
from joma.core.errors import InputError, UnfinishedError, abbreviate
from joma.core.files import Json, parse_json

TRIES = 5
"""Of a transfer that breaks off, in a row, each with less than ``LEAST`` bytes of progress."""
LEAST = 1 << 16
SILENCE_SECONDS, LONGEST_WAIT = 30, 300
SLOWNESS_SECONDS, SLOWEST = 60.0, 1_000
"""A transfer that brings fewer bytes a second over so many seconds is given up."""
LONGEST_PAGE, MOST_PAGES = 64 << 20, 2_000
"""Bytes of a page of a listing, and pages of one."""
_LONGEST_REFUSAL = 1 << 16
_LATER, _PARTIAL, _WHOLE = (408, 429, 500, 502, 503, 504), 206, 200
_CONTENT_RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18}|\*)")


def read_range(name: str, revision: str, url: str, begin: int, end: int) -> Iterator[bytes]:
    """The bytes of a range of a file; a transfer that breaks off goes on where it did.

    Raises:
        InputError: it is not to be had.
        UnfinishedError: the hub gave up on it, several times in a row, or sends other bytes, or too slowly.
    """
    failed = 0
    while begin < end:
        before = begin
        try:
            with in_words(name, revision):
                for piece in _stream(url, begin, end):
                    begin += len(piece)
                    yield piece
        except BrokenOffError:
            failed = 0 if begin - before >= LEAST else failed + 1
            if failed >= TRIES:
                raise
            time.sleep(0.2 * 2**failed)


def listing(name: str, revision: str | None, url: str) -> Iterator[Json]:
    """What the pages of a listing hold, one after the other.

    Raises:
        InputError: there is none.
        UnfinishedError: it does not end, or comes too slowly.
    """
    asked: set[str] = set()
    following: str | None = url
    while following is not None:
        if following in asked or len(asked) >= MOST_PAGES:
            raise UnfinishedError(f"the hub's listing of {name!r} does not end after {len(asked)} pages.")
        if urlsplit(following)[:2] != urlsplit(url)[:2]:  # a token goes along
            raise UnfinishedError(
                f"the hub's listing of {name!r} goes on elsewhere: {abbreviate(following)}."
            )
        asked.add(following)
        text, following = _page(name, revision, following)
        try:
            yield parse_json(text)
        except ValueError as error:
            raise UnfinishedError(f"the hub's listing of {name!r} is not JSON ({error}).") from error


def _page(name: str, revision: str | None, url: str) -> tuple[bytes, str | None]:
    """A page, tried again where it does not come, and the address of the next one."""
    failed = 0
    while True:
        try:
            with in_words(name, revision), _answer(url, {}) as response:
                text = b"".join(_bound_bytes(response.iter_bytes(), LONGEST_PAGE, url))
                return text, response.links.get("next", {}).get("url")
        except BrokenOffError:
            failed += 1
            if failed >= TRIES:
                raise
            time.sleep(0.05 * 2**failed)


def _stream(url: str, begin: int, end: int) -> Iterator[bytes]:
    headers = {"Range": f"bytes={begin}-{end - 1}", "Accept-Encoding": "identity"}
    with _answer(url, headers) as response:
        _check_range(response, url, begin, end)
        left = end - begin
        # As they come: pieces of one size would be held back until whole.
        for piece in _in_time(response.iter_raw(), url):
            yield piece[:left]
            left -= len(piece)
            if left <= 0:
                return
    raise BrokenOffError(f"{url} broke off {left:,} bytes before its end.")


@contextmanager
def _answer(url: str, headers: dict[str, str]) -> Iterator[Any]:
    given = {**build_hf_headers(), **headers}
    with get_session().stream("GET", url, headers=given, timeout=SILENCE_SECONDS) as response:
        if response.status_code in _LATER:
            wait = response.headers.get("Retry-After", "")
            time.sleep(min(LONGEST_WAIT, int(wait)) if re.fullmatch("[0-9]{1,9}", wait) else 1.0)
            raise BrokenOffError(f"the hub answers {response.status_code} for {url}; try again later.")
        if response.is_error:
            # Who makes an error of it reads its words, however many.
            words = b"".join(_bound_bytes(response.iter_bytes(), _LONGEST_REFUSAL, url))
            told = {key: value for key, value in response.headers.items() if key.lower().startswith("x-")}
            response = type(response)(
                response.status_code, headers=told, content=words, request=response.request
            )
        hf_raise_for_status(response)
        yield response


def _check_range(response: Any, url: str, begin: int, end: int) -> None:
    """Raises InputError or UnfinishedError unless the answer holds the bytes that were asked for."""
    said = response.headers.get("Content-Range", "")
    if response.headers.get("Content-Encoding", "identity") != "identity":
        raise UnfinishedError(
            f"{url} was sent compressed, though it was asked for as it is; try again later."
        )
    if response.status_code == _WHOLE and begin == 0:
        return
    if response.status_code != _PARTIAL:
        raise InputError(f"{url.partition('/resolve/')[0]} does not send parts of files.")
    told = _CONTENT_RANGE.fullmatch(said)
    if told is None or (int(told[1]), int(told[2])) != (begin, end - 1):
        raise UnfinishedError(
            f"the hub was asked for the bytes {begin} to {end - 1} of {url} and sends others "
            f"(Content-Range {abbreviate(said)}); nothing of them is used: try again later."
        )


def _bound_bytes(pieces: Iterator[bytes], most: int, url: str) -> Iterator[bytes]:
    size = 0
    for piece in _in_time(pieces, url):
        size += len(piece)
        if size > most:
            raise UnfinishedError(
                f"the hub's answer for {url} has more than {most:,} bytes; it was not read on."
            )
        yield piece


def _in_time(pieces: Iterator[bytes], url: str) -> Iterator[bytes]:
    """The pieces, as long as they come fast enough."""
    since, size = time.monotonic(), 0
    for piece in pieces:
        size += len(piece)
        took = time.monotonic() - since
        if took > SLOWNESS_SECONDS:
            if size < SLOWEST * took:
                raise UnfinishedError(
                    f"the hub sends {url} at {size / took:.0f} bytes a second, too slowly; try again later."
                )
            since, size = time.monotonic(), 0
        yield piece
