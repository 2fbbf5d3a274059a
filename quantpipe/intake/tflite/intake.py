"""Write the graph of a .tflite file as ONNX: every tensor with its integers, in the orders of axes its readers need.

An integer tensor is a QuantizeLinear with the file's scale, and a DequantizeLinear before its readers. TFLite's kernels
have channels last and ONNX's ops second. So a map stays in the order in which an op made it, and a Transpose is written
where a reader needs another order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from quantpipe.errors import ModelError
from quantpipe.intake.tflite.contents import NO_TENSOR, NUMPY, STAGE, Contents, FileOperator, FileTensor, names_of
from quantpipe.intake.tflite.layout import Order, between, place, plain, turned
from quantpipe.intake.tflite.operators import ACTIVATIONS

OPSET = 21
"""The first one whose QuantizeLinear has 16-bit integers."""
IR_VERSION = 10
STORED = ("INT4", "INT8", "UINT8", "INT16", "UINT16")
"""Types of computed tensors that QuantizeLinear writes."""
MOST_BIAS = 32
"""Bits of integers that DequantizeLinear reads; 64-bit biases that do not fit become real values."""


class UnreadOperator(ModelError):
    """Say why an operator of a file cannot be read: `reason`, without the operator."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason, stage=STAGE)
        self.reason = reason


