"""Summarize in one sentence the quantized model that a run started from."""

from __future__ import annotations

from quantpipe.types import ImportedPart


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
