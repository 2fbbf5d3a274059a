"""A hardware file as frozen data: what a device can run, and what its integers do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from quantpipe.types.bit_limits import ActivationLimits, WeightLimits
from quantpipe.types.caches import CacheLimits
from quantpipe.types.dtype import DType
from quantpipe.types.embedding_table import TableLimits
from quantpipe.types.hardware_fields import (
    Accumulator,
    AddInputs,
    BiasScale,
    Chip,
    Cost,
    FloatOn,
    FloatType,
    FunctionKind,
    Isa,
    OpSignature,
    Padding,
    RequantizeSpec,
    Scales,
    Skip,
    Unify,
)
from quantpipe.types.kernel import LogicalKernel
from quantpipe.types.recurrent_loop import RecurrentLimits


@dataclass(frozen=True)
class HardwareSpec:
    """Describe one target, field by field as in docs/hardware.md."""

    name: str
    description: str
    source: str
    preferred_schema: str
    realize: str
    ops: Mapping[str, tuple[OpSignature, ...]]
    weights: WeightLimits
    activations: ActivationLimits
    scales: Scales
    unify: Unify
    bias: DType
    requantize: RequantizeSpec
    accumulator: Accumulator
    cost: Cost
    add_inputs: AddInputs | None = None
    """None: as `fuse`, kernels without types, and the signatures of the addition say."""
    add_variants: tuple[AddInputs, ...] = ()
    """Where the device can do it in several ways: all of them, `add_inputs` first."""
    bias_scale: BiasScale = BiasScale.PRODUCT
    isa: Isa = Isa.VNNI
    pad: Padding = field(default_factory=Padding)
    skip: Skip = field(default_factory=Skip)
    float_on: FloatOn = FloatOn.CPU
    float_types: tuple[FloatType, ...] = (FloatType.FLOAT32,)
    """The types in which nodes left in float may compute (`annotate.float_type`)."""
    functions: Mapping[str, FunctionKind] = field(default_factory=dict)
    """Op -> how the device forms it; ops that are not named are tables where the device multiplies or shifts."""
    device: Chip | None = None
    channel_bounds: bool = False
    """Whether what is stored behind a layer can be bounded by a minimum and a maximum per channel."""
    runs_here: bool = False
    """Whether the device is onnxruntime on a CPU, so that a latency measured here is its own."""
    qdq_bias: DType | None = None
    """The type of biases in the Q/DQ files that its tool chain loads: float32, or None for the type that they have."""

    first_last_bits: int | None = None
    """Bits of weights and inputs of the first and the last convolution or dense layer, where they are others."""
    kernels: tuple[LogicalKernel, ...] = ()
    """Kernels that are patterns of ops, chains of `fuse` among them."""
    placed: Mapping[str, tuple[OpSignature, ...]] = field(default_factory=dict)
    """Node of one model that lies in such a kernel -> the ways in which the kernel runs it."""
    joined: frozenset[tuple[str, str]] = frozenset()
    """Pairs of nodes of one model, the second of which reads the first, that lie in one such kernel."""
    loads: tuple[str, ...] = ()
    """Forms that the device's own tool chain loads, the best first; none where it loads nothing that is written."""
    dynamic: tuple[str, ...] = ()
    """Ops that the device also runs with the input rounded to uint8 by a scale of each run (`annotate.dynamic`)."""
    tables: TableLimits | None = None
    """How tables of which rows are looked up are stored; None: as they are, in float."""
    recurrent: RecurrentLimits | None = None
    """How a recurrent layer in a loop multiplies its state; None: it stays in float."""
    cache: CacheLimits | None = None
    """How keys and values of earlier tokens are held; None: inputs and outputs of the file are floats."""

    @property
    def declared(self) -> Mapping[str, tuple[OpSignature, ...]]:
        """Return the signatures of each op, with its signatures inside kernels last."""
        found = dict(self.ops)
        for kernel in self.kernels:
            for ways in kernel.signatures.values():
                for op, signatures in ways.items():
                    found[op] = (*found.get(op, ()), *signatures)
        return found

    def signatures_of(self, node: str, op: str) -> tuple[OpSignature, ...]:
        """Return the ways to run a node: the ways of its kernel, else the ways of its op."""
        return self.placed[node] if node in self.placed else self.ops.get(op, ())

    def function_of(self, signature: OpSignature | None, op: str) -> FunctionKind | None:
        """Return how a function is formed: as the signature has it, else as the device forms the op."""
        return self.functions.get(op) if signature is None or signature.function is None else signature.function

    @property
    def requantizations(self) -> tuple[RequantizeSpec, ...]:
        """Return every way in which some kernel narrows an accumulator: the device's first, then the kernels' own."""
        own = (s.requantize for signatures in self.declared.values() for s in signatures if s.requantize is not None)
        return tuple(dict.fromkeys((self.requantize, *own)))

    def is_wide(self, dtype: DType) -> bool:
        """Return whether a type is real or an accumulator, rather than a stored activation."""
        return dtype.is_float or dtype.bits >= self.accumulator.dtype.bits or dtype.bits > 16

    def hands_on(self, first: str, addition: str, treatment: AddInputs | None) -> bool:
        """Return whether the accumulator of the op `first` goes straight into the addition that follows it.

        The addition is treated as the argument says.
        """
        if treatment is None:
            return self.fuses(first, addition)
        return treatment is AddInputs.RESIDUAL_ONLY

    def fuses(self, first: str, second: str) -> bool:
        """Return whether some kernel without types of its own, such as a chain of `fuse`, takes the second op in."""
        return any((first, second) in kernel.joins for kernel in self.kernels if not kernel.is_typed)