class TfliteIntake:
    """Hold the ONNX graph in the making, and every tensor of the file in the orders that it has there."""

    def __init__(self, contents: Contents) -> None:
        self.file = contents
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, onnx.TensorProto] = {}
        self.integers: dict[int, dict[Order, str]] = {}
        """Quantized tensor -> order -> the value that holds its integers."""
        self._held: dict[int, dict[Order, str]] = {}
        self._names: set[str] = {*contents.inputs, *contents.outputs}
        self._own_names: dict[int, str] = {}
        self._grids: dict[int, list[str]] = {}
        self._inputs = [self._input(name, number) for name, number in contents.inputs.items()]

    # --- tensors of the file ------------------------------------------------------------------------------------------

    def tensor(self, number: int) -> FileTensor:
        """Return a tensor by its number."""
        return self.file.tensors[number]

    def rank(self, number: int) -> int:
        """Return the number of a tensor's axes."""
        return len(self.file.tensors[number].shape)

    def orders(self, number: int) -> tuple[Order, ...]:
        """Return the orders that a computed tensor has already."""
        return tuple(self._held.get(number, {}))

    def common_order(self, numbers: Sequence[int], rank: int) -> Order:
        """Return the order in which an operator over elements needs the fewest transpositions."""
        computed = [n for n in numbers if n != NO_TENSOR and self.tensor(n).data is None]
        if any(self.rank(n) != rank for n in computed):
            return plain(rank)
        found = [order for n in computed for order in self.orders(n)]
        return max(dict.fromkeys(found), key=found.count) if found else plain(rank)

    def numbers(self, number: int) -> list[int]:
        """Return the integers of a constant.

        Raises UnreadOperator where they are computed at run time.
        """
        tensor = self.tensor(number)
        if not math.prod(tensor.shape):
            return []
        if tensor.data is None:
            raise UnreadOperator(f"{tensor.name[:60]!r} is computed at run time; legal are constants")
        return [int(v) for v in tensor.data.reshape(-1)]

    def scalar(self, number: int) -> np.float32 | None:
        """Return the real value of a constant of one element; None for any other tensor."""
        tensor = self.tensor(number)
        if tensor.data is None or tensor.data.size != 1:
            return None
        scale, zero = (1.0, 0) if tensor.scale is None or tensor.zero is None else (tensor.scale[0], tensor.zero[0])
        return np.float32(tensor.data.reshape(-1)[0].item() - int(zero)) * np.float32(scale)

    def value(self, number: int, order: Order | None = None) -> str:
        """Return the real values of a tensor in an order of axes (None: the file's), written if missing."""
        tensor = self.tensor(number)
        wanted = plain(len(tensor.shape)) if order is None else order
        held = self._held.setdefault(number, {})
        if wanted not in held:
            held[wanted] = self._constant(tensor, wanted) if _is_constant(tensor) else self._turned(tensor, wanted)
        return held[wanted]

    def aligned(self, number: int, order: Order) -> str:
        """Return a tensor with as many axes as an order, axes of one element put in front, in that order."""
        tensor, rank = self.tensor(number), len(order)
        missing = rank - len(tensor.shape)
        if not missing:
            return self.value(number, order)
        whole = (*[1] * missing, *tensor.shape)
        if _is_constant(tensor):
            data = np.zeros(whole, NUMPY[tensor.kind]) if tensor.data is None else tensor.data.reshape(whole)
            return self._constant(replace(tensor, shape=whole, data=data, axis=tensor.axis + missing), order)
        if order == plain(rank):
            return self.value(number)  # ONNX aligns shapes at their ends, too
        axes = self.constant(f"{tensor.name}/front", np.arange(missing))
        wide = self.node("Unsqueeze", [self.value(number), axes], name=f"{tensor.name}/aligned")
        return self.node("Transpose", [wide], name=f"{tensor.name}/turned", perm=list(order))

    def keep(self, number: int, order: Order, value: str) -> None:
        """Record the real values of a tensor, stored in integers where the file does so."""
        tensor = self.tensor(number)
        if not tensor.quantized:
            self._held.setdefault(number, {})[order] = value
            return
        if tensor.kind not in STORED:
            raise UnreadOperator(f"it stores {tensor.kind} with a scale; legal are {', '.join(STORED)}")
        grid = self._grid(tensor, order)
        name = f"{self._name_of(tensor)}_q"
        stored = self.node("QuantizeLinear", [value, *grid], name=name, **_axis(tensor, order))
        self._read(tensor, order, stored)

    def same(self, number: int, order: Order, source: int, held: Order) -> None:
        """Let a tensor be another one that is held in some order: the same memory, on the same grid or without one."""
        first, second = self.tensor(source), self.tensor(number)
        value = self.value(source, held)
        alike = first.quantized == second.quantized and (not first.quantized or _same_grid(first, second))
        if not alike or _is_constant(first):
            self.keep(number, order, value)
            return
        self._held.setdefault(number, {})[order] = value
        if first.quantized:
            self.integers.setdefault(number, {})[order] = self.integers[source][held]

    def make(
        self,
        operator: FileOperator,
        order: Order,
        op: str,
        inputs: Sequence[str],
        *,
        output: int = 0,
        **attributes: Any,
    ) -> None:
        """Write the ONNX op that computes an output of an operator in an order, with its fused activation."""
        number = operator.outputs[output]
        name = self._name_of(self.tensor(number))
        bounds = self.activation(operator)
        made = self.node(op, inputs, name=name if bounds is None else f"{name}/{op.lower()}", **attributes)
        if bounds is not None:
            made = self.bounded(made, bounds, name)
        self.keep(number, order, made)

    def name_of(self, operator: FileOperator) -> str:
        """Return the name that nodes of an operator begin with: the name of its first result."""
        return self._name_of(self.tensor(operator.outputs[0]))

    def activation(self, operator: FileOperator) -> tuple[float | None, float | None] | None:
        """Return the bounds of an operator's fused activation; None without one."""
        name = names_of("ActivationFunctionType").get(operator.option("fusedActivationFunction", 0), "")
        if name == "NONE":
            return None
        if name not in ACTIVATIONS:
            raise UnreadOperator(f"its activation is {name}; legal are {', '.join(ACTIVATIONS)}")
        return ACTIVATIONS[name]

    def bounded(self, value: str, bounds: tuple[float | None, float | None], name: str) -> str:
        """Return values within bounds: a Relu, or a Clip."""
        if bounds == ACTIVATIONS["RELU"]:
            return self.node("Relu", [value], name=name)
        ends = [
            "" if end is None else self.constant(f"{name}/{side}", np.asarray(end, np.float32))
            for side, end in zip(("least", "greatest"), bounds, strict=True)
        ]
        return self.node("Clip", [value, *ends], name=name)

    # --- the ONNX graph -----------------------------------------------------------------------------------------------

    def node(self, op: str, inputs: Sequence[str], *, name: str, **attributes: Any) -> str:
        """Add a node of one result, both with this name or one like it; return the result."""
        return self.nodes_of(op, inputs, [name], **attributes)[0]

    def nodes_of(self, op: str, inputs: Sequence[str], names: Sequence[str], **attributes: Any) -> list[str]:
        """Add a node with a result for each name; return the results."""
        made = [self.free_name(name) for name in names]
        found = [*inputs]
        while found and not found[-1]:
            found.pop()
        self.nodes.append(helper.make_node(op, found, made, name=made[0], **attributes))
        return made

    def constant(self, name: str, value: NDArray[Any], kind: str = "") -> str:
        """Add a constant; `kind` is its type in the schema where numpy has no such type (INT4)."""
        made = self.free_name(name)
        array = np.ascontiguousarray(value).reshape(np.shape(value))
        if kind == "INT4":
            self.constants[made] = helper.make_tensor(made, TensorProto.INT4, array.shape, array.reshape(-1).tolist())
        else:
            self.constants[made] = numpy_helper.from_array(array, made)
        return made

    def free_name(self, wanted: str) -> str:
        """Return a name like the wanted one that no value has, and take it."""
        name, number = wanted, 1
        while name in self._names:
            number += 1
            name = f"{wanted}_{number}"
        self._names.add(name)
        return name

    def model(self) -> onnx.ModelProto:
        """Return the model, its outputs under their names and in the file's order of axes."""
        outputs, renamed = [], dict[str, str]()
        for name, number in self.file.outputs.items():
            tensor = self.tensor(number)
            value = self.stored(number, plain(len(tensor.shape))) if tensor.quantized else self.value(number)
            if value in renamed or value in self.file.inputs or value in self.constants:
                self.nodes.append(
                    helper.make_node("Identity", [renamed.get(value, value)], [name], name=f"{name}/same")
                )
            else:
                renamed[value] = name
            outputs.append(_port(name, tensor))
        for node in self.nodes:
            for part in (node.input, node.output):
                part[:] = [renamed.get(value, value) for value in part]
        for held in self.integers.values():
            held.update({order: renamed.get(value, value) for order, value in held.items()})
        graph = helper.make_graph(self.nodes, "main", self._inputs, outputs, list(self.constants.values()))
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)

    def stored(self, number: int, order: Order) -> str:
        """Return the integers of a computed tensor in an order of axes, written if missing."""
        held = self.integers[number]
        if order not in held:
            source, stored = next(iter(held.items()))
            name = f"{self._name_of(self.tensor(number))}_turned_q"
            held[order] = self.node("Transpose", [stored], name=name, perm=list(between(source, order)))
        return held[order]

    # --- inside -------------------------------------------------------------------------------------------------------

    def _name_of(self, tensor: FileTensor) -> str:
        """Return the name of a tensor's real values; of joined names (`a;b`), the first."""
        if tensor.number not in self._own_names:
            name = tensor.name.split(";")[0] or tensor.name
            ports = {*self.file.inputs.values(), *self.file.outputs.values()}
            self._own_names[tensor.number] = f"{name}_real" if tensor.number in ports and tensor.quantized else name
        return self._own_names[tensor.number]

    def _input(self, name: str, number: int) -> onnx.ValueInfoProto:
        tensor, order = self.tensor(number), plain(self.rank(number))
        if tensor.quantized:
            self._read(tensor, order, name)
        else:
            self._held[number] = {order: name}
        return _port(name, tensor)

    def _read(self, tensor: FileTensor, order: Order, stored: str) -> None:
        """Record the integers of a tensor, and their real values."""
        self.integers.setdefault(tensor.number, {})[order] = stored
        grid = self._grid(tensor, order)
        name = f"{self._name_of(tensor)}_dq"
        real = self.node("DequantizeLinear", [stored, *grid], name=name, **_axis(tensor, order))
        self._held.setdefault(tensor.number, {})[order] = real

    def _turned(self, tensor: FileTensor, order: Order) -> str:
        """Return a computed tensor in another order than those it has."""
        held = self._held[tensor.number]
        if not held:
            raise UnreadOperator(f"{tensor.name[:60]!r} is not computed")
        source, value = next(iter(held.items()))
        if tensor.quantized:
            self._read(tensor, order, self.stored(tensor.number, order))
            return held[order]
        turn = list(between(source, order))
        return self.node("Transpose", [value], name=f"{self._name_of(tensor)}/turned", perm=turn)

    def _constant(self, tensor: FileTensor, order: Order) -> str:
        data = np.zeros(tensor.shape, NUMPY[tensor.kind]) if tensor.data is None else tensor.data
        array, name = turned(data, order), self._name_of(tensor)
        if not tensor.quantized:
            return self.constant(name, array.astype(np.float32) if tensor.kind == "FLOAT16" else array, tensor.kind)
        if array.dtype.itemsize * 8 > MOST_BIAS:
            narrow = array.astype(np.int32)
            if not np.array_equal(narrow, array):
                return self.constant(name, self._dequantized(tensor, array, order))
            tensor, array = replace(tensor, kind="INT32"), narrow
        stored = self.constant(f"{name}_q", array, tensor.kind)
        return self.node("DequantizeLinear", [stored, *self._grid(tensor, order)], name=name, **_axis(tensor, order))

    def _dequantized(self, tensor: FileTensor, array: NDArray[Any], order: Order) -> NDArray[np.float32]:
        assert tensor.scale is not None  # noqa: S101  (asked for quantized tensors only)
        along = [1] * array.ndim
        if tensor.scale.size > 1:
            along[place(tensor.axis, order)] = -1
        return np.asarray(array.astype(np.float64) * tensor.scale.astype(np.float64).reshape(along), np.float32)

    def _grid(self, tensor: FileTensor, order: Order) -> list[str]:
        """Return scale and zero point of a tensor as constants; the integers of a bias have no zero point."""
        assert tensor.scale is not None and tensor.zero is not None  # noqa: S101  (asked for quantized tensors only)
        key = tensor.number
        if key not in self._grids:
            single = tensor.scale.size == 1
            scale, zero = (v.reshape(()) if single else v for v in (tensor.scale, tensor.zero))
            name = self._name_of(tensor)
            self._grids[key] = [self.constant(f"{name}_scale", scale)]
            if tensor.kind != "INT32":
                self._grids[key].append(self.constant(f"{name}_zero", zero.astype(NUMPY[tensor.kind]), tensor.kind))
            elif np.any(zero):
                raise UnreadOperator(f"{tensor.name[:60]!r} is int32 with a zero point; legal is 0")
        return self._grids[key]


