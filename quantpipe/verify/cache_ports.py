"""Caches whose inputs and outputs are integers: both have the numbers of plan.json, and nothing computes on the way.

Also the lengths that the metadata allow: the sums of the certificate have as many terms.
"""

from __future__ import annotations

import json

import onnx

from quantpipe.verify.files import Folder, expect
from quantpipe.verify.numbers import ClaimedNumbers, limits

NUMBERS = ("scale", "zero_point", "range")


def check_caches(folder: Folder, numbers: ClaimedNumbers) -> set[str]:
    """Raise Wrong where a cache differs from plan.json; return its ports, which hold integers."""
    graph, caches = folder.model.graph, numbers.plan.get("caches", [])
    types = {p.name: p.type.tensor_type.elem_type for p in (*graph.input, *graph.output)}
    stated = {p.key: p.value for p in folder.model.metadata_props}.get("quantpipe.caches", "[]")
    rows = {str(row["input"]): row for row in json.loads(stated)}
    expect(set(rows) == {str(c["input"]) for c in caches}, "model.onnx",
           "its metadata name other caches than plan.json")  # fmt: skip
    for cache in caches:
        past, present = str(cache["input"]), str(cache["output"])
        own, other = numbers.quantizer(past), numbers.quantizer(present)
        same = all(own[key] == other[key] for key in (*NUMBERS, "dtype"))
        expect(same, present, f"it has other numbers than {past}, which it becomes in the next step")
        row = rows[past]
        agrees = all(row[key] == own[key] for key in NUMBERS) and row["output"] == present
        agrees = agrees and all(row[key] == cache[key] for key in ("stored", "holds"))
        expect(agrees, past, f"the metadata of model.onnx have other numbers of the cache than plan.json: {row}")
        kind = onnx.TensorProto.DataType.Value(str(cache["stored"]).upper())
        for name in (past, present):
            found = onnx.TensorProto.DataType.Name(types.get(name, 0))
            expect(types.get(name) == kind, name, f"it is a port of {found}, and plan.json stores {cache['stored']}")
        least, most = limits(str(cache["stored"]))
        low, high = own["range"]
        expect(least <= low and high <= most, past, f"{cache['stored']} does not hold {low} to {high}")
        _expect_unchanged(numbers, past, numbers.value(past), str(own["dtype"]))
        _expect_unchanged(numbers, numbers.value(present), present, str(cache["stored"]))
    return {str(cache[end]) for cache in caches for end in ("input", "output")}


def check_lengths(folder: Folder, numbers: ClaimedNumbers) -> None:
    """Raise Wrong where the metadata allow longer sums than the certificate bounds, or limit no free axis."""
    sizes = {p.name: [d.dim_value for d in p.type.tensor_type.shape.dim] for p in folder.model.graph.input}
    held = max((int(c.get("given", {}).get("products", 0)) for c in numbers.claims.values()), default=0)
    stated = {p.key: p.value for p in folder.model.metadata_props}.get("quantpipe.lengths", "[]")
    for row in json.loads(stated):
        for name, axis in row["axes"]:
            free = 0 <= axis < len(sizes.get(name, ())) and not sizes[name][axis]
            expect(free, "model.onnx", f"its metadata limit axis {axis} of {name}, which is no free axis of an input")
        agrees = row["most"] > 0 and (not held or row["most"] <= held)
        expect(agrees, "model.onnx", f"its metadata allow sums of {row['most']} terms, the certificate bounds {held}")


def _expect_unchanged(numbers: ClaimedNumbers, source: str, value: str, dtype: str) -> None:
    """A value is another one, or a Cast of it to a type that holds the same integers."""
    if value == source:
        return
    node = numbers.model.producer.get(value)
    cast = node is not None and node.op_type == "Cast" and not node.domain and list(node.input) == [source]
    expect(cast, value, f"it is not {source}, whose integers it has in plan.json")
    if node is not None:
        to = next((a.i for a in node.attribute if a.name == "to"), 0)
        expect(to == onnx.TensorProto.DataType.Value(dtype.upper()), value, f"it is cast to another type than {dtype}")
        numbers.model.see(node)
