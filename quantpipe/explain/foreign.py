"""A quantized file, of whatever tool, in the terms of the float model that it was made from.

Takes the float original and the file, both cleaned alike; gives the file's scales as quantizers of the original's
tensors, and its integers as other values of the original's constants. So what each of them costs can be measured in the
original, one by one, as for a plan of our own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from quantpipe.arrays import Array
from quantpipe.errors import ModelError
from quantpipe.evaluate.imported import fed, real_output
from quantpipe.explain.paired import Pairing, paired
from quantpipe.explain.sensitivity import Exchanged, QuantizedParts
from quantpipe.graph.execute import Kernels, Session
from quantpipe.graph.normalize import expose
from quantpipe.graph.session_options import EXACT_PAIRS, INT8_KERNELS, carried
from quantpipe.graph.view import Graph, Node
from quantpipe.oprules import Family, rule_of
from quantpipe.plan import channels_of_file
from quantpipe.types import AccumulatorRow, DType, GivenWeight, Imported, ImportedGrid, Quantizer

SHORT_BITS = 16
"""Integers of more bits, such as biases, are no weights."""

BIAS_BITS = 32

OTHER_DB = 3.0
"""SQNR of constants in dB: where the median of a file's is below, it is of another float model."""

LEAST_PLACED = 0.5
"""Of a file's integer weights: where fewer have a place in the float model, it is of another one."""

STAGE = "explain"


@dataclass(frozen=True, eq=False)
class Foreign:
    """Hold a file in the terms of its original.

    `given`: The file's grids and integers, by its own names. `numbers`: The quantized parts, by the original's names.
    `stored`: Tensor of the original -> the file's value that holds its integers. `real`: Tensor of the original that
    the file computes in float -> the file's value. `weights`: Constant of the original -> the file's integers.
    `biases`: Constant of the original -> the file's integers, of more than 16 bits. `unread`: Scales of the file that
    no tensor of the original belongs to.
    """

    given: Imported
    numbers: QuantizedParts
    stored: Mapping[str, str]
    real: Mapping[str, str]
    weights: Mapping[str, GivenWeight]
    biases: Mapping[str, GivenWeight]
    unread: tuple[str, ...]


def foreign(original: Graph, other: Graph, raw: Imported | None) -> Foreign:
    """Return a file in the terms of its float original.

    `other` is the clean float model of the file; its `imported` has the file's grids. `raw` are the grids before the
    clean-up, with the integers of biases. Raises ModelError where the file is of another float model.
    """
    given = other.imported
    if given is None or raw is None:
        raise ModelError(
            "has no integers that represent float values, so there is nothing to explain; legal are QDQ, QOperator, "
            "dynamically quantized and QONNX files",
            stage=STAGE,
            where=other.source,
        )
    pairs = paired(original, other)
    exchanged, weights, biases = _constants(original, other, given, raw=raw, pairs=pairs)
    _refuse_other_constants(original, other, exchanged, len(given.weights))
    quantizers, stored, unread = dict[str, Quantizer](), dict[str, str](), []
    made = {v.name for n in given.runnable.graph for v in n.outputs} if given.runnable is not None else set()
    for tensor in given.tensors:
        if other.is_constant(tensor.tensor):
            continue
        name = pairs.tensors.get(tensor.tensor)
        quantizer = _quantizer(name, tensor.grid, original.shapes.get(name, ())) if name is not None else None
        if name is None or quantizer is None:
            unread.append(tensor.tensor)
        elif name not in quantizers:
            quantizers[name] = quantizer
            if tensor.stored and tensor.stored[-1] in made:
                stored[name] = tensor.stored[-1]
    real = {
        name: tensor
        for tensor, name in pairs.tensors.items()
        if tensor in made and name not in quantizers and name in original.producers
    }
    numbers = QuantizedParts(quantizers, {one.tensor: one for one in exchanged})
    return Foreign(given, numbers, stored, real, weights, biases, tuple(unread))


