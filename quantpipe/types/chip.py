"""The device that a hardware file describes, by name."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class ChipType(StrEnum):
    """Name the kind of a device; `none`: a file that describes no device."""

    CPU = "cpu"
    GPU = "gpu"
    NPU = "npu"
    DSP = "dsp"
    FPGA = "fpga"
    MCU = "mcu"
    NONE = "none"


@dataclass(frozen=True)
class Chip:
    """Name the device that a hardware file describes."""

    type: ChipType
    provider: str
    chip: str
