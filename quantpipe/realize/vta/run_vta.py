"""Run a VTA form: its programs by the executor of exactly these instructions, everything else by the host.

The host has the nodes in float, moves of values, and conversions between floats and integers.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantpipe import intmath
from quantpipe.arrays import Array
from quantpipe.errors import HardwareError
from quantpipe.graph.execute import Session
from quantpipe.graph.extract import part_of
from quantpipe.graph.view import Graph, Node
from quantpipe.realize.protocol import Feeds
from quantpipe.realize.vta.isa import BLOCK, BYTES, Alu, Instruction, Op, decoded
from quantpipe.realize.vta.machine import Machine
from quantpipe.realize.vta.schedule import PLANES
from quantpipe.types import Form, Kernel, Move, QuantPlan, Rounding, Topology


class Host:
    """Hold the tensors of one sample in the forms that exist, and make others at need."""

    def __init__(self, graph: Graph, topology: Topology, plan: QuantPlan, sessions: dict[str, Session]) -> None:
        """`sessions`: sessions of nodes, kept from sample to sample."""
        self.graph, self.topology, self.plan, self._sessions = graph, topology, plan, sessions
        self.real: dict[str, Array] = {}
        self.raw: dict[str, Array] = {}
        self.integers: dict[str, Array] = {}

    def begin(self, inputs: Mapping[str, Array]) -> None:
        """Take the real inputs of a sample."""
        self.real, self.raw, self.integers = dict(inputs), {}, {}

    def stored(self, tensor: str) -> Array:
        """Return the stored integers of a tensor, made of what there is of it."""
        if tensor in self.integers:
            return self.integers[tensor]
        q = self.plan.quantizers[tensor]
        if tensor in self.plan.constants:
            found = self.plan.constants[tensor]
        elif tensor in self.raw:
            how = self.plan.narrowings[tensor]
            found = intmath.requantize_shift(
                self.raw[tensor],
                how.shift,
                how.zero_point,
                qmin=how.low,
                qmax=how.high,
                rounding=Rounding(how.rounding),
            ).astype(q.dtype.numpy)
        else:
            found = intmath.quantize(self.real[tensor], q.scale, q.zero_point, qmin=q.qmin, qmax=q.qmax, dtype=q.dtype)
        self.integers[tensor] = found
        return found

    def _real(self, tensor: str) -> Array:
        if tensor not in self.real:
            if tensor in self.raw:
                self.real[tensor] = intmath.dequantize(self.raw[tensor], self.plan.raw_scales[tensor])
            else:
                q = self.plan.quantizers[tensor]
                self.real[tensor] = intmath.dequantize(self.integers[tensor], q.scale, q.zero_point)
        return self.real[tensor]

    def float_node(self, node: Node) -> None:
        """Run a node in float."""
        reads = [t for t in dict.fromkeys((*node.inputs, *node.captured)) if t and not self.graph.is_constant(t)]
        outputs = [t for t in node.outputs if t]
        self.real |= self._run(node, {t: self._real(t) for t in reads}, outputs)

    def move(self, kernel: Kernel, numbers: Move) -> None:
        """Run a node that moves values, on q - z as floats, which hold them exactly."""
        node = self.graph.by_name[kernel.node]
        raw = kernel.form is Form.RAW
        values = {}
        for operand in kernel.operands:
            if operand.form is Form.RAW:
                values[operand.tensor] = self.raw[operand.tensor].astype(np.float32)
                continue
            zero = self.plan.quantizers[operand.tensor].zero_point
            values[operand.tensor] = self.stored(operand.tensor).astype(np.float32) - np.float32(zero)
        found = self._run(node, values, [node.outputs[0]])[node.outputs[0]].astype(np.int64)
        zero = 0 if raw else self.plan.quantizers[kernel.output].zero_point
        found = found + zero
        if numbers.low is not None or numbers.high is not None:
            found = np.clip(found, numbers.low, numbers.high)
        if raw:
            self.raw[kernel.output] = found
        else:
            self.integers[kernel.output] = found.astype(self.plan.quantizers[kernel.output].dtype.numpy)

    def _run(self, node: Node, feeds: Mapping[str, Array], outputs: list[str]) -> dict[str, Array]:
        if node.name not in self._sessions:
            part = part_of(self.graph, list(feeds), outputs)
            self._sessions[node.name] = Session(part.model, where=f"host, {node.name}")
        return self._sessions[node.name].run(feeds, outputs)


class VtaRunner:
    """Execute the files of a VTA form, one sample at a time."""

    def __init__(self, path: Path, graph: Graph, topology: Topology, plan: QuantPlan) -> None:
        """`path`: the JSON file, in the folder of the other files."""
        told, folder = json.loads(path.read_text()), path.parent
        stream = (folder / told["stream"]).read_bytes()
        constants = (folder / told["constants"]["file"]).read_bytes()
        self.graph, self.topology, self.plan = graph, topology, plan
        self.layers: dict[str, Mapping[str, Any]] = {layer["node"]: layer for layer in told["layers"]}
        self._absorbed = {node for layer in told["layers"] for node in layer["absorbed"]}
        self._programs: dict[str, list[Instruction]] = {}
        for layer in told["layers"]:
            first = layer["first"] * BYTES
            self._programs[layer["node"]] = list(decoded(stream[first : first + layer["instructions"] * BYTES]))
        memory = np.zeros(told["memory_bytes"], np.uint8)
        start = told["constants"]["address"]
        memory[start : start + len(constants)] = np.frombuffer(constants, np.uint8)
        uses_mul = any(i.op is Op.ALU and i["alu_opcode"] == Alu.MUL for p in self._programs.values() for i in p)
        self.machine = Machine(memory, multiplies=uses_mul)
        self._sessions: dict[str, Session] = {}

    @property
    def tensors(self) -> Collection[str]:
        """Return the tensors whose integers `run` gives."""
        raw = [f"{layer['output']['tensor']} (accumulator)" for layer in self.layers.values() if layer["raw"]]
        return [*(t for t in self.plan.quantizers if t not in self.plan.constants), *raw]

    def takes(self, inputs: Feeds) -> bool:
        """Return whether samples have the shape that the programs are written for."""
        return all(np.shape(v)[1:] == self.graph.shapes[n][1:] for n, v in inputs.items() if n in self.graph.shapes)

    def run(self, inputs: Feeds) -> dict[str, Array]:
        """Return the stored integers of every tensor, and accumulators that leave whole."""
        count = max(len(v) for v in inputs.values())
        parts = [self._one({n: v[s : s + 1] for n, v in inputs.items()}) for s in range(count)]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def latency(self, inputs: Feeds) -> float | None:
        """Return None: the executor is no core."""
        return None

    def close(self) -> None:
        """Let the sessions of the host go."""
        self._sessions.clear()

    def _one(self, inputs: Feeds) -> dict[str, Array]:
        host = Host(self.graph, self.topology, self.plan, self._sessions)
        host.begin(inputs)
        for node in self.graph.nodes:
            kernel = self.topology.kernel_of.get(node.name)
            if node.name in self.layers:
                self._layer(self.layers[node.name], host)
            elif node.name in self._absorbed or node.name in self.topology.fused_into:
                continue
            elif kernel is None:
                host.float_node(node)
            else:
                numbers = self.plan.kernels[node.name]
                if not isinstance(numbers, Move):
                    raise HardwareError(f"{node.name} has no program", stage="evaluate", where="vta")
                host.move(kernel, numbers)
        found = {f"{t} (accumulator)": v for t, v in host.raw.items()}
        made = {*host.real, *host.raw, *host.integers}
        found |= {t: host.stored(t) for t in self.plan.quantizers if t in made and t not in self.plan.constants}
        return found

    def _layer(self, layer: Mapping[str, Any], host: Host) -> None:
        for operand in layer["operands"]:
            values = packed(host.stored(operand["tensor"]), operand)
            first = operand["address"] * BLOCK
            self.machine.memory[first : first + values.size] = values.view(np.uint8).reshape(-1)
        self.machine.run(self._programs[layer["node"]])
        made = layer["output"]
        size = made["blocks"] * made["height"] * made["width"] * BLOCK
        first, planes = made["address"] * BLOCK, PLANES if layer["raw"] else 1
        data = self.machine.memory[first : first + planes * size].reshape(planes, -1)
        shape = self.graph.shapes[made["tensor"]]
        if not layer["raw"]:
            host.integers[made["tensor"]] = unpacked(data[0].view(np.int8).copy(), made).reshape(shape)
            return
        whole = data[0].astype(np.int64)
        for plane in range(1, PLANES):
            whole += data[plane].astype(np.int64) << (8 * plane)
        signed = whole.astype(np.uint32).view(np.int32).astype(np.int64)
        host.raw[made["tensor"]] = unpacked(signed, made).reshape(shape)


def packed(values: Array, port: Mapping[str, Any]) -> NDArray[np.int8]:
    """Return the integers of one sample as vectors of 16 channels, `[blocks, height, width, 16]`.

    `port` describes their layout.
    """
    channels, blocks = port["channels"], port["blocks"]
    flat = values.reshape(-1, channels).T if port["rows"] else values.reshape(channels, -1)
    whole = np.zeros((blocks * BLOCK, port["height"] * port["width"]), np.int8)
    whole[:channels] = flat
    turned = whole.reshape(blocks, BLOCK, port["height"], port["width"]).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(turned)


def unpacked(data: Array, port: Mapping[str, Any]) -> Array:
    """Return vectors of 16 channels as integers with channels first, or last where they are rows."""
    blocks, height, width = port["blocks"], port["height"], port["width"]
    whole = data.reshape(blocks, height, width, BLOCK).transpose(0, 3, 1, 2).reshape(blocks * BLOCK, -1)
    found = whole[: port["channels"]]
    return found.T if port["rows"] else found
