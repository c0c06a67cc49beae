"""Checkpoints on this machine while they are needed: the next one comes while this one is measured."""

from __future__ import annotations

import concurrent.futures
import shutil
from pathlib import Path

from joma.checkpoints.adapters import open_weights
from joma.checkpoints.checkpoint import Checkpoint
from joma.checkpoints.series.members import Member
from joma.checkpoints.series.sources.source import Series, Wanted


class Fetcher:
    """Brings members of a series, each once, and removes what is no longer needed.

    Args:
        series: where they are.
        wanted: which tensors; None for whole models.
        folder: where fetched ones are put.
        keep: leave them there.
    """

    def __init__(self, series: Series, wanted: Wanted | None, folder: Path, *, keep: bool) -> None:
        self._series, self._wanted, self._folder, self._keep = series, wanted, folder, keep
        self._pool = concurrent.futures.ThreadPoolExecutor(1)
        self._coming: dict[str, concurrent.futures.Future[Path]] = {}
        self._open: dict[str, Checkpoint] = {}

    def ahead(self, member: Member) -> None:
        """Begin to bring it."""
        if self._series.distant and member.name not in self._coming:
            self._coming[member.name] = self._pool.submit(
                self._series.bring, member, self._wanted, self._folder
            )

    def path(self, member: Member) -> Path:
        """Where it lies, once it has come."""
        if not self._series.distant:
            return self._series.bring(member, self._wanted, self._folder)
        self.ahead(member)
        return self._coming[member.name].result()

    def is_there(self, member: Member) -> bool:
        """False where it was removed since it was listed, as a trainer does that keeps the last few."""
        return self._series.distant or self.path(member).exists()

    def checkpoint(self, member: Member) -> Checkpoint:
        """Its tensors, once it has come."""
        if member.name not in self._open:
            self._open[member.name] = open_weights(self.path(member))
        return self._open[member.name]

    def done(self, member: Member) -> None:
        """It is not needed again."""
        self._open.pop(member.name, None)
        coming = self._coming.pop(member.name, None)
        if coming is None or coming.cancel() or coming.exception() is not None:
            return
        path = coming.result()
        if not self._keep and path.is_relative_to(self._folder):
            shutil.rmtree(path, ignore_errors=True)

    def close(self) -> None:
        """Stop, and wait for what is under way."""
        self._pool.shutdown(cancel_futures=True)
