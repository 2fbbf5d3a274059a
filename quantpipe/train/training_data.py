"""The inputs of training other than its options. Without torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from numpy.typing import NDArray

from quantpipe.intake.rewrites.batch_norms import BatchNorm
from quantpipe.oprules.parts import Part
from quantpipe.types import Samples

KL, MSE = "kl", "mse"


class Softening(Protocol):
    """Hold a temperature of class scores, and the factor from KL at it to units of plain KL."""

    @property
    def temperature(self) -> float:
        """Return what divides the scores."""

    @property
    def factor(self) -> float:
        """Return the factor on KL."""


class Soften(Protocol):
    """Give class scores a temperature."""

    def __call__(self, reference: NDArray[Any], temperature: float) -> Softening | None:
        """Return how class scores `[rows, classes]` are softened; None where plain KL is used."""


@dataclass(frozen=True)
class OutputTarget:
    """Name an output, its loss (`kl` or `mse`), the loss's factor, and its parts (none: as a whole)."""

    output: str
    kind: str
    factor: float = 1.0
    parts: tuple[Part, ...] = ()


@dataclass(frozen=True, eq=False)
class TrainingData:
    """Hold the samples to train on, the compared outputs, and the output whose scores the labels belong to.

    `norms`: result of a convolution -> the BatchNormalization that the clean-up folded into it. `soften`: how few
    class scores are compared; plain KL without it.
    """

    samples: Samples
    targets: tuple[OutputTarget, ...]
    output: str
    norms: Mapping[str, BatchNorm] = field(default_factory=dict)
    soften: Soften | None = None