class ForeignRun:
    """Run the file itself as onnxruntime does, by the original's names of inputs and outputs."""

    def __init__(
        self, original: Graph, other: Graph, found: Foreign, inner: Mapping[str, str], *, as_written: bool = False
    ) -> None:
        given = found.given
        if given.runnable is None:
            raise ModelError(
                "its weights are in external files, so it cannot run for comparison with its original",
                where=other.source,
            )
        self._found, self._inner = found, dict(inner)
        self._inputs = dict(zip([i.name for i in original.inputs], [i.name for i in other.inputs], strict=True))
        self._outputs = dict(zip([o.name for o in original.outputs], [o.name for o in other.outputs], strict=True))
        model = expose(given.runnable, list(self._inner.values()))
        kernels = Kernels.AS_WRITTEN if as_written else Kernels.EXACT
        asked = {**INT8_KERNELS, **carried(given.runnable)}
        self._session = Session(model, kernels=kernels, options=asked, where=other.source)

    def run(self, inputs: Mapping[str, Array]) -> tuple[dict[str, Array], dict[str, Array]]:
        """Return (outputs, inner values) of a batch, both by the original's names; outputs are real."""
        given = self._found.given
        feeds = {self._inputs[n]: fed(given, self._inputs[n], a) for n, a in inputs.items() if n in self._inputs}
        values = self._session.run(feeds)
        outputs = {own: real_output(given, name, values[name]) for own, name in self._outputs.items()}
        return outputs, {own: values[name] for own, name in self._inner.items()}


def accumulators(original: Graph, found: Foreign) -> list[AccumulatorRow]:
    """Return how far the sums of products of the file may come, of all inputs that its integers can hold."""
    rows: list[AccumulatorRow] = []
    limit = 2**31 - 1
    for node in original.nodes:
        weight = next((found.weights[t] for t in node.inputs if t in found.weights), None)
        data = next((found.numbers.quantizers[t] for t in node.inputs if t in found.numbers.quantizers), None)
        if weight is None or data is None or weight.block is not None:
            continue
        axis = next(iter(_channel_axis(original, node, weight)), None)
        sums = np.abs(weight.centred()).astype(np.float64)
        per_channel = sums.sum(axis=tuple(a for a in range(sums.ndim) if a != axis)) if axis is not None else sums.sum()
        bound = per_channel * max(-data.low, data.high)
        bias = next((np.abs(found.biases[t].values.astype(np.float64)) for t in node.inputs if t in found.biases), None)
        if bias is not None:
            bound = bound + bias.reshape(-1)[: np.size(bound)] if bias.size in (1, np.size(bound)) else bound
        greatest = float(np.max(bound)) if np.size(bound) else 0.0
        rows.append(
            {
                "node": node.name,
                "tensor": node.outputs[0],
                "accumulator": DType.INT32.value,
                "bound": greatest,
                "used": greatest / limit,
                "bias": None if bias is None else float(bias.max(initial=0.0)) / limit,
                "overflowed": None,
            }
        )
    return rows


def saturating(original: Graph, found: Foreign) -> list[tuple[str, int]]:
    """Return the nodes whose pairs of uint8 x int8 products can saturate in int16, with the number of such channels.

    None where the file itself asks for exact sums.
    """
    given = found.given
    if given.runnable is not None and EXACT_PAIRS.items() <= carried(given.runnable).items():
        return []
    rows = []
    for node in original.nodes:
        rule = rule_of(node)
        weight = next((found.weights[t] for t in node.inputs if t in found.weights), None)
        data = next((found.numbers.quantizers[t] for t in node.inputs if t in found.numbers.quantizers), None)
        if rule is None or rule.family is not Family.ACCUMULATE or weight is None or weight.block is not None:
            continue
        if data is None or data.dtype is not DType.UINT8 or weight.grid.dtype is not DType.INT8:
            continue
        if channels := channels_of_file(node, weight.values, rule.channel_axis(node, original)):
            rows.append((node.name, channels))
    return rows


def _channel_axis(original: Graph, node: Node, weight: GivenWeight) -> Iterator[int]:
    """Return the axis of a weight's output channels: the axis of its scales, or of the result's channels."""
    if weight.grid.axis is not None:
        yield weight.grid.axis % weight.values.ndim
    shape, channels = weight.values.shape, original.shapes.get(node.outputs[0], ())
    yield from (axis for axis in range(len(shape)) if len(channels) > 1 and shape[axis] in (channels[1], channels[-1]))


def _quantizer(tensor: str, grid: ImportedGrid, shape: Sequence[int]) -> Quantizer | None:
    """Return how a tensor is stored, with broadcasting channel scales; None if channels differ in zero points."""
    scale, zeros = np.asarray(grid.scale, np.float32), np.unique(grid.zero)
    if not grid.single:
        axis = (grid.axis or 0) % max(len(shape), 1)
        if zeros.size != 1 or scale.ndim != 1 or axis >= len(shape) or shape[axis] != scale.size:
            return None
        scale = scale.reshape(-1, *[1] * (len(shape) - axis - 1))
    return Quantizer(tensor, scale, int(zeros[0]), grid.dtype, grid.bits, grid.low, grid.high)


