"""Say in words what a run decides about a model and a hardware file.

The user should know which settings are overruled, and which parts of the model are integers already. The input is the
cleaned graph and the hardware, the result sentences; the run warns about them, check and the report list them.
"""

from __future__ import annotations

from collections.abc import Sequence

from quantpipe.graph.op_tables import DYNAMIC, DYNAMIC_BY_THREAD
from quantpipe.graph.view import Graph, Node
from quantpipe.hardware.idle import overruled
from quantpipe.oprules.float_ops import FLOAT_OPS, QUANTIZED
from quantpipe.types import HardwareSpec

NAMED = 6
"""Nodes that a sentence names."""


def decisions(graph: Graph, spec: HardwareSpec) -> tuple[str, ...]:
    """Return one sentence each, in a stable order."""
    return (*overruled(spec), *_quantized_already(graph))


def _quantized_already(graph: Graph) -> list[str]:
    """Return the model's own integer ops: they are copied as they are, and their operands are not quantized again."""
    found = [node for node in graph.nodes if _is_integer(node)]
    if not found:
        return []
    named = ", ".join(f"{n.name} ({n.op})" for n in found[:NAMED])
    more = f" and {len(found) - NAMED} more" if len(found) > NAMED else ""
    return [
        f"the model is already quantized in part: {named}{more}. These nodes stay as they are, and all others are "
        f"quantized around them. {_of_samples(found)}Give the float model that it was made from"
    ]


def _of_samples(found: Sequence[Node]) -> str:
    """Return what ops that quantize at run time mean for results, as a sentence; empty without such ops."""
    own = [n for n in found if n.op in DYNAMIC]
    if not own:
        return ""
    threads = " and the number of threads" if any(n.op in DYNAMIC_BY_THREAD for n in own) else ""
    return f"Results of {own[0].name} depend on the other samples of a batch{threads}, as in the given file. "


def _is_integer(node: Node) -> bool:
    return FLOAT_OPS.get(node.op) == QUANTIZED
