"""Writing new graphs: a small builder over onnx_ir that keeps names unique and readable."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray
from onnx_ir.convenience import convert_attributes

from quantpipe.errors import HardwareError
from quantpipe.graph.pairs import separate
from quantpipe.graph.view import Node

Attribute = int | float | str | Sequence[int] | Sequence[float]


class GraphBuilder:
    """Collects nodes in execution order and gives an `ir.Model`.

    Values are passed around as `ir.Value`; a name that is already taken gets a number appended.
    """

    def __init__(self, name: str, opset: int, ir_version: int, reserved: Iterable[str] = ()) -> None:
        """`reserved` names go only to the values that are written with `claim`: the tensors that bear them already."""
        self._name, self._opset, self._ir_version = name, opset, ir_version
        self._reserved = frozenset(reserved)
        self._nodes: list[ir.Node] = []
        self._inputs: list[ir.Value] = []
        self._initializers: dict[str, ir.Value] = {}
        self._names: set[str] = set()
        self._node_names: set[str] = set()
        self._domains = {""}

    @property
    def opset(self) -> int:
        """Return the opset of the graph."""
        return self._opset

    def unique(self, name: str) -> str:
        """Return `name`, or `name_2`, `name_3`, … when taken or reserved."""
        return _unique(name, self._names, self._reserved)

    def input(self, name: str, dtype: str, shape: Sequence[int | str | None]) -> ir.Value:
        """Add a graph input and return it."""
        value = ir.Value(name=self.unique(name), type=ir.TensorType(ir_dtype(dtype)), shape=ir.Shape(list(shape)))
        self._inputs.append(value)
        return value

    def adopt_input(self, value: ir.Value) -> ir.Value:
        """Return a graph input with the name, type and shape of another graph's."""
        copy = ir.Value(name=value.name, type=value.type, shape=value.shape)
        self._inputs.append(copy)
        return copy

    def constant(self, name: str, array: NDArray[Any] | ir.TensorProtocol, claim: bool = False) -> ir.Value:
        """Add an initializer and return it.

        Its name is made unique; `claim`: it is the graph's tensor of that name. Equal arrays are not merged: the caller
        keeps initializers to share them.
        """
        # Asking whether something is a TensorProtocol is slow: it looks for every attribute of the protocol.
        plain = isinstance(array, np.ndarray | np.generic | int | float)
        tensor = ir.Tensor(np.asarray(array)) if plain or not isinstance(array, ir.TensorProtocol) else array
        value = ir.Value(
            name=self._named(name, claim),
            type=ir.TensorType(tensor.dtype),
            shape=ir.Shape([d if isinstance(d, int) else None for d in tensor.shape]),
            const_value=tensor,
        )
        self._initializers[value.name or ""] = value
        return value

    def op(
        self,
        op_type: str,
        *inputs: ir.Value | None,
        name: str,
        output: str | None = None,
        domain: str = "",
        claim: bool = False,
        **attributes: Attribute,
    ) -> ir.Value:
        """Append a node with one output and return that output (`output=None`: named like the node).

        None is an absent optional input; an empty `domain` is ONNX's own. `claim`: the output is the graph's tensor of
        that name.
        """
        attrs = {a.name: a for a in convert_attributes(attributes)}
        return self._append(op_type, domain, inputs, attrs, name=name, outputs=[output or name], claim=claim)[0]

    def results(
        self,
        op_type: str,
        *inputs: ir.Value | None,
        name: str,
        outputs: Sequence[str],
        domain: str = "",
        attributes: Mapping[str, ir.Attr] = MappingProxyType({}),
        claim: bool = False,
    ) -> list[ir.Value]:
        """Append a node with several outputs; return these."""
        return self._append(op_type, domain, inputs, attributes, name=name, outputs=list(outputs), claim=claim)

    def copy(
        self, node: Node, inputs: Sequence[ir.Value | None], outputs: Sequence[str] | None = None, claim: bool = False
    ) -> list[ir.Value]:
        """Append a node with the same op, attributes and name on other inputs; return its outputs.

        None is an absent optional input. `outputs` names at least the first outputs (default: the node's own names).
        `claim`: the outputs are the graph's tensors of these names.
        """
        own = claim or outputs is None
        names = list(node.outputs if outputs is None else outputs)
        names += [f"{names[0]}/{n}" if node.outputs[n] else "" for n in range(len(names), len(node.outputs))]
        return self._append(
            node.op_type, node.domain, inputs, node.attributes, name=node.name, outputs=names, claim=own
        )

    def call(self, function: onnx.FunctionProto, node: Node, inputs: Sequence[ir.Value], output: str) -> ir.Value:
        """Append a node that calls a function, with the attributes of `node` that the function takes.

        The new node has the name of `node`; `inputs` are in the order of the function's inputs.
        """
        taken = {*function.attribute, *(a.name for a in function.attribute_proto)}
        attributes = {name: value for name, value in node.attributes.items() if name in taken}
        return self._append(
            function.name, function.domain, inputs, attributes, name=node.name, outputs=[output], claim=False
        )[0]

    def _named(self, name: str, claim: bool) -> str:
        """Return the final name: a reserved name goes to its own tensor, once; absent outputs stay nameless."""
        if claim and name in self._reserved and name not in self._names:
            self._names.add(name)
            return name
        return self.unique(name) if name else ""

    def build(self, outputs: Sequence[ir.Value]) -> ir.Model:
        """Return the model.

        Each int8 tensor gets one reader, so that onnxruntime loads it with its exact kernels, too. Constants without a
        reader are left out.
        """
        opsets = {"": self._opset} | {d: 1 for d in sorted(self._domains) if d}
        graph = ir.Graph(
            self._inputs,
            list(outputs),
            nodes=self._nodes,
            initializers=list(self._initializers.values()),
            opset_imports=opsets,
            name=self._name,
        )
        separate(graph, self.unique)
        inner = {v.name for node in graph.all_nodes() if node.graph is not graph for v in node.inputs if v is not None}
        for name, value in list(graph.initializers.items()):
            if not value.uses() and not value.is_graph_output() and name not in inner:
                del graph.initializers[name]  # onnxruntime warns everyone who loads the file
        return ir.Model(graph, ir_version=self._ir_version, producer_name="quantpipe")

    def _append(
        self,
        op_type: str,
        domain: str,
        inputs: Sequence[ir.Value | None],
        attributes: Mapping[str, ir.Attr],
        *,
        name: str,
        outputs: Sequence[str],
        claim: bool,
    ) -> list[ir.Value]:
        values = [ir.Value(name=self._named(o, claim)) for o in outputs]
        node = ir.Node(
            domain,
            op_type,
            inputs=list(inputs),
            attributes=list(attributes.values()),
            outputs=values,
            name=_unique(name, self._node_names),
        )
        self._nodes.append(node)
        self._domains.add(domain)
        return values


def ir_dtype(name: str) -> ir.DataType:
    """Return `float32` -> FLOAT and so on; types of 2 and 4 bits by their ONNX names.

    Raises HardwareError for 2 bits if the installed onnx-ir is older than these types.
    """
    if name in ("int2", "uint2", "int4", "uint4"):
        if name.upper() not in ir.DataType.__members__:
            raise HardwareError(
                f"weights of type {name} need a newer onnx-ir than the installed one; legal are int4 and int8 with it",
                stage="realize",
            )
        return ir.DataType[name.upper()]
    return ir.DataType.from_numpy(np.dtype(name))


def _unique(name: str, taken: set[str], reserved: Collection[str] = ()) -> str:
    candidate, number = name, 1
    while candidate in taken or candidate in reserved:
        number += 1
        candidate = f"{name}_{number}"
    taken.add(candidate)
    return candidate
