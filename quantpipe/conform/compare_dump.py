"""Hold a dump against golden integers: the first tensor that differs, by how much, and what would explain it.

One explanation is another conversion of floats to integers at the inputs of the network.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import permutations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantpipe import intmath
from quantpipe.arrays import Array
from quantpipe.conform.alternatives import Alternative, alternatives
from quantpipe.conform.describe import Described
from quantpipe.conform.dump import Dump
from quantpipe.conform.network import Network
from quantpipe.conform.numpy_kernels import RepeatedKernel
from quantpipe.conform.vectors import VectorSet
from quantpipe.types import DumpedRow, DumpedSet, ExplanationRow, Rounding


def entering_alternatives(
    net: Network, tensor: str, inputs: Mapping[str, Array]
) -> Iterator[tuple[str, str, NDArray[np.int64]]]:
    """Yield (field, value, integers) of other ways to quantize an input of the model; nothing for other tensors."""
    if tensor not in inputs or tensor not in net.plan.quantizers:
        return
    q = net.plan.quantizers[tensor]
    steps = np.asarray(inputs[tensor], np.float32) / np.float32(q.scale)
    for rounding in Rounding:
        whole = intmath.round_real(steps, rounding)
        yield "input rounding", str(rounding), np.clip(whole + q.zero_point, q.qmin, q.qmax).astype(np.int64)
    whole = intmath.round_real(steps)
    yield "input rounding", "towards zero", np.clip(np.trunc(steps) + q.zero_point, q.qmin, q.qmax).astype(np.int64)
    yield "input zero_point", "left out", np.clip(whole, q.qmin, q.qmax).astype(np.int64)
    limits = q.dtype.qmin, q.dtype.qmax
    yield "input range", f"{limits[0]} to {limits[1]}", np.clip(whole + q.zero_point, *limits).astype(np.int64)
    wrapped = intmath.wrap(np.clip(whole, -(1 << 40), 1 << 40).astype(np.int64) + q.zero_point, q.dtype)
    yield "input range", "wraps", wrapped.astype(np.int64)


MOST_STEPS = 8
"""Differences of more units of the last place are counted together."""
EXPLAINED = 6
"""So many tensors that a kernel made wrong are explained; the others are listed."""
SHOWN = 5
"""Explanations of one tensor, at most."""


def compare_dump(vectors: VectorSet, described: Described, dump: Dump) -> DumpedSet:
    """Return how a dump differs from a set: a row for every tensor of the dump, in graph order.

    Tensors that differ have an explanation, by changes of the hardware file of `described`.
    """
    golden = {t: v[: dump.samples] for t, v in vectors.golden.items()}
    given = _filled(vectors, golden, dump)
    rows: list[DumpedRow] = []
    explained = 0
    for tensor, found in dump.tensors.items():
        row = _row(vectors, tensor, golden[tensor].astype(np.int64), found)
        site = RepeatedKernel.making(vectors.network, tensor)
        if site is not None:
            row["node"], row["op"] = site.kernel.node, site.kernel.op
        touched = row["differing"] > 0 or (site is not None and _fed_otherwise(site, golden, given))
        if touched:
            row["differing_own"] = _differing_own(site, given, found) if site is not None else row["differing"]
        wrong = row["differing_own"] if row["differing_own"] is not None else row["differing"]
        if wrong and explained < EXPLAINED:
            explained += 1
            row["explanations"] = _explained(vectors, described, tensor, given=given, found=found)
        rows.append(row)
    differing = [row for row in rows if row["differing"]]
    return {
        "name": vectors.name,
        "samples": dump.samples,
        "tensors": len(rows),
        "missing": list(dump.missing),
        "elements": sum(row["elements"] for row in rows),
        "differing": sum(row["differing"] for row in rows),
        "first": differing[0]["tensor"] if differing else None,
        "rows": rows,
    }


def _filled(vectors: VectorSet, golden: Mapping[str, Array], dump: Dump) -> dict[str, Array]:
    """Return the device's tensors of the set; missing ones follow from the others by the plan."""
    given: dict[str, Array] = {}
    for tensor, expected in golden.items():
        found = dump.tensors.get(tensor)
        site = RepeatedKernel.making(vectors.network, tensor) if found is None else None
        if site is not None and _fed_otherwise(site, golden, given):
            found = site.result(given)
        given[tensor] = expected if found is None else found
    return given


def _row(vectors: VectorSet, tensor: str, golden: Array, found: Array) -> DumpedRow:
    steps = found - golden
    return {
        "tensor": tensor,
        "node": None,
        "op": None,
        "dtype": str(vectors.network.dtype(tensor)),
        "elements": int(found.size),
        "differing": int(np.count_nonzero(steps)),
        "max_lsb": int(np.abs(steps).max(initial=0)),
        "histogram": histogram(steps),
        "where": _first_place(steps),
        "differing_own": None,
        "explanations": [],
    }


