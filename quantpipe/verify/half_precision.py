"""Half precision in a model: its ends, and nodes in float inside. Both have Casts around them, and nothing else."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import onnx
from onnx import TensorProto


def without_end_casts(graph: onnx.GraphProto) -> onnx.GraphProto:
    """Return the graph as if its float16 ports were float32.

    Left out are Casts of a float16 input to float32, and of float32 to a float16 output, where nothing else reads that
    port. The value beyond the Cast takes the name of the port, as in a model of float32 alone. All else stays, and is
    checked with the rest.
    """
    narrow = [{p.name for p in ports if p.type.tensor_type.elem_type == TensorProto.FLOAT16}
              for ports in (graph.input, graph.output)]  # fmt: skip
    entering, leaving = narrow
    readers = [name for node in graph.node for name in node.input]
    renamed: dict[str, str] = {}
    left_out: set[int] = set()
    for number, node in enumerate(graph.node):
        if node.op_type != "Cast" or node.domain:
            continue
        to = next((a.i for a in node.attribute if a.name == "to"), 0)
        source, made = node.input[0], node.output[0]
        if source in entering and to == TensorProto.FLOAT and readers.count(source) == 1:
            renamed[made] = source
        elif made in leaving and to == TensorProto.FLOAT16 and made not in readers:
            renamed[source] = made
        else:
            continue
        left_out.add(number)
    if not left_out:
        return graph
    found = onnx.GraphProto()
    found.CopyFrom(graph)
    nodes = [node for number, node in enumerate(found.node) if number not in left_out]
    for node in nodes:
        node.input[:] = [renamed.get(n, n) for n in node.input]
        node.output[:] = [renamed.get(n, n) for n in node.output]
    del found.node[:]
    found.node.extend(nodes)
    return found


def casts_of_floats(nodes: Sequence[onnx.NodeProto], floats: Collection[str]) -> set[str]:
    """Return the names of the Casts that belong to nodes in float which compute in float16.

    They are those to float16 that such nodes alone read, and those to float32 of what such a node makes.
    """
    makers = {made: node.name for node in nodes for made in node.output}
    readers: dict[str, list[str]] = {}
    for node in nodes:
        for read in node.input:
            readers.setdefault(read, []).append(node.name)
    found = set()
    for node in nodes:
        if node.op_type != "Cast" or node.domain:
            continue
        to = next((a.i for a in node.attribute if a.name == "to"), 0)
        reading = readers.get(node.output[0], [])
        if (to == TensorProto.FLOAT16 and reading and all(name in floats for name in reading)) or (
            to == TensorProto.FLOAT and makers.get(node.input[0]) in floats
        ):
            found.add(node.name)
    return found
