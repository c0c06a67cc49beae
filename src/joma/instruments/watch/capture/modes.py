"""The dispatch modes of open watches, which may end in any order."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class Modes(threading.local):
    """The modes of the watches that are open in a thread, which end in any order.

    PyTorch takes off the mode that lies on top; those above one that ends are laid down again.
    """

    def __init__(self) -> None:
        self._open: list[AbstractContextManager[TorchDispatchMode]] = []
        self._eager = ExitStack()

    @contextmanager
    def enter(self, mode: AbstractContextManager[TorchDispatchMode]) -> Iterator[None]:
        """Within the block this mode lies on the stack; what is compiled runs uncompiled."""
        # Importing dynamo takes a second: where nobody has, nothing is compiled either.
        if not self._open and "torch._dynamo" in sys.modules:
            self._eager.enter_context(torch.compiler.set_stance("force_eager"))
        mode.__enter__()
        self._open.append(mode)
        try:
            yield
        finally:
            place = self._open.index(mode)
            above = self._open[place + 1 :]
            for other in reversed(above):
                other.__exit__(None, None, None)
            mode.__exit__(None, None, None)
            del self._open[place]
            for other in above:
                other.__enter__()
            if not self._open:
                self._eager.close()


MODES = Modes()
"""Those of this process, thread by thread."""
