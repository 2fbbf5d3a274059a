"""Loops whose body multiplies a state by integer weights: their weights, scales and bounds in the body.

Each product reads the state behind QuantizeLinear, as integers or as whole numbers in floats, and its sums are scaled
by the numbers of plan.json. What else the body computes is float arithmetic, and not proved.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx

from quantpipe.verify.files import Wrong, array_digest, expect
from quantpipe.verify.model import Model
from quantpipe.verify.numbers import limits
from quantpipe.verify.ops import attribute

PRODUCTS = frozenset({"MatMulInteger", "MatMul"})


def check_loops(plan: Mapping[str, Any], model: Model) -> None:
    """Check every loop with integer products.

    Args:
        plan: plan.json.
        model: the model.

    Raises:
        Wrong: where weights, scales, zero points or bounds are not those of plan.json.
    """
    for name, said in plan.get("loops", {}).items():
        node = next((n for n in model.nodes if n.name == name), None)
        if node is None or node.op_type != "Scan":
            raise Wrong(name, "the model has no such loop")
        body = Body(attribute(node, "body"), model, name)
        products = [n for n in body.nodes if n.op_type in PRODUCTS and model.is_constant(n.input[1])]
        wanted = [said_of["weight"] for said_of in said["products"]]
        expect(len(products) == len(wanted), name, f"its body has {len(products)} products, {len(wanted)} in plan.json")
        for product, own in zip(products, said["products"], strict=True):
            body.check(product, plan["quantizers"][said["state"]], plan["weights"][own["weight"]], own)


class Body:
    """Read the body of a loop, and check its products."""

    def __init__(self, graph: onnx.GraphProto, model: Model, name: str) -> None:
        self.nodes, self._model, self._name = list(graph.node), model, name
        self._makers = {out: n for n in self.nodes for out in n.output if out}

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
        while at is not None and at.op_type in ("Clip", "Sub", "Cast"):
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
        expect(np.float32(scale) == np.float32(q["scale"]), where, "the state's scale is not that of plan.json")
        expect(int(zero) == q["zero_point"] == taken, where, "the state's zero point is not that of plan.json")
        expect(str(zero.dtype) == q["dtype"], where, f"the state is {zero.dtype}, {q['dtype']} in plan.json")
        expect(list(bounds) == q["range"], where, f"the state is bounded by {bounds}, {q['range']} in plan.json")
        scales = self._behind(product)
        expect(np.array_equal(np.float32(scales), np.float32(said["scale"])), where, "its sums have other scales")

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
