"""What the report says of onnxruntime's own quantization of the same model."""

from __future__ import annotations

from typing import TypedDict


class BaselineRow(TypedDict):
    """One of onnxruntime's own forms, at the output where the result is most behind it, or least ahead.

    `output`, `sqnr_db`, `own_db`: None where nothing could be compared; `failed` says why, if the tool did.
    """

    form: str
    output: str | None
    sqnr_db: float | None
    own_db: float | None
    failed: str | None


class BaselinePart(TypedDict):
    """The result beside onnxruntime's own quantization of the same model, on some of the samples."""

    samples: int
    rows: list[BaselineRow]
