"""Run programs of whole rows (Softmax, normalizations) on drawn rows: the steps of plan.json, and the model's nodes.

Nothing is proved by it. The steps are computed here, the nodes by the reference evaluator of the `onnx` package.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from quantpipe.verify import spec
from quantpipe.verify.files import Wrong, expect
from quantpipe.verify.numbers import ClaimedNumbers, storage

Array = NDArray[Any]
Ints = NDArray[np.int64]
SEED = 0
EVALUATED = 21
"""An opset of which the evaluator has DequantizeLinear; element by element, earlier ones compute the same."""
MOST_ELEMENTS = 1 << 18
"""Of one operand: larger ones are not drawn."""


def expect_program(numbers: ClaimedNumbers, node: str, result: str, nodes: Sequence[onnx.NodeProto]) -> bool:
    """Check that the nodes of a program make of drawn integers what its steps in plan.json make of them.

    `nodes`: the model's nodes that it consists of, in any order. False where nothing could be compared.
    """
    plan = numbers.kernels[node]
    tensors = [read["tensor"] for read in plan["reads"]]
    shapes = _shortened(numbers, node, tensors, _shapes(numbers, node, tensors))
    if not shapes or any(math.prod(shape) > MOST_ELEMENTS for shape in shapes) or _by_channel(plan):
        return False  # of free axes; of longer rows; narrowed by channels, which only the graph places
    _expect_numbers(numbers, node, nodes)
    evaluator = _evaluator(numbers, node, nodes)
    for drawn in _drawn(numbers, dict(zip(tensors, shapes, strict=True))):
        steps = _stepped(plan, [drawn[t] - numbers.grid(t)[1] for t in tensors], node)
        feeds = {numbers.value(t): drawn[t].astype(storage(numbers.quantizer(t)["dtype"])) for t in tensors}
        made = _run(evaluator, {n: a for n, a in feeds.items() if n in evaluator.input_names}, node)
        found, expected = made[result], _stored(plan, steps[-1])
        expect(found.shape == expected.shape, node, f"its result is {found.shape}, by its steps {expected.shape}")
        wrong = np.argwhere(found != expected)
        if len(wrong):
            at = tuple(wrong[0])
            raise Wrong(node, f"of drawn rows the model makes {found[at]}, the steps of plan.json {expected[at]}")
        held = {(a.shape, a.tobytes()) for a in made.values()}
        for number, (step, value) in enumerate(zip(plan["steps"], steps, strict=True)):
            there = step["op"] == "constant" or (value.shape, np.ascontiguousarray(value).tobytes()) in held
            expect(there, node, f"no node of the model makes of drawn rows what its step {number} ({step['op']}) makes")
    return True


def expect_function(numbers: ClaimedNumbers, node: str, result: str, nodes: Sequence[onnx.NodeProto]) -> bool:
    """Check that the nodes of a float function make of each stored integer what the table of plan.json has.

    They may differ by one, since the evaluator's function is another one. False where nothing could be compared: a
    table per channel or of fewer entries than codes, and ops that the evaluator has not.
    """
    plan, (tensor, *others) = numbers.kernels[node], [read["tensor"] for read in numbers.kernels[node]["reads"]]
    table, fed = np.asarray(plan["table"], np.int64), numbers.codes(tensor)[0]
    dtype = storage(numbers.quantizer(tensor)["dtype"])
    known = all(n.domain in ("", "ai.onnx") for n in nodes)
    if others or not known or table.shape != (1, int(np.iinfo(dtype).max) - int(np.iinfo(dtype).min) + 1):
        return False
    try:
        evaluator = _evaluator(numbers, node, nodes, EVALUATED)
    except RuntimeError:  # the evaluator has no such op, or not in this version
        return False
    made = _evaluated(evaluator, {numbers.value(tensor): fed.reshape(1, -1).astype(dtype)}, node)
    expected = table[0, fed.astype(np.int64) - int(np.iinfo(dtype).min)]
    found = made[result].astype(np.int64).reshape(-1)
    expect(found.shape == expected.shape, node, f"its result has {found.size} values of {expected.size} codes")
    floats = [a.reshape(-1) for a in made.values() if a.dtype.kind == "f" and a.size == found.size]
    ends = {(float(end),) for end in numbers.quantizer(plan["result"]["tensor"])["range"]}
    for limit in (i for n in nodes if n.op_type in ("Clip", "Max", "Min") for i in n.input if numbers.model.holds(i)):
        bound = _flat(numbers.model.constant(limit))
        expect(bound in ends, node, f"it clips at {bound[0]:g}, which is no end of its result's range in plan.json")
    valued = np.all([np.isfinite(a) for a in floats], axis=0) if floats else np.ones(found.shape, bool)
    wrong = np.flatnonzero(valued & (np.abs(found - expected) > 1))
    if len(wrong):
        at = wrong[0]
        raise Wrong(
            node, f"of the code {fed[at]} the model makes {found[at]}, the table of plan.json has {expected[at]}"
        )
    return True


def _shapes(numbers: ClaimedNumbers, node: str, tensors: Sequence[str]) -> list[list[int]]:
    """Return the shapes of the operands of one sample, by the certificate or else by the model; [] if free.

    A certificate cannot choose others than the model has: nothing would be compared with too large ones.
    """
    claimed = numbers.claims[node].get("program", {}).get("shapes")
    held = [numbers.model.shapes.get(numbers.value(tensor)) for tensor in tensors]
    if claimed is None:
        known = [[1, *shape[1:]] for shape in held if shape is not None and shape and None not in shape[1:]]
        return [[int(size or 0) for size in shape] for shape in known] if len(known) == len(held) else []
    expect(len(claimed) == len(tensors), node, "the certificate has another number of operands")
    for shape, found in zip(claimed, held, strict=True):
        same = found is None or (
            len(shape) == len(found) and all(b in (None, a) for a, b in zip(shape[1:], found[1:], strict=True))
        )
        expect(same, node, f"its operand has the axes {found}, the certificate names {shape}")
    return [list(shape) for shape in claimed]


def _shortened(numbers: ClaimedNumbers, node: str, tensors: Sequence[str], shapes: list[list[int]]) -> list[list[int]]:
    """Return shapes of large operands with at most two rows along each axis that no step and no constant names."""
    steps = numbers.kernels[node]["steps"]
    if all(math.prod(shape) <= MOST_ELEMENTS for shape in shapes) or any(s["op"] == "squeeze" for s in steps[:-1]):
        return shapes
    rank = max(len(shape) for shape in shapes)
    named = {axis - rank if axis >= 0 else axis for step in steps for axis in _axes(step)}
    held = [np.shape(s["numbers"]) for s in steps if "numbers" in s and s["op"] not in ("table", "clip", "matmul")]
    held += [tuple(shape) for t, shape in zip(tensors, shapes, strict=True) if t in numbers.plan["constants"]]
    named |= {at - len(shape) for shape in held for at, size in enumerate(shape) if size > 1}
    return [[n if at - len(shape) in named else min(n, 2) for at, n in enumerate(shape)] for shape in shapes]


def _expect_numbers(numbers: ClaimedNumbers, node: str, nodes: Sequence[onnx.NodeProto]) -> None:
    """The model has every number of the steps, as often as they do: also those that no drawn row shows."""
    plan, model = numbers.kernels[node], numbers.model
    read = {i for n in nodes for i in n.input if i and model.holds(i)}
    held: Counter[Any] = Counter(_flat(model.constant(i)) for i in read)
    clips = (n for n in nodes if n.op_type == "Clip" and all(model.holds(i) for i in n.input[1:]))
    held += Counter(("clip", *(_flat(model.constant(i)) for i in n.input[1:])) for n in clips)
    requantize = plan.get("requantize", {"kind": ""})
    factor = {"fixed_point": "q31", "float_multiplier": "multiplier"}.get(requantize["kind"])
    wanted = [(f"step {at}", _wanted(step)) for at, step in enumerate(plan["steps"]) if "numbers" in step]
    wanted += [] if factor is None else [(factor, _flat(requantize[factor]))]
    for end in requantize.get("range", ()):
        expect(held[(float(end),)] > 0, node, f"the model has not the bound {end} of its result in plan.json")
    for what, array in wanted:
        held[array] -= 1
        expect(held[array] >= 0, node, f"the model has not the numbers of its {what} in plan.json")


def _wanted(step: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the numbers of a step; those of a clip as its two ends."""
    return ("clip", *map(_flat, step["numbers"])) if step["op"] == "clip" else _flat(step["numbers"])


