"""A plan in the making: what is given, and what has been decided so far. The modules of this package fill it in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from quantpipe.graph.session_options import quantizes_itself
from quantpipe.graph.view import Graph
from quantpipe.hardware.storage import signature_of
from quantpipe.oprules.lookup import Functions
from quantpipe.plan.overrides import Overrides
from quantpipe.types import (
    Accumulator,
    Form,
    FunctionKind,
    HardwareSpec,
    Isa,
    Kernel,
    KernelPlan,
    OpSignature,
    Quantizer,
    RaisedRow,
    RequantizeSpec,
    RescaleRow,
    Schema,
    Strategy,
    Topology,
    WeightTensor,
)

WeightMaker = Callable[[str, int, NDArray[np.float64]], WeightTensor]
"""(tensor, bits, thresholds) -> integer weights."""


@dataclass(eq=False)
class PlanBuilder:
    """Collect the numbers of a plan in the making.

    `raw` holds scales and `bounds` the largest magnitudes of tensors that are passed on as accumulators.
    """

    graph: Graph
    topology: Topology
    spec: HardwareSpec
    schema: Schema
    strategy: Strategy
    overrides: Overrides
    make_weight: WeightMaker
    functions: Functions
    weights: dict[str, WeightTensor] = field(default_factory=dict)
    quantizers: dict[str, Quantizer] = field(default_factory=dict)
    raw: dict[str, NDArray[np.float32]] = field(default_factory=dict)
    bounds: dict[str, int] = field(default_factory=dict)
    kernels: dict[str, KernelPlan] = field(default_factory=dict)
    rescales: list[RescaleRow] = field(default_factory=list)
    raised: list[RaisedRow] = field(default_factory=list)

    @cached_property
    def in_any_session(self) -> bool:
        """Return whether weights have to be exact in a session without onnxruntime's exact kernels.

        These would change the results of a model's own ops that quantize at run time.
        """
        own = self.spec.isa is Isa.VNNI and self.spec.runs_here and quantizes_itself(self.graph.model)
        return own or self.spec.isa is Isa.ANY

    def narrowing(self, kernel: Kernel) -> RequantizeSpec:
        """Return how a kernel narrows its accumulator: as its signature says, else as the device does."""
        taken = self._own(kernel)
        return self.spec.requantize if taken is None or taken.requantize is None else taken.requantize

    def function(self, kernel: Kernel) -> FunctionKind | None:
        """Return how a kernel forms its function: as its signature says, else as the device does."""
        return self.spec.function_of(self._own(kernel), kernel.op)

    def accumulator(self, kernel: Kernel) -> Accumulator:
        """Return what a kernel holds its sums in: as its signature says, else as the device does."""
        taken = self._own(kernel)
        return self.spec.accumulator if taken is None or taken.accumulator is None else taken.accumulator

    def _own(self, kernel: Kernel) -> OpSignature | None:
        """The signature that runs a kernel, where some signature of its node says more than types."""
        signatures = self.topology.signatures.get(kernel.node, ())
        if not any(s.has_own for s in signatures):
            return None
        tensors = (*(o.tensor for o in kernel.operands), kernel.output)
        types = {t: self.quantizers[t].dtype for t in tensors if t in self.quantizers}
        if kernel.weight is not None:
            types[kernel.weight] = self.weights[kernel.weight].dtype
        return signature_of(kernel, signatures, types)

    def scale(self, tensor: str, form: Form) -> NDArray[np.float32]:
        """Return the scale of a tensor in a form, float32 `()` or `[C]`: the accumulator's or the stored integers'."""
        return self.raw[tensor] if form is Form.RAW else self.quantizers[tensor].scale

    def zero_point(self, tensor: str, form: Form) -> int:
        """Return the zero point of a tensor in a form; accumulators have 0."""
        return 0 if form is Form.RAW else self.quantizers[tensor].zero_point

    def peak(self, tensor: str, form: Form) -> int:
        """Return the largest magnitude of the integers q - z that a tensor can hold."""
        if form is Form.RAW:
            return self.bounds[tensor]
        quantizer = self.quantizers[tensor]
        return max(abs(quantizer.low), abs(quantizer.high))
