"""Compiled functions on the threads that torch computes with.

After each operation torch's threads wait actively for the next, some milliseconds long; threads of any other
kind would share the processors with them.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from llvmlite import ir
from numba import types
from numba.core.base import BaseContext
from numba.core.typing import Context, Signature
from numba.extending import intrinsic
from numpy.typing import NDArray

TAKEN = types.Array(types.int64, 1, "C")
"""Type of the counter: one int64."""
Typed = tuple[Signature, Callable[..., ir.Value]]
"""What an intrinsic is: its signature, and what generates its code."""


def run_on_threads(
    function: Callable[..., None], *arguments: NDArray[np.generic] | np.generic | bool
) -> None:
    """Run a compiled function, which lets go of Python's lock, on as many threads as torch uses.

    Each calls it with the arguments and a counter (``TAKEN``), from which it takes tasks by
    ``next_task`` until none is left. What one raises is raised here when all are back.
    """
    number, taken = torch.get_num_threads(), np.zeros(1, np.int64)
    failed: list[BaseException] = []

    def work(_: None = None) -> None:
        try:
            function(*arguments, taken)
        except BaseException as problem:  # Ctrl-C too: what a callback raises is dropped
            failed.append(problem)

    start = torch_parallel() if number > 1 else None
    if start is not None:
        start(_CALLBACK(work), None, number, 0)
    else:
        helpers = [threading.Thread(target=work) for _ in range(number - 1)]
        for helper in helpers:
            helper.start()
        work()
        for helper in helpers:
            helper.join()
    if failed:
        raise failed[0]


_CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


@functools.cache
def torch_parallel() -> Callable[..., None] | None:
    """``GOMP_parallel`` of the library whose threads torch uses, or None where torch brings none."""
    packages = Path(torch.__file__).parent.parent
    for path in sorted((*packages.glob("torch/lib/libgomp*"), *packages.glob("torch.libs/libgomp*"))):
        try:
            parallel = ctypes.CDLL(str(path)).GOMP_parallel
        except (OSError, AttributeError):
            continue
        parallel.argtypes = [_CALLBACK, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
        parallel.restype = None
        return parallel
    return None


@intrinsic
def next_task(typing: Context, counter: types.Array) -> Typed:
    """In compiled code: the number in a counter, which then is one more; no two threads get the same."""

    def generate(
        context: BaseContext, builder: ir.IRBuilder, signature: Signature, arguments: list[ir.Value]
    ) -> ir.Value:
        place = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        return builder.atomic_rmw("add", place, ir.Constant(ir.IntType(64), 1), "monotonic")

    return types.int64(counter), generate
