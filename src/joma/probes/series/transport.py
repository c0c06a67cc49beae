"""Bytes from the hub: ranges of files, tried again where that can help, and its errors in words."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator

from huggingface_hub import errors, get_session
from huggingface_hub.utils._headers import build_hf_headers
from huggingface_hub.utils._http import hf_raise_for_status

from joma.errors import InputError, JomaError, UnfinishedError

_TRIES = 5
_SILENCE_SECONDS, _LONGEST_WAIT = 30, 300
_LATER, _PARTIAL = (408, 429, 500, 502, 503, 504), 206


class BrokenOff(UnfinishedError):
    """A transfer that ended early; it can go on."""


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
        except BrokenOff:
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
            raise BrokenOff(f"the hub answers {response.status_code} for {url}; try again later.")
        hf_raise_for_status(response)
        if response.status_code != _PARTIAL and begin > 0:
            raise InputError(f"{url.partition('/resolve/')[0]} does not send parts of files.")
        left = end - begin
        for piece in response.iter_raw():  # as they come: pieces of one size would be held back until whole
            yield piece[:left]
            left -= len(piece)
            if left <= 0:
                return
    raise BrokenOff(f"{url} broke off {left:,} bytes before its end.")


@contextlib.contextmanager
def in_words(name: str, revision: str | None) -> Iterator[None]:
    """The hub's errors as joma's, one sentence each; its remarks about retries are not shown."""
    remarks = logging.getLogger("huggingface_hub")
    level = remarks.level
    remarks.setLevel(logging.ERROR)
    try:
        yield
    except JomaError:
        raise
    except errors.GatedRepoError as error:
        raise InputError(
            f"the model {name!r} is gated: accept its terms on the hub, run: hf auth login."
        ) from error
    except errors.RevisionNotFoundError as error:
        raise InputError(f"the model {name!r} has no revision {revision!r} on the hub.") from error
    except errors.RepositoryNotFoundError as error:
        raise InputError(
            f"{name!r} is neither a path here nor a model on the hub that you may read; check the name, or "
            "run: hf auth login."
        ) from error
    except errors.EntryNotFoundError as error:
        raise InputError(
            f"{name}, revision {revision}: a file that the hub lists is missing there."
        ) from error
    except errors.OfflineModeIsEnabled as error:
        raise InputError(f"HF_HUB_OFFLINE is set, and {name!r} is not whole in the hub's cache.") from error
    except errors.HfHubHTTPError as error:
        status = error.response.status_code
        advice = "run: hf auth login" if status in (401, 403) else "try again later"
        raise UnfinishedError(f"the hub answers {status} for {name!r}; {advice}.") from error
    except OSError as error:
        raise BrokenOff(f"{name}: {error}") from error
    except Exception as error:  # of the hub's transport, whose classes change with its version
        line = str(error).strip().splitlines()
        raise BrokenOff(
            f"{name!r} is no path here, and the hub cannot be reached for it "
            f"({line[0] if line else type(error).__name__}); where there is a network, download the "
            "checkpoints and give their folder."
        ) from error
    finally:
        remarks.setLevel(level)
