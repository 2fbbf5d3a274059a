"""Loops whose body multiplies a state by integer weights: their weights, scales and bounds, and the states they store.

Each product reads the state after QuantizeLinear, as integers or as integers in floats, and its sums are scaled
by the numbers of plan.json. What steps pass on goes through QuantizeLinear and DequantizeLinear before anything reads
it, first states before the loop. What else the body computes is float arithmetic, and not proved.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx

from quantpipe.verify.files import Wrong, array_digest, expect
from quantpipe.verify.numbers import limits
from quantpipe.verify.ops import attribute, target
from quantpipe.verify.realized_model import Model

PRODUCTS = frozenset({"MatMulInteger", "MatMul"})
ENTERING = frozenset({"Clip", "Sub", "Cast"})
SHAPES = frozenset({"Squeeze", "Unsqueeze", "Identity"})


def check_loops(plan: Mapping[str, Any], model: Model) -> set[str]:
    """Check every loop with integer products; returns the nodes that store first states, by name: real ones around."""
    storing: set[str] = set()
    for name, said in plan.get("loops", {}).items():
        node = next((n for n in model.nodes if n.name == name), None)
        if node is None or node.op_type != "Scan":
            raise Wrong(name, "the model has no such loop")
        body = Body(attribute(node, "body"), model, name)
        products = [n for n in body.nodes if body.is_of_integers(n)]
        wanted = [said_of["weight"] for said_of in said["products"]]
        expect(len(products) == len(wanted), name, f"its body has {len(products)} products, {len(wanted)} in plan.json")
        for product, own in zip(products, said["products"], strict=True):
            body.check(product, plan["quantizers"][said["state"]], plan["weights"][own["weight"]], own)
        states = len(node.input) - attribute(node, "num_scan_inputs")
        grids = {
            body.stored(list(node.output).index(t), q := plan["quantizers"][t]): q for t in said.get("carried", ())
        }
        for place, value in body.handed_on(states).items() if grids else ():
            expect(value in grids, name, "a step passes a value that is not stored")
            storing |= body.check_first(node.input[place], grids[value])
    return storing


class Body:
    """Read the body of a loop, and check its products."""

    def __init__(self, graph: onnx.GraphProto, model: Model, name: str) -> None:
        self.nodes, self._model, self._name = list(graph.node), model, name
        self._inputs, self._outputs = list(graph.input), [value.name for value in graph.output]
        self._makers = {out: n for n in self.nodes for out in n.output if out}

    def is_of_integers(self, node: onnx.NodeProto) -> bool:
        """Return whether a node multiplies a quantized value by a constant; other products are float arithmetic."""
        if node.op_type not in PRODUCTS or not self._model.is_constant(node.input[1]):
            return False
        at = self._makers.get(node.input[0])
        while at is not None and at.op_type in ENTERING:
            at = self._makers.get(at.input[0])
        return node.op_type != "MatMul" or (at is not None and at.op_type == "QuantizeLinear")

    def check(
        self, product: onnx.NodeProto, q: Mapping[str, Any], weight: Mapping[str, Any], said: Mapping[str, Any]
    ) -> None:  # fmt: skip
        """Check one product: how the state enters it, its weight, and what its sums are multiplied by."""
        where, whole = product.name, product.op_type == "MatMul"
        held, own = self._model.constant(product.input[1]), np.asarray(weight["zero_point"])
        if not whole and len(product.input) > 3:
            expect(np.array_equal(self._model.constant(product.input[3]), own), where, "its weight's zeros are others")
        stored = held + own if whole else held
        expect(array_digest(stored.astype(np.int8)) == weight["values"], where,
               f"its weight is not the one that plan.json names ({said['weight']})")  # fmt: skip
        low, high = limits(q["dtype"])
        offset = 0
        at, bounds = self._makers.get(product.input[0]), (low, high)
        while at is not None and at.op_type in ENTERING:
            if at.op_type == "Clip":
                least, most = (int(self._model.constant(i)) for i in at.input[1:])
                bounds = (max(bounds[0], least), min(bounds[1], most))
            elif at.op_type == "Sub":
                offset = int(self._model.constant(at.input[1]))
                bounds = (bounds[0] + offset, bounds[1] + offset)
            at = self._makers.get(at.input[0])
        if at is None or at.op_type != "QuantizeLinear":
            raise Wrong(where, "the state does not enter it through QuantizeLinear")
        scale, zero = (self._model.constant(i) for i in at.input[1:])
        taken = offset if whole else int(self._model.constant(product.input[2])) if len(product.input) > 2 else 0
        expect(np.float32(scale) == np.float32(q["scale"]), where, "the state's scale differs from plan.json")
        expect(int(zero) == q["zero_point"] == taken, where, "the state's zero point differs from plan.json")
        expect(str(zero.dtype) == q["dtype"], where, f"the state is {zero.dtype}, {q['dtype']} in plan.json")
        expect(list(bounds) == q["range"], where, f"the state is bounded by {bounds}, {q['range']} in plan.json")
        scales = self._behind(product)
        expect(np.array_equal(np.float32(scales), np.float32(said["scale"])), where, "its sums have other scales")

    def stored(self, place: int, q: Mapping[str, Any]) -> str:
        """Check that an output shows what is stored by a quantizer; returns the value, real again."""
        value = self._made(self._outputs[place])
        *_, quantize = self._through(value, self._makers, q, f"{self._name}: {self._outputs[place]}")
        readers = [n for n in self.nodes for i in n.input if i == quantize.input[0]]
        expect(len(readers) == 1, self._name, "the result of a step is read before it is stored")
        return value

    def check_first(self, value: str, q: Mapping[str, Any]) -> set[str]:
        """Check that a first state is zero, which every grid has, or stored before the loop; by these nodes."""
        maker = self._model.producer.get(value)
        if self._model.is_constant(value):
            expect(not np.any(self._model.constant(value)), self._name, "its first state is not stored")
        elif maker is not None and maker.op_type == "ConstantOfShape":
            filled = attribute(maker, "value", None)
            zero = filled is None or not np.any(onnx.numpy_helper.to_array(filled))
            expect(zero, self._name, "its first state is not stored")
        else:
            return {n.name for n in self._through(value, self._model.producer, q, f"{self._name}: {value}")}
        return set()

    def _through(
        self, value: str, makers: Mapping[str, onnx.NodeProto], q: Mapping[str, Any], where: str
    ) -> list[onnx.NodeProto]:  # fmt: skip
        """The nodes from DequantizeLinear back to QuantizeLinear that store a value, with all their numbers checked."""
        (low, high), at = limits(q["dtype"]), makers.get(value)
        if at is None or at.op_type != "DequantizeLinear":
            raise Wrong(where, "it is not what DequantizeLinear makes of stored integers")
        codes, passed = makers.get(at.input[0]), [at]
        while codes is not None and codes.op_type in ("Cast", "Clip"):
            if codes.op_type == "Clip":
                least, most = (int(self._model.constant(i)) for i in codes.input[1:])
                low, high = max(low, least), min(high, most)
            else:
                expect(str(target(codes)) in ("int32", q["dtype"]), where, "its integers go through another type")
            passed.append(codes)
            codes = makers.get(codes.input[0])
        if codes is None or codes.op_type != "QuantizeLinear":
            raise Wrong(where, "it is not stored by QuantizeLinear")
        expect([low, high] == q["range"], where, f"it is bounded by {low, high}, {q['range']} in plan.json")
        for node in (codes, at):
            scale, zero = (self._model.constant(i) for i in node.input[1:])
            expect(np.float32(scale) == np.float32(q["scale"]), where, "its scale differs from plan.json")
            expect(int(zero) == q["zero_point"], where, "its zero point differs from plan.json")
            expect(str(zero.dtype) == q["dtype"], where, f"it is {zero.dtype}, {q['dtype']} in plan.json")
        return [*passed, codes]

    def handed_on(self, states: int) -> dict[int, str]:
        """Return what makes the floats that go from step to step, by their place."""
        real = [v.type.tensor_type.elem_type in (0, onnx.TensorProto.FLOAT) for v in self._inputs[:states]]
        return {p: self._made(value) for p, value in enumerate(self._outputs[:states]) if real[p]}

    def _made(self, value: str) -> str:
        """Return what a step makes, before the choice between it and what a sample that has ended keeps or shows."""
        while (at := self._makers.get(value)) is not None and at.op_type in (*SHAPES, "Where"):
            value = at.input[1 if at.op_type == "Where" else 0]
        return value

    def _behind(self, product: onnx.NodeProto) -> Any:
        """The numbers that the sums are multiplied by, once they are real."""
        value, seen = product.output[0], product
        for _ in self.nodes:
            readers = [n for n in self.nodes if value in n.input]
            expect(len(readers) == 1, seen.name, "its sums are read by other nodes than the one that scales them")
            (seen,) = readers
            if seen.op_type == "Mul":
                other = next(i for i in seen.input if i != value)
                expect(self._model.is_constant(other), seen.name, "its sums are not scaled by constants")
                return self._model.constant(other)
            expect(seen.op_type == "Cast", seen.name, "its sums are changed before they are scaled")
            value = seen.output[0]
        raise Wrong(self._name, "its sums are scaled by nothing")