def _flat(array: Any) -> tuple[float, ...]:
    return tuple(np.asarray(array, np.float64).reshape(-1).tolist())


def _by_channel(plan: Mapping[str, Any]) -> bool:
    """Whether sums are narrowed by a number for each channel."""
    numbers = plan.get("requantize", {})
    return "channel_range" in numbers or any(np.size(numbers.get(key, 0)) > 1 for key in ("multiplier", "q31"))


def _evaluator(
    numbers: ClaimedNumbers, node: str, nodes: Sequence[onnx.NodeProto], opset: int = 0
) -> ReferenceEvaluator:
    """The nodes as a model of their own, in the order of the file; of this opset, if the file has an earlier one."""
    model, own = numbers.model, {id(n) for n in nodes}
    ordered = [n for n in model.nodes if id(n) in own]
    made = {o for n in ordered for o in n.output}
    read = dict.fromkeys(i for n in ordered for i in n.input if i and i not in made)
    reads = numbers.kernels[node]["reads"]
    entering = {numbers.value(r["tensor"]): numbers.quantizer(r["tensor"])["dtype"] for r in reads}
    inputs = [
        helper.make_tensor_value_info(i, helper.np_dtype_to_tensor_dtype(storage(entering[i])), None)
        for i in read
        if i in entering and not model.holds(i)
    ]
    constants = [numpy_helper.from_array(model.constant(i), i) for i in read if model.holds(i)]
    outputs = [onnx.ValueInfoProto(name=o) for n in ordered for o in n.output if o]
    graph = helper.make_graph(ordered, "program", inputs, outputs, constants)
    opsets = [helper.make_opsetid(o.domain, o.version if o.domain else max(o.version, opset)) for o in model.opsets]
    return ReferenceEvaluator(helper.make_model(graph, opset_imports=opsets))


