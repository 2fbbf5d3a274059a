"""Nodes left in float that compute in float16: their constants, and the Casts around them.

Scales, zero points and everything that is quantized or dequantized stay in float32, so integers are the same as those
from float32 inputs.

Files of this feature, all `half.py`: `intake` (files in half precision as float32), `annotate` (nodes that compute in
float16), `lowering` (writes their Casts).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from quantpipe.graph.build import GraphBuilder
from quantpipe.graph.external_weights import converted

TO_HALF, TO_SINGLE = "to_float16", "to_float32"
"""Ends of the names of Casts: TENSOR/to_float16."""


def as_half(tensor: ir.TensorProtocol) -> NDArray[Any]:
    """Return a float constant in float16."""
    return converted(tensor, np.float16)


def cast_half(builder: GraphBuilder, tensor: str, real: ir.Value) -> ir.Value:
    """Write the Cast of a float32 value to float16."""
    return builder.op("Cast", real, name=f"{tensor}/{TO_HALF}", to=int(ir.DataType.FLOAT16))


def cast_single(builder: GraphBuilder, tensor: str, half: ir.Value) -> ir.Value:
    """Write the Cast of a float16 value to float32; the result is the tensor of that name."""
    return builder.op("Cast", half, name=f"{tensor}/{TO_SINGLE}", output=tensor, claim=True, to=int(ir.DataType.FLOAT))


def round_to_brain(builder: GraphBuilder, tensor: str, real: ir.Value) -> ir.Value:
    """Write the Casts of a real value to bfloat16 and back; the result takes the name of the tensor."""
    name, real.name = real.name, builder.unique(f"{tensor}/unrounded")
    brain = builder.op("Cast", real, name=f"{tensor}/to_bfloat16", to=int(ir.DataType.BFLOAT16))
    found = builder.op("Cast", brain, name=f"{tensor}/from_bfloat16", to=int(ir.DataType.FLOAT))
    found.name = name
    return found
