"""Determine whether integers are slower than the float model.

The latency measured here decides where the device is this machine's onnxruntime (`runs_here` of the hardware file).
Otherwise the cycles of the device's cost model decide.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from quantpipe.graph.view import Graph
from quantpipe.hardware.cost import cycles
from quantpipe.hardware.gain import own_cost
from quantpipe.hardware.legality import has_float
from quantpipe.oprules import OP_RULES, Family
from quantpipe.realize.kernels import WithoutKernel
from quantpipe.types import HardwareSpec, LatencyPart, SpeedPart, Topology

SLOWER = 1.05
"""Ratio to the float model from which on it is said: less is within what two measurements differ by."""

LEAST_MS = 0.1
"""Difference from which on it is said: less is within what handing work to threads takes on a busy machine."""

FLOAT_ONLY = Topology({}, {}, {}, (), (), ())
"""Nothing runs in integers."""


@dataclass(frozen=True)
class Speed:
    """Hold the speed of a realized model, compared with the float one.

    `by`: latency, measured here, or cycles, by the cost model. `ratio`: Realized over float; above 1 is slower.
    `slower`: Whether that is certain enough for a report.
    """

    by: Literal["latency", "cycles"]
    ratio: float
    slower: bool

    def as_dict(self) -> SpeedPart:
        """Return it as the report has it."""
        return {"by": self.by, "ratio": self.ratio, "slower": self.slower}


OWN_CELLS = (
    "model.recurrent=cells model.bodies=keep, which leave recurrent layers, loops and branches to onnxruntime's own "
    "kernels, in float"
)


def speed_of(
    graph: Graph, topology: Topology, spec: HardwareSpec, bits: Mapping[str, int], *, latency: LatencyPart
) -> Speed | None:
    """Return the speed of a realized model, compared with the float one.

    A measured model is slower if three conditions hold. Its median ratio exceeds 1, three quarters of the pairs of runs
    agree, and the difference is more than a call of the runtime takes. It returns None if neither a measurement nor
    a rate of integers exists.
    """
    if spec.runs_here and latency.get("ratio"):
        ratio = latency["ratio"]
        certain = ratio > SLOWER and latency.get("ratio_low", ratio) > 1.0
        return Speed("latency", ratio, certain and latency["realized_ms"] - latency["float_ms"] > LEAST_MS)
    if own_cost(spec) != "cycles":
        return None
    alone = cycles(FLOAT_ONLY, graph, spec, {})
    if not alone:
        return None
    ratio = cycles(topology, graph, spec, bits) / alone
    return Speed("cycles", ratio, ratio > SLOWER)


def slower_warning(
    speed: Speed | None,
    topology: Topology,
    spec: HardwareSpec,
    *,
    latency: LatencyPart,
    lacking: Sequence[WithoutKernel],
    anew: bool = False,
) -> str | None:
    """Return one sentence with the ratio and what could help; None where integers are not slower.

    `lacking`: the kernels that onnxruntime does not run as one. `anew`: whether recurrent layers, which it runs as one,
    were written as steps or loops.
    """
    if speed is None or not speed.slower:
        return None
    if speed.by == "latency":
        found = (
            f"the realized model takes {speed.ratio:.2f} times as long as the float model on this machine "
            f"({latency['realized_ms']:.4g} ms against {latency['float_ms']:.4g} ms at batch 1)"
        )
    else:
        found = f"the realized model takes {speed.ratio:.2f} times the cycles of the float model on {spec.name}"
    remedies = [OWN_CELLS] if anew and speed.by == "latency" else _remedies(speed, topology, spec, lacking)
    return f"{found}; what could help: {', or '.join(remedies)}"


def _remedies(speed: Speed, topology: Topology, spec: HardwareSpec, lacking: Sequence[WithoutKernel]) -> list[str]:
    """Return overrides, beginning with those that address the cause."""
    found = []
    products = sorted({k.op for k in topology.kernels if OP_RULES[k.op].family is Family.ACCUMULATE})
    others = sorted({k.op for k in topology.kernels} - set(products))
    unfused = sorted({e.op for e in lacking if e.op in others and has_float(spec, e.op)})
    if speed.by == "latency" and unfused:
        found.append(f"annotate.float_ops=[{','.join(unfused)}], which no kernel of onnxruntime runs in integers")
    if any(has_float(spec, op) for op in products):
        cost = " objective.cost=latency" if speed.by == "latency" else ""
        found.append(f"annotate.choices=[float] search=greedy{cost}, which keeps nodes in float if they are faster")
    if products and others and not found:
        found.append(f"annotate.only_ops=[{','.join(products)}]")
    return found or ["hardware=… of a device with faster integers: in this hardware file they are not faster"]
