"""Einsum of two operands as the matrix product that it is, between transpositions that move no value.

The letters of an equation are of four kinds: batch (in both operands and the result), rows (left and result), columns
(right and result), summed (both operands only). With one letter of each of the last three kinds, and with any number of
rows before a matrix, MatMul is equivalent. A constant with several columns or summed letters, as JAX writes dense
layers over heads, becomes a matrix first.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from quantpipe.graph.edit import attribute, constant, is_op, new_constant, new_node, take_place

FORM = re.compile(r"([A-Za-z]+),([A-Za-z]+)->([A-Za-z]+)")


@dataclass(frozen=True)
class _Letters:
    """The letters of an equation by kind, each in the order of the operand that brings it first."""

    left: str
    right: str
    result: str

    @property
    def batch(self) -> str:
        return "".join(a for a in self.left if a in self.right and a in self.result)

    @property
    def rows(self) -> str:
        return "".join(a for a in self.left if a not in self.right)

    @property
    def columns(self) -> str:
        return "".join(a for a in self.right if a not in self.left)

    @property
    def summed(self) -> str:
        return "".join(a for a in self.left if a in self.right and a not in self.result)

    def is_product(self) -> bool:
        """Return whether each letter is of one kind, and once in its term."""
        terms = (self.left, self.right, self.result)
        kinds = self.batch + self.rows + self.columns
        return all(len(set(t)) == len(t) for t in terms) and sorted(kinds) == sorted(self.result) and bool(self.summed)


def einsum_to_matmul(graph: ir.Graph, node: ir.Node) -> None:
    """Write an Einsum of two operands that is a matrix product as MatMul."""
    text = FORM.fullmatch(str(attribute(node, "equation", "")).replace(" ", "")) if is_op(node, "Einsum") else None
    first, second = (*node.inputs, None, None)[:2]
    if text is None or len(node.inputs) != 2 or first is None or second is None or constant(first) is not None:
        return
    letters = _Letters(*text.groups())
    if not letters.is_product() or not letters.rows or not letters.columns:
        return
    matrix = constant(second)
    if matrix is not None and not letters.batch:
        product = _by_matrix(graph, node, first, letters=letters, weight=matrix)
    elif len(letters.rows) == len(letters.columns) == len(letters.summed) == 1:
        left = _turned(graph, node, first, letters=letters.left, wanted=letters.batch + letters.rows + letters.summed)
        right = _turned(
            graph, node, second, letters=letters.right, wanted=letters.batch + letters.summed + letters.columns
        )
        product = new_node(graph, node, "MatMul", [left, right], name=node.name)
    else:
        return
    found = _turned(graph, node, product, letters=letters.batch + letters.rows + letters.columns, wanted=letters.result)
    if found is not product:
        product.name = f"{node.outputs[0].name}_product"
    take_place(node.outputs[0], found)
    graph.remove(node, safe=True)


def _by_matrix(graph: ir.Graph, node: ir.Node, data: ir.Value, *, letters: _Letters, weight: NDArray[Any]) -> ir.Value:
    """Return the product with a constant as a matrix; the result has an axis for each of its letters again."""
    sizes = dict(zip(letters.right, weight.shape, strict=True))
    order = [letters.right.index(a) for a in letters.summed + letters.columns]
    rows = int(np.prod([sizes[a] for a in letters.summed]))
    held = new_constant(graph, f"{node.name}_matrix", weight.transpose(order).reshape(rows, -1))
    data = _turned(graph, node, data, letters=letters.left, wanted=letters.rows + letters.summed)
    if len(letters.summed) > 1:
        flat = new_constant(graph, f"{node.name}_flat", np.array([0] * len(letters.rows) + [rows], np.int64))
        data = new_node(graph, node, "Reshape", [data, flat], name=f"{node.name}_joined")
        data.name = f"{node.name}_joined"
    product = new_node(graph, node, "MatMul", [data, held], name=node.name)
    if len(letters.columns) > 1:
        product.name = f"{node.name}_flat_product"
        parts = [0] * len(letters.rows) + [sizes[a] for a in letters.columns]
        shape = new_constant(graph, f"{node.name}_parts", np.array(parts, np.int64))
        product = new_node(graph, node, "Reshape", [product, shape], name=f"{node.name}_split")
    return product


def _turned(graph: ir.Graph, node: ir.Node, value: ir.Value, *, letters: str, wanted: str) -> ir.Value:
    """Return a value with its axes in another order; itself where they are in it already."""
    if letters == wanted:
        return value
    order = [letters.index(a) for a in wanted]
    name = f"{node.name}_{letters}_{wanted}"
    found = new_node(graph, node, "Transpose", [value], name=name, attributes={"perm": order})
    found.name = name
    return found
