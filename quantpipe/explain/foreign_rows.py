"""Attribute the error of a quantized file: a row per tensor, weight and bias, as for a plan of our own."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import numpy as np

from quantpipe.calibrate.passes import run_size
from quantpipe.evaluate.channels import constant_rows
from quantpipe.evaluate.layers import LayerSums, add_layer, layer_row, layer_start
from quantpipe.explain.cause_row import cause_row
from quantpipe.explain.error_attribution import INPUT, node_of, roles_of, split_halves
from quantpipe.explain.foreign import Foreign, ForeignRun
from quantpipe.explain.passing import PassingSums
from quantpipe.explain.sensitivity import AloneMeasure, Wanted, by_cost
from quantpipe.graph.execute import Session
from quantpipe.graph.normalize import expose
from quantpipe.graph.view import Graph
from quantpipe.types import CauseKind, CauseRow, Samples


def foreign_rows(
    graph: Graph, found: Foreign, measure: AloneMeasure, split: int, *, sums: Mapping[str, LayerSums],
    by_channel: Collection[str], show: Callable[[int, int, str], None],
) -> list[CauseRow]:  # fmt: skip
    """Return a row for everything that the file quantizes, worst first, and for its float nodes.

    Rounding and clipping are measured apart for `split` of the worst tensors. `sums` covers the comparable tensors
    (`sums_of`), and `by_channel` names those compared by channel too. `show` is called with the progress.
    """
    every = [Wanted(name) for name in (*measure.tensors, *measure.constants)]
    alone = measure.first(every, split, show)
    order = by_cost(alone)
    nodes = {name: node_of(graph, name, measure.constants) for name in order}
    roles = roles_of(graph, [node for node in nodes.values() if node])
    roles |= roles_of(graph, [node for name in order[:split] if (node := nodes[name])])
    rows: dict[str, CauseRow] = {}
    for name in order:
        one, node = measure.constants.get(name), nodes[name]
        kind: CauseKind = "tensor" if one is None else "bias" if one.kind == "bias" else "weight"
        row = rows[name] = cause_row(name, kind, node, alone[name])
        row["role"] = roles.get(node, node) if node else INPUT
        if one is not None:
            row["bits"], (row["before"], row["after"]) = one.bits, one.moments()
            row["overflow"] = _at_its_ends(found, name) if one.kind == "bias" else 0.0
            row["channels"] = constant_rows(one.real, one.held, _axis(found, name)) if name in by_channel else None
            continue
        row["bits"] = found.numbers.quantizers[name].bits
        if name in sums:
            local = layer_row(name, sums[name], found.numbers.quantizers[name])
            row["accumulated"], row["saturated"] = local["sqnr_db"], local["saturated"]
            row["local_rounding"], row["local_clipping"] = local["rounding"], local["saturation"]
            row["before"], row["after"] = sums[name].real.row(), sums[name].held.row()
            row["channels"] = channels.rows() if (channels := sums[name].channels) is not None else None
    split_halves(rows, [name for name in order if name in measure.tensors][:split], measure)
    return list(rows.values())


def sums_of(
    graph: Graph, found: Foreign, run: ForeignRun, samples: Samples, *, by_channel: Collection[str] = ()
) -> tuple[dict[str, LayerSums], list[CauseRow]]:
    """Return sums of both models' stored tensors, and rows of those that the file has in float.

    `run` gives the file's values of `found.stored` and `found.real`; channels of tensors in `by_channel` are compared
    too.
    """
    stored = [t for t in found.stored if t in found.numbers.quantizers]
    made = [t for t in (*stored, *found.real) if t in graph.producers]
    session = Session(expose(graph.model, made), where=graph.source)
    sums = {t: layer_start(graph, found.numbers.quantizers[t], t in by_channel) for t in stored}
    passing = PassingSums(graph, found.real)
    for batch in samples.batches(run_size(graph, [*made, *made])):
        real = {**batch.inputs, **session.run(batch.inputs, made)}
        _, inner = run.run(batch.inputs)
        for tensor in stored:
            quantizer, integers = found.numbers.quantizers[tensor], inner[tensor]
            if integers.shape == real[tensor].shape:
                add_layer(sums[tensor], real[tensor], integers.astype(np.float64) - quantizer.zero_point, quantizer)
        passing.add(real, inner)
    return {t: one for t, one in sums.items() if one.elements}, passing.rows()


def _axis(found: Foreign, name: str) -> int:
    weight = found.weights.get(name)
    return 0 if weight is None or weight.grid.axis is None else weight.grid.axis % weight.values.ndim


def _at_its_ends(found: Foreign, name: str) -> float:
    """Return the share of a bias' integers at the ends of their type, where larger values are cut off."""
    values = found.biases[name].values if name in found.biases else np.zeros(0)
    if values.dtype.kind not in "iu" or not values.size:
        return 0.0
    ends = np.iinfo(values.dtype)
    return float(np.mean((values == ends.min) | (values == ends.max)))
