"""Realize: QuantPlan -> integer ONNX model, in three forms. Each form is one dialect: a table op -> lowering."""

from collections.abc import Callable, Mapping

from quantpipe.lowering import Dialect
from quantpipe.realize.integer import Integer
from quantpipe.realize.qdq import Qdq
from quantpipe.realize.qoperator import QOperator

BACKENDS: Mapping[str, Callable[[], Dialect]] = {"qdq": Qdq, "qoperator": QOperator, "integer": Integer}
"""Name in the configuration -> dialect."""

__all__ = ["BACKENDS", "Integer", "QOperator", "Qdq"]
