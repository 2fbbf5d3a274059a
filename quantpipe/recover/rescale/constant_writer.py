"""A copy of a graph in which constants and clamps are exchanged."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from quantpipe.arrays import Floats, along
from quantpipe.graph.build import ir_dtype
from quantpipe.graph.normalize import expose
from quantpipe.graph.view import Graph, Node, view
from quantpipe.oprules.channels import CLAMP, MAX, MIN

Limits = tuple[Floats, Floats]


class Writer:
    """Write a copy of a graph with other constants.

    Weights that are not exchanged are shared with the graph.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._model = expose(graph.model, [])
        self._nodes = {n.name: n for n in self._model.graph}
        self._shapes, self._dtypes = dict(graph.shapes), dict(graph.dtypes)
        self._uses: dict[str, int] = {}
        self._copies: dict[str, str] = {}
        for node in graph.nodes:
            for tensor in node.inputs:
                self._uses[tensor] = self._uses.get(tensor, 0) + 1

    def constant(self, node: Node, port: int, value: Floats) -> None:
        """Put another constant at a port, under the same name where the node is its only user.

        `value`: its new content, floats.
        """
        name = node.inputs[port]
        dtype = self._graph.constant_tensor(name).dtype.numpy()
        array = np.ascontiguousarray(value.astype(dtype))
        own = self._nodes[node.name]
        if self._uses[name] == 1:
            known = self._model.graph.initializers[name]
            known.const_value = ir.tensor(array, name=name)
            known.shape, self._shapes[name] = ir.Shape(array.shape), array.shape
            return
        own.replace_input_with(port, self._added(f"{name}/{node.name}", array))

    def attribute(self, node: Node, name: str, value: int) -> None:
        """Set an integer attribute of a node."""
        self._nodes[node.name].attributes[name] = ir.AttrInt64(name, value)

    def resized(self, tensor: str, axis: int, size: int) -> None:
        """Say that a tensor that nodes make has another size along an axis."""
        value = next(v for v in self._nodes[self._graph.producers[tensor].name].outputs if v.name == tensor)
        if value.shape is not None:
            value.shape = ir.Shape([size if at == axis else found for at, found in enumerate(value.shape)])
        shape = self._shapes[tensor]
        self._shapes[tensor] = (*shape[:axis], size, *shape[axis + 1 :])

    def copy_for(self, node: Node, reader: Node) -> Node:
        """Put a copy of a node after it, which one of the consumers of its result reads in its place.

        `node`: the node, with one result. Returns the copy; constants that are exchanged there are its own.
        """
        own, tensor = self._nodes[node.name], node.outputs[0]
        name, result = f"{node.name}/for/{reader.name}", f"{tensor}/for/{reader.name}"
        made = ir.Node(own.domain, own.op_type, list(own.inputs), own.attributes.values(), name=name)
        value = made.outputs[0]
        value.name, value.type, value.shape = result, own.outputs[0].type, own.outputs[0].shape
        self._model.graph.insert_after(own, made)
        for port, read in enumerate(reader.inputs):
            if read == tensor:
                self._nodes[reader.name].replace_input_with(port, value)
        for read in node.inputs:
            self._uses[read] = self._uses.get(read, 0) + 1
        self._nodes[name] = made
        self._shapes[result], self._dtypes[result] = self._graph.shapes[tensor], self._graph.dtypes[tensor]
        self._copies[result] = tensor
        return replace(node, name=name, outputs=(result,))

    def identity_for(self, tensor: str, reader: Node, name: str) -> None:
        """Put an Identity with this name, and a result of that name, between a tensor and one of its readers."""
        own = self._nodes[reader.name]
        made = ir.Node("", "Identity", [own.inputs[reader.inputs.index(tensor)]], name=name)
        value = made.outputs[0]
        value.name, value.dtype = name, ir_dtype(self._graph.dtypes[tensor])
        value.shape = ir.Shape(self._graph.shapes[tensor])
        self._model.graph.insert_before(own, made)
        for port, found in enumerate(reader.inputs):
            if found == tensor:
                own.replace_input_with(port, value)
        self._shapes[name], self._dtypes[name] = self._graph.shapes[tensor], self._graph.dtypes[tensor]
        self._copies[name] = tensor

    def clamp(self, node: Node, limits: Limits, axis: int | None) -> tuple[str, ...]:
        """Give a clamp other limits, one for each place of an axis (None: all are the same)."""
        tensor = node.outputs[0]
        rank, dtype = len(self._graph.shapes[tensor]), np.dtype(self._graph.dtypes[tensor])
        own = self._nodes[node.name]
        data, result = own.inputs[0], own.outputs[0]
        ports = [
            self._added(f"{node.name}/{side}", (bound[0] if axis is None else along(bound, axis, rank)).astype(dtype))
            if np.all(np.isfinite(bound))
            else None
            for side, bound in zip(("low", "high"), limits, strict=True)
        ]
        added: list[str] = []
        if axis is None:
            last = ir.Node("", CLAMP, [data, *ports], name=node.name)
        elif ports[0] is None or ports[1] is None:
            last = ir.Node("", MAX if ports[1] is None else MIN, [data, ports[0] or ports[1]], name=node.name)
        else:
            first = ir.Node("", MAX, [data, ports[0]], name=f"{node.name}/low_only")
            first.outputs[0].name = f"{tensor}/low_only"
            self._model.graph.insert_before(own, first)
            self._shapes[f"{tensor}/low_only"], self._dtypes[f"{tensor}/low_only"] = (
                self._graph.shapes[tensor],
                self._graph.dtypes[tensor],
            )
            added.append(f"{node.name}/low_only")
            last = ir.Node("", MIN, [first.outputs[0], ports[1]], name=node.name)
        self._model.graph.insert_before(own, last)
        found = last.outputs[0]
        shape, kind = result.shape, result.type
        result.replace_all_uses_with(found, replace_graph_outputs=True)
        self._model.graph.remove(own, safe=True)
        found.name, found.shape, found.type = tensor, shape, kind
        return tuple(added)

    def graph(self) -> Graph:
        """Return the view of the copy."""
        old = self._graph
        found = view(self._model, old.model_hash, old.source, old.notes, given=old.given)
        varying = old.varying | {copy for copy, tensor in self._copies.items() if tensor in old.varying}
        copied = {copy: old.open_axes[tensor] for copy, tensor in self._copies.items() if tensor in old.open_axes}
        largest = {**old.largest, **{copy: old.largest.get(tensor, 0.0) for copy, tensor in self._copies.items()}}
        return replace(
            found,
            shapes=self._shapes,
            dtypes=self._dtypes,
            varying=varying,
            open_axes={**old.open_axes, **copied},
            states=old.states,
            largest=largest,
        )

    def _added(self, name: str, array: NDArray[Any]) -> ir.Value:
        while name in self._model.graph.initializers or name in self._shapes:
            name += "_"
        tensor = ir.tensor(array, name=name)
        value = ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(array.shape), const_value=tensor)
        self._model.graph.register_initializer(value)
        self._shapes[name], self._dtypes[name] = array.shape, array.dtype.name
        return value
