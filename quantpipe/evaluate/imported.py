"""Compare the realized model with the quantized one that it was imported from, as onnxruntime or LiteRT runs it.

What is the same is compared integer by integer: tensors and weights whose scale and zero point are the file's, up to
the shift between signed and unsigned types. What had to change is measured in real units.

Files of this feature, all `imported.py`: `types`, `evaluate` (compares with the file), `report` (its sentence).
`intake/quantized` reads the file.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np

from quantpipe.annotate.given import fitted_range, fitted_weight
from quantpipe.arrays import Array
from quantpipe.errors import HardwareError, ModelError
from quantpipe.evaluate.imported_file import imported_file
from quantpipe.graph.execute import Session
from quantpipe.graph.normalize import expose
from quantpipe.graph.session_options import carried
from quantpipe.graph.stored_ports import decoded, stored_ports
from quantpipe.graph.view import Graph
from quantpipe.intake.quantized import flat_view, with_real_softmax
from quantpipe.intake.tflite.read_file import places_of
from quantpipe.intmath import dequantize, quantize
from quantpipe.lowering import Rendered
from quantpipe.plan.given_blocks import given_blocks
from quantpipe.plan.weight_blocks import real_weight, rows_of, spread
from quantpipe.realize.tflite.form import kernels_of
from quantpipe.realize.tflite.run import LiteRTKernels
from quantpipe.realize.tflite.walk import FORM
from quantpipe.types import (
    GivenTensor,
    GivenWeight,
    HardwareSpec,
    Imported,
    ImportedChangeRow,
    ImportedComparedPart,
    ImportedGrid,
    ImportedOutputRow,
    ImportedPart,
    Quantizer,
    QuantPlan,
    Samples,
    Schema,
    Topology,
    WeightSite,
    WeightTensor,
)

CHANNELS = "scales per channel"
FREED = "it is not kept (import.keep)"


@dataclass(frozen=True, eq=False)
class Quantized:
    """Hold an integer model with the device and schema that it is for."""

    graph: Graph
    topology: Topology
    plan: QuantPlan
    spec: HardwareSpec
    schema: Schema
    realized: Rendered


@dataclass(eq=False)
class _Pair:
    """Sums over the samples of one tensor in both models."""

    elements: int = 0
    differing: int = 0
    signal: float = 0.0
    noise: float = 0.0

    def add(self, wanted: Array, found: Array, same: bool) -> None:
        self.elements += wanted.size
        if same:
            self.differing += int(np.count_nonzero(wanted != found))
        real, here = wanted.astype(np.float64), found.astype(np.float64)
        self.signal += float(np.sum(real * real))
        self.noise += float(np.sum((real - here) ** 2))

    @property
    def sqnr_db(self) -> float | None:
        """Return 10·log10(Σ r² / Σ (r - y)²), None where nothing differs or all is 0."""
        return 10.0 * math.log10(self.signal / self.noise) if self.noise > 0 and self.signal > 0 else None


@dataclass(eq=False)
class _Run:
    """Both models on the samples, tensor by tensor."""

    model: Quantized
    given: Imported
    pairs: dict[str, _Pair] = field(default_factory=dict)
    outputs: dict[str, _Pair] = field(default_factory=dict)
    samples: int = 0


def imported_part(model: Quantized, samples: Samples) -> ImportedPart | None:
    """Return the report's part on the quantized file that a model was imported from; None for a float model.

    It covers the imported grids, the changes, and how many integers differ.
    """
    given = model.graph.imported
    if given is None:
        return None
    run, why_not = _Run(model, given), ""
    try:
        _compare(run, samples)
    except (ModelError, HardwareError) as error:
        why_not = f"the file cannot be run: {error}"
    told = _told(run)
    changed = [row for t in told if (row := _tensor_row(run, t)) is not None]
    weights = {n: row for n, w in given.weight.items() if (row := _weight_row(run, w)) is not None}
    changed += [row for row in weights.values() if row["reason"]]
    used = [w for w in given.weight if w in model.topology.weight_of or w in model.plan.quantizers]
    tensors = [t for t in told if not model.graph.is_constant(t.tensor)]
    return {
        "forms": list(given.forms),
        "keep": given.keep.value,
        "tensors": len(tensors),
        "weights": len(used),
        "dynamic": len(given.dynamic),
        "changed": changed,
        "lost": [{"name": name, "reason": reason} for name, reason in given.lost.items()],
        "weight_integers": sum(row["elements"] for row in weights.values() if row["differing"] is not None),
        "weight_differing": sum(row["differing"] or 0 for row in weights.values()),
        "compared": None if why_not or given.runnable is None else _compared(run, _real_softmax(run, samples)),
        "why_not": why_not or (None if given.runnable is not None else "its weights are in external files"),
    }


# --- running both -----------------------------------------------------------------------------------------------------


def _told(run: _Run) -> list[GivenTensor]:
    """Return the tensors that are spoken of: one in place of a tensor and its flat rows, the one that is stored."""
    stored, graph = run.model.plan.quantizers, run.model.graph
    views = {t.tensor: flat for t in run.given.tensors if (flat := flat_view(t.tensor, graph)) is not None}
    rows = {flat: name for name, flat in views.items()}
    return [
        t
        for t in run.given.tensors
        if (t.tensor in stored if t.tensor in rows else t.tensor in stored or views.get(t.tensor) not in stored)
        and rows.get(t.tensor) not in stored
    ]


def _real_softmax(run: _Run, samples: Samples) -> int | None:
    """Return how many integers differ if onnxruntime computes a Softmax in float; None where nothing differs."""
    if run.given.runnable is None or not any(_differing(run).values()) or places_of(run.given.runnable.metadata_props):
        return None
    real = with_real_softmax(run.given.runnable)
    if real is None:
        return None
    again = _Run(run.model, replace(run.given, runnable=real))
    _compare(again, samples)
    return sum(_differing(again).values())


def _differing(run: _Run) -> dict[str, int]:
    """Return the differing integers of tensors that the file has, too."""
    quantizers = run.model.plan.quantizers
    return {t: p.differing for t, p in run.pairs.items() if _same(run.given.tensor[t].grid, quantizers[t])}


def _compare(run: _Run, samples: Samples) -> None:
    given, model = run.given, run.model
    if given.runnable is None:
        return
    held = {v.name for n in given.runnable.graph for v in n.outputs}
    pairs = {
        t.tensor: name
        for t in _told(run)
        if t.tensor in model.realized.integers and t.tensor in model.plan.quantizers and t.grid.single
        for name in t.stored[-1:]
        if name in held
    }
    ours = {t: model.realized.integers[t] for t in pairs}
    kernels = kernels_of(model.plan) if FORM in model.spec.loads else LiteRTKernels.REFERENCE
    theirs = imported_file(given, model.graph.source, pairs.values(), kernels)
    here = Session(expose(model.realized.model, list(ours.values())), options=carried(model.realized.model))
    ports, caches = {p.name for p in model.graph.inputs}, stored_ports(model.realized.model)
    for batch in samples.batches(model.graph.batch_size):
        feeds = {name: fed(given, name, array) for name, array in batch.inputs.items() if name in ports}
        wanted, found = theirs.integers(feeds), here.run(batch.inputs, stored=True)
        for tensor, name in pairs.items():
            grid, own = given.tensor[tensor].grid, model.plan.quantizers[tensor]
            run.pairs.setdefault(tensor, _Pair()).add(
                *_both(wanted[name], found[ours[tensor]].reshape(wanted[name].shape), grid, own), same=_same(grid, own)
            )
        results, outputs = theirs.outputs(feeds), decoded(caches, found)
        for port in model.graph.outputs:
            real = real_output(given, port.name, results[port.name])
            run.outputs.setdefault(port.name, _Pair()).add(real, outputs[port.name], same=True)
        run.samples += len(batch.indices)


def fed(given: Imported, name: str, array: Array) -> Array:
    """Return an input of the file: integers for float values where it takes integers, else the float values."""
    port = next(v for v in given.runnable.graph.inputs if v.name == name)
    found = given.tensor.get(name)
    if found is None or port.dtype is None or np.dtype(port.dtype.numpy()).kind == "f":
        return array
    grid = found.grid
    return quantize(array, grid.scale, grid.zero, qmin=grid.low, qmax=grid.high, dtype=grid.dtype)


def real_output(given: Imported, name: str, array: Array) -> Array:
    """Return an output of the file as float values."""
    found = given.tensor.get(name)
    if array.dtype.kind == "f" or found is None:
        return array
    return dequantize(array, found.grid.scale, found.grid.zero)


def _same(grid: ImportedGrid, own: Quantizer) -> bool:
    """Return whether a tensor has the file's scale, and its zero point up to the shift between types."""
    ends = (grid.low - int(grid.zero), grid.high - int(grid.zero)) if grid.single else (0, 0)
    return grid.single and float(grid.scale) == float(own.scale) and ends == (own.low, own.high)


