"""Summarize onnxruntime's own quantization of the same model, next to the result, in one line.

Files of this feature, all `baseline.py`: `types`, `evaluate` (compares), `report` (the line on both forms).
"""

from __future__ import annotations

from quantpipe.types import BaselinePart, BaselineRow

BASELINE = "onnxruntime's own quantization"
"""What the line is about."""


def baseline_verdict(part: BaselinePart) -> str:
    """Return SQNR and time of each form next to the result's, at the output where the result compares worst."""
    return f"on {part['samples']} samples: {'; '.join(map(_form, part['rows']))}"


def _form(row: BaselineRow) -> str:
    if row["failed"] is not None:
        return f"{row['form']} failed ({row['failed']})"
    if row["sqnr_db"] is None or row["own_db"] is None:
        return f"{row['form']} equals the float model, or has no output to compare"
    return (
        f"{row['form']} {row['sqnr_db']:.1f} dB, the result {row['own_db']:.1f} dB (output {row['output']}), "
        f"in {row['latency']:.2f} of the result's time"
    )
