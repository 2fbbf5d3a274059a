"""Small nets, one per way an op can be used: `CASES[name]` writes it."""

from tests.ops.cases import functions, graphs, moves, products, sums
from tests.ops.cases.base import CASES
from tests.ops.cases.graphs import ISLANDS

__all__ = ["CASES", "ISLANDS", "functions", "graphs", "moves", "products", "sums"]
