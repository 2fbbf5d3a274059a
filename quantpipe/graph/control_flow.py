"""The step of the clean-up that writes out bodies of If, Loop and Scan, one node after the other.

A Where takes the place of an If only if both branches give equal shapes, and if every size in them is known except for
the number of samples. So a branch that the model does not take computes, too, whatever the sample is.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import onnx_ir as ir
import onnx_ir.passes.common as common_passes

from quantpipe.graph.external_weights import copied
from quantpipe.graph.names import name_nodes
from quantpipe.graph.rewrites.axes import Axes
from quantpipe.graph.rewrites.bodies import IF, select_branches, unroll, wanted
from quantpipe.graph.rewrites.tools import is_op
from quantpipe.graph.symbolic_axes import axes_of
from quantpipe.graph.view import Graph
from quantpipe.types import BodyForms

MOST_BODIES = 200


def bodies_written_out(forms: BodyForms, slim: Callable[[ir.Model], ir.Model]) -> Callable[[ir.Model], ir.Model]:
    """Return the step; it cleans what it wrote with `slim`."""

    def bodies(model: ir.Model) -> ir.Model:
        found, tried = model, set[str]()
        for _ in range(MOST_BODIES):
            name = next((n.name or "" for n in found.graph if n.name not in tried and wanted(n, forms)), None)
            if name is None:
                break
            tried.add(name)
            found = _written_out(found, name) or found
        return model if found is model else slim(found)

    return bodies


def _written_out(model: ir.Model, name: str) -> ir.Model | None:
    """Return the model without the holder of that name; None if it stays."""
    axes = axes_of(model)
    copy = copied(model)
    common_passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(copy)
    node = next(n for n in copy.graph if n.name == name)
    before = {n.name for n in copy.graph}
    if not is_op(node, IF):
        unroll(copy.graph, node, axes)
    elif not (pairs := select_branches(copy.graph, node)) or not _fit(copy, before, pairs):
        return None
    if node.graph is copy.graph:
        return None
    name_nodes(copy)
    return copy


def _fit(model: ir.Model, before: Collection[str | None], pairs: list[tuple[ir.Value, ir.Value]]) -> bool:
    """Whether both branches (the nodes that were not there before) always compute, with results of equal shapes."""
    axes = axes_of(model)
    made = [v.name or "" for n in model.graph if n.name not in before for v in n.outputs]
    if not all(t in axes and _is_known(axes[t]) for t in made):
        return False
    return all(_shape(axes, a) is not None and _shape(axes, a) == _shape(axes, b) for a, b in pairs)


def _is_known(axes: Axes) -> bool:
    return all(isinstance(size, int) for size in axes[1:])


def _shape(axes: Mapping[str, Axes], value: ir.Value) -> Axes | None:
    found = axes.get(value.name or "")
    return None if found is None or None in found else found


def selected_notes(original: Graph, model: ir.Model) -> list[str]:
    """Return a note that names the nodes If of a model whose branches both compute; none without such nodes."""
    taken = {n.name for n in original.nodes if n.op == IF}
    found = [n.name or "" for n in model.graph if n.name in taken and is_op(n, "Where")]
    if not found:
        return []
    return [
        f"both branches of {', '.join(found)} compute for each sample, so that they run in integers; a Where selects "
        "one result (model.bodies=keep leaves branches, loops and scans in float as a whole)"
    ]
