"""A read-only view of an ONNX graph: nodes in execution order, who makes a tensor, who reads it, what is constant.

Takes an `onnx_ir.Model`; gives a frozen `Graph` that every stage reads by name. Nothing here changes a model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray

from quantpipe import extend
from quantpipe.graph.custom_ops import custom_ops, use_custom_ops
from quantpipe.graph.io import model_bytes
from quantpipe.types import Imported, TensorInfo

MS_DOMAIN = "com.microsoft"
SENT = ("inputs", "outputs", "notes", "varying", "open_axes", "states", "alone", "selected", "halves", "file_bytes")
"""Fields of a graph that go to another process as they are."""
MAX_BATCH = 64
BATCH_BYTES = 40 << 20


@dataclass(frozen=True, eq=False)
class Node:
    """One node. Absent optional inputs are empty strings, as in ONNX.

    `op` is the name by which rules and hardware files know the op: with its domain, where a plug-in package has it.
    """

    name: str
    op: str
    domain: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, ir.Attr] = field(repr=False)
    captured: tuple[str, ...] = ()
    """Tensors of the outer graph that its sub-graphs (If, Loop, Scan) read by name."""

    @property
    def op_type(self) -> str:
        """Return the op's name within its domain."""
        return self.op.removeprefix(f"{self.domain}.") if self.domain else self.op

    @property
    def has_body(self) -> bool:
        """Return whether the node holds graphs of its own (If, Loop, Scan)."""
        return any(a.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS) for a in self.attributes.values())

    @property
    def body_ops(self) -> Mapping[str, int]:
        """Return how many nodes of each op its own graphs hold, graphs within them included."""
        found: Counter[str] = Counter()
        pending = list(_bodies(self.attributes))
        while pending:
            for inner in pending.pop():
                found[inner.op_type] += 1
                pending += _bodies(inner.attributes)
        return found

    def attr(self, name: str, default: Any = None) -> Any:
        """Return the Python value of an attribute, or `default` when the node does not set it."""
        found = self.attributes.get(name)
        if found is None:
            return default
        value = found.value
        return list(value) if isinstance(value, tuple) else value


