"""Realize: QuantPlan -> the files of the integer model. Each ONNX form is one dialect: a table op -> lowering.

quantpipe has four of them (`OWN`), and formats that are not ONNX; plug-in packages add more (docs/extending.md).
"""

from quantpipe.realize.backends import BACKENDS, OWN, refuse_clashes, write
from quantpipe.realize.forms import EXACT, FILE_FORMS, VENDOR, WITHOUT_FLOAT16, inexact_on
from quantpipe.realize.integer import Integer
from quantpipe.realize.protocol import FileForm, Runner
from quantpipe.realize.provenance import Provenance
