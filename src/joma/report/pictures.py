"""Figures for a page: small enough to embed, sharp enough to read."""

from __future__ import annotations

import base64
import io
from pathlib import Path

from PIL import Image

from joma.core.errors import first_line
from joma.core.files import read_bytes
from joma.runs.tables import damage_error

LARGEST = 125_000
"""Bytes that a figure may take on the page in one theme."""
LARGEST_FILE, MOST_PIXELS = 50_000_000, 40_000_000
"""Of a figure on the disk; joma draws some hundred thousand bytes, and two million pixels."""
_WIDTHS_AND_QUALITIES = ((1700, 90), (1700, 84), (1600, 80), (1450, 78), (1300, 75), (1000, 70))


def embed(path: Path) -> str | None:
    """A figure as a data URI, or None where there is none; a link is not followed.

    The page takes the first form that is small enough; the file on disk stays as it is.
    """
    if path.is_symlink() or not path.is_file():
        return None
    picture = _opaque(path)
    for widest, quality in _WIDTHS_AND_QUALITIES:
        size = min(picture.width, widest), round(picture.height * min(1.0, widest / picture.width))
        buffer = io.BytesIO()
        picture.resize(size, Image.Resampling.LANCZOS).save(buffer, "webp", quality=quality, method=4)
        text = base64.b64encode(buffer.getvalue()).decode("ascii")
        if len(text) <= LARGEST:
            break
    return f"data:image/webp;base64,{text}"


def _opaque(path: Path) -> Image.Image:
    """Without its transparency, and without what was read of it: each is tens of MB.

    Raises:
        InputError: it has too many bytes.
        RunDirectoryError: it is no picture, or has too many pixels.
    """
    content = read_bytes(path, LARGEST_FILE)
    try:
        with Image.open(io.BytesIO(content)) as opened:
            if opened.width * opened.height > MOST_PIXELS:
                raise ValueError(f"it has {opened.width} times {opened.height} pixels")
            return opened.convert("RGB")
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise damage_error(path, f"it is not a picture that joma draws: {first_line(error)}") from error
