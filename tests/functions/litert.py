"""LiteRT's interpreter as an oracle: a model of one op in memory, run by the reference kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

Array = np.ndarray[Any, Any]


def run_op(
    builtin: str,
    options: tuple[str, dict[str, Any]] | None,
    data: Array,
    grid: tuple[float, int],
    out: tuple[float, int],
) -> Array:
    """What one op with one input gives: `grid` and `out` are scale and zero point of input and result (one type)."""
    schema = pytest.importorskip("ai_edge_litert.schema_py_generated", reason="LiteRT is not installed")
    flatbuffers = pytest.importorskip("flatbuffers", reason="flatbuffers is not installed")
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    kind = {np.dtype(np.int8): schema.TensorType.INT8, np.dtype(np.int16): schema.TensorType.INT16}[data.dtype]

    def tensor(name: str, scale: float, zero: int) -> Any:
        made, quantization = schema.TensorT(), schema.QuantizationParametersT()
        made.name, made.shape, made.type, made.buffer = name, list(data.shape), kind, 0
        quantization.scale, quantization.zeroPoint = [scale], [zero]
        made.quantization = quantization
        return made

    code = schema.OperatorCodeT()
    code.builtinCode = getattr(schema.BuiltinOperator, builtin)
    code.deprecatedBuiltinCode, code.version = min(code.builtinCode, 127), 1
    op = schema.OperatorT()
    op.opcodeIndex, op.inputs, op.outputs = 0, [0], [1]
    if options is not None:
        name, fields = options
        op.builtinOptionsType = getattr(schema.BuiltinOptions, name)
        op.builtinOptions = getattr(schema, f"{name}T")()
        for field, value in fields.items():
            setattr(op.builtinOptions, field, value)
    graph = schema.SubGraphT()
    graph.tensors, graph.inputs, graph.outputs, graph.operators = (
        [tensor("x", *grid), tensor("y", *out)],
        [0],
        [1],
        [op],
    )
    model = schema.ModelT()
    model.version, model.subgraphs, model.operatorCodes, model.buffers = 3, [graph], [code], [schema.BufferT()]
    builder = flatbuffers.Builder(1024)
    builder.Finish(model.Pack(builder), file_identifier=b"TFL3")
    interpreter = Interpreter(
        model_content=bytes(builder.Output()), experimental_op_resolver_type=OpResolverType.BUILTIN_REF
    )
    interpreter.allocate_tensors()
    interpreter.set_tensor(interpreter.get_input_details()[0]["index"], data)
    interpreter.invoke()
    return np.asarray(interpreter.get_tensor(interpreter.get_output_details()[0]["index"]))
