"""The protocol of a plug-in package: it describes an op of its own in plain data, NumPy and ONNX functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import onnx

from quantpipe.arrays import Array
from quantpipe.types import Quantizer, Range, RequantizeSpec, WeightTensor
from quantpipe.types.layer_views import Calibrator

Numbers = Mapping[str, Array]
"""Name -> a number or an array of numbers, of the type in which the integer form reads it."""


def function(text: str) -> onnx.FunctionProto:
    """Return an ONNX function from its text, in the syntax of `onnx.parser.parse_function`."""
    return onnx.parser.parse_function(text)


@dataclass(frozen=True, eq=False)
class NodeFacts:
    """Hold the facts about a node before anything is measured.

    `shapes` and `constants` are keyed by the names of the reference's inputs; shapes are shapes of one sample.
    """

    node: str
    attributes: Mapping[str, Any]
    shapes: Mapping[str, tuple[int, ...]]
    constants: Mapping[str, Array] = field(repr=False)


@dataclass(frozen=True, eq=False)
class Site:
    """State all that the numbers of one kernel can depend on.

    `operands` (how each activation is stored), `facts.constants` (real values) and `facts.shapes` are keyed by the
    names of the reference's inputs. `result` describes how the result is stored; `low` and `high` bound its integers,
    including the bounds of a fused Relu or Clip. `weight` holds the integer weights. `requantize` is the hardware
    file's field.
    """

    facts: NodeFacts
    operands: Mapping[str, Quantizer]
    result: Quantizer
    low: int
    high: int
    weight: WeightTensor | None
    requantize: RequantizeSpec


class NumbersOf(Protocol):
    """The scale rule: which numbers the integer form reads, from scales, zero points, weights and attributes."""

    def __call__(self, site: Site) -> Numbers:
        """Return the numbers by name."""


class Interpreter(Protocol):
    """The integer arithmetic in NumPy, independent of both ONNX functions: what they are checked against."""

    def __call__(self, stored: Mapping[str, Array], numbers: Numbers, attributes: Mapping[str, Any]) -> Array:
        """Return the stored result, int64, of stored operands and weights (int64), by the reference's input names."""


class DeriveRange(Protocol):
    """The range of one port, from the ranges of the other ports of its node."""

    def __call__(self, ranges: Mapping[str, Range], facts: NodeFacts) -> Range:
        """Return the range, of which 0 is a part; `ranges` are keyed by the names of the reference."""


class Refuses(Protocol):
    """Say why a node cannot run in integers, whatever the hardware."""

    def __call__(self, facts: NodeFacts) -> str | None:
        """Return the reason, as the end of a sentence, or None."""


def takes_all(facts: NodeFacts) -> str | None:
    """Return None: every node of the op is accepted."""
    return None


def no_work(facts: NodeFacts) -> int:
    """Return 0, for ops that multiply and add nothing."""
    return 0


@dataclass(frozen=True, eq=False)
class DeviceOp:
    """Describe one op of a domain of its own.

    Attributes:
        reference: The op in float, as an ONNX function with one output. It defines domain, name, inputs and attributes.
        numbers: The scale rule: from a `Site` to arrays by name, in the types that `integers` reads.
        integers: What the simulated model computes: an ONNX function with the same domain and another name. Its inputs
            are matched by name: stored operands and weights as the hardware file types them, zero point included, and
            the arrays of `numbers`. It returns the stored result.
        interpret: The same arithmetic in NumPy, int64, written independently. Both models are compared with it.
        device: The node of the realized model: this name and domain, with this function as its definition. onnxruntime
            computes by the definition, the device by its own kernel of that name. None: `integers`.
        weight: The input that is quantized as a weight; None: no weight.
        channel_axis: The weight's axis of output channels.
        constants: Further inputs that must be constants (a bias, a slope); `site.facts.constants` has their floats.
        same_scale: Inputs that are stored as the result is: one scale, zero point and bits, one choice of the search,
            and a range that holds all of them.
        derive: Port (an input or the result) -> function of the ranges of the other stored ports, by name. Its `Range`
            replaces the estimated one. A range may be derived from a derived one: they are computed until nothing
            changes. Ranges given by a user stay. Circles, and two ops that give one scale different ranges, are
            rejected.
        rectify: The threshold rule: from the estimated range of the result to another one.
        fixed: Range of the result if it is known, for `annotate.fixed_outputs=true`.
        steps: Maximum difference of the integers from `reference`, in steps of the result.
        pattern: Whether nodes of a model that compute `reference` become one node of this op, if the hardware file
            declares it.
        refuse: Why a node stays in float, or None.
        macs: Multiply-accumulates of a node per sample, for costs.
    """

    reference: onnx.FunctionProto = field(repr=False)
    numbers: NumbersOf
    integers: onnx.FunctionProto = field(repr=False)
    interpret: Interpreter
    device: onnx.FunctionProto | None = field(default=None, repr=False)
    weight: str | None = None
    channel_axis: int = 0
    fixed: tuple[float, float] | None = None
    rectify: Callable[[Range], Range] | None = None
    steps: float = 1.0
    pattern: bool = False
    refuse: Refuses = takes_all
    macs: Callable[[NodeFacts], int] = no_work
    constants: tuple[str, ...] = ()
    same_scale: tuple[str, ...] = ()
    derive: Mapping[str, DeriveRange] = field(default_factory=dict)

    @property
    def domain(self) -> str:
        """Return the op's domain."""
        return str(self.reference.domain)

    @property
    def name(self) -> str:
        """Return the op's name in its domain."""
        return str(self.reference.name)

    @property
    def inputs(self) -> tuple[str, ...]:
        """Return the names of the op's inputs."""
        return tuple(self.reference.input)

    @property
    def data(self) -> tuple[int, ...]:
        """Return the ports that carry activations."""
        return tuple(p for p, name in enumerate(self.inputs) if name != self.weight and name not in self.constants)

    @property
    def written(self) -> onnx.FunctionProto:
        """Return the function of the realized model."""
        return self.integers if self.device is None else self.device


@dataclass(frozen=True, eq=False)
class Extension:
    """Name all that a package adds: ops (patterns among them), output forms by name, and calibrators by op.

    A form is a class with the protocol `quantpipe.lowering.Dialect`, created for each model. A calibrator is for the
    kernels whose op a pattern fits (`Conv`, `my.npu.*`), and precedes the calibrator of the threshold option.
    """

    ops: tuple[DeviceOp, ...] = ()
    forms: Mapping[str, Callable[[], Any]] = field(default_factory=dict)
    calibrators: Mapping[str, Calibrator] = field(default_factory=dict)


def numbers_of(op: DeviceOp, site: Site) -> dict[str, Array]:
    """Return the numbers of a kernel as arrays."""
    return {name: np.asarray(value) for name, value in op.numbers(site).items()}
