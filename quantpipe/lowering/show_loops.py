"""Let loops show the products inside of them, which no tensor of the graph shows, in a copy of a model to compare."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from quantpipe.types import LoopProduct, QuantPlan, Topology

STEPS = ("state", "codes", "sums", "real")


@dataclass(frozen=True)
class ShownProduct:
    """Name the outputs that show a product: what it reads, its codes, its sums, what they come to."""

    node: str
    tensor: str
    product: LoopProduct

    def name(self, step: str) -> str:
        """Return the name of the output that shows a step."""
        return f"{self.node}: {self.product.node} ({step})"


def show_products(model: ir.Model, topology: Topology, plan: QuantPlan) -> list[ShownProduct]:
    """Let loops show their products, by outputs of the graph; the model is changed.

    Args:
        model: the realized model, a copy.
        topology: what of it runs in integers.
        plan: every number.

    Returns:
        The products, in the order of the graph.
    """
    loops = {node.name: node for node in model.graph if node.op_type == "Scan"}
    found = []
    for site in topology.loops:
        loop = loops[site.node]
        products = [ShownProduct(site.node, site.state, product) for product in plan.loops[site.node]]
        body = loop.attributes["body"].as_graph().clone(allow_outer_scope_values=True)
        _shown_by(body, products)
        _in_place_of(model.graph, loop, body, [one.name(step) for one in products for step in STEPS])
        found += products
    return found


def _shown_by(body: ir.Graph, products: list[ShownProduct]) -> None:
    """More outputs of a body, for each step of each product."""
    inner = {node.name: node for node in body}
    for one in products:
        at = one.product.node
        codes = inner.get(f"{at}/clip") or inner[f"{at}/quantize"]
        made = (codes, inner[f"{at}/sums"], inner[f"{at}/real"])
        values = (inner[f"{at}/quantize"].inputs[0], *(node.outputs[0] for node in made))
        for step, value in zip(STEPS, values, strict=True):  # what comes in may not go out as it is
            same = ir.Node("", "Identity", [value], num_outputs=1, name=f"{at}/{step} shown")
            same.outputs[0].name = f"{at}/{step} shown"
            body.append(same)
            body.outputs.append(same.outputs[0])


def _in_place_of(graph: ir.Graph, loop: ir.Node, body: ir.Graph, names: list[str]) -> None:
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
