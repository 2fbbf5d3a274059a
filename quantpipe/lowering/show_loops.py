"""Add outputs for the inner values of loops, which no tensor of the graph shows, to a copy of a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from quantpipe.types import LoopProduct, QuantPlan, Topology

STEPS = ("state", "codes", "sums", "real")
HANDED_ON = ("made", "codes", "real")


@dataclass(frozen=True)
class ShownState:
    """Name the outputs of a state that a step passes on: as it is made, its codes, their float values.

    `node` is the loop, `tensor` its output that shows the state, whose quantizer it has.
    """

    node: str
    tensor: str

    steps: ClassVar[tuple[str, ...]] = HANDED_ON

    @property
    def at(self) -> str:
        """Return the name prefix of the nodes of the body that make it."""
        return self.tensor

    @property
    def names(self) -> tuple[str, ...]:
        """Return the outputs, in the order of the steps."""
        return tuple(self.name(step) for step in self.steps)

    def name(self, step: str) -> str:
        """Return the name of the output that shows a step."""
        return f"{self.node}: {self.at} ({step})"


@dataclass(frozen=True)
class ShownProduct(ShownState):
    """Name the outputs that show a product: what it reads, its codes, its sums, what they come to."""

    product: LoopProduct

    steps: ClassVar[tuple[str, ...]] = STEPS

    @property
    def at(self) -> str:
        """Return the name prefix of the nodes of the body that make it."""
        return self.product.node


@dataclass(frozen=True)
class ShownLoops:
    """Hold what loops show of their bodies, in the order of the graph."""

    products: tuple[ShownProduct, ...] = ()
    states: tuple[ShownState, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Return every output that shows something."""
        return tuple(name for one in (*self.products, *self.states) for name in one.names)


def show_loops(model: ir.Model, topology: Topology, plan: QuantPlan) -> ShownLoops:
    """Let loops of the realized model (a copy, changed in place) show their inner values as graph outputs."""
    loops = {node.name: node for node in model.graph if node.op_type == "Scan"}
    found = ShownLoops()
    for site in topology.loops:
        loop = loops[site.node]
        products = tuple(ShownProduct(site.node, site.state, product) for product in plan.loops[site.node])
        own = ShownLoops(products, tuple(ShownState(site.node, tensor) for tensor in site.carried))
        body = loop.attributes["body"].as_graph().clone(allow_outer_scope_values=True)
        _shown_by(body, own)
        _in_place_of(model.graph, loop, body, own.names)
        found = ShownLoops(found.products + own.products, found.states + own.states)
    return found


def _shown_by(body: ir.Graph, shown: ShownLoops) -> None:
    """Return more outputs of a body, for each step of each product, then of each state that a step passes on."""
    inner = {node.name: node for node in body}
    for one in shown.products:
        at = one.at
        codes = inner.get(f"{at}/clip") or inner[f"{at}/quantize"]
        made = (codes, inner[f"{at}/sums"], inner[f"{at}/real"])
        values = (inner[f"{at}/quantize"].inputs[0], *(node.outputs[0] for node in made))
        _more_outputs(body, at, dict(zip(STEPS, values, strict=True)))
    for state in shown.states:
        quantize, real = (inner[f"{state.at}/{step}"] for step in ("quantize", "real"))
        ends = (quantize.inputs[0], real.inputs[0], real.outputs[0])
        _more_outputs(body, state.at, dict(zip(HANDED_ON, ends, strict=True)))


def _more_outputs(body: ir.Graph, at: str, values: Mapping[str, ir.Value | None]) -> None:
    for step, value in values.items():  # what comes in may not go out as it is
        same = ir.Node("", "Identity", [value], num_outputs=1, name=f"{at}/{step} shown")
        same.outputs[0].name = f"{at}/{step} shown"
        body.append(same)
        body.outputs.append(same.outputs[0])


def _in_place_of(graph: ir.Graph, loop: ir.Node, body: ir.Graph, names: Sequence[str]) -> None:
    """Put a loop with more outputs where another stood; what they show is in the order of the steps."""
    states = len(loop.inputs) - loop.attributes["num_scan_inputs"].as_int()
    turned, own = loop.attributes.get("scan_output_directions"), loop.outputs
    ways = list(turned.as_ints()) if turned is not None else [0] * (len(own) - states)
    more = [0] * len(names)
    attributes = {
        **loop.attributes,
        "body": ir.AttrGraph("body", body),
        "scan_output_directions": ir.AttrInt64s("scan_output_directions", [*ways, *more]),
    }
    if (axes := loop.attributes.get("scan_output_axes")) is not None:
        attributes["scan_output_axes"] = ir.AttrInt64s("scan_output_axes", [*axes.as_ints(), *more])
    outputs = [*(ir.Value(name=v.name, type=v.type, shape=v.shape) for v in own), *(ir.Value(name=n) for n in names)]
    new = ir.Node("", "Scan", loop.inputs, attributes=list(attributes.values()), outputs=outputs, name=loop.name)
    graph.insert_before(loop, new)
    for old, value in zip(own, new.outputs, strict=False):
        old.replace_all_uses_with(value, replace_graph_outputs=True)
    graph.remove(loop, safe=True)
    graph.outputs.extend(new.outputs[len(own) :])
