"""A sample as a small picture, where it is one."""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np
from numpy.typing import NDArray

SIDE = 64
"""Pixels of the longer side."""
_LEAST = 6
"""Rows and columns below which a matrix is no picture."""
_MOST_RATIO = 50
"""Of the sides of what is shown as a picture."""


def thumbnail(sample: NDArray[Any]) -> str | None:
    """Return a sample as a PNG in base64, or None if it is no picture.

    A picture is `[H, W]`, `[C, H, W]` or `[H, W, C]` with 1, 3 or 4 channels, of any numeric type. Preprocessed pixel
    values are stretched back to the full range of brightness.
    """
    pixels = _pixels(sample)
    if pixels is None:
        return None
    from PIL import Image

    low, high = float(pixels.min()), float(pixels.max())
    scaled = ((pixels - low) * (255.0 / (high - low)) if high > low else np.zeros_like(pixels)).round().astype(np.uint8)
    picture = Image.fromarray(scaled)
    factor = SIDE / max(picture.size)
    size = (max(1, round(picture.width * factor)), max(1, round(picture.height * factor)))
    picture = picture.resize(size, Image.Resampling.NEAREST if factor > 1 else Image.Resampling.BILINEAR)
    stream = io.BytesIO()
    picture.save(stream, "PNG", optimize=True)
    return base64.b64encode(stream.getvalue()).decode()


def _pixels(sample: NDArray[Any]) -> NDArray[np.float64] | None:
    """`[H, W]` or `[H, W, 3]`; None for what is no picture."""
    if not (np.issubdtype(sample.dtype, np.number) and sample.size and np.all(np.isfinite(sample))):
        return None
    values = sample.astype(np.float64)
    if values.ndim == 3 and values.shape[0] in (1, 3, 4):
        values = np.moveaxis(values, 0, -1)
    if values.ndim == 3 and values.shape[-1] in (1, 3, 4):
        values = values[..., :3] if values.shape[-1] > 1 else values[..., 0]
    fits = values.ndim == 2 or (values.ndim == 3 and values.shape[-1] == 3)
    sides = values.shape[:2]
    return values if fits and min(sides) >= _LEAST and max(sides) <= _MOST_RATIO * min(sides) else None
