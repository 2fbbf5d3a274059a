"""Which of the nodes left in float compute in float16, on devices that declare it (`float_types`).

Files of this feature, all `half.py`: `intake` (files in half precision as float32), `annotate` (nodes that compute in
float16), `lowering` (writes their Casts).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from weakref import WeakKeyDictionary

import numpy as np
import onnx_ir as ir

from quantpipe.errors import ConfigError
from quantpipe.graph.half_ports import half_ports
from quantpipe.graph.normalize import largest_of
from quantpipe.graph.view import Graph, Node
from quantpipe.types import FloatType, HardwareSpec, Profile, QuantPlan, TableNumbers, Topology

GREATEST = float(np.finfo(np.float16).max)
MARGIN = 4.0
"""What other samples may hold beyond the one that tensors are known by: above a fourth of float16's largest number a
node stays in float32."""

_ABLE: WeakKeyDictionary[ir.Model, frozenset[str]] = WeakKeyDictionary()
"""Model -> the nodes that could compute in float16; it is asked for every topology, and looks at all constants."""


def half_nodes(
    graph: Graph, spec: HardwareSpec, float_type: str, left: Collection[str], *, held: Collection[str]
) -> frozenset[str]:
    """Return the nodes left in float that compute in float16.

    They are those whose op takes it by ONNX's own definition and whose tensors it holds: constants as they are, all
    others by a sample, with a margin. Nodes with graphs of their own, and those that make floats of something
    else (Cast, for one), stay in float32.

    `graph`: the clean model, measured. `float_type`: `annotate.float_type`. `left`: the nodes left in float. `held`:
    those of them that hold integers inside, which stay in float32. Raises ConfigError where the device does not compute
    in that type.
    """
    if float_type not in spec.float_types:
        raise ConfigError(
            f"is {float_type}, and {spec.name} computes float nodes in {', '.join(spec.float_types)}; legal "
            f"is {FloatType.FLOAT32}, or a hardware file whose float_types lists {float_type}",
            where="annotate.float_type",
        )
    if float_type != FloatType.FLOAT16:
        return frozenset()
    if graph.model not in _ABLE:
        _ABLE[graph.model] = frozenset(node.name for node in graph.nodes if _is_half(node, graph))
    return _ABLE[graph.model] & frozenset(left) - frozenset(held)


def half_tensors(graph: Graph, topology: Topology) -> tuple[str, ...]:
    """Return the tensors that nodes in float16 make, whose ranges say whether it holds them."""
    return tuple(t for n in graph.nodes if n.name in topology.half_nodes for t in n.outputs if t)


LEAST = float(np.finfo(np.float16).smallest_normal)


def below_half(plan: QuantPlan) -> str | None:
    """Return a sentence where scales that are stored as float16 are below its normal numbers; None without such.

    Smaller numbers have fewer digits, and devices that flush them to zero lose the whole row.
    """
    found = {
        name: int(np.count_nonzero((table.scale > 0) & (table.scale < LEAST)))
        for name, table in plan.tables.items()
        if table.numbers is TableNumbers.FLOAT16
    }
    rows = {name: count for name, count in found.items() if count}
    if not rows:
        return None
    worst = max(rows, key=lambda name: rows[name])
    return (
        f"{rows[worst]} of {len(plan.tables[worst].scale)} scales of the table {worst} are below {LEAST:.2g}, the "
        f"smallest normal float16 number ({len(rows)} tables). They have fewer digits, or are zero on a device without "
        "subnormal numbers; legal is tables.numbers: float32 in the hardware file"
    )


def beyond_half(graph: Graph, topology: Topology, profile: Profile) -> str | None:
    """Return a sentence where calibration saw values that float16 does not hold; None where it saw none.

    The result itself does not show it: onnxruntime keeps float32 between most of such nodes.
    """
    reach = _reaching(half_tensors(graph, topology), profile)
    beyond = [t for t, greatest in reach.items() if greatest > GREATEST]
    if not beyond:
        return _beyond_in_file(graph, profile)
    worst = max(beyond, key=lambda t: reach[t])
    return (
        f"{len(beyond)} tensors of float16 nodes exceed {GREATEST:g}, the largest float16 value, on the calibration "
        f"samples ({worst} reaches {reach[worst]:.3g}). They become infinite on a device that computes in float16. "
        "onnxruntime keeps float32 between most of these nodes, so the figures do not show it; legal is "
        "annotate.float_type=float32"
    )


def _beyond_in_file(graph: Graph, profile: Profile) -> str | None:
    """Return the same sentence about tensors that the model's file holds in float16.

    Tensors without statistics count by the one sample that the model was measured on.
    """
    reach = {t: graph.largest[t] for n in graph.nodes for t in n.outputs if t in graph.halves and t in graph.largest}
    reach |= {t: max(found, reach.get(t, 0.0)) for t, found in _reaching(graph.halves, profile).items()}
    beyond = [t for t, greatest in reach.items() if greatest > GREATEST]
    if not beyond:
        return None
    first = next((t for n in graph.nodes for t in n.outputs if t in beyond), beyond[0])
    return (
        f"{len(beyond)} float16 tensors of the model's file exceed {GREATEST:g}, the largest float16 value, on the "
        f"calibration samples. The first of them is {first}, with {reach[first]:.3g} in float32. A runtime that "
        "computes in float16 has infinities there. onnxruntime on the CPU computes chains of float16 nodes in float32, "
        "so neither the float model nor these figures show it; legal is the float32 model, or smaller constants before "
        "that tensor"
    )


def _reaching(tensors: Iterable[str], profile: Profile) -> dict[str, float]:
    """Return the maximum absolute calibration value of each tensor that has statistics."""
    found = ((t, profile.tensors[t]) for t in tensors if t in profile.tensors)
    return {t: max(-stats.minimum, stats.maximum) for t, stats in found}


def _is_half(node: Node, graph: Graph) -> bool:
    ports = half_ports(node, graph.opset)
    real = [t for t in node.outputs if t]
    if not ports or any(graph.dtypes.get(t) != "float32" for t in real):
        return False
    read = [node.inputs[p] for p in ports]
    return all(graph.dtypes.get(t) == "float32" and _fits(t, graph) for t in dict.fromkeys([*read, *real]))


def _fits(tensor: str, graph: Graph) -> bool:
    if graph.is_constant(tensor):
        return largest_of(graph.constant(tensor)) <= GREATEST
    return graph.largest.get(tensor, np.inf) <= GREATEST / MARGIN