@dataclass(frozen=True, eq=False)
class Graph:
    """Hold a clean model. `shapes` and `dtypes` come from one real run with a single sample, not from inference.

    `varying` are the tensors whose shape, batch axis aside, depends on the sample; only their number of axes and the
    sizes of channels are reliable. `states` are the inputs that a streaming model is fed back; their first axis need
    not be the samples' axis.
    """

    model: ir.Model = field(repr=False)
    model_hash: str
    source: str
    nodes: tuple[Node, ...] = field(repr=False)
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict, repr=False)
    dtypes: Mapping[str, str] = field(default_factory=dict, repr=False)
    notes: tuple[str, ...] = ()
    varying: frozenset[str] = frozenset()
    open_axes: Mapping[str, frozenset[int]] = field(default_factory=dict, repr=False)
    """Varying tensor -> its axes of other sizes, as samples show them; all axes of a varying tensor without entry."""
    states: frozenset[str] = frozenset()
    alone: bool = False
    """Whether the model runs on one sample at a time, though its batch is free."""
    largest: Mapping[str, float] = field(default_factory=dict, repr=False)
    """Tensor of real numbers -> its greatest absolute value on that sample, infinities and NaN left out."""
    imported: Imported | None = None
    """What the file gives, where it is quantized already."""
    selected: frozenset[str] = frozenset()
    """Outputs with a row per object that the model has chosen, as many as a sample shows: samples run one by one."""
    halves: frozenset[str] = frozenset()
    """Tensors that the file holds in float16, by their names there."""
    as_given: ir.Model | None = field(default=None, repr=False)
    """The model before its recurrent layers were written as steps or loops; None where there are none."""
    file_bytes: int = 0
    """The bytes of the user's file and its external data; 0 for a graph that was made in memory."""

    def is_open(self, tensor: str, axis: int) -> bool:
        """Return whether an axis (negative: from the last) may have another size for another sample."""
        rank = len(self.shapes[tensor])
        return tensor in self.varying and axis % rank in self.open_axes.get(tensor, range(rank))

    @property
    def timed(self) -> ir.Model:
        """Return the float model for timing comparisons: the user's, with its recurrent layers."""
        return self.model if self.as_given is None else self.as_given

    @cached_property
    def by_name(self) -> Mapping[str, Node]:
        """Return the nodes by name."""
        return {n.name: n for n in self.nodes}

    @cached_property
    def producers(self) -> Mapping[str, Node]:
        """Return a mapping: tensor -> the node that makes it (graph inputs and constants are left out)."""
        return {t: n for n in self.nodes for t in n.outputs if t}

    @cached_property
    def consumers(self) -> Mapping[str, tuple[tuple[Node, int], ...]]:
        """Return a mapping: tensor -> its readers as (node, port), in execution order."""
        found: dict[str, list[tuple[Node, int]]] = {}
        for node in self.nodes:
            for port, tensor in enumerate(node.inputs):
                if tensor:
                    found.setdefault(tensor, []).append((node, port))
            for tensor in node.captured:
                found.setdefault(tensor, []).append((node, len(node.inputs)))
        return {t: tuple(readers) for t, readers in found.items()}

    @property
    def given(self) -> Mapping[str, str]:
        """Return the ports to which the user's file gives a half-precision type, and that type."""
        return {port.name: port.given for port in (*self.inputs, *self.outputs) if port.given is not None}

    @cached_property
    def output_names(self) -> frozenset[str]:
        """Return the names of the graph's outputs."""
        return frozenset(o.name for o in self.outputs)

    @cached_property
    def input_names(self) -> frozenset[str]:
        """Return the names of the graph's inputs."""
        return frozenset(i.name for i in self.inputs)

    def is_constant(self, tensor: str) -> bool:
        """Return whether a tensor is an initializer."""
        return tensor in self.model.graph.initializers

    def constant(self, tensor: str) -> NDArray[Any]:
        """Return the value of an initializer (read from disk at need when the model keeps its data outside)."""
        return np.asarray(self.constant_tensor(tensor).numpy())

    def constant_tensor(self, tensor: str) -> ir.TensorProtocol:
        """Return the initializer itself, without reading its data."""
        value = self.model.graph.initializers[tensor].const_value
        if value is None:
            raise KeyError(tensor)
        return value

    def constant_names(self) -> Iterator[str]:
        """Yield the names of all initializers."""
        return iter(self.model.graph.initializers)

    @cached_property
    def fixed_batch(self) -> int | None:
        """Return the number of samples per run that the model insists on; None where it is free."""
        return 1 if self.alone else next(iter(self.first_axes.values()), None)

    @property
    def first_axes(self) -> Mapping[str, int]:
        """Return the inputs whose first axis, the samples', has a fixed size, and that size."""
        left_out = (*self.states, *self.counting)
        return {
            i.name: i.shape[0] for i in self.inputs if i.shape and i.shape[0] is not None and i.name not in left_out
        }

    @cached_property
    def counting(self) -> frozenset[str]:
        """Return the inputs of a model of one sample whose only axis counts its tokens (`cache_position`)."""
        if not any(len(i.shape) > 1 and i.shape[0] == 1 for i in self.inputs if i.name not in self.states):
            return frozenset()
        numbers = (i for i in self.inputs if len(i.shape) == 1 and i.dtype.startswith("int"))
        return frozenset(i.name for i in numbers if i.shape != (1,) and i.name not in self.states)

    @cached_property
    def batch_size(self) -> int:
        """Return the samples per run.

        It is the model's own batch where it is fixed, else what keeps the largest tensor near the cache. Measured on
        efficientnet_lite0: a simulated pass takes 1.9 to 2.3 float passes at batch 8, 2.5 to 2.9 at batch 32.
        """
        if self.fixed_batch is not None:
            return self.fixed_batch
        if self.selected:
            return 1
        computed = [prod(self.shapes.get(t, (1,))) for n in self.nodes for t in n.outputs]
        largest = 4 * max(computed, default=1)
        size = MAX_BATCH
        while size > 1 and size * largest > BATCH_BYTES:
            size //= 2
        return size

    @property
    def opset(self) -> int:
        """Return the version of ONNX's own operator set that the model uses."""
        return int(self.model.graph.opset_imports[""])

    def __reduce__(self) -> tuple[Any, ...]:
        """Send the model's bytes to another process, which reads them again (`onnx_ir` objects do not travel)."""
        found = {name: getattr(self, name) for name in SENT}
        if self.imported is not None:
            found["imported"] = replace(self.imported, runnable=None)
        measured = {"shapes": dict(self.shapes), "dtypes": dict(self.dtypes)}
        return _arrived, (
            model_bytes(self.model),
            self.model_hash,
            found | measured | {"source": self.source},
            (extend.installed(), custom_ops()),
        )


