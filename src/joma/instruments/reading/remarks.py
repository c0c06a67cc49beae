"""Remarks of other libraries on what a user of joma can do nothing about, left out by their words.

Anything else that these libraries say is shown.
"""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator

_LOGGED = {
    # torchao, which transformers imports where it is installed, on its kernels for other machines.
    "torchao": ("Failed to load ",),
    "torchao.kernel.intmm": ("Detected no triton",),
    # torch, on how torchao registers its classes.
    "torch.utils._pytree": ("is an Enum subclass and is now natively supported",),
}
"""Logger -> words of what it remarks."""
_COMPILED = r"Using `torch\.compile\(module\)` when there are global hooks on modules"
"""torch, on hooks that joma has set: a watch counts the compiled module and the one inside it as one."""


class _Unsaid(logging.Filter):
    def __init__(self, words: tuple[str, ...]) -> None:
        super().__init__()
        self.words = words

    def filter(self, record: logging.LogRecord) -> bool:
        return not any(words in record.getMessage() for words in self.words)


@contextlib.contextmanager
def without_remarks_on_import() -> Iterator[None]:
    """Leave out what is remarked while transformers imports the modules of a model."""
    filters = {logging.getLogger(name): _Unsaid(words) for name, words in _LOGGED.items()}
    for logger, unsaid in filters.items():
        logger.addFilter(unsaid)
    try:
        yield
    finally:
        for logger, unsaid in filters.items():
            logger.removeFilter(unsaid)


def no_remark_on_hooks() -> None:
    """Leave out torch's remark on global hooks, from the first watch of a process on."""
    warnings.filterwarnings("ignore", message=_COMPILED, category=UserWarning)
