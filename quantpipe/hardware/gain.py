"""Find the numbers of bits from which a device gains anything.

One rule holds for all hardware files. Fewer bits are worth a choice if the tensor is then stored in fewer bytes, or
read by another kernel (both: a narrower type, `storage`). They are also worth it if the tensor is multiplied at a
higher rate (`cost.macs_per_cycle`), or if its sums could leave the accumulator. Of several numbers of bits that the
device treats alike, the largest is kept: the others lose precision for nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from quantpipe.graph.view import Graph
from quantpipe.hardware.storage import narrowest, storage_types, weight_only_types, widest_accumulator
from quantpipe.oprules import rule_of
from quantpipe.oprules.work import multiply_accumulates
from quantpipe.types import HardwareSpec, Kernel, Topology

COUNTS_BITS = ("bits", "weight_bytes", "bops", "peak_activation_bytes")
"""Costs that count bits, whatever a device makes of them: who asks for one wants every number of bits."""


class Gains:
    """Tell what fewer bits bring on one device, tensor by tensor of one topology."""

    def __init__(self, topology: Topology, graph: Graph, spec: HardwareSpec) -> None:
        self._spec, self._types = spec, storage_types(topology)
        sites = (w for w in topology.weights if w.block is not None and w.block.are_real)
        self._real = {w.tensor: weight_only_types(spec, graph.by_name[w.nodes[0]].op) for w in sites}
        multiplied = [k for k in topology.kernels if multiply_accumulates(graph.by_name[k.node], graph)]
        self._multiplied = {t for k in multiplied for t in _operands(k)}
        self._tight = {t for k in multiplied if _may_overflow(k, topology, graph, spec) for t in _operands(k)}

    def options(self, tensors: Iterable[str], most: int, least: int) -> tuple[int, ...]:
        """Return the bits from `most` to `least` that are worth a choice; `most` always is.

        `tensors`: those that share the choice.
        """
        names = tuple(tensors)
        if not self._tight.isdisjoint(names):
            return tuple(range(most, least - 1, -1))
        kept = [most]
        for bits in range(most - 1, least - 1, -1):
            now, before = self._worth(names, bits), self._worth(names, kept[-1])
            if any(a < b for a, b in zip(now, before, strict=True)):
                kept.append(bits)
        return tuple(kept)

    def _worth(self, names: tuple[str, ...], bits: int) -> list[float]:
        """Return the device's cost by each measure, less is better."""
        stored = [float(narrowest(self._real.get(t) or self._types.options(t), bits).bits) for t in names]
        return stored + [1 / rate(self._spec, bits) for t in names if t in self._multiplied]


def own_cost(spec: HardwareSpec) -> str:
    """Return the cost measure of `objective.cost=auto`.

    It is cycles where the file has rates of integer multiplication, else the bytes in which weights are stored.
    """
    return "cycles" if any(name.startswith("int") for name in spec.cost.macs_per_cycle) else "stored_bytes"


def rate(spec: HardwareSpec, width: int) -> float:
    """Return the multiply-accumulates per cycle of operands of a width.

    One without a rate of its own has the next wider one's.
    """
    rates = sorted((int(k[3:]), v) for k, v in spec.cost.macs_per_cycle.items() if k.startswith("int"))
    for bits, found in rates:
        if width <= bits:
            return found
    return real_rate(spec, 32)


def real_rate(spec: HardwareSpec, width: int) -> float:
    """Return the multiply-accumulates per cycle of floats of 16 or 32 bits; 16 bits default to the 32-bit rate."""
    rates = spec.cost.macs_per_cycle
    return rates.get(f"float{width}", rates["float32"])


def _operands(kernel: Kernel) -> list[str]:
    return [*(o.tensor for o in kernel.operands), *([kernel.weight] if kernel.weight is not None else [])]


def _may_overflow(kernel: Kernel, topology: Topology, graph: Graph, spec: HardwareSpec) -> bool:
    """Return whether some weights and inputs of the highest bits make a sum that the accumulator does not hold."""
    rule = rule_of(graph.by_name[kernel.node])
    if kernel.weight is None or rule is None:
        return False
    site, group = topology.weight_of[kernel.weight], topology.group_of.get(kernel.operands[0].tensor)
    if group is None:
        return False
    shape = graph.shapes[kernel.weight]
    terms = prod(shape) // max(shape[site.channel_axis], 1)
    least = 1 << (group.max_bits - (1 if spec.activations.symmetric else 0))
    return terms * least * (1 << (site.max_bits - 1)) > widest_accumulator(topology, spec, kernel.node).qmax
