"""A result form: the integer form, with scale and zero point of each stored result beside the node that makes it.

The NPU's compiler reads them from the nodes' metadata and needs no second file.
"""

from __future__ import annotations

from functools import partial

import onnx_ir as ir

from quantpipe.graph.view import Node
from quantpipe.lowering import Context, Lowering
from quantpipe.realize import Integer
from quantpipe.types import Form, Kernel


class Annotated(Integer):
    """Write the integer form with metadata `npu.scale` and `npu.zero_point` at each stored result."""

    name = "example_npu"

    def __init__(self) -> None:
        super().__init__()
        self.ops = {op: partial(self._annotated, lowering) for op, lowering in self.ops.items()}

    def _annotated(self, lowering: Lowering, context: Context, node: Node, kernel: Kernel) -> ir.Value:
        value = lowering(context, node, kernel)
        maker = value.producer()
        if maker is not None and kernel.form is Form.QUANTIZED:
            q = context.plan.quantizers[kernel.output]
            maker.metadata_props["npu.scale"] = float(q.scale).hex()
            maker.metadata_props["npu.zero_point"] = str(q.zero_point)
        return value
