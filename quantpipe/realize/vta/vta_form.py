"""The VTA form: an instruction stream per layer, in JSON and in the published binary layout, and what it loads."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from quantpipe.errors import HardwareError
from quantpipe.graph.view import Graph
from quantpipe.realize.protocol import Runner, WrittenForm
from quantpipe.realize.provenance import Provenance
from quantpipe.realize.vta.isa import BLOCK, DEPTH, ELEMENT_BYTES, Instruction, Memory, Op
from quantpipe.realize.vta.run_vta import VtaRunner
from quantpipe.realize.vta.schedule import PLANES, Addresses, schedule
from quantpipe.realize.vta.vta_layers import FORM, Lowering, Map, VtaLayer
from quantpipe.realize.vta.vta_program import ALIGN, Image
from quantpipe.types import QuantPlan, Topology

FILE, STREAM, CONSTANTS = "model.vta.json", "model.vta.bin", "model.vta.dat"


class VtaForm:
    """Write a plan as programs of a VTA core, and run them by an executor of exactly these instructions."""

    name = FORM
    file = FILE

    def unavailable(self) -> str | None:
        """Return None: the executor is NumPy."""
        return None

    def write(self, graph: Graph, topology: Topology, plan: QuantPlan, made: Provenance) -> WrittenForm:
        """Write the files.

        Raises HardwareError for kernels without VTA instructions, and for layers that do not fit its buffers.
        """
        if graph.fixed_batch not in (None, 1):
            raise HardwareError(
                f"its batch is {graph.fixed_batch}; VTA's shipped core has a batch of 1: legal is a model whose batch "
                "is free, or 1",
                stage="realize",
                where=FORM,
            )
        layers, host = Lowering(graph, topology, plan).layers()
        places, size = _allocated(list(layers.values()))
        image, stream, told, counts = Image(size), bytearray(), [], Counter[str]()
        for layer in layers.values():
            at = Addresses(tuple(places[_key(t.tensor, t.source)] for t in layer.terms), places[layer.output, "result"])
            program = schedule(layer, at, image)
            told.append(_told(layer, at, len(stream) // 16, program))
            stream += b"".join(i.encoded for i in program)
            counts.update(_counted(program))
        left = {**host, **{n: str(r) for n, r in topology.float_nodes.items()}}
        content = {
            "provenance": made.entries(graph, plan, FORM),
            "block": BLOCK,
            "buffers": {m.name: {"elements": DEPTH[m], "element_bytes": ELEMENT_BYTES[m]} for m in Memory},
            "stream": STREAM,
            "constants": {"file": CONSTANTS, "address": image.base},
            "memory_bytes": image.size,
            "host": left,
            "layers": told,
        }
        text = json.dumps(content, separators=(",", ":")) + "\n"
        files = {FILE: text.encode(), STREAM: bytes(stream), CONSTANTS: image.content}
        return WrittenForm(files, {"layers": len(layers), "host_nodes": len(left), **counts}, HOWTO)

    def open(self, folder: Path, graph: Graph, topology: Topology, plan: QuantPlan) -> Runner:
        """Return a runner of the files in a folder."""
        return VtaRunner(folder / FILE, graph, topology, plan)


def _key(tensor: str, source: Map) -> tuple[str, str]:
    return tensor, f"{source}"


def _allocated(layers: Sequence[VtaLayer]) -> tuple[dict[tuple[str, str], int], int]:
    """Return (tensor, layout) -> its address in vectors, and the bytes of all."""
    found: dict[tuple[str, str], int] = {}
    size = 0

    def place(key: tuple[str, str], vectors: int) -> None:
        nonlocal size
        if key not in found:
            found[key] = size // BLOCK
            size += vectors * BLOCK + -(vectors * BLOCK) % ALIGN

    for layer in layers:
        for term in layer.terms:
            place(_key(term.tensor, term.source), term.source.blocks * term.source.height * term.source.width)
        vectors = layer.result.blocks * layer.result.height * layer.result.width
        place((layer.output, "result"), vectors * (PLANES if _is_raw(layer) else 1))
    return found, size


def _is_raw(layer: VtaLayer) -> bool:
    return layer.narrowing is None and not layer.moves


def _told(layer: VtaLayer, at: Addresses, first: int, program: Sequence[Instruction]) -> dict[str, Any]:
    operands = {(t.tensor, a): _port(t.tensor, t.source, a) for t, a in zip(layer.terms, at.terms, strict=True)}
    return {
        "node": layer.node,
        "absorbed": list(layer.absorbed),
        "operands": list(operands.values()),
        "output": _port(layer.output, layer.result, at.result),
        "raw": _is_raw(layer),
        "first": first,
        "instructions": len(program),
        "program": [[i.op.name, {k: v for k, v in i.fields.items() if v}] for i in program],
    }


def _port(tensor: str, size: Map, address: int) -> dict[str, Any]:
    sizes = {"channels": size.channels, "blocks": size.blocks, "height": size.height, "width": size.width}
    return {"tensor": tensor, "address": address, **sizes, "rows": size.rows}


def _counted(program: Sequence[Instruction]) -> Mapping[str, int]:
    """Return the cost of a program: instructions, steps of the matrix unit and the ALU (one a cycle), bytes moved."""
    found = Counter({"instructions": len(program)})
    for one in program:
        if one.op in (Op.GEMM, Op.ALU):
            steps = (one["uop_end"] - one["uop_begin"]) * one["iter_out"] * one["iter_in"]
            found["gemm_steps" if one.op is Op.GEMM else "alu_steps"] += steps
        elif one.op in (Op.LOAD, Op.STORE):
            moved = one["y_size"] * one["x_size"] * ELEMENT_BYTES[Memory(one["memory"])]
            found["loaded_bytes" if one.op is Op.LOAD else "stored_bytes"] += moved
    return found


HOWTO = f"""`{STREAM}` has the instructions of all layers, 128 bits each, little endian, in the layout of VTA's headers
for the shipped configuration (1 x 16 x 16, int8 and int32); `{FILE}` the same in words, with where each layer's program
begins, where its tensors lie (vectors of 16 channels, rows, columns), and what the host runs. Put `{CONSTANTS}` into
memory at `constants.address`, the packed operands of a layer at their addresses (in elements of 16 bytes, from the
beginning of that memory), run its instructions, and read the result at its address. Accumulators that leave whole
(`raw`) are four planes of bytes, the lowest first.

```python
import json, numpy as np
model = json.load(open("{FILE}"))
memory = np.zeros(model["memory_bytes"], np.uint8)
constants = np.fromfile("{CONSTANTS}", np.uint8)
memory[model["constants"]["address"] :][: constants.size] = constants
instructions = np.fromfile("{STREAM}", "<u8").reshape(-1, 2)  # opcode: instructions[:, 0] & 7
```
"""
