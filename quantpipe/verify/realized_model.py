"""The model file as a graph of named values, and a reckoner for the element-wise parts of it.

It remembers which nodes and constants were looked at, so that what no check has seen can be named at the end.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from quantpipe.verify.files import Folder, Wrong, expect
from quantpipe.verify.half_precision import without_end_casts
from quantpipe.verify.ops import apply, attribute, is_elementwise

Array = NDArray[Any]
ALL = slice(None)

FURTHER = "Reshape"
"""An int8 weight that several nodes read goes to each further one by way of such a node, to its own shape."""
SHAPES = 64
"""Elements of an int64 constant that may be a shape or a list of axes."""
COPY = "/reader"
"""What follows the name of a weight in the name of a copy for a further reader, and a number after it."""


class Model:
    """Read the realized model, and remember what of it was checked.

    `stops`: values at which walks back through the graph end (results of kernels, the model's inputs).
    """

    def __init__(self, folder: Folder) -> None:
        self._folder, graph = folder, without_end_casts(folder.model.graph)
        self.nodes = list(graph.node)
        self.producer = {out: n for n in self.nodes for out in n.output if out}
        self.inputs = {i.name for i in graph.input}
        self.outputs = [o.name for o in graph.output]
        self._protos = {t.name: t for t in graph.initializer}
        self._arrays: dict[str, Array] = {}
        self.stops: set[str] = set(self.inputs)
        self.seen_nodes: set[int] = set()
        self.seen_constants: set[str] = set()

    @property
    def opsets(self) -> list[onnx.OperatorSetIdProto]:
        """Return the operator sets of the model."""
        return list(self._folder.model.opset_import)

    @property
    def has_exact_kernels(self) -> bool:
        """Return whether the file names the session option with which onnxruntime adds products exactly."""
        named = {p.key: p.value for p in self._folder.model.metadata_props}.get("quantpipe.session_options", "{}")
        return '"session.x64quantprecision": "1"' in named

    def holds(self, value: str) -> bool:
        """Return whether a value is an initializer."""
        return value in self._protos

    @property
    def initializers(self) -> frozenset[str]:
        """Return the names of all initializers."""
        return frozenset(self._protos)

    @cached_property
    def unread(self) -> frozenset[str]:
        """Return initializers that no node reads."""
        return self.initializers - {i for n in self.nodes for i in n.input}

    @cached_property
    def shapes(self) -> dict[str, tuple[int | None, ...]]:
        """Return the axes of each value as far as ONNX's shape inference finds them, constants included."""
        named = onnx.TensorProto.INT64
        held = {n: t for n, t in self._protos.items()
                if t.data_type == named and math.prod(t.dims) <= SHAPES and not t.external_data}  # fmt: skip
        ports = [onnx.helper.make_tensor_value_info(n, t.data_type, list(t.dims))
                 for n, t in self._protos.items() if n not in held]  # fmt: skip
        graph = onnx.helper.make_graph(
            self.nodes, "ranks", [*self._folder.model.graph.input, *ports], [], list(held.values())
        )
        try:
            found = onnx.shape_inference.infer_shapes(onnx.helper.make_model(graph, opset_imports=self.opsets)).graph
        except Exception as error:  # of the inference, which has several families
            raise Wrong("model.onnx", f"its shapes cannot be inferred ({type(error).__name__})") from None
        ports = [v for v in (*found.value_info, *found.input) if v.type.tensor_type.HasField("shape")]
        made = {v.name: tuple(d.dim_value or None for d in v.type.tensor_type.shape.dim) for v in ports}
        return {n: tuple(t.dims) for n, t in self._protos.items()} | made

    def is_constant(self, value: str) -> bool:
        """Return whether a value is an initializer, or made of initializers alone (as unpacked 4-bit weights are).

        A constant that a kernel reads as data is an operand like any other, and no constant here.
        """
        if value in self.stops:
            return False
        if value in self._protos:
            return True
        node = self.producer.get(value)
        known = node is not None and (is_elementwise(node) or node.op_type == FURTHER)
        return known and node is not None and all(self.is_constant(i) for i in node.input if i)

    def constant(self, value: str) -> Array:
        """Return the elements of a constant value."""
        if value in self._protos:
            self.seen_constants.add(value)
            if value not in self._arrays:
                self._arrays[value] = self._folder.tensor(self._protos[value])
            return self._arrays[value]
        node = self.producer.get(value)
        if node is None:
            raise Wrong(value, "the model has no such value")
        self.see(node)
        inputs = [self.constant(i) if i else None for i in node.input]
        if node.op_type == FURTHER and inputs[0] is not None and inputs[1] is not None:
            return np.reshape(inputs[0], tuple(inputs[1]))
        if node.op_type == "Gather" and inputs[0] is not None and inputs[1] is not None:
            return np.take(inputs[0], inputs[1], axis=attribute(node, "axis", 0))
        return apply(node, inputs)

    def stop_at_constants(self, names: set[str]) -> None:
        """End walks at constants that kernels read as data, whichever of their readers a walk comes from.

        What a further reader has of one, an equal copy or a Reshape to its own shape, is the constant from here on.
        """
        self.stops |= names
        same: dict[str, str] = {}
        for copy in self._protos:
            source = copy.rpartition(COPY)[0]
            if source in names & set(self._protos) and np.array_equal(self.constant(copy), self.constant(source)):
                same[copy] = source
        for node in self.nodes:
            source = same.get(node.input[0], node.input[0]) if node.op_type == FURTHER else ""
            held = self._protos.get(source) if source in names else None
            if held is not None and tuple(self.constant(node.input[1])) == tuple(held.dims):
                same[node.output[0]] = source
                self.see(node)
        for node in self.nodes:
            if any(name in same for name in node.input):
                node.input[:] = [same.get(name, name) for name in node.input]

    def see(self, node: onnx.NodeProto) -> None:
        """Remember that a node has been checked."""
        self.seen_nodes.add(id(node))

    def run(self, value: str, feeds: Mapping[str, Array], rows: slice = ALL) -> Array:
        """Return a value as a function of others, element by element.

        `rows`: some channels only, where the fed values are theirs. Raises Wrong where something else than element-wise
        ops is between them.
        """
        done = dict(feeds)
        return self._run(value, done, rows)

    def _run(self, value: str, done: dict[str, Array], rows: slice) -> Array:
        if value in done:
            return done[value]
        if self.is_constant(value):
            found = self.constant(value)
            done[value] = found.reshape(()) if found.size == 1 else found.reshape(-1, 1)
            if found.size > 1 and value not in self._tables:
                done[value] = done[value][rows]
            return done[value]
        node = self.producer.get(value)
        if node is None or not is_elementwise(node):
            raise Wrong(node.name if node is not None else value, "it stands where only element-wise steps belong")
        self.see(node)
        inputs = [self._run(i, done, rows) if i else None for i in node.input]
        if node.op_type == "Gather":
            row = self.is_constant(node.input[0]) and self.constant(node.input[0]).ndim == 1
            expect(row and attribute(node, "axis", 0) == 0, node.name, "it does not look up in a row of numbers")
        if node.op_type == "Clip":
            whole = all(b is None or np.all(b == np.rint(b)) for b in inputs[1:])
            expect(whole, node.name, "it clips between numbers that are not whole")
        try:
            done[value] = apply(node, inputs)
        except (IndexError, TypeError, ValueError) as error:
            raise Wrong(node.name, f"it cannot be computed ({type(error).__name__})") from error
        return done[value]

    @cached_property
    def _tables(self) -> frozenset[str]:
        """What is looked up in: the elements do not follow channels."""
        return frozenset(n.input[0] for n in self.nodes if n.op_type == "Gather")

    def heads(self, value: str, stops: set[str]) -> tuple[list[onnx.NodeProto], list[str]]:
        """Return what a value is made of by element-wise ops alone: other nodes, and `stops`."""
        nodes: dict[int, onnx.NodeProto] = {}
        found: dict[str, None] = {}
        for at in self.back(value, stops):
            node = self.producer.get(at)
            if at in stops or node is None:
                found[at] = None
            elif not is_elementwise(node):
                nodes[id(node)] = node
        return list(nodes.values()), list(found)

    def back(self, value: str, stops: set[str]) -> Iterator[str]:
        """Yield the values that make a value, itself included, back to `stops` and to ops that are not element-wise."""
        pending, known = [value], set()
        while pending:
            at = pending.pop()
            if at in known or (at not in stops and self.is_constant(at)):
                continue
            known.add(at)
            yield at
            node = self.producer.get(at)
            if at not in stops and node is not None and is_elementwise(node):
                pending += [i for i in node.input if i]
