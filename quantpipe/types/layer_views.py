"""Calibrators of layers: what a callback is given of a kernel, and what it decides.

A calibrator sees four views of a layer: its inputs and its outputs, in the float model and in the quantized one as far
as it is decided. It is asked kernel by kernel in graph order, so what it sees of a later one has its earlier decisions
in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from quantpipe.arrays import Array
from quantpipe.types.statistics import Range

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class ExactGrid:
    """State exact numbers in place of a range: real = scale · (q - zero_point).

    Of an activation both are single numbers; of a weight there may be one for each of its scales.
    """

    scale: Any
    zero_point: Any = 0


@dataclass(frozen=True, eq=False)
class Views:
    """Hold one batch of a layer: real values by tensor, float32, in the tensors' own shapes.

    `quantized_inputs` are what the kernel reads, rounded and clamped, `quantized_outputs` what it makes of them, before
    its result is rounded: the result's own range is decided where it is read.
    """

    float_inputs: Mapping[str, Array]
    quantized_inputs: Mapping[str, Array]
    float_outputs: Mapping[str, Array]
    quantized_outputs: Mapping[str, Array]


@dataclass(frozen=True, eq=False)
class LayerDecision:
    """State what a calibrator decides; what it leaves out stays as it was.

    `ranges`: of stored inputs, a `Range` or exact numbers. `weight`: thresholds of the weight, in the form of
    `Layer.thresholds`, or exact numbers.
    """

    ranges: Mapping[str, Range | ExactGrid] = field(default_factory=dict)
    weight: Array | ExactGrid | None = None


class Layer(Protocol):
    """Declare a calibrator's view of a kernel; a pattern of a package is one kernel, by its qualified name."""

    node: str
    op: str
    attributes: Mapping[str, Any]
    inputs: tuple[str, ...]
    """Activations that the kernel reads."""
    outputs: tuple[str, ...]
    weight: str | None
    weight_shape: tuple[int, ...] | None
    output_axis: int
    """Of the result's channels."""

    @property
    def samples(self) -> int:
        """Return how many samples the walk has."""

    @property
    def open(self) -> tuple[str, ...]:
        """Return the stored inputs with an undecided range; the first kernel that reads a scale decides it once."""

    @property
    def ranges(self) -> Mapping[str, Range]:
        """Return the range of each stored input, earlier decisions included."""

    @property
    def extremes(self) -> Mapping[str, Range]:
        """Return the calibrated minimum and maximum of each stored input, or of its scale group."""

    @property
    def thresholds(self) -> NDArray[np.float64] | None:
        """Return the weight's thresholds `()`, `[C]`, or ranges `[C, 2]`; None where there is no weight to decide."""

    @property
    def bits(self) -> Mapping[str, int]:
        """Return the bits of the stored inputs and of the weight."""

    def batches(self, decision: LayerDecision | None = None, share: float = 1.0) -> Iterator[Views]:
        """Yield the four views, as they are with a decision (None: as things stand).

        Args:
            decision: What to try.
            share: How much of the samples to run, evenly spread; at least one batch. A larger share has the batches of
                a smaller one.
        """

    def compare(self, decisions: Sequence[LayerDecision | None], share: float = 1.0) -> Iterator[tuple[Views, ...]]:
        """Yield the views of each batch for several decisions, in their order.

        That is what `batches` gives one by one, in less time: what decisions have in common is made once. Each weight
        that is tried stays in memory meanwhile.

        Args:
            decisions: What to try.
            share: How much of the samples to run.
        """

    def measure(
        self, decisions: Sequence[LayerDecision | None], of: Callable[[tuple[Views, ...]], T], share: float = 1.0
    ) -> list[T]:
        """Return the results of a function on each batch of `compare`.

        It is called where the batch was run, several batches side by side, while `compare` hands one after the other
        out: what takes as long as the layer itself, such as errors of its outputs, belongs here.

        Args:
            decisions: What to try.
            of: Gets the views of a batch, one for each decision; it must not keep them.
            share: How much of the samples to run.
        """


Calibrator = Callable[[Layer], LayerDecision | None]
"""Decides on the open inputs and the weight of a layer; None leaves all as it is."""
