"""Outputs that come out too far from the float model's: where it is lost, and which overrides could help.

The table of errors per tensor holds the noise that has built up by each stored tensor, and what quantizing it alone
costs. Where the noise, as a share of the signal, grows most from what a tensor is computed from to the tensor, there
the output is lost.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from glob import escape
from typing import Any

from quantpipe.evaluate.nearness import below
from quantpipe.graph.view import Graph
from quantpipe.hardware.cost import macs
from quantpipe.oprules import OP_RULES, Family
from quantpipe.types import Kernel, LayerRow, OutputRow, QuantPlan, Topology

MOST_TENSORS = 3
MOST_NODES = 6
"""In an override: the nodes of the worst tensors come first."""

OWN_SHARE = 0.5
"""Of a loss: from here on the tensor's own integers explain it."""

OTHER_SHAPE = 0.01
"""Share of the samples in which an output may have another shape than the float model's, without a word."""

LEAST_IOU, FAR_KEYPOINT = 0.8, 0.05
"""Mean IoU of class maps, and the distance as a share of the map's side, beyond which an output is warned of."""

FEW_BITS = 8
"""Below, more bits are the first thing to try, where the search took fewer than the device has."""


@dataclass(frozen=True, eq=False)
class Loss:
    """State where a tensor's noise came from.

    `gain`: by how much its noise, as a share of its signal, exceeds the worst of what it is computed from; `own`: its
    own quantization does that. `of`: the tensors whose integers are to blame otherwise; none where a kernel has
    weights, whose rounding does it.
    """

    tensor: str
    sqnr_db: float
    gain: float
    own: bool
    saturates: bool
    of: tuple[str, ...]

    def __str__(self) -> str:
        shown = ", ".join(self.of[:MOST_TENSORS])
        more = f", computed from the integers of {shown}" if shown else ""
        return f"{self.tensor} ({_decibels(self.sqnr_db)} there{more})"


