"""Processes of this machine: one for each call, forked from a server that has imported what they need.

A pool recycles its workers, which grow, and loses all of them when one is killed. A process for each call
costs some ten milliseconds, since the server has imported torch for it (and has run no kernel, so that no
thread is lost in the fork); it takes along nothing but its own work when it dies.
"""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import types
from collections.abc import Callable, Generator, Iterator, Sequence
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar

from joma.core.progress import LostCall

T = TypeVar("T")


def local_processes(
    calls: Sequence[Callable[[], T]], workers: int
) -> Generator[tuple[int, T | LostCall], None, None]:
    """At most ``workers`` processes of this machine at once, each for one call; see the module's text.

    Raises:
        Exception: what a call raised; the others are ended.
    """
    forks = "forkserver" in multiprocessing.get_all_start_methods()
    context: Any = multiprocessing.get_context("forkserver" if forks else "spawn")
    if forks:
        _let_the_server_import({module for call in calls for module in _modules(call)})
    waiting = iter(enumerate(calls))
    running: dict[Connection, tuple[int, BaseProcess]] = {}
    ending: list[BaseProcess] = []
    try:
        while True:
            for number, call in waiting:
                ours, theirs = context.Pipe(duplex=False)
                process = context.Process(target=_work, args=(theirs, call), daemon=False)
                running[ours] = number, process
                with _no_main_module():
                    process.start()
                theirs.close()
                if len(running) >= max(1, workers):
                    break
            if not running:
                return
            for ready in wait(list(running)):
                assert isinstance(ready, Connection)
                number, process = running[ready]
                outcome = _receive(ready, process)
                del running[ready]
                # Its work is done, and the next one's begins while the system takes it apart.
                ending = [one for one in (*ending, process) if one.exitcode is None]
                if isinstance(outcome, _RaisedError):
                    raise outcome.error
                yield number, outcome
    finally:
        for connection, (_, process) in running.items():
            connection.close()
            with contextlib.suppress(ValueError, AttributeError):  # interrupted before it had begun
                process.kill()
                process.join()
        for process in ending:
            process.join()


_imported: set[str] = set()
"""What the server has imported, or will before it forks."""


def _let_the_server_import(modules: set[str]) -> None:
    """Start the server anew where it lacks some: each process would import them for itself, in seconds."""
    if modules <= _imported:
        return
    if _imported and not multiprocessing.active_children():
        forkserver._forkserver._stop()  # type: ignore[attr-defined]
    _imported.update(modules)
    multiprocessing.set_forkserver_preload(sorted(_imported))
    if threading.current_thread() is not threading.main_thread():
        return
    # An interruption is for the process that asks: while the server imports, it would die of it.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with _no_main_module():
            forkserver.ensure_running()
    finally:
        signal.signal(signal.SIGINT, before)


class _RaisedError:
    """What a call raised, on its way from its process."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


def _receive(connection: Connection, process: BaseProcess) -> Any:
    """What the process sent before its end."""
    try:
        outcome = connection.recv()
    except (EOFError, OSError, pickle.UnpicklingError):  # it died before its end, or in the middle of it
        process.join()
        code = process.exitcode or 0
        outcome = LostCall(f"signal {-code}" if code < 0 else f"exit status {code}")
    connection.close()
    return outcome


def _work(connection: Connection, call: Callable[[], T]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that asked ends this one
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        outcome: T | _RaisedError = call()
    except BaseException as error:
        error.add_note(f"(in the process of a part: {type(error).__name__})")
        outcome = _RaisedError(error)
    try:
        connection.send(outcome)
    except Exception as error:  # it cannot be pickled
        connection.send(_RaisedError(TypeError(f"what a process found cannot be sent: {error}")))


def _end_with_parent() -> None:
    """End this process with the one that asked for its work.

    Whoever continues a run that was killed must find nobody else writing there, and whoever waits for the end
    of its output must not wait for ever.
    """
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


@contextlib.contextmanager
def _no_main_module() -> Iterator[None]:
    """Keep new processes from running a user's script again: what they compute is joma's own."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _modules(call: Callable[..., T]) -> set[str]:
    """The modules that a call's functions come from, for the server to import."""
    if not isinstance(call, functools.partial):
        module = getattr(call, "__module__", None) if callable(call) else None
        return {module} if module and module != "__main__" else set()
    found = _modules(call.func)
    for argument in (*call.args, *call.keywords.values()):
        if isinstance(argument, functools.partial):
            found |= _modules(argument)
        elif hasattr(argument, "needs"):
            found |= set(argument.needs())
    return found
