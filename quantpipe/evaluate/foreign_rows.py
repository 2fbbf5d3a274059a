"""What is wrong with a quantized file: a row per tensor, weight and bias, as for a plan of our own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from quantpipe.evaluate.alone import AloneMeasure, Wanted, worst_first
from quantpipe.evaluate.causes import INPUT, cause_row, node_of, roles_of, split_halves
from quantpipe.evaluate.foreign import Foreign, ForeignRun
from quantpipe.evaluate.layers import LayerSums, add_layer, layer_row
from quantpipe.graph.execute import Session
from quantpipe.graph.normalize import expose
from quantpipe.graph.view import Graph
from quantpipe.types import CauseKind, CauseRow, Samples


def foreign_rows(
    graph: Graph, found: Foreign, measure: AloneMeasure, split: int, *, sums: Mapping[str, LayerSums],
    show: Callable[[int, int, str], None],
) -> list[CauseRow]:  # fmt: skip
    """Return a row for everything that the file quantizes, worst first, and for what it computes in float.

    Args:
        graph: The float model.
        found: The file in its terms.
        measure: Measures errors alone.
        split: For so many of the worst tensors, rounding and clipping are measured apart.
        sums: What both models hold of the tensors that could be compared (`sums_of`).
        show: Is told how far the work is.
    """
    every = [Wanted(name) for name in (*measure.tensors, *measure.constants)]
    alone = {one.name: cost for one, cost in zip(every, measure.measure(every, show), strict=True)}
    order = worst_first({name: one.loss for name, one in alone.items()})
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
            continue
        row["bits"] = found.numbers.quantizers[name].bits
        if name in sums:
            local = layer_row(name, sums[name], found.numbers.quantizers[name])
            row["accumulated"], row["saturated"] = local["sqnr_db"], local["saturated"]
            row["local_rounding"], row["local_clipping"] = local["rounding"], local["saturation"]
            row["before"], row["after"] = sums[name].real.row(), sums[name].held.row()
    split_halves(rows, [name for name in order if name in measure.tensors][:split], measure)
    return list(rows.values())


def sums_of(graph: Graph, found: Foreign, run: ForeignRun, samples: Samples, *, tensors: Sequence[str]) -> dict[
    str, LayerSums
]:  # fmt: skip
    """Return what the float model and the file hold of some tensors.

    Args:
        graph: The float model.
        found: The file in its terms.
        run: Gives the integers of these tensors.
        samples: What both run on.
        tensors: The tensors, by the float model's names.
    """
    made = [t for t in tensors if t in graph.producers]
    session = Session(expose(graph.model, made), where=graph.source)
    sums = {t: LayerSums() for t in tensors}
    for batch in samples.batches(graph.batch_size):
        real = {**batch.inputs, **session.run(batch.inputs, made)}
        _, inner = run.run(batch.inputs)
        for tensor in tensors:
            quantizer, integers = found.numbers.quantizers[tensor], inner[tensor]
            if integers.shape == real[tensor].shape:
                add_layer(sums[tensor], real[tensor], integers.astype(np.float64) - quantizer.zero_point, quantizer)
    return {t: one for t, one in sums.items() if one.elements}


def _at_its_ends(found: Foreign, name: str) -> float:
    """The share of a bias' integers that lie at the ends of their type: what does not fit is cut off there."""
    values = found.biases[name].values if name in found.biases else np.zeros(0)
    if values.dtype.kind not in "iu" or not values.size:
        return 0.0
    ends = np.iinfo(values.dtype)
    return float(np.mean((values == ends.min) | (values == ends.max)))