def tensor_info(value: ir.Value, given: str | None = None) -> TensorInfo:
    """Return name, shape and dtype of a graph port; `given`: the half-precision type that the user's file gives it.

    Symbolic and unknown axes (also -1, as some exporters write them) become None.
    """
    shape = tuple(d if isinstance(d, int) and d >= 0 else None for d in value.shape) if value.shape is not None else ()
    dtype = value.dtype.numpy().name if value.dtype is not None else "float32"
    return TensorInfo(value.name or "", shape, dtype, given)


def view(
    model: ir.Model,
    model_hash: str,
    source: str,
    notes: tuple[str, ...] = (),
    *,
    given: Mapping[str, str] = MappingProxyType({}),
) -> Graph:
    """Return the view of a model whose nodes are already in execution order and named.

    `notes` describe changes, in sentences. `given` maps ports to the half-precision type that they have in the user's
    file.
    """
    nodes = tuple(
        Node(
            name=node.name or "",
            op=_known_as(node),
            domain=node.domain,
            inputs=tuple((v.name or "") if v is not None else "" for v in node.inputs),
            outputs=tuple(v.name or "" for v in node.outputs),
            attributes=dict(node.attributes),
            captured=_captured(node),
        )
        for node in model.graph
    )
    inputs = tuple(
        tensor_info(v, given.get(v.name or "")) for v in model.graph.inputs if v.name not in model.graph.initializers
    )
    outputs = tuple(tensor_info(v, given.get(v.name or "")) for v in model.graph.outputs)
    return Graph(model, model_hash, source, nodes, inputs, outputs, notes=notes)


def _known_as(node: ir.Node) -> str:
    name = extend.qualified(node.domain, node.op_type)
    return name if extend.op_of(name) is not None else node.op_type


def _arrived(
    data: bytes, model_hash: str, fields: Mapping[str, Any], needed: tuple[tuple[tuple[str, str], ...], tuple[str, ...]]
) -> Graph:
    extensions, libraries = needed
    extend.ensure(extensions)
    use_custom_ops(libraries)
    return replace(view(ir.from_proto(onnx.load_from_string(data)), model_hash, ""), **fields)


def _captured(node: ir.Node) -> tuple[str, ...]:
    """Return the names that the node's sub-graphs use without making them."""
    found: dict[str, None] = {}
    for graph in _bodies(node.attributes):
        made = {v.name for v in graph.inputs} | set(graph.initializers)
        for inner in graph:
            names = [v.name for v in inner.inputs if v is not None and v.name] + list(_captured(inner))
            found |= {n: None for n in names if n not in made}
            made |= {v.name or "" for v in inner.outputs}
        found |= {v.name: None for v in graph.outputs if v.name and v.name not in made}
    return tuple(found)


def _bodies(attributes: Mapping[str, ir.Attr]) -> Iterator[ir.Graph]:
    """Yield the graphs that a node holds (If, Loop, Scan)."""
    for attribute in attributes.values():
        if attribute.type is ir.AttributeType.GRAPH:
            yield attribute.value
        elif attribute.type is ir.AttributeType.GRAPHS:
            yield from attribute.value
