"""The step of the clean-up that writes out bodies of If, Loop and Scan, one node after the other.

A Where takes the place of an If only if both branches give equal shapes, and if every size in them is known except for
the number of samples. So a branch that the model does not take computes, too, whatever the sample is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import onnx_ir as ir
import onnx_ir.passes.common as common_passes

from quantpipe.graph.edit import is_op
from quantpipe.graph.external_weights import copied
from quantpipe.graph.symbolic_axes import Axes, axes_of
from quantpipe.graph.view import Graph
from quantpipe.intake.names import name_nodes
from quantpipe.intake.rewrites.bodies import IF, select_branches, unroll, wanted
from quantpipe.types import BodyForms

MOST_BODIES = 200


def bodies_written_out(forms: BodyForms, slim: Callable[[ir.Model], ir.Model]) -> Callable[[ir.Model], ir.Model]:
    """Return the step; it cleans what it wrote with `slim`."""

    def bodies(model: ir.Model) -> ir.Model:
        found, left = model, MOST_BODIES
        while names := [n.name or "" for n in found.graph if wanted(n, forms)][:left]:
            written = _written_out(found, names)
            if written is None:
                break
            found, count = written
            left -= count
        return model if found is model else slim(found)

    return bodies


def _written_out(model: ir.Model, names: list[str]) -> tuple[ir.Model, int] | None:
    """Return the model without those holders that can be written out, and their number; None if all stay."""
    axes = axes_of(model)
    while names:
        copy = copied(model)
        common_passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(copy)
        nodes = {n.name: n for n in copy.graph}
        branches = {}
        for name in names:
            before = set(map(id, copy.graph))
            if not is_op(nodes[name], IF):
                unroll(copy.graph, nodes[name], axes)
            elif pairs := select_branches(copy.graph, nodes[name]):
                branches[name] = [v for n in copy.graph if id(n) not in before for v in n.outputs], pairs
        known = axes_of(copy)
        unfit = {name for name, (made, pairs) in branches.items() if not _fit(known, made, pairs)}
        if not unfit:
            count = sum(nodes[name].graph is not copy.graph for name in names)
            name_nodes(copy)
            return (copy, count) if count else None
        names = [name for name in names if name not in unfit]
    return None


def _fit(axes: Mapping[str, Axes], made: list[ir.Value], pairs: list[tuple[ir.Value, ir.Value]]) -> bool:
    """Whether both branches, which make the values `made`, always compute, with results of equal shapes."""
    if not all(v.name is not None and v.name in axes and _is_known(axes[v.name]) for v in made):
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
