"""``joma.log``: a result's figure, tables and answer in an experiment tracker."""

from __future__ import annotations

import importlib
import io
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, Protocol

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from PIL import Image

from joma.core.errors import InputError

_ROWS = 200
"""The rows of a table that TensorBoard, which shows text alone, is given."""


class Result(Protocol):
    """Any result of joma: tables, a figure, an answer."""

    @property
    def tables(self) -> Mapping[str, pd.DataFrame]:
        """Tables by name."""

    def plot(self) -> Figure:
        """Draw the figure."""

    def answer(self) -> list[str]:
        """State what was found."""


def log(found: Result, tracker: Any, *, step: int = 0, name: str = "") -> None:
    """Log a result in an experiment tracker: its figure as a picture, its tables, and its answer as text.

    Args:
        found: what ``joma.probe``, ``track``, ``run``, ``sweep`` or ``read`` returns; the folder of a monitor
            is read with ``joma.read``.
        tracker: the module or a run of ``wandb`` or ``trackio``, the module ``mlflow``, a Comet experiment,
            or a writer of TensorBoard (which shows the first 200 rows of a table as text).
        step: the step of training at which the tracker shows it.
        name: what stands behind ``joma/`` in the names (default: the experiment's or instrument's).

    Raises:
        InputError: a tracker of another kind.

    Examples:
        >>> class Writer:  # stands for torch.utils.tensorboard.SummaryWriter
        ...     def add_figure(self, tag, figure, step): print(tag)
        ...     def add_text(self, tag, text, step): print(tag)
        >>> joma.log(joma.run("fig9", out="runs/fig9", quiet=True), Writer())
        joma/fig9
        joma/fig9/answer
        joma/fig9/curve
        joma/fig9/laws
        joma/fig9/pairs
    """
    write = _writer(tracker)
    tag = f"joma/{name or _name_of(found)}"
    write(tag, found.plot(), " ".join(found.answer()), found.tables, step)


_Write = Callable[[str, Figure, str, Mapping[str, pd.DataFrame], int], None]


def _writer(tracker: Any) -> _Write:
    library = _library_of(tracker)
    if hasattr(tracker, "add_figure") and hasattr(tracker, "add_text"):
        return _tensorboard(tracker)
    if library == "mlflow" and hasattr(tracker, "log_table"):
        return _mlflow(tracker)
    if hasattr(tracker, "log_figure") and hasattr(tracker, "log_table"):
        return _comet(tracker)
    if hasattr(tracker, "log") and library:
        media = importlib.import_module(library)
        if hasattr(media, "Image") and hasattr(media, "Table"):
            return _media(tracker, media)
    kind = f"the module {tracker.__name__}" if isinstance(tracker, ModuleType) else type(tracker).__name__
    raise InputError(
        f"log(found, tracker) got {kind}; give wandb or trackio (the module or a run), the module mlflow, a "
        "Comet experiment, or a SummaryWriter of TensorBoard."
    )


def _tensorboard(writer: Any) -> _Write:
    def write(tag: str, figure: Figure, answer: str, tables: Mapping[str, pd.DataFrame], step: int) -> None:
        writer.add_figure(tag, figure, step)
        writer.add_text(f"{tag}/answer", answer, step)
        for name, table in tables.items():
            writer.add_text(f"{tag}/{name}", _markdown(table), step)

    return write


def _mlflow(tracker: Any) -> _Write:
    def write(tag: str, figure: Figure, answer: str, tables: Mapping[str, pd.DataFrame], step: int) -> None:
        tracker.log_figure(figure, f"{tag}/step{step}.png")
        tracker.log_text(answer, f"{tag}/answer-step{step}.txt")
        for name, table in tables.items():
            tracker.log_table(_plain(table), f"{tag}/{name}-step{step}.json")

    return write


def _comet(experiment: Any) -> _Write:
    def write(tag: str, figure: Figure, answer: str, tables: Mapping[str, pd.DataFrame], step: int) -> None:
        experiment.log_figure(figure_name=tag, figure=figure, step=step)
        experiment.log_text(answer, step=step)
        for name, table in tables.items():
            experiment.log_table(f"{tag}/{name}-step{step}.csv", tabular_data=_plain(table))

    return write


def _media(tracker: Any, media: ModuleType) -> _Write:
    """W&B and trackio: what is logged under a name may be a picture or a table."""

    def write(tag: str, figure: Figure, answer: str, tables: Mapping[str, pd.DataFrame], step: int) -> None:
        logged = {f"{tag}/{name}": media.Table(dataframe=_plain(table)) for name, table in tables.items()}
        tracker.log({tag: media.Image(_picture(figure), caption=answer), **logged}, step=step)

    return write


def _name_of(found: Any) -> str:
    return str(found.name if hasattr(found, "name") else found.settings.name())


def _library_of(tracker: Any) -> str:
    """The package that a module or an object's class comes from."""
    home = tracker.__name__ if isinstance(tracker, ModuleType) else type(tracker).__module__
    return str(home).partition(".")[0]


def _picture(figure: Figure) -> Image.Image:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return Image.open(buffer).convert("RGB")


def _plain(table: pd.DataFrame) -> pd.DataFrame:
    """Columns of numbers, truths and text alone: trackers know no categories and no lists."""
    kept = {
        str(name): column
        if column.dtype.kind in "biuf"
        else np.asarray(["" if value is None else str(value) for value in column], dtype=object)
        for name, column in table.items()
    }
    return pd.DataFrame(kept)


def _markdown(table: pd.DataFrame) -> str:
    rows = _plain(table.head(_ROWS)).astype(str).to_numpy().tolist()
    lines = [[str(name) for name in table.columns], ["---"] * table.shape[1], *rows]
    more = f"\n\nThe first {_ROWS} of {len(table)} rows." if len(table) > _ROWS else ""
    return (
        "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
        + more
    )