def _evaluated(evaluator: ReferenceEvaluator, feeds: Mapping[str, Array], node: str) -> dict[str, Array]:
    """Return what nodes make, by value."""
    with np.errstate(all="ignore"):
        try:
            return dict(zip(evaluator.output_names, evaluator.run(None, dict(feeds)), strict=True))
        except Exception as error:  # whatever the evaluator raises of a model that it cannot run
            raise Wrong(node, f"its program cannot be computed ({type(error).__name__}: {error})") from error


def _run(evaluator: ReferenceEvaluator, feeds: Mapping[str, Array], node: str) -> dict[str, Ints]:
    """Integers that nodes make, by value."""
    found = _evaluated(evaluator, feeds, node)
    return {name: np.ascontiguousarray(array, np.int64) for name, array in found.items() if array.dtype.kind in "iu"}


def _drawn(numbers: ClaimedNumbers, shapes: Mapping[str, Sequence[int]]) -> Iterator[dict[str, Ints]]:
    """Operands of one sample: anything, both ends, both of them by turns, and around the zero point."""
    rng = np.random.default_rng(SEED)
    ways: Sequence[Callable[[int, int, int, Sequence[int]], Ints]] = (
        lambda low, high, zero, shape: rng.integers(low, high + 1, shape),
        lambda low, high, zero, shape: np.full(shape, low),
        lambda low, high, zero, shape: np.full(shape, high),
        lambda low, high, zero, shape: np.where(rng.random(shape) < 0.5, low, high),
        lambda low, high, zero, shape: np.clip(zero + rng.integers(-9, 10, shape), low, high),
        lambda low, high, zero, shape: rng.integers(low, high + 1, shape),
    )
    for way in ways:
        found = {}
        for tensor, shape in shapes.items():
            low, high = (int(v) for v in numbers.quantizer(tensor)["range"])
            constant = tensor in numbers.plan["constants"]
            array = numbers.model.constant(numbers.value(tensor)) if constant else None
            drawn = way(low, high, numbers.grid(tensor)[1], tuple(shape)) if array is None else array
            found[tensor] = np.asarray(drawn, np.int64)
        yield found


