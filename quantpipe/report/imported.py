"""Summarize in one sentence the quantized model that a run started from.

Files of this feature, all `imported.py`: `types`, `evaluate` (compares with the file), `report` (its sentence).
`intake/quantized` reads the file.
"""

from __future__ import annotations

from quantpipe.errors import some_of
from quantpipe.types import ImportedPart

NAMED = 3
"""Weights that a warning names."""


def imported_warning(part: ImportedPart | None) -> str | None:
    """Return a sentence on weights that the device cannot have as the file has them, with what they lose; else None."""
    rows = (
        [row for row in part["changed"] if row["kind"] == "weight"]
        if part is not None and part["keep"] == "all"
        else []
    )
    rows = [row for row in rows if row["differing"] is None]
    if not rows:
        return None
    named = [f"{row['name']}: {row['reason']}{_loss(row['sqnr_db'])}" for row in rows]
    verb = "weight of the file has" if len(rows) == 1 else "weights of the file have"
    return f"{len(rows)} {verb} other integers on this device: {some_of(named, NAMED, '; ')}"


def _loss(decibel: float | None) -> str:
    return "" if decibel is None else f" ({decibel:.1f} dB from the file's)"


def imported_verdict(part: ImportedPart) -> str:
    """Return the imported parts, and whether the integers are still the same, in one line."""
    forms = ", ".join(part["forms"])
    head = f"{forms}: {part['tensors']} tensors, {part['weights']} weights, import.keep={part['keep']}"
    changed = len(part["changed"])
    head += f"; {changed} had to change" if changed else ""
    weights = f"{part['weight_differing']:,} of {part['weight_integers']:,} integers of weights differ"
    moved = sum(row["kind"] == "weight" and row["differing"] is None for row in part["changed"])
    weights += f" ({moved} more weights have other scales here)" if moved else ""
    compared = part["compared"]
    if compared is None:
        return f"{head}; {weights}; not compared on samples: {part['why_not']}"
    exactly = compared["differing_with_real_softmax"]
    softmax = "" if exactly is None else f" ({exactly:,} where onnxruntime does not approximate its Softmax)"
    return (
        f"{head}; {weights}, {compared['differing']:,} of {compared['elements']:,} of tensors, from the imported model "
        f"on {compared['samples']} samples{softmax}"
    )
