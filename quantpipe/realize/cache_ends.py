"""Caches of a decoder as integers at the inputs and outputs of a realized file.

The walk writes every port in float: an input is quantized, an output dequantized. Here both conversions of a cache are
taken away, so that what leaves is what enters in the next step, without arithmetic.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import onnx_ir as ir

from quantpipe.graph.build import ir_dtype
from quantpipe.graph.stored_ports import StoredPort, state_ports
from quantpipe.lowering import Rendered
from quantpipe.types import CacheSite, QuantPlan, Topology

REAL = "float32"


def stored_ends(rendered: Rendered, topology: Topology, plan: QuantPlan) -> Rendered:
    """Return the model with integers at the ports of its caches, which its metadata state; it is changed in place."""
    ends = _Ends(rendered)
    for site in topology.caches:
        ends.enter(site, plan)
        ends.leave(site, plan)
    state_ports(rendered.model, [_port(site, plan) for site in topology.caches])
    return replace(rendered, integers=ends.integers) if topology.caches else rendered


def _port(site: CacheSite, plan: QuantPlan) -> StoredPort:
    q, holds = plan.quantizers[site.past], "keys" if site.keys else "values"
    return StoredPort(site.past, site.present, holds, site.dtype, float(q.scale), q.zero_point, q.qmin, q.qmax)


class _Ends:
    """Change the ports of a model, and keep where it holds each tensor's integers."""

    def __init__(self, rendered: Rendered) -> None:
        self._graph = rendered.model.graph
        self.integers = dict(rendered.integers)
        self._values = {v.name or "": v for v in self._graph.inputs}
        self._values |= {v.name or "": v for node in self._graph for v in node.outputs}

    def enter(self, site: CacheSite, plan: QuantPlan) -> None:
        """Make an input of the integers of a past."""
        place = next(i for i, value in enumerate(self._graph.inputs) if value.name == site.past)
        real, held = self._graph.inputs[place], self._values[self.integers[site.past]]
        port = ir.Value(name=site.past, type=ir.TensorType(ir_dtype(site.dtype)), shape=real.shape)
        inner, entering = plan.quantizers[site.past].dtype, port
        if inner is not site.dtype:
            node = _cast(port, ir_dtype(inner), f"{site.past}/enter")
            self._graph.insert_before(next(iter(self._graph)), node)
            entering = node.outputs[0]
        quantized = held.producer()
        held.replace_all_uses_with(entering)
        self._remove(quantized)
        real.replace_all_uses_with(port)
        self._graph.inputs[place] = port
        if entering is port:
            self._rename(self.integers[site.past], site.past)
        else:
            entering.name = held.name
        self._values[entering.name or ""] = entering

    def leave(self, site: CacheSite, plan: QuantPlan) -> None:
        """Make an output of the integers of a present."""
        place = next(i for i, value in enumerate(self._graph.outputs) if value.name == site.present)
        real, held = self._graph.outputs[place], self._values[self.integers[site.present]]
        port = held
        if plan.quantizers[site.present].dtype is not site.dtype:
            node = _cast(held, ir_dtype(site.dtype), f"{site.present}/leave")
            self._graph.append(node)
            port = node.outputs[0]
        self._graph.outputs[place] = port
        self._remove(real.producer())
        if real.uses():
            real.name = self._free(f"{site.present}/{REAL}")
        if port is held:
            self._rename(held.name or "", site.present)
        port.name, port.shape = site.present, real.shape
        port.type = ir.TensorType(ir_dtype(site.dtype))
        self._values[site.present] = port

    def _rename(self, before: str, name: str) -> None:
        self.integers = {t: name if held == before else held for t, held in self.integers.items()}

    def _free(self, name: str) -> str:
        while name in self._values or name in self._graph.initializers:
            name += "_"
        return name

    def _remove(self, node: ir.Node | None) -> None:
        """Remove a node without readers, and the nodes and constants that it alone reads."""
        while node is not None and not any(v.uses() or v.is_graph_output() for v in node.outputs):
            sources = [value for value in node.inputs if value is not None]
            self._graph.remove(node, safe=True)
            for value in sources:
                name = value.name
                if name is not None and name in self._graph.initializers and not value.uses():
                    del self._graph.initializers[name]
            makers = [maker for value in sources if (maker := value.producer()) is not None]
            node = makers[0] if makers else None


def _cast(source: ir.Value, kind: ir.DataType, name: str) -> ir.Node:
    node = ir.Node("", "Cast", [source], [ir.AttrInt64("to", int(kind))], name=name)
    node.outputs[0].name, node.outputs[0].type = f"{name}/integers", ir.TensorType(kind)
    return node


def real_ports(kinds: Mapping[str, ir.DataType], topology: Topology) -> dict[str, ir.DataType]:
    """Return the types of ports, without the ports of caches in integers."""
    stored = {port for site in topology.caches for port in (site.past, site.present)}
    return {name: kind for name, kind in kinds.items() if name not in stored}