@dataclass(frozen=True, eq=False)
class Losses:
    """Relate the outputs of a model to the table of errors per tensor."""

    graph: Graph
    topology: Topology
    weight_bits: Mapping[str, int]
    """That were chosen, by weight."""
    layers: Sequence[LayerRow]

    @cached_property
    def table(self) -> dict[str, Mapping[str, Any]]:
        """Return the figures of the layers by tensor."""
        return {entry["tensor"]: entry for entry in self.layers}

    def of(self, output: str, sqnr_db: float) -> list[Loss]:
        """Return the tensors that the output loses most at, worst first.

        They are at most three that lose a tenth of what the worst one does.
        """
        found = [self._loss(t) for t in self._behind(output)]
        if output not in self.table:
            before = self._nearest(output)
            inner = max((_noise(self.table[t]) for t in before), default=0.0)
            found.append(Loss(output, sqnr_db, _share(sqnr_db) - inner, False, False, self._blamed(output, before)))
        found = sorted((loss for loss in found if loss.gain > 0), key=lambda loss: -loss.gain)
        return [loss for loss in found[:MOST_TENSORS] if loss.gain >= found[0].gain / 10]

    def remedies(self, losses: Sequence[Loss]) -> list[str]:
        """Return overrides that could help, as they are written on the command line."""
        nodes: dict[str, None] = {}
        products = {k.node for k in self.topology.kernels if k.weight is not None}
        for loss in losses:
            more = dict.fromkeys(self._made_by(loss.tensor))
            more |= dict.fromkeys(self._read_by(loss.tensor) if loss.own else ())
            more |= {n: None for t in loss.of for n in self._rounded_by(t)}
            if nodes and products and products <= {*nodes, *more}:
                break  # a model in float altogether is no remedy
            nodes |= more
        concerned = [self.graph.by_name[name] for name in list(nodes)[:MOST_NODES]]
        # Nobody wants all convolutions in float.
        ops = dict.fromkeys(node.op for node in concerned if not macs(node, self.graph))
        said = []
        by_run = [name for loss in losses for name in self._with_scales_of_run(loss.tensor)]
        weights = {w for name in by_run for w in self._weights_by_run(name)}
        few = any(self.weight_bits.get(w, FEW_BITS) < FEW_BITS for w in weights)
        if few or any(self._few_bits(loss.tensor) for loss in losses):
            said.append(f"annotate.min_bits={FEW_BITS}")
        if ops:
            said.append(f"annotate.float_ops=[{','.join(ops)}]")
        if concerned:
            said.append(f"annotate.float_nodes=[{','.join(_quoted(node.name) for node in concerned)}]")
        if by_run and not concerned:
            said.append(f"annotate.float_nodes=[{','.join(map(_quoted, list(dict.fromkeys(by_run))[:MOST_NODES]))}]")
        if any(loss.saturates for loss in losses):
            said.append("threshold=max_range")
        return said or ["threshold=max_range"]

    def _loss(self, tensor: str) -> Loss:
        entry = self.table[tensor]
        before = self._nearest(tensor)
        gain = _noise(entry) - max((_noise(self.table[t]) for t in before), default=0.0)
        own = entry["rounding"] + entry["saturation"] >= OWN_SHARE * gain
        value = entry["sqnr_db"] if entry["sqnr_db"] is not None else math.inf
        of = () if own else self._blamed(tensor, before)
        return Loss(tensor, value, gain, own, entry["saturation"] > entry["rounding"], of)

    def _blamed(self, tensor: str, before: Sequence[str]) -> tuple[str, ...]:
        """Return the tensors from which a tensor is computed, unless by a kernel with weights."""
        kernel = self._kernels.get(tensor)
        return () if kernel is not None and kernel.weight is not None else tuple(before)

    def _few_bits(self, tensor: str) -> bool:
        """Return whether it, or the weight it is made with, has fewer than eight bits, and could have them."""
        kernel, topology = self._kernels.get(tensor), self.topology
        weight = kernel.weight if kernel is not None else None
        fewer = []
        if weight is not None and weight in self.weight_bits and weight in topology.weight_of:
            fewer.append((self.weight_bits[weight], topology.weight_of[weight].dtype.bits))
        if tensor in self.table and tensor in topology.group_of:
            fewer.append((self.table[tensor]["bits"], topology.group_of[tensor].dtype.bits))
        return any(chosen < FEW_BITS <= most for chosen, most in fewer)

    def _with_scales_of_run(self, tensor: str) -> list[str]:
        """Return the layers with scales of each run from which it is computed with nothing stored between."""
        named, found, pending = {*self.topology.dynamic, *self.topology.cell_of}, dict[str, None](), [tensor]
        for one in pending:
            made = self.graph.producers.get(one)
            if made is not None and (one == tensor or one not in self.table):
                found |= {made.name: None} if made.name in named else {}
                pending += [t for t in self._reads(one) if t not in pending]
        return list(found)

    def _weights_by_run(self, node: str) -> tuple[str, ...]:
        """Return the weights of such a layer."""
        cell = self.topology.cell_of.get(node)
        return (self.topology.weighted_of[node].weight or "",) if cell is None else cell.weights

    def _nearest(self, tensor: str) -> list[str]:
        """Return the stored tensors that it is computed from with nothing else stored between."""
        found: dict[str, None] = {}
        seen: set[str] = set()
        pending = self._reads(tensor)
        while pending:
            one = pending.pop()
            if one in self.table:
                found[one] = None
            elif one not in seen:
                seen.add(one)
                pending += self._reads(one)
        return list(found)

    def _behind(self, output: str) -> list[str]:
        """Return every stored tensor that the output is computed from, itself included."""
        found: dict[str, None] = dict.fromkeys([output] if output in self.table else [])
        pending = [output]
        while pending:
            for tensor in self._nearest(pending.pop()):
                if tensor not in found:
                    found[tensor] = None
                    pending.append(tensor)
        return list(found)

    def _reads(self, tensor: str) -> list[str]:
        node = self.graph.producers.get(tensor)
        return [] if node is None else [t for t in (*node.inputs, *node.captured) if t]

    @cached_property
    def _kernels(self) -> dict[str, Kernel]:
        """Return tensor -> the integer kernel that makes it, including fused clamps."""
        return {k.output: k for k in self.topology.kernels}

    def _made_by(self, tensor: str) -> list[str]:
        return [self._kernels[tensor].node] if tensor in self._kernels else []

    def _rounded_by(self, tensor: str) -> list[str]:
        """Return the kernels whose rounding a tensor has, back to those with weights; moves round nothing."""
        found: dict[str, None] = {}
        pending = [tensor]
        for one in pending:
            kernel = self._kernels.get(one)
            if kernel is None or kernel.node in found:
                continue
            if OP_RULES[kernel.op].family is not Family.MOVE:
                found[kernel.node] = None
            pending += (
                [] if kernel.weight is not None else [o.tensor for o in kernel.operands if o.tensor not in pending]
            )
        return list(found)

    def _read_by(self, tensor: str) -> list[str]:
        read = self.graph.consumers.get(tensor, ())
        return [node.name for node, _ in read if node.name in self.topology.kernel_of]


