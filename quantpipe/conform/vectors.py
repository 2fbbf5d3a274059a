"""Sets of vectors: golden inputs and integers of a network, tensor by tensor and op by op, as files.

A set is a folder: `set.json` lists its content, arrays are npz, and hex files hold one integer a line, in two's
complement, for simulators that read memories from text.
"""

from __future__ import annotations

import io
import json
import re
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np

from quantpipe.arrays import Array
from quantpipe.conform.network import Network, is_raw, name_of
from quantpipe.conform.numpy_kernels import RepeatedKernel
from quantpipe.errors import QuantpipeError
from quantpipe.types import Accumulate, DType, Kernel, Lookup, Requantize, Sum

GOLDEN, INPUTS, SET = "golden.npz", "inputs.npz", "set.json"
NOTHING: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, eq=False)
class VectorSet:
    """Hold golden integers of one network.

    `name`: The name of its folder. `purpose`: Its purpose, in one sentence. `network`: The network with its numbers.
    `inputs`: The model's real inputs, `[N, …]`. `golden`: Every stored tensor and every accumulator that a kernel
    reads.
    """

    name: str
    purpose: str
    network: Network
    inputs: Mapping[str, Array] = field(repr=False)
    golden: Mapping[str, Array] = field(repr=False)

    @classmethod
    def of(cls, name: str, purpose: str, network: Network, inputs: Mapping[str, Array]) -> VectorSet:
        """Return the set of a network on some inputs."""
        return cls(name, purpose, network, inputs, network.golden(inputs))

    @property
    def samples(self) -> int:
        """Return how many samples it has."""
        return len(next(iter(self.golden.values())))

    @property
    def files(self) -> Mapping[str, str]:
        """Return a mapping: tensor -> the stem of its hex file."""
        return {t: stem(n, t) for n, t in enumerate(self.golden)}


def stem(number: int, name: str) -> str:
    """Return the name of a file without its ending: a number, and what of a name every file system takes."""
    return f"{number:04d}_{re.sub(r'[^A-Za-z0-9_.-]+', '-', name)[:80].strip('-')}"


def contents(vectors: VectorSet, hex_samples: int, values: Mapping[str, str] = NOTHING) -> Iterator[tuple[str, bytes]]:
    """Yield (name, content) of every file of a set.

    `hex_samples` samples are in hex files too; 0: no samples and no weights. `values` maps a tensor to its value in the
    ONNX file of the set.
    """
    yield SET, _json(described(vectors, hex_samples, values))
    yield GOLDEN, npz(vectors.golden)
    yield INPUTS, npz(vectors.inputs)
    for number, kernel in enumerate(vectors.network.topology.kernels):
        arrays = op_arrays(vectors, kernel)
        if not arrays:
            continue
        name = stem(number, kernel.node)
        yield f"ops/{name}.npz", npz(arrays)
        if hex_samples:
            for part in ("weight", "bias"):
                if part in arrays:
                    yield f"hex/{name}.{part}.hex", hexed(arrays[part])
    if hex_samples:
        for tensor, file in vectors.files.items():
            yield f"hex/{file}.hex", hexed(vectors.golden[tensor][:hex_samples], vectors.network.dtype(tensor))


def described(vectors: VectorSet, hex_samples: int, values: Mapping[str, str] = NOTHING) -> dict[str, Any]:
    """Return the content of set.json: every tensor and every kernel.

    `values` maps a tensor to its value in the ONNX file of the set.
    """
    net, names = vectors.network, vectors.files
    tensors = []
    for tensor, golden in vectors.golden.items():
        row: dict[str, Any] = {"name": tensor, "dtype": str(net.dtype(tensor)), "shape": list(golden.shape)}
        row |= {"value": values[tensor]} if tensor in values else {}
        if is_raw(tensor):
            scale = net.plan.raw_scales[tensor.removesuffix(" (accumulator)")]
            row |= {"scale": _plain(scale), "zero_point": 0}
        else:
            q = net.plan.quantizers[tensor]
            row |= {"scale": _plain(q.scale), "zero_point": q.zero_point, "range": [q.qmin, q.qmax]}
        tensors.append(row | ({"hex": f"hex/{names[tensor]}.hex"} if hex_samples else {}))
    kernels = [
        {
            "node": k.node,
            "op": k.op,
            "operands": list(RepeatedKernel.of(net, k).operands),
            "result": name_of(k.output, k.form),
            "attributes": attributes_of(net, k),
            "fused": list(k.fused),
            "file": f"ops/{stem(n, k.node)}.npz",
        }
        for n, k in enumerate(net.topology.kernels)
    ]
    return {
        "name": vectors.name,
        "purpose": vectors.purpose,
        "samples": vectors.samples,
        "hex_samples": hex_samples,
        "inputs": {name: list(real.shape) for name, real in vectors.inputs.items()},
        "tensors": tensors,
        "kernels": kernels,
    }


