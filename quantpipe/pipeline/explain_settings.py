"""Settings of explain: the run, strategy or file, the level of detail, and the options to try."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from quantpipe.calibrate.estimators import Estimator
from quantpipe.calibrate.ruled import WeightMethod
from quantpipe.option_checks import integer
from quantpipe.recover import RecoverOptions
from quantpipe.train.train_options import TrainOptions

TRAINING = "lsq"
"""The option of the group `train` that is tried."""


@dataclass(frozen=True)
class ExplainSettings:
    """State which run, or which file, is explained, and how closely.

    `run`: its folder. `file`: a quantized file, whose float model and samples the rest of the configuration names.
    `culprits`: for how many of the worst tensors remedies are measured. `samples`: on how many samples of the search
    errors alone are measured. `per_channel`: glob patterns of tensors that are compared channel by channel, too.
    `apply`: so many of the best changes are made in a further run.
    """

    run: Path | None = None
    file: Path | None = None
    culprits: int = 10
    samples: int = 64
    apply: int = 0
    per_channel: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        integer("explain.apply", self.apply, least=0)
        integer("explain.culprits", self.culprits, least=1)
        integer("explain.samples", self.samples, least=1)


@dataclass(frozen=True, eq=False)
class ShippedOptions:
    """Options of the configuration that are tried for the whole run: ranges by name, recovery, a trial of training."""

    thresholds: Mapping[str, tuple[Estimator, WeightMethod]] = field(default_factory=dict)
    recover: RecoverOptions | None = None
    train: TrainOptions | None = None
