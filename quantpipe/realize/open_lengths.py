"""How long the sums of an integer model may be whose length the model leaves open."""

from __future__ import annotations

from collections.abc import Mapping

from quantpipe.graph.length_limits import LengthLimit
from quantpipe.graph.symbolic_axes import Axes, axes_of
from quantpipe.graph.view import Graph, Node
from quantpipe.oprules import Family, rule_of
from quantpipe.oprules.facts import product_terms
from quantpipe.oprules.rows import is_open_row, longest_row, row_axes
from quantpipe.types import Contract, FunctionKind, Program, QuantPlan


def longest_open_sum(graph: Graph, plan: QuantPlan) -> int | None:
    """Return how many terms every integer sum of open length holds; None without such sums."""
    found = (_terms(graph, plan, name) for name in plan.kernels)
    return min((terms for terms in found if terms is not None), default=None)


def length_limits(graph: Graph, plan: QuantPlan) -> tuple[LengthLimit, ...]:
    """Return how long the inputs may be, for each sum of open length whose length is a sum of their axes.

    The sums of a cache's positions have as many terms as the past and the new tokens together.
    """
    terms = {name: most for name in plan.kernels if (most := _terms(graph, plan, name)) is not None}
    known = axes_of(graph.model) if terms else {}
    axes = {
        size: (port.name, axis)
        for port in reversed(graph.inputs)
        for axis, size in enumerate(known.get(port.name, ()))
        if isinstance(size, str)
    }
    found: dict[tuple[tuple[str, int], ...], int] = {}
    for name, most in terms.items():
        summed = _addends(_summed(graph, graph.by_name[name], known), axes)
        if summed:
            found[summed] = min(most, found.get(summed, most))
    return tuple(LengthLimit(summed, most) for summed, most in found.items())


def _summed(graph: Graph, node: Node, known: Mapping[str, Axes]) -> int | str | None:
    """Return the size of the axis that a kernel sums over, by its name in the model."""
    data, rule = node.inputs[0], rule_of(node)
    axis = row_axes(node, graph)[0] if rule is not None and rule.family is Family.ROWS else -1
    sizes = known.get(data, ())
    return sizes[axis] if sizes else None


def _addends(size: int | str | None, axes: Mapping[str, tuple[str, int]]) -> tuple[tuple[str, int], ...]:
    """Return the axes of inputs whose sizes add up to a size; none where it is another function of them."""
    found: list[tuple[str, int]] = []
    for part in size.split(" + ") if isinstance(size, str) else ():
        count, _, name = part.rpartition("*")
        if name not in axes or not (count or "1").isdigit():
            return ()
        found += [axes[name]] * int(count or 1)
    return tuple(sorted(found, reverse=True))


def _terms(graph: Graph, plan: QuantPlan, name: str) -> int | None:
    """How many terms a kernel's sums of open length hold; None of all others."""
    node, kernel = graph.by_name[name], plan.kernels[name]
    data, rule = node.inputs[0], rule_of(node)
    if isinstance(kernel, Contract):
        terms = product_terms(node, graph)
        return None if terms == graph.shapes[data][-1] else terms
    if not isinstance(kernel, Program) or rule is None or rule.family is not Family.ROWS:
        return None
    if kernel.kind is FunctionKind.DIVISION or not is_open_row(node, graph):
        return None
    return longest_row(node, graph, kernel.kind, plan.quantizers[data].dtype.bits)