def _both(wanted: Array, found: Array, grid: ImportedGrid, own: Quantizer) -> tuple[Array, Array]:
    """Return both values in one unit: integers less their zero points if scales are equal, else real values."""
    a, b = wanted.astype(np.int64) - grid.zero, found.astype(np.int64) - own.zero_point
    if float(grid.scale) == float(own.scale):
        return a, b
    return a * float(grid.scale), b * float(own.scale)


# --- rows of the report -----------------------------------------------------------------------------------------------


def _compared(run: _Run, exactly: int | None) -> ImportedComparedPart:
    whole = {t: run.pairs[t] for t in _differing(run)}
    outputs: list[ImportedOutputRow] = [
        {"output": name, "elements": p.elements, "differing": p.differing, "sqnr_db": p.sqnr_db}
        for name, p in run.outputs.items()
    ]
    return {
        "samples": run.samples,
        "tensors": len(whole),
        "elements": sum(p.elements for p in whole.values()),
        "differing": sum(p.differing for p in whole.values()),
        "differing_with_real_softmax": exactly,
        "first_tensor": next((t for t, p in whole.items() if p.differing), None),
        "outputs": outputs,
    }


def _tensor_row(run: _Run, tensor: GivenTensor) -> ImportedChangeRow | None:
    """Return a row for a tensor that is another one on the device; None where it is the file's."""
    plan, topology, name = run.model.plan, run.model.topology, tensor.tensor
    if name in topology.weight_of:
        return None
    pair, own = run.pairs.get(name), plan.quantizers.get(name)
    group = topology.group_of.get(name)
    if own is None or group is None:
        if run.model.graph.is_constant(name):
            return None
        return _row(name, "tensor", _said(tensor.grid), "not stored", reason=_why_real(run, name))
    if _same(tensor.grid, own):
        return None
    reason = FREED
    if run.given.keep.tensors:
        _, reason = fitted_range(tensor.grid, group.dtype, run.model.schema, run.model.spec.activations.bits)
        reason = reason or f"it shares its scale with {group.key}"
    here = f"{own.dtype} scale {float(own.scale):.6g} zero point {own.zero_point}"
    return _row(name, "tensor", _said(tensor.grid), here, reason=reason, pair=pair)


