"""What was found along a series, as a terminal shows it."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Mapping

import pandas as pd

from joma.instruments.track import TrackSettings


def terminal_text(settings: TrackSettings, tables: Mapping[str, pd.DataFrame]) -> str:
    """One line per checkpoint, the dips, and everything that was noticed."""
    members, notes, found = tables["checkpoints"], tables["notes"], tables["bounces"]
    shown = ["checkpoint", "step", "bytes", "same_as", "measured"]
    shown = ["series", *shown] if settings.against else shown
    words = [members[shown].to_string(index=False)]
    dips = found[found["verdict"] == "bounces"]
    if len(dips):
        shown = [
            "line",
            "layer",
            "head",
            "matrix",
            "metric",
            "dip_step",
            "dip_from",
            "dip_to",
            "rebound_step",
        ]
        shown = [name for name in shown if dips[name].astype(str).ne("").any()]
        words.append(dips[[*shown, "dip_probability", "rebound_probability"]].head(40).to_string(index=False))
    for heading, kept in (("not measured", notes[notes["lost"]]), ("noticed", notes[~notes["lost"]])):
        if len(kept):
            texts = zip(kept["kind"], kept["text"], strict=True)
            words.append("\n".join([f"{heading}:", *(line for one in texts for line in _wrap(*one))]))
    return "\n\n".join(words)


def _wrap(kind: str, text: str) -> list[str]:
    """A note as lines that fit into the terminal."""
    width = min(110, max(40, shutil.get_terminal_size((100, 24)).columns))
    return textwrap.wrap(
        f"{kind}: {text}", width, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False
    )