def _stepped(plan: Mapping[str, Any], operands: Sequence[Ints], node: str) -> list[Ints]:
    """What each step of a program makes."""
    values = list(operands)
    for number, step in enumerate(plan["steps"]):
        given = [values[i] for i in step["operands"]]
        expect(step["op"] in _STEPS, node, f"the step {step['op']!r} is unknown")
        made = np.asarray(_STEPS[step["op"]](step, given), np.int64)
        low, high = (int(v) for v in step["range"])
        inside = not made.size or bool(low <= made.min() and made.max() <= high)
        expect(inside, node, f"its step {number} leaves the bounds {[low, high]}")
        values.append(made)
    return values[len(operands) :]


def _stored(plan: Mapping[str, Any], value: Ints) -> Ints:
    """Return the stored integers of the last value of a program."""
    numbers = plan.get("requantize")
    if numbers is None:
        return value
    narrowed = spec.narrowed(numbers, value.reshape(1, -1))
    return spec.clamp(narrowed, numbers["range"]).reshape(value.shape)


def _numbers(step: Mapping[str, Any]) -> Ints:
    return np.asarray(step.get("numbers", 0), np.int64)


def _second(step: Mapping[str, Any], given: Sequence[Ints]) -> Ints:
    return given[1] if len(given) > 1 else _numbers(step)


def _axes(step: Mapping[str, Any]) -> tuple[int, ...]:
    return tuple(int(axis) for axis in step.get("axes", ()))


def _divided(step: Mapping[str, Any], given: Sequence[Ints]) -> Ints:
    """Towards zero."""
    return np.asarray(np.sign(given[0]) * (np.abs(given[0]) // _second(step, given)))


def _rounded_shift(step: Mapping[str, Any], given: Sequence[Ints]) -> Ints:
    count = _second(step, given)
    return (given[0] + ((np.int64(1) << count) >> 1)) >> count


def _each(function: Callable[[int], int]) -> Callable[[Mapping[str, Any], Sequence[Ints]], Ints]:
    whole = np.frompyfunc(function, 1, 1)
    return lambda step, given: np.asarray(whole(given[0]), np.int64)


def _product(value: Ints, matrix: Ints, axis: int) -> Ints:
    """Return value · matrix over the last axis (-1), or matrix · value over an earlier one."""
    terms = matrix if axis == -1 else matrix.T
    return np.moveaxis(np.moveaxis(value, axis, -1) @ terms, -1, axis)


_STEPS: Mapping[str, Callable[[Mapping[str, Any], Sequence[Ints]], Ints]] = {
    "constant": lambda step, given: _numbers(step),
    "add": lambda step, given: given[0] + _second(step, given),
    "sub": lambda step, given: given[0] - _second(step, given),
    "mul": lambda step, given: given[0] * _second(step, given),
    "div": _divided,
    "shift": lambda step, given: spec.scaled(given[0], -_numbers(step), str(step["rounding"])),
    "shift_right": _rounded_shift,
    "shift_left": lambda step, given: given[0] << _second(step, given),
    "table": lambda step, given: _numbers(step)[given[0]],
    "clip": lambda step, given: np.clip(given[0], *_numbers(step)),
    "max_over": lambda step, given: given[0].max(axis=_axes(step), keepdims=True),
    "sum_over": lambda step, given: given[0].sum(axis=_axes(step), keepdims=True),
    "matmul": lambda step, given: _product(given[0], _numbers(step), *_axes(step)),
    "squeeze": lambda step, given: np.squeeze(given[0], axis=_axes(step)),
    "bits": _each(int.bit_length),
    "sqrt": _each(math.isqrt),
}
"""What a step makes of its operands (docs/numerics.md)."""