def _why_real(run: _Run, tensor: str) -> str:
    topology, graph = run.model.topology, run.model.graph
    for kernel in topology.kernels:
        if tensor in [graph.by_name[n].outputs[0] for n in (kernel.node, *kernel.fused)]:
            return f"it is inside the kernel {kernel.node}"
    around = [n for n, _ in graph.consumers.get(tensor, ())]
    around += [graph.producers[tensor]] if tensor in graph.producers else []
    node = next((n for n in reversed(around) if n.name in topology.float_nodes), None)
    return f"{node.name} stays in float: {topology.float_nodes[node.name]}" if node is not None else "nothing reads it"


def _weight_row(run: _Run, weight: GivenWeight) -> ImportedChangeRow | None:
    """Return a weight's row, without a reason if it equals the file's; None if it is not an integer factor."""
    model, own = run.model, run.model.plan.weights.get(weight.tensor)
    site = model.topology.weight_of.get(weight.tensor)
    if own is None or site is None:
        return None
    if own.has_real_blocks:
        return _block_row(run, weight, own, site)
    wanted, found, pair = weight.centred(), np.asarray(own.centred(), np.int64), _Pair()
    here = f"{own.dtype} {own.bits} bits, {'scales per channel' if own.axis is not None else 'one scale'}"
    if _same_scales(weight, own):
        pair.add(wanted, found, same=True)
        reason = ""
        if pair.differing:
            fit = fitted_weight(weight, site.channel_axis, site.dtype, spec=model.spec, schema=model.schema)
            reason = fit.change or "its bias did not fit, or recovery moved its integers"
    else:
        real = model.graph.constant(weight.tensor)
        pair.add(real, dequantize(found, own.scale, 0, own.axis), same=False)
        fit = fitted_weight(weight, site.channel_axis, site.dtype, spec=model.spec, schema=model.schema)
        reason = (fit.change or "its scale was raised for its bias") if run.given.keep.weights else FREED
    row = _row(weight.tensor, "weight", _said(weight.grid), here, reason=reason, pair=pair)
    return {**row, "differing": pair.differing if _same_scales(weight, own) else None}


