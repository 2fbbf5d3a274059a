"""Types of the report's part on onnxruntime's own quantization of the same model.

Files of this feature, all `baseline.py`: `types`, `evaluate` (compares), `report` (the line on both forms).
"""

from __future__ import annotations

from typing import TypedDict


class BaselineRow(TypedDict):
    """One of onnxruntime's own forms, at the output with the largest deficit of the result, or its smallest lead."""

    # `static` or `dynamic`
    form: str
    # `latency`, `faster`, `slower`: its time over the result's; whether it is certainly faster, or slower
    latency: float | None
    faster: bool
    slower: bool
    # the output where the result is worst in comparison
    output: str | None
    # `sqnr_db`, `own_db`: at this output, its SQNR and the result's
    sqnr_db: float | None
    own_db: float | None
    # `gap_db`, `least_gap_db`: largest and the smallest gap over all outputs
    gap_db: float | None
    least_gap_db: float | None
    # why the tool gives no result
    failed: str | None


class BaselinePart(TypedDict):
    """The result compared with onnxruntime's own quantization of the same model, on some of the samples."""

    samples: int
    rows: list[BaselineRow]
