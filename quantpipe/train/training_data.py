"""The inputs of training other than its options. Without torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from quantpipe.intake.rewrites.batch_norms import BatchNorm
from quantpipe.oprules.parts import Part
from quantpipe.types import Samples

KL, MSE = "kl", "mse"


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

    `norms`: result of a convolution -> the BatchNormalization that the clean-up folded into it.
    """

    samples: Samples
    targets: tuple[OutputTarget, ...]
    output: str
    norms: Mapping[str, BatchNorm] = field(default_factory=dict)