def _block_row(run: _Run, weight: GivenWeight, own: WeightTensor, site: WeightSite) -> ImportedChangeRow:
    """Return a row for a weight in blocks with float scales: its codes are compared where the scales are kept."""
    given, pair = given_blocks(weight, site, run.model.schema.weights), _Pair()
    codes, grid = rows_of(own.values, site.channel_axis)[:, :, 0].astype(np.int64), own.block
    same = grid is not None and not isinstance(given, str) and np.array_equal(given.scale, own.scale)
    if grid is not None and not isinstance(given, str) and same:
        theirs, ours = (spread(z, grid.size, codes.shape[1])[:, :, 0] for z in (given.zero, grid.zero_point))
        pair.add(given.codes - theirs, codes - ours, same=True)
    else:
        pair.add(run.model.graph.constant(weight.tensor), real_weight(own, site.channel_axis), same=False)
    reason = "" if same and not pair.differing else given if isinstance(given, str) else "recovery moved its integers"
    if not run.given.keep.weights:
        reason = FREED
    here = f"{own.dtype} {own.bits} bits, blocks of {grid.size if grid is not None else 0}"
    row = _row(weight.tensor, "weight", _said(weight.grid), here, reason=reason, pair=pair)
    return {**row, "differing": pair.differing if same else None}


def _same_scales(weight: GivenWeight, own: WeightTensor) -> bool:
    if weight.block is not None:
        return False
    count = own.scale.size if own.scale.ndim else weight.grid.scale.size
    given = np.broadcast_to(weight.grid.scale, count) if weight.grid.scale.size in (1, count) else None
    axis = weight.grid.axis
    along = weight.grid.single or own.axis is None or axis is None or axis % weight.values.ndim == own.axis
    return given is not None and along and bool(np.array_equal(given, np.broadcast_to(own.scale, count)))


def _said(grid: ImportedGrid) -> str:
    if not grid.single:
        return f"{grid.dtype} {CHANNELS if grid.scale.ndim == 1 else 'scales in blocks'}"
    return f"{grid.dtype} scale {float(grid.scale):.6g} zero point {int(grid.zero)}"


def _row(name: str, kind: str, given: str, here: str, *, reason: str, pair: _Pair | None = None) -> ImportedChangeRow:
    return {
        "name": name,
        "kind": kind,
        "given": given,
        "here": here,
        "reason": reason,
        "elements": 0 if pair is None else pair.elements,
        "differing": None,
        "sqnr_db": None if pair is None else pair.sqnr_db,
    }
