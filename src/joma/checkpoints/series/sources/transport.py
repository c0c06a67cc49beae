"""Bytes from the hub: ranges of files, tried again where that can help."""

from __future__ import annotations

import time
from collections.abc import Iterator

from huggingface_hub import get_session
from huggingface_hub.utils._headers import build_hf_headers
from huggingface_hub.utils._http import hf_raise_for_status

from joma.checkpoints.hub_words import BrokenOffError, in_words
from joma.core.errors import InputError

_TRIES = 5
_SILENCE_SECONDS, _LONGEST_WAIT = 30, 300
_LATER, _PARTIAL = (408, 429, 500, 502, 503, 504), 206


def ranged(name: str, revision: str, url: str, begin: int, end: int) -> Iterator[bytes]:
    """The bytes of a range of a file; a transfer that breaks off goes on where it did.

    Raises:
        InputError: it is not to be had.
        UnfinishedError: the hub gave up on it, several times in a row.
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
            failed = 0 if begin > before else failed + 1
            if failed >= _TRIES:
                raise
            time.sleep(0.2 * 2**failed)


def _stream(url: str, begin: int, end: int) -> Iterator[bytes]:
    headers = {**build_hf_headers(), "Range": f"bytes={begin}-{end - 1}", "Accept-Encoding": "identity"}
    with get_session().stream("GET", url, headers=headers, timeout=_SILENCE_SECONDS) as response:
        if response.status_code in _LATER:
            wait = response.headers.get("Retry-After", "")
            time.sleep(min(_LONGEST_WAIT, int(wait)) if wait.isdigit() else 1.0)
            raise BrokenOffError(f"the hub answers {response.status_code} for {url}; try again later.")
        hf_raise_for_status(response)
        if response.status_code != _PARTIAL and begin > 0:
            raise InputError(f"{url.partition('/resolve/')[0]} does not send parts of files.")
        left = end - begin
        for piece in response.iter_raw():  # as they come: pieces of one size would be held back until whole
            yield piece[:left]
            left -= len(piece)
            if left <= 0:
                return
    raise BrokenOffError(f"{url} broke off {left:,} bytes before its end.")