def histogram(steps: Array) -> dict[str, int]:
    """Return how many elements differ by how many units in the last place; more than eight count together."""
    counts = Counter(np.clip(steps, -MOST_STEPS - 1, MOST_STEPS + 1).reshape(-1).tolist())
    names = {-MOST_STEPS - 1: f"<-{MOST_STEPS}", MOST_STEPS + 1: f">{MOST_STEPS}"}
    return {names.get(step, f"{step:+d}"): counts[step] for step in sorted(counts) if step}


def _first_place(steps: Array) -> list[int] | None:
    places = np.argwhere(steps)
    return [int(p) for p in places[0]] if len(places) else None


def _fed_otherwise(site: RepeatedKernel, golden: Mapping[str, Array], found: Mapping[str, Array]) -> bool:
    return any(o in found and not np.array_equal(found[o], golden[o]) for o in site.operands)


def _differing_own(site: RepeatedKernel, given: Mapping[str, Array], found: Array) -> int | None:
    if any(o not in given for o in site.operands):
        return None
    expected = site.result(given)
    return None if expected is None else int(np.count_nonzero(expected != found))


def _explained(
    vectors: VectorSet, described: Described, tensor: str, *, given: Mapping[str, Array], found: Array
) -> list[ExplanationRow]:
    """Return explanations of the device's numbers, best first, that remove at least half of the differences."""
    site = RepeatedKernel.making(vectors.network, tensor)
    if site is None:
        tried = entering_alternatives(vectors.network, tensor, vectors.inputs)
        scored = [(name, value, int(np.count_nonzero(q[: len(found)] != found))) for name, value, q in tried]
        base = int(np.count_nonzero(found != vectors.golden[tensor][: len(found)]))
        entering: list[ExplanationRow] = [
            {"field": n, "value": v, "left": left, "change": None} for n, v, left in scored
        ]
        return _best([*entering, *_moved(vectors.golden[tensor][: len(found)].astype(np.int64), found, 1)], base)
    if any(o not in given for o in site.operands):
        return []
    expected = site.result(given)
    if expected is None:
        return []
    base = int(np.count_nonzero(expected != found))
    rows = [_scored(a, given, found) for a in alternatives(described, site)]
    rows += _moved(expected, found, site.rule.output_axis)
    return _best([row for row in rows if row is not None], base)


def _scored(alternative: Alternative, given: Mapping[str, Array], found: Array) -> ExplanationRow | None:
    made = alternative.site.result(given, alternative.fault)
    if made is None or made.shape != found.shape:
        return None
    left = int(np.count_nonzero(made != found))
    change = None if alternative.change is None else {k: _text(v) for k, v in alternative.change.items()}
    return {"field": alternative.field, "value": alternative.value, "left": left, "change": change}


def _moved(expected: Array, found: Array, axis: int) -> Iterator[ExplanationRow]:
    """Yield the same integers in other places: channels in another order, or the axes of the map turned."""
    if expected.ndim < 2:
        return
    axis %= expected.ndim
    right = np.moveaxis(expected, axis, 0).reshape(expected.shape[axis], -1)
    given = np.moveaxis(found, axis, 0).reshape(right.shape)
    order = [_where(right, given[n], n) for n in range(len(right))] if axis else []
    swapped = [n for n, o in enumerate(order) if n != o]
    if swapped and None not in order:
        pairs = ", ".join(f"{n} holds {order[n]}" for n in swapped[:4]) + (", …" if len(swapped) > 4 else "")
        yield {"field": "channels", "value": f"in another order: {pairs}", "left": 0, "change": None}
    for axes in permutations(range(1, expected.ndim)):
        turned = expected.transpose(0, *axes)
        if list(axes) != sorted(axes) and turned.shape == expected.shape and np.array_equal(turned, found):
            yield {"field": "axes", "value": f"turned: {[0, *axes]} of the model's", "left": 0, "change": None}


def _where(right: Array, one: Array, number: int) -> int | None:
    """Return the channel that holds these integers, its own place first."""
    if np.array_equal(right[number], one):
        return number
    same = np.flatnonzero((right == one).all(axis=1))
    return int(same[0]) if len(same) else None


def _best(rows: Sequence[ExplanationRow], base: int) -> list[ExplanationRow]:
    """Return the rows with the fewest differences, at most half of the plan's; exact rows alone, if there are some.

    What leaves more agrees by chance: a device whose integers have nothing to do with the plan's meets some of them.
    """
    ranked = sorted((row for row in rows if 2 * row["left"] <= base), key=lambda row: row["left"])
    whole = [row for row in ranked if not row["left"]]
    return (whole or ranked)[:SHOWN]


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{k}: {v}" for k, v in value.items()) + "}"
    return str(value)
