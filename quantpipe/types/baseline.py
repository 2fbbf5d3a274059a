"""Types of the report's part on onnxruntime's own quantization of the same model."""

from __future__ import annotations

from typing import TypedDict


class BaselineRow(TypedDict):
    """One of onnxruntime's own forms, at the output with the largest deficit of the result, or its smallest lead.

    `output`, `sqnr_db`, `own_db`, `gap_db`, `least_gap_db`: None where nothing could be compared, or the form is slower
    than the result; `failed` is the reason, if the tool failed. The gaps are the maximum and the minimum over all
    outputs; outputs that are near enough count as equal at most. `latency`: this form over the result, at batch 1;
    `faster`: that is certain.
    """

    form: str
    output: str | None
    sqnr_db: float | None
    own_db: float | None
    gap_db: float | None
    least_gap_db: float | None
    latency: float | None
    faster: bool
    failed: str | None


class BaselinePart(TypedDict):
    """The result compared with onnxruntime's own quantization of the same model, on some of the samples."""

    samples: int
    rows: list[BaselineRow]
