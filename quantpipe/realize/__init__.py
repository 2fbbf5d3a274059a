"""Realize: QuantPlan -> integer ONNX model. Each form is one dialect: a table op -> lowering.

There are three of our own; plug-in packages bring more (docs/extending.md).
"""

from quantpipe.realize.backends import BACKENDS, OWN, refuse_clashes, write
from quantpipe.realize.integer import Integer
from quantpipe.realize.qdq import Qdq
from quantpipe.realize.qoperator import QOperator

__all__ = ["BACKENDS", "OWN", "Integer", "QOperator", "Qdq", "refuse_clashes", "write"]