def loss_warnings(
    graph: Graph,
    topology: Topology,
    plan: QuantPlan,
    *,
    rows: Sequence[OutputRow],
    layers: Sequence[LayerRow],
    limit: float | None,
    accurate: str | None = None,
) -> list[str]:
    """Return a sentence per output whose SQNR is under the limit: where it is lost, and possible remedies.

    `limit` is in dB; None disables the warning. `accurate` is the output that is as accurate as the float model's, if
    one is; it causes no warning.
    """
    bits = {name: weight.bits for name, weight in plan.weights.items()}
    losses, said = Losses(graph, topology, bits, layers), []
    for short in below(rows, limit, accurate):
        lost = losses.of(short.part or short.output, short.sqnr_db)
        where = "; ".join(map(str, lost))
        of = f"the part {short.part} of the output {short.output}" if short.part else f"the output {short.output}"
        said.append(
            f"{of} of the realized model is only {_decibels(short.sqnr_db)} from the float model's "
            f"(evaluate.warn_sqnr_db={limit:g})"
            + (f"; most is lost at {where}" if where else "")
            + f"; what could help: {', or '.join(losses.remedies(lost))}"
        )
    return said


def shape_warnings(rows: Sequence[OutputRow], samples: int) -> list[str]:
    """Return a sentence per output whose length depends on values and often differs from the float model's.

    Differences in up to a hundredth of the samples cause no sentence.
    """
    return [
        f"the output {row['output']} of the realized model has another shape than the float model's in {other} of "
        f"{samples} samples, because its length depends on values. Such samples count as lost, and the SQNR is "
        "computed on the other samples. What could help: recover=default, or more bits or float for the "
        "places that cost most (command=explain measures them)"
        for row in rows
        if (other := row.get("other_shape", 0)) > OTHER_SHAPE * samples
    ]


def map_warnings(rows: Sequence[OutputRow], graph: Graph) -> list[str]:
    """Return a sentence per output whose class maps or keypoints often differ from the float model's."""
    said = []
    for row in rows:
        sides = graph.shapes.get(row["output"], ())[1:]
        far = FAR_KEYPOINT * max(sides, default=1)
        if (miou := row.get("miou")) is not None and miou < LEAST_IOU:
            said.append(
                f"the class maps of the output {row['output']} have a mean IoU of {100 * miou:.0f} % with the float "
                f"model's, and {100 * row['equal']:.1f} % equal pixels. What could help: recover=default, more bits, "
                "or float for the places that cost most (command=explain measures them)"
            )
        if row.get("pixels_95", 0.0) > far:
            said.append(
                f"one in twenty keypoints of the output {row['output']} moves by {row['pixels_95']:.1f} pixels or more "
                f"(of {max(sides)}), on average they move by {row['pixels']:.2g}. What could help: recover=default, "
                "more bits, or float for the places that cost most (command=explain measures them)"
            )
    return said


def _noise(entry: Mapping[str, Any]) -> float:
    return 0.0 if entry["sqnr_db"] is None else _share(entry["sqnr_db"])


def _share(sqnr_db: float) -> float:
    """Return noise as a share of the signal, at most 1: a lost signal cannot be lost again."""
    return min(1.0, 10.0 ** (-sqnr_db / 10.0)) if sqnr_db > -math.inf else 1.0


def _decibels(value: float) -> str:
    return f"{value:.1f} dB"


def _quoted(name: str) -> str:
    """Return a node's name as a pattern that means itself, in quotes where a character means something to Hydra."""
    pattern = escape(name)
    return pattern if re.fullmatch(r"[\w/.:+@%*?-]+", pattern) else "'" + pattern.replace("'", "\\'") + "'"