def _is_constant(tensor: FileTensor) -> bool:
    return tensor.data is not None or not math.prod(tensor.shape)


def _same_grid(first: FileTensor, second: FileTensor) -> bool:
    return (
        first.kind == second.kind
        and np.array_equal(first.scale, second.scale)  # type: ignore[arg-type]
        and np.array_equal(first.zero, second.zero)  # type: ignore[arg-type]
        and first.scale is not None
        and first.scale.size == 1
    )


def _axis(tensor: FileTensor, order: Order) -> dict[str, int]:
    """Return the attribute `axis` for a tensor with a scale per channel."""
    return {"axis": place(tensor.axis, order)} if tensor.scale is not None and tensor.scale.size > 1 else {}


def _port(name: str, tensor: FileTensor) -> onnx.ValueInfoProto:
    kind = TensorProto.INT4 if tensor.kind == "INT4" else helper.np_dtype_to_tensor_dtype(np.dtype(NUMPY[tensor.kind]))
    shape = [f"{name}_{axis}" if axis in tensor.free else size for axis, size in enumerate(tensor.shape)]
    if 0 in tensor.free:
        shape[0] = "N"
    return helper.make_tensor_value_info(name, kind, shape)


Reader = Callable[[TfliteIntake, FileOperator], None]
"""Writes one operator as ONNX, and keeps its results."""


def unread(names: Collection[str], legal: Mapping[str, Reader], reasons: Mapping[str, str], where: str) -> ModelError:
    """Return the error for operators that no reader knows, all of them with the reasons."""
    said = "; ".join(f"{name}: {reasons[name]}" if name in reasons else name for name in sorted(names))
    return ModelError(
        f"it has operators that are not read from a .tflite file ({said}); legal are {', '.join(sorted(legal))}. "
        "Export the model that the file was made from as ONNX",
        stage=STAGE,
        where=where,
    )