def attributes_of(net: Network, kernel: Kernel) -> dict[str, Any]:
    """Return the attributes of a kernel's node that JSON has."""
    node = net.graph.by_name[kernel.node]
    found = {name: node.attr(name) for name in node.attributes}
    return {name: value for name, value in found.items() if isinstance(value, int | float | str | list)}


def op_arrays(vectors: VectorSet, kernel: Kernel) -> dict[str, Array]:
    """Return all integers of one op: operands, weight, bias, accumulator, numbers of its narrowing, result."""
    net = vectors.network
    site, output = RepeatedKernel.of(net, kernel), name_of(kernel.output, kernel.form)
    if output not in vectors.golden or any(o not in vectors.golden for o in site.operands):
        return {}
    found = {f"operand{n}": vectors.golden[o] for n, o in enumerate(site.operands)}
    if kernel.weight is not None and kernel.weight in net.plan.weights:
        found["weight"] = net.plan.weights[kernel.weight].values
        if net.plan.weights[kernel.weight].has_zero_point:
            found["weight_zero_point"] = net.plan.weights[kernel.weight].zero
    numbers = site.numbers
    if isinstance(numbers, Accumulate) and numbers.bias is not None:
        found["bias"] = numbers.bias
    if isinstance(numbers, Lookup):
        found["table"] = numbers.table
    if isinstance(numbers, Sum):
        found |= _terms(numbers)
    output_numbers = getattr(numbers, "output", None)
    if isinstance(output_numbers, Requantize):
        found |= _narrowing(output_numbers)
    try:
        acc = site.accumulator(vectors.golden)
    except QuantpipeError:
        acc = None
    if acc is not None:
        small = np.abs(acc).max(initial=0) <= DType.INT32.qmax
        found["accumulator"] = acc.astype(np.int32 if small else np.int64)
    return found | {"result": vectors.golden[output]}


def _terms(numbers: Sum) -> dict[str, Array]:
    shifts = np.asarray([t.shift for t in numbers.terms], np.int64)
    found: dict[str, Array] = {"term_shifts": shifts}
    for n, term in enumerate(numbers.terms):
        if term.fixed is not None:
            found |= {f"term{n}_multiplier": term.fixed.multiplier, f"term{n}_exponent": term.fixed.shift}
        elif numbers.scale is None:
            found[f"term{n}_ratio"] = np.asarray(term.ratio)
    return found


def _narrowing(how: Requantize) -> dict[str, Array]:
    found: dict[str, Array] = {"bounds": np.asarray([how.low, how.high], np.int64)}
    if how.fixed is not None:
        return found | {"multiplier": how.fixed.multiplier, "exponent": how.fixed.shift}
    if str(how.kind) == "shift":
        return found | {"shift": np.asarray(how.shift, np.int64)}
    return found | {"multiplier": np.asarray(how.multiplier)}


def npz(arrays: Mapping[str, Array]) -> bytes:
    """Return a compressed npz file of arrays by name, whatever the names."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, values in arrays.items():
            one = io.BytesIO()
            np.lib.format.write_array(one, np.ascontiguousarray(values), allow_pickle=False)
            info = zipfile.ZipInfo(f"{name}.npy")  # of one date, so that equal arrays give equal bytes
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, one.getvalue())
    return stream.getvalue()


def hexed(values: Array, dtype: DType | None = None) -> bytes:
    """Return integers in hexadecimal, one a line, row by row, in two's complement of their type's width."""
    digits = 2 * values.dtype.itemsize if dtype is None or dtype.bits >= 8 else (dtype.bits + 3) // 4
    mask = (1 << (4 * digits)) - 1
    flat = np.ascontiguousarray(values).reshape(-1).tolist()
    return "".join(f"{v & mask:0{digits}x}\n" for v in flat).encode()


def _json(payload: Mapping[str, Any]) -> bytes:
    return (json.dumps(payload, indent=1) + "\n").encode()


def _plain(values: Array) -> float | list[float]:
    return float(values) if not values.ndim else [float(v) for v in values]
