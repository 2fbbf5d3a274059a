"""The shape of one row of OP_RULES."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from quantpipe.graph.view import Graph, Node
from quantpipe.oprules.matrix import MatrixForm
from quantpipe.types import FunctionKind, OpSignature


class Family(StrEnum):
    """Name an op's effect on scales.

    ACCUMULATE  sums of products with a constant: result scale = s_x·s_w (per channel where s_w is)
    SUM         operands must come to one scale
    PRODUCT     element-wise product: result scale = s_a·s_b
    AVERAGE     sum over a window: result scale = s_x / count
    MOVE        moves or selects values: same scale in and out
    CLAMP       same scale, bounded: can be fused into the producer's clamp
    LOOKUP      element-wise function of one activation: a table over its codes
    ROWS        function of a whole row (Softmax, normalizations): integers if the hardware file defines how
    DEVICE      an op of a plug-in package, which defines its own effect on scales
    """

    ACCUMULATE = "accumulate"
    SUM = "sum"
    PRODUCT = "product"
    AVERAGE = "average"
    MOVE = "move"
    CLAMP = "clamp"
    LOOKUP = "lookup"
    ROWS = "rows"
    DEVICE = "device"


NARROWED = (Family.ACCUMULATE, Family.SUM, Family.PRODUCT, Family.AVERAGE)
"""Families whose sums are narrowed to what is stored, or leave whole."""


class Winner(StrEnum):
    """Name the operand whose range represents a same-scale class.

    BOTH: few elements of the input are its extremes, which a clipping range loses, and the result consists of them.
    """

    INPUT = "input"
    OUTPUT = "output"
    BOTH = "both"


NodeText = Callable[[Node, Graph], str | None]
NodeInt = Callable[[Node, Graph], int]
NodeBounds = Callable[[Node, Graph], tuple[float, float]]
Facts = dict[str, int | str]


def never(node: Node, graph: Graph) -> str | None:
    """Return None: every node of the op is accepted."""
    return None


def no_table(node: Node, graph: Graph) -> str | None:
    """Return None: the op looks up no rows."""
    return None


def no_macs(node: Node, graph: Graph) -> int:
    """Return 0, for ops that multiply and add nothing."""
    return 0


def unbounded(node: Node, graph: Graph) -> tuple[float, float]:
    """Return infinite bounds, for ops that clamp nothing."""
    return float("-inf"), float("inf")


def mean_of_window(s_x: np.float32, s_y: np.float32, count: int) -> np.float32:
    """Return the multiplier of a window average, in the kernel's float32 order.

    The kernel is a convolution with weights of 1 at scale 1/count.
    """
    return np.float32(np.float32(s_x * np.float32(1 / count)) / s_y)


def mean_of_map(s_x: np.float32, s_y: np.float32, count: int) -> np.float32:
    """Return the multiplier of a global average, in the float32 order of onnxruntime's kernel: s_x / (s_y·count)."""
    return np.float32(s_x / np.float32(s_y * np.float32(count)))


def has_conditions(signature: OpSignature) -> bool:
    """Return whether a signature has a `when`."""
    return bool(signature.when)


def divides(signature: OpSignature) -> bool:
    """Return whether a signature forms its result by a division of integers."""
    return signature.function is FunctionKind.DIVISION


def no_facts(node: Node, graph: Graph) -> Facts:
    """Return no facts, for ops that no condition of a hardware file asks about."""
    return {}


@dataclass(frozen=True)
class OpRule:
    """One op.

    `data`: ports that carry activations (None: every input). `refuse`: why this very node cannot run in integers
    whatever the hardware, or None. `macs`: multiply-accumulates per sample. `facts`: what `when:` in a hardware file
    may ask. `count`: window size of an AVERAGE. `channel_axis`: output-channel axis of the weight, `output_axis`: of
    the result. `bounds`: real limits of a CLAMP. `sign`: of the last operand of a SUM. `fixed`: range of the result
    where it is known beforehand.
    """

    family: Family
    data: tuple[int, ...] | None = (0,)
    weight: int | None = None
    bias: int | None = None
    winner: Winner = Winner.INPUT
    refuse: NodeText = never
    macs: NodeInt = no_macs
    output_axis: int = 1
    count: NodeInt = no_macs
    mean: Callable[[np.float32, np.float32, int], np.float32] = mean_of_window
    channel_axis: NodeInt = no_macs
    bounds: NodeBounds = unbounded
    matrix: MatrixForm | None = None
    sign: int = 1
    fixed: tuple[float, float] | None = None
    facts: Callable[[Node, Graph], Facts] = no_facts
    conditions: tuple[str, ...] = ()
    """Names of the facts."""
    kinds: tuple[FunctionKind, ...] = ()
    """Ways to form a LOOKUP or a ROWS in integers, which `functions:` in a hardware file may name."""
    unasked: NodeText = never
    """Why signatures that do not ask for it leave this very node alone, or None."""
    asks: Callable[[OpSignature], bool] = has_conditions
    """Whether a signature asks for such nodes."""
    asked: NodeText = never
    """Why signatures that ask for such nodes leave this very node alone, or None."""
    tied: tuple[int, ...] = ()
    """Of a DEVICE op: ports that are stored as the result is."""
    selects: bool = False
    """Of a MOVE: whether values of its operands may be left out of the result, so that its range need not be theirs."""
    reach: Callable[[Node, int], float] | None = None
    """Of a LOOKUP that levels off: the magnitude beyond which a result of some bits is the same for all inputs."""
    table: NodeText = no_table
    """The constant that the node looks rows up in, along its first axis; None where it does nothing of the kind."""

    def keeps_scale(self, signature: OpSignature | None) -> bool:
        """Return whether the result has the scale of the data, as a signature (None: any) runs the op."""
        own = self.family in (Family.MOVE, Family.CLAMP)
        return own or (self.family is Family.AVERAGE and signature is not None and divides(signature))

    def data_ports(self, node: Node) -> tuple[int, ...]:
        """Return ports that carry activations by the op's own definition."""
        ports = self.data if self.data is not None else tuple(range(len(node.inputs)))
        return tuple(p for p in ports if p < len(node.inputs) and node.inputs[p])

    def activations(self, node: Node, graph: Graph) -> tuple[int, ...]:
        """Return ports that carry activations in this graph: a weight that is computed at run time is one, too."""
        ports = self.data_ports(node)
        if self.weight is not None and self.weight_of(node, graph) is None:
            return (*ports, self.weight)
        return ports

    def weight_of(self, node: Node, graph: Graph) -> str | None:
        """Return the constant that an accumulating node multiplies by; None where both operands are activations."""
        if self.weight is None or not graph.is_constant(node.inputs[self.weight]):
            return None
        return node.inputs[self.weight]
