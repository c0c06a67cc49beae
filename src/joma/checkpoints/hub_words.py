"""The errors of the Hugging Face hub, in words."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

from huggingface_hub import errors

from joma.core.errors import InputError, JomaError, UnfinishedError, first_line


class BrokenOffError(UnfinishedError):
    """A transfer that ended early, or was never begun; it can be tried again."""


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
        raise BrokenOffError(f"{name}: {error}") from error
    except Exception as error:  # of the hub's transport, whose classes change with its version
        version = f" --revision {revision}" if revision else ""
        raise BrokenOffError(
            f"{name!r} is not a path here, and the hub cannot be reached for it ({first_line(error)}); where "
            f"there is a network, download it (hf download {name}{version} --local-dir FOLDER), and give "
            "the folder."
        ) from error
    finally:
        remarks.setLevel(level)
