"""Realize: QuantPlan -> the files of the integer model. Each ONNX form is one dialect: a table op -> lowering.

quantpipe has four of them (`OWN`), and formats that are not ONNX; plug-in packages add more (docs/extending.md).
"""

from quantpipe.realize.backends import BACKENDS, OWN, refuse_clashes, write
from quantpipe.realize.forms import EXACT, FILE_FORMS, VENDOR, WITHOUT_FLOAT16, inexact_on
from quantpipe.realize.integer import Integer
from quantpipe.realize.protocol import FileForm, Runner, WrittenForm
from quantpipe.realize.provenance import Provenance
from quantpipe.realize.qdq import Qdq
from quantpipe.realize.qoperator import QOperator

__all__ = [
    "BACKENDS",
    "EXACT",
    "FILE_FORMS",
    "OWN",
    "VENDOR",
    "WITHOUT_FLOAT16",
    "FileForm",
    "Integer",
    "Provenance",
    "QOperator",
    "Qdq",
    "Runner",
    "WrittenForm",
    "inexact_on",
    "refuse_clashes",
    "write",
]
