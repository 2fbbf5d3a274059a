"""How long the sums of an integer model may be whose length the model leaves open."""

from __future__ import annotations

from quantpipe.graph.view import Graph
from quantpipe.oprules import Family, rule_of
from quantpipe.oprules.facts import product_terms
from quantpipe.oprules.rows import is_open_row, longest_row
from quantpipe.types import Contract, FunctionKind, Program, QuantPlan


def longest_open_sum(graph: Graph, plan: QuantPlan) -> int | None:
    """Return how many terms every integer sum of open length holds; None without such sums."""
    found = (_terms(graph, plan, name) for name in plan.kernels)
    return min((terms for terms in found if terms is not None), default=None)


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
