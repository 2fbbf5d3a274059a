"""TensorRT's calibration cache: a header line, then `NAME: HEX`, the big-endian float32 scale of each tensor.

Source: NVIDIA TensorRT documentation of IInt8Calibrator, and the files that its samples write.
"""

from __future__ import annotations

import math
import re
import struct

from quantpipe.calibrate.importers.entries import Entries, extremes
from quantpipe.errors import ArtifactError

_HEADER = re.compile(r"TRT-\d+-\w+\s*$")
_LINE = re.compile(r"(?P<name>.+): (?P<scale>[0-9a-fA-F]{8})")
STEPS = 127.0


def is_tensorrt(text: str) -> bool:
    """Return whether a text is a calibration cache of TensorRT."""
    return _HEADER.match(text.partition("\n")[0]) is not None


def read_tensorrt(text: str, where: str) -> Entries:
    """Return T = 127·scale per tensor.

    The product is exact in float64, and so is T/127 in float32 again.
    """
    tensors = {}
    for number, line in enumerate(text.splitlines()[1:], start=2):
        if not line.strip():
            continue
        match = _LINE.fullmatch(line.strip())
        scale = struct.unpack(">f", bytes.fromhex(match["scale"]))[0] if match else math.nan
        if match is None or not (0.0 <= scale < math.inf):
            raise ArtifactError(
                f"line {number} of this TensorRT cache is {line.strip()[:80]!r}; legal is NAME: followed by eight hex "
                "digits of a float32 scale that is finite and not negative",
                stage="calibrate",
                where=where,
            )
        threshold = STEPS * scale
        tensors[match["name"]] = extremes(match["name"], -threshold, threshold, where)
    return Entries("tensorrt", tensors, unsigned=True, notes=(NO_HASH,))


NO_HASH = "the file carries no hash of a model, so only the tensor names show that it fits"