def _constants(
    original: Graph, other: Graph, given: Imported, *, raw: Imported, pairs: Pairing
) -> tuple[list[Exchanged], dict[str, GivenWeight], dict[str, GivenWeight]]:
    """Return the original's constants with the file's values for them, and the integers of these values."""
    exchanged: dict[str, Exchanged] = {}
    weights, biases = dict[str, GivenWeight](), dict[str, GivenWeight]()
    loose: dict[str, tuple[str, Array, Array]] = {}
    for node in other.nodes:
        mate = original.by_name.get(pairs.nodes.get(node.name, ""))
        if mate is None:
            continue
        for theirs, own in zip(node.inputs, mate.inputs, strict=False):
            if not (theirs and own and other.is_constant(theirs) and original.is_constant(own)) or own in exchanged:
                continue
            real, held = original.constant(own), other.constant(theirs)
            if real.dtype.kind != "f" or real.shape != held.shape:
                continue
            integers = given.weight.get(theirs) or _long(raw, theirs, held)
            if integers is None:
                loose |= {own: (mate.name, real, held)} if real.ndim == 1 else {}
                continue
            short = integers.grid.dtype.bits <= SHORT_BITS
            (weights if short else biases)[own] = integers
            kind, bits = ("weight", integers.grid.bits) if short else ("bias", integers.grid.dtype.bits)
            exchanged[own] = Exchanged(own, kind, mate.name, bits, real, np.asarray(held, real.dtype))
    quantized = {one.node for one in exchanged.values()}
    for own, (node_name, real, held) in loose.items():  # beside integer weights it is their bias, in 32 bits
        if node_name in quantized and own not in exchanged and not np.array_equal(real, held):
            exchanged[own] = Exchanged(own, "bias", node_name, BIAS_BITS, real, np.asarray(held, real.dtype))
    return list(exchanged.values()), weights, biases


def _long(raw: Imported, name: str, held: Array) -> GivenWeight | None:
    """Return the integers of a bias: by its name, or by its values, as the clean-up renames constants."""
    known = [w for w in raw.weights if w.grid.dtype.bits > SHORT_BITS and w.values.size == held.size]
    named = [w for w in known if w.tensor == name]
    for weight in (*named, *known):
        real = weight.centred() * np.asarray(weight.grid.scale, np.float64)
        if np.allclose(real.reshape(-1), held.reshape(-1), rtol=1e-5, atol=0.0):
            return weight
    return None


def refuse_other_ports(original: Graph, other: Graph) -> None:
    """Raise ModelError where the ports of a file differ from the float model's."""
    ports = [[(p.shape[1:] if p.shape else ()) for p in found] for found in (original.inputs, other.inputs)]
    if len(ports[0]) != len(ports[1]) or any(_unlike(a, b) for a, b in zip(*ports, strict=True)):
        _refuse(original, other, f"its inputs are {_ports(other)}, and the float model has {_ports(original)}")
    if len(original.outputs) != len(other.outputs):
        _refuse(original, other, f"it has {len(other.outputs)} outputs, and the float model {len(original.outputs)}")


def _refuse_other_constants(original: Graph, other: Graph, exchanged: list[Exchanged], known: int) -> None:
    """Raise ModelError where constants show that the file is of another float model."""
    near = [_decibels(one.real, one.held) for one in exchanged if one.kind == "weight"]
    if len(near) < known * LEAST_PLACED:
        _refuse(
            original, other, f"{len(near)} of its {known} integer weights are at the place of a weight of that model"
        )
    if near and float(np.median(near)) < OTHER_DB:
        _refuse(original, other, f"its weights have an SQNR of only {float(np.median(near)):.1f} dB (median)")


def _refuse(original: Graph, other: Graph, why: str) -> None:
    raise ModelError(
        f"is not made from {original.source}: {why}; give the float model that it was made from as model.path",
        stage=STAGE,
        where=other.source,
    )


def _unlike(one: tuple[int | None, ...], two: tuple[int | None, ...]) -> bool:
    return len(one) != len(two) or any(
        a is not None and b is not None and a != b for a, b in zip(one, two, strict=True)
    )


def _ports(graph: Graph) -> str:
    return ", ".join(f"{i.name} {list(i.shape)}" for i in graph.inputs)


def _decibels(real: Array, held: Array) -> float:
    noise = float(np.sum((real.astype(np.float64) - held) ** 2))
    signal = float(np.sum(real.astype(np.float64) ** 2))
    if noise == 0:
        return float("inf")
    return 10.0 * float(np.log10(signal / noise)) if signal > 0 else float("-inf")
