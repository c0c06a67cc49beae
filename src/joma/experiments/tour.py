"""The tour's own model: a decoder monitored while it trains, tracked along its checkpoints, then probed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch.nn.functional import cross_entropy

from joma.core.errors import RunDirectoryError
from joma.core.files import whole_file
from joma.core.progress import Progress
from joma.data.text import Batches
from joma.experiments.shared.decoders import tokens_of
from joma.instruments.monitor.folder import is_monitored
from joma.instruments.monitor.monitor import Monitor
from joma.instruments.monitor.page import monitored_run
from joma.instruments.probe.probe import probe
from joma.instruments.track import TrackSettings
from joma.models.decoder import Decoder
from joma.runs.directory import Run, find_runs, read_run, run_experiment
from joma.training.loop import reproducible

TOUR = ("fig4", "fig2", "snap_phases", "theorem5", "latent_depth", "fig6")
"""One or two of each family, quick ones, so that the tour stays within minutes; fig6 is the main job."""

QUICK_TOUR = ("fig4",)
"""The experiments of the short tour."""
QUICK_CHECKS = ("theorem2", "lemma4")
"""The groups of checks of the short tour."""
QUICK_STEPS = 60
"""Training steps of the short tour's decoder."""
CORPUS, QUICK_CORPUS = "world-english-bible", "python-reference"
"""The tour's text, and the short tour's, which comes with every CPython."""
VOCABULARY, LENGTH = 2000, 35
CHECKPOINTS = 12


def decoder_runs(
    directory: Path,
    *,
    corpus: str = CORPUS,
    steps: int = 600,
    layers: int = 2,
    overwrite: bool = False,
    quiet: bool = False,
) -> list[Run]:
    """A small decoder as three runs: probed on text that it has not seen, tracked along its checkpoints, and
    monitored while it trained.

    They lie in ``probe``, ``track`` and ``monitor``, the checkpoints in ``decoder``. What is finished is
    read.
    """
    progress = Progress(quiet=quiet)
    place = directory / "probe"
    if overwrite or not (place.is_dir() and find_runs(place)):
        _train_and_probe(directory, corpus, steps, layers, progress, overwrite)
    series = TrackSettings.of(model=str(directory / "decoder"))
    tracked = run_experiment(series, directory / "track", overwrite=overwrite, quiet=quiet)
    return [read_run(place), tracked, monitored_run(directory / "monitor")]


def _train_and_probe(
    directory: Path, corpus: str, steps: int, layers: int, progress: Progress, overwrite: bool
) -> None:
    if (directory / "decoder").exists() and not is_monitored(directory / "monitor"):
        raise RunDirectoryError(f"{directory / 'decoder'} is none of the demo's; choose another directory.")
    text = tokens_of(corpus, "words", VOCABULARY)
    with reproducible(0):
        model = Decoder(
            text.vocabulary_size, layers=layers, width=128, hidden=128, heads=2, dropout=0.2, longest=LENGTH
        )
        _train(model, Batches(text.training, 20, LENGTH, "random", 0), steps, directory, progress)
        found = probe(model.eval(), text.validation[: 64 * LENGTH], length=LENGTH, progress=progress)
    found.save(directory / "probe", overwrite=overwrite)


def _train(model: Decoder, batches: Batches, steps: int, directory: Path, progress: Progress) -> None:
    """A plain loop, as a user's: a monitor beside it, and checkpoints that are closer at first."""
    saved = {0, *np.geomspace(min(10, steps), steps, CHECKPOINTS).round().astype(int).tolist()}
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    with Monitor(model, every=10, ranks_every=5, steps=steps, folder=directory / "monitor") as monitor:
        monitor.begin(0)  # in place of what a training that was cut short has left
        for step in progress.track(range(steps + 1), "a decoder to look into"):
            if step in saved:
                with whole_file(directory / "decoder" / f"checkpoint-{step}" / "model.safetensors") as file:
                    save_file(model.state_dict(), file)
            if step == steps:
                break
            inputs, targets = batches[step]
            loss = cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)  # as it was before the clipping
            optimizer.step()
            monitor.step(step, loss=loss, grad_norm=norm)
