"""The C form: one C99 file with all weights and integer kernels of a model, without allocation.

The file computes the plan in integers; where a device multiplies by floats, it does so in float32. It takes the
integers of the inputs and gives the integers of the outputs. With `QUANTPIPE_FLOAT_API` it has functions that convert
float inputs to integers and integer outputs to floats. With `QUANTPIPE_MAIN` it has a program that reads and writes
integers.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from quantpipe.graph.view import Graph
from quantpipe.lowering import fragments as fr
from quantpipe.oprules import Family
from quantpipe.realize.c import elementwise, moves, sums
from quantpipe.realize.c import row_programs as rows
from quantpipe.realize.c.c_buffers import CWalk, Write
from quantpipe.realize.c.memory import place
from quantpipe.realize.c.program import float_api, howto, main
from quantpipe.realize.c.runner import CRunner, compiler, missing_compiler
from quantpipe.realize.c.source import comment
from quantpipe.realize.protocol import Runner, WrittenForm
from quantpipe.realize.provenance import Provenance
from quantpipe.types import QuantPlan, Topology

OPS: Mapping[str, Write] = {
    **dict.fromkeys(fr.ops_of(Family.ACCUMULATE), sums.accumulate),
    **dict.fromkeys(fr.TRANSPOSED, sums.transposed),
    **dict.fromkeys(fr.ops_of(Family.LOOKUP), elementwise.lookup),
    **dict.fromkeys(fr.ops_of(Family.SUM), elementwise.add),
    **dict.fromkeys(fr.ops_of(Family.PRODUCT), elementwise.multiply),
    **dict.fromkeys(fr.ops_of(Family.AVERAGE), elementwise.average),
    **dict.fromkeys(fr.ops_of(Family.CLAMP), elementwise.clamp),
    **dict.fromkeys(fr.ops_of(Family.MOVE), moves.move),
    "MaxPool": moves.maximum_of_window,
    **dict.fromkeys(("GlobalMaxPool", "ReduceMax", "ReduceMin"), moves.extreme_along),
    **dict.fromkeys(("Max", "Min"), moves.extreme_of_two),
    "TopK": moves.top_along,
}
"""Op -> how it is written in C."""


class CForm:
    """Write a plan as a C file, and run it by the compiler of this machine."""

    name = "c"
    file = "model.c"

    def unavailable(self) -> str | None:
        """Return why no C file can be executed here; None where there is a compiler."""
        return None if compiler() is not None else missing_compiler()

    def write(self, graph: Graph, topology: Topology, plan: QuantPlan, made: Provenance) -> WrittenForm:
        """Write the file.

        Raises HardwareError that names the nodes in float, and those that C cannot hold.
        """
        walk = walked(graph, topology, plan)
        text = _text(walk, made.entries(graph, plan, self.name))
        sizes = _blocks(walk)
        facts = {
            "constant_bytes": walk.source.bytes,
            "memory_bytes": sum(width * count for width, count in sizes.items()),
            "arithmetic": "float32 in the narrowing" if walk.source.real else "integers only",
        }
        return WrittenForm({self.file: text.encode()}, facts, howto(self.file, walk, made.preprocessing))

    def open(self, folder: Path, graph: Graph, topology: Topology, plan: QuantPlan) -> Runner:
        """Return a runner of the file in a folder, compiled again."""
        walk = walked(graph, topology, plan)
        _blocks(walk)
        return CRunner((folder / self.file).read_text(), walk)


def walked(graph: Graph, topology: Topology, plan: QuantPlan) -> CWalk:
    """Return every kernel of a plan written in C."""
    walk = CWalk(graph, topology, plan)
    walk.write(OPS, rows.program)
    return walk


def _blocks(walk: CWalk) -> dict[int, int]:
    return place(walk.source.steps, walk.outputs)


def _text(walk: CWalk, entries: Mapping[str, str]) -> str:
    source, sizes = walk.source, _blocks(walk)
    told = "\n".join(f" * {comment(f'{key}: {value}')}" for key, value in entries.items())
    head = f"/* Written by quantpipe. C99; link with -lm.\n{told}\n */\n" if source.real else ""
    head = head or f"/* Written by quantpipe. C99, integers only.\n{told}\n */\n"
    parts = [head, "#include <stdint.h>\n#include <string.h>\n"]
    if source.real:
        parts.append("#include <math.h>\n")
    parts.append(_trace_macro())
    parts += [*source.helpers, *source.constants, *source.functions]
    for width, count in sorted(sizes.items()):
        parts.append(f"static int{8 * width}_t block{8 * width}[{count}];\n")
    parts += [_run(walk), _on_demand(walk)]
    return "\n".join(parts)


def _trace_macro() -> str:
    return (
        "#ifdef QUANTPIPE_TRACE\n"
        "/* Called with the integers of every tensor, in the order of the list at the end of this file. */\n"
        "void quantpipe_trace(int tensor, const void *data, unsigned long bytes);\n"
        "#define SHOW(tensor, data, bytes) quantpipe_trace(tensor, data, bytes)\n"
        "#else\n#define SHOW(tensor, data, bytes)\n#endif\n"
    )


def signature(walk: CWalk) -> str:
    """Return the head of the function that runs the model."""
    inputs = [f"const {b.ctype} *in{n}" for n, b in enumerate(walk.inputs)]
    outputs = [f"{b.ctype} *out{n}" for n, b in enumerate(walk.outputs)]
    return f"void quantpipe_run({', '.join([*inputs, *outputs])})"


def _run(walk: CWalk) -> str:
    """Return the function that runs the model: pointers into the blocks, one call per kernel, a copy of each output."""
    made = dict.fromkeys(b.root for step in walk.source.steps for b in step.writes if not b.external)
    lines = [f"{signature(walk)};\n", signature(walk), "{"]
    for buffer in made:
        cast = "" if buffer.dtype.signed else f"({buffer.ctype} *)"
        lines.append(f"    {buffer.ctype} *const {buffer.name} = {cast}(block{8 * buffer.width} + {buffer.offset});")
    numbers = {id(buffer): n for n, (_, buffer) in enumerate(walk.traced)}
    for step in walk.source.steps:
        if step.code:
            lines.append(f"    {step.code}")
        if step.shown is not None and id(step.shown) in numbers:
            size = step.shown.count * step.shown.width
            lines.append(f"    SHOW({numbers[id(step.shown)]}, {step.shown.name}, {size});")
    for n, buffer in enumerate(walk.outputs):
        lines.append(f"    memcpy(out{n}, {buffer.name}, {buffer.count * buffer.width});")
    return "\n".join([*lines, "}\n"])


def _on_demand(walk: CWalk) -> str:
    """Return the parts of the file that are compiled on demand: float conversions, and a program."""
    listed = "\n".join(
        f" *   {n}: {comment(name)}, {b.ctype} {list(b.shape)}" for n, (name, b) in enumerate(walk.traced)
    )
    return float_api(walk) + main(walk) + f"\n/* Tensors by number:\n{listed}\n */\n"
