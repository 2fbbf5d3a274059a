"""Models after the clean-up of onnxslim."""

from __future__ import annotations

import contextlib
import io
import threading

import onnx
import onnx_ir as ir
import onnxslim

from quantpipe.graph.external_weights import copied, with_weights, without_weights
from quantpipe.intake.untouched import read_directly, tie_copies, untouched

_STDOUT = threading.Lock()
"""Standard output belongs to the whole process: two threads that put it aside at once would lose it for good."""


def slimmed(model: ir.Model) -> ir.Model:
    """Return the model after onnxslim's clean-up.

    External weights, and weights too large for it, become inputs of the model first: onnxslim folds nothing into them.
    """
    copy = copied(model)
    read_directly(copy)
    tie_copies(copy)
    proto, held = without_weights(copy, untouched(copy))
    with _STDOUT, contextlib.redirect_stdout(io.StringIO()):
        result: onnx.ModelProto = onnxslim.slim(proto)
    _forget_unknown_types(result)
    return with_weights(result, held)


def _forget_unknown_types(proto: onnx.ModelProto) -> None:
    """Take out, in place, declarations without a type, which onnxslim writes for results of ops of other domains."""
    known = [value for value in proto.graph.value_info if value.type.tensor_type.elem_type or not _is_tensor(value)]
    del proto.graph.value_info[:]
    proto.graph.value_info.extend(known)


def _is_tensor(value: onnx.ValueInfoProto) -> bool:
    return bool(value.type.HasField("tensor_type"))
