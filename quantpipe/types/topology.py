"""The result of annotate: which nodes run in integers, how tensors travel between them, which scales must agree."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from quantpipe.types.caches import CacheSite
from quantpipe.types.dtype import DType
from quantpipe.types.embedding_table import TableSite
from quantpipe.types.hardware_fields import OpSignature
from quantpipe.types.kernel import KernelSite
from quantpipe.types.reason import Reason, ReasonKind
from quantpipe.types.recurrent_loop import LoopSite
from quantpipe.types.schema import Blocks
from quantpipe.types.statistics import Range


class Form(StrEnum):
    """Name how a tensor exists between two nodes.

    It consists of float values, of stored integers of one scale, or of an accumulator as it is.
    """

    FLOAT = "float"
    QUANTIZED = "quantized"
    RAW = "raw"


@dataclass(frozen=True)
class Edge:
    """Describe one connection from a producer to a consumer.

    Constants and graph inputs are producers by their tensor name.
    """

    producer: str
    tensor: str
    consumer: str
    port: int

    @property
    def key(self) -> str:
        """Return the edge as one text, `producer->consumer:port`."""
        return f"{self.producer}->{self.consumer}:{self.port}"


@dataclass(frozen=True)
class Operand:
    """Describe a data input of a kernel: port, tensor, and the form it is read in.

    `rescaled`: the kernel's result has another scale that cannot be given up, so the operand is brought to it first.
    """

    port: int
    tensor: str
    form: Form
    rescaled: bool = False


@dataclass(frozen=True)
class Kernel:
    """Describe one integer node with the clamps (Relu, Clip) it swallows.

    `output` is the tensor after the last fused clamp; `bounds` are that clamp's real limits (infinite where open).
    `form` is QUANTIZED for results that are stored in integers of one scale, RAW for results that stay accumulators.
    `channel_bounds`: such limits of each channel, (low, high), where they differ; `bounds` are then the outermost.
    """

    node: str
    op: str
    operands: tuple[Operand, ...]
    output: str
    form: Form
    weight: str | None = None
    bias: str | None = None
    fused: tuple[str, ...] = ()
    bounds: tuple[float, float] = (float("-inf"), float("inf"))
    channel_bounds: tuple[tuple[float, ...], tuple[float, ...]] | None = None


@dataclass(frozen=True)
class ScaleGroup:
    """Hold tensors that share one scale, zero point and bit width.

    `sources` are the members whose statistics decide the range (the others are copies or parts of them). `fixed` is
    the range where it is known beforehand; then no statistics are needed. `narrower` has the range of fewer bits, where
    the tensors may be stored in a narrower type.
    """

    key: str
    tensors: tuple[str, ...]
    sources: tuple[str, ...]
    dtype: DType
    max_bits: int
    edges: tuple[str, ...] = ()
    min_bits: int = 2
    fixed: Range | None = None
    raised_bits: int = 0
    """What `precision=auto` may raise it to; 0: nothing beyond `max_bits`."""
    narrower: tuple[tuple[int, Range], ...] = ()

    @property
    def widest(self) -> int:
        """Return the most bits that it can have, raised or not."""
        return max(self.max_bits, self.raised_bits)

    def fixed_at(self, bits: int) -> Range | None:
        """Return the range that is known beforehand, of so many bits."""
        return dict(self.narrower).get(bits, self.fixed)


@dataclass(frozen=True)
class WeightSite:
    """Describe a constant that is multiplied: its users, storage type and channel axes.

    `channel_axis` is the axis of output channels; `axis` is the one along which the weight has scales of its own (None:
    one scale for the tensor). `fixed` are its thresholds, as in a `Strategy`, where they are known beforehand;
    `frozen`: its integers are, too, so recovery leaves it alone. `block`: how its channels are divided, if they are.
    """

    tensor: str
    nodes: tuple[str, ...]
    dtype: DType
    channel_axis: int
    axis: int | None
    max_bits: int
    edges: tuple[str, ...] = ()
    min_bits: int = 2
    fixed: NDArray[np.float64] | None = field(default=None, compare=False, repr=False)
    frozen: bool = False
    block: Blocks | None = None
    raised_bits: int = 0
    """What `precision=auto` may raise it to, with what its layers read; 0: nothing beyond `max_bits`."""

    @property
    def key(self) -> str:
        """Return the name that its choices have, as `ScaleGroup.key` is."""
        return self.tensor

    @property
    def widest(self) -> int:
        """Return the most bits that it can have, raised or not."""
        return max(self.max_bits, self.raised_bits)


@dataclass(frozen=True)
class DynamicCell:
    """Describe a recurrent layer in float that rounds what it multiplies by scales of each run.

    `weights`: of the input and of the state, `[D, 4·H, K]` with D directions, held in integers.
    """

    node: str
    op: str
    weights: tuple[str, str]


@dataclass(frozen=True)
class Topology:
    """Describe the quantized graph without a single number.

    `float_nodes` gives each node left in float its reason.
    """

    node_conds: Mapping[str, bool]
    edge_conds: Mapping[str, bool]
    float_nodes: Mapping[str, Reason]
    kernels: tuple[Kernel, ...]
    groups: tuple[ScaleGroup, ...]
    weights: tuple[WeightSite, ...]
    constants: tuple[str, ...] = field(default=())
    """Constants read as data operands (quantized like activations, from their own content)."""
    float_edges: tuple[str, ...] = ()
    """Edges that another variant of the same graph quantizes and this one does not."""
    float_weights: tuple[str, ...] = ()
    """Weights that another variant quantizes wholly and this one keeps in float, for some of their users or all."""
    weighted: tuple[Kernel, ...] = ()
    """Nodes in float whose weight is held in integers: what they read and give is real (FLOAT)."""
    signatures: Mapping[str, tuple[OpSignature, ...]] = field(default_factory=dict)
    """Kernel node -> every way in which the device runs it; its bits say which one is taken (hardware/storage.py)."""
    tables: tuple[TableSite, ...] = ()
    """Constants of which float nodes look rows up, and which are stored in integers."""
    loops: tuple[LoopSite, ...] = ()
    """Loops of real numbers whose body multiplies a state by constants in integers."""

    cells: tuple[DynamicCell, ...] = ()
    """Recurrent layers in float whose input and state get scales from the samples of each run."""

    sites: tuple[KernelSite, ...] = ()
    """Where kernels that are patterns of ops lie."""
    half_nodes: frozenset[str] = frozenset()
    """Nodes left in float that compute in float16."""
    brain_floats: frozenset[str] = frozenset()
    """Accumulators whose real values are rounded to bfloat16 where they leave the integer part."""
    caches: tuple[CacheSite, ...] = ()
    """Caches of a decoder whose input and output are integers of one scale in the realized files."""
    real_caches: Mapping[str, str] = field(default_factory=dict)
    """Input of each other cache -> why it and its output are floats."""

    def restricted(self, kernels: tuple[Kernel, ...], nodes: Collection[str] | None = None) -> Topology:
        """Return the same topology with only some of its kernels (to render a part of the graph).

        `nodes`: the nodes of the part, which determine its look-up tables, its products of floats, its loops and its
        recurrent layers; None: all of these.
        """
        if nodes is None:
            return replace(self, kernels=kernels)
        tables = tuple(t for t in self.tables if not set(t.nodes).isdisjoint(nodes))
        weighted = tuple(k for k in self.weighted if k.node in nodes)
        loops = tuple(loop for loop in self.loops if loop.node in nodes)
        cells = tuple(cell for cell in self.cells if cell.node in nodes)
        return replace(self, kernels=kernels, tables=tables, weighted=weighted, loops=loops, cells=cells)

    @property
    def raisable(self) -> tuple[ScaleGroup | WeightSite, ...]:
        """Return the scale groups and weights that the device has more bits for than by default."""
        sites: tuple[ScaleGroup | WeightSite, ...] = (*self.groups, *self.weights)
        return tuple(site for site in sites if site.widest > site.max_bits)

    @cached_property
    def group_of(self) -> Mapping[str, ScaleGroup]:
        """Return a mapping: stored tensor -> its scale group."""
        return {t: g for g in self.groups for t in g.tensors}

    @cached_property
    def weight_of(self) -> Mapping[str, WeightSite]:
        """Return a mapping: weight tensor -> its site."""
        return {w.tensor: w for w in self.weights}

    @property
    def stored_constants(self) -> tuple[WeightSite | TableSite, ...]:
        """Return the weights and the tables that are stored in integers."""
        return (*self.weights, *self.tables)

    @cached_property
    def table_of(self) -> Mapping[str, TableSite]:
        """Return a mapping: node -> the table that it looks rows up in."""
        return {node: t for t in self.tables for node in t.nodes}

    @cached_property
    def kernel_of(self) -> Mapping[str, Kernel]:
        """Return a mapping: node -> the kernel it heads."""
        return {k.node: k for k in self.kernels}

    @cached_property
    def weighted_of(self) -> Mapping[str, Kernel]:
        """Return a mapping: node in float whose weight is held in integers -> what it reads and gives."""
        return {k.node: k for k in self.weighted}

    @cached_property
    def dynamic(self) -> tuple[str, ...]:
        """Return the nodes of `weighted` whose input gets a scale from the samples of each run."""
        return tuple(n for n in self.weighted_of if self.float_nodes[n].kind is ReasonKind.DYNAMIC)

    @cached_property
    def loop_of(self) -> Mapping[str, LoopSite]:
        """Return a mapping: float loop with integer products -> its facts."""
        return {loop.node: loop for loop in self.loops}

    @cached_property
    def cell_of(self) -> Mapping[str, DynamicCell]:
        """Return a mapping: recurrent layer with scales of each run -> its weights."""
        return {cell.node: cell for cell in self.cells}

    @cached_property
    def fused_into(self) -> Mapping[str, str]:
        """Clamp node -> the kernel node that swallowed it."""
        return {f: k.node for k in self.kernels for f in k.fused}

    @cached_property
    def measured(self) -> tuple[str, ...]:
        """Return tensors whose statistics calibration must gather."""
        return tuple(
            dict.fromkeys(s for g in self.groups if g.fixed is None for s in g.sources if s not in self.constants)
        )
