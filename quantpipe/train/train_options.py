"""The settings of training: what is learned, by which algorithm, from what, and for how long. Without torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from quantpipe.errors import ConfigError
from quantpipe.option_checks import integer, number, one_of
from quantpipe.types import Granularity, PowerOfTwo, Symmetry, TensorSchema

WEIGHTS = ("none", "ste", "lsq", "dorefa", "dsq", "qil", "adaround")
ACTIVATIONS = ("none", "ste", "lsq", "pact", "dorefa", "dsq")
LOSSES = ("outputs", "labels", "both")
OPTIMIZERS = ("adam", "sgd")
DEVICES = ("cpu", "cuda")
SCOPES = ("network", "blocks")
WEIGHT_SIZES = ("kept", "unit")
FOLDS = (-1, 0, 1, 2, 3, 4)
LEGAL: Mapping[str, Sequence[object]] = {
    "weights": WEIGHTS,
    "activations": ACTIVATIONS,
    "loss": LOSSES,
    "scope": SCOPES,
    "optimizer": OPTIMIZERS,
    "weight_size": WEIGHT_SIZES,
    "device": DEVICES,
    "fold": FOLDS,
}
LABELS_WARMUP = 0.1
"""`warmup` with labels, whose first gradients are large."""
LEAST: Mapping[str, float] = {
    "asynchronous": 1,
    "epochs": 0,
    "batch": 1,
    "threads": 1,
    "learning_rate": 0.0,
    "scale_rate": 0.0,
    "weight_decay": 0.0,
    "range_decay": 0.0,
}
LARGEST_RATE = 1e6
"""Of rates and decays: the steps of the optimizer stay within float32."""


@dataclass(frozen=True)
class TrainOptions:
    """State what training learns, by which algorithm, and for how long (the keys of conf/train).

    `weights`, `activations`: the algorithm for each, `none` for numbers that stay. `fold`: how a convolution runs
    together with its BatchNormalization during training (docs/training.md); `asynchronous`: parts of a batch with
    statistics of their own. `loss`: against the float model's outputs, against labels, or both. `temperature`: divides
    class scores in the loss against the float model, if the samples are few. `scope`: the whole network at once, or
    block by block. `drop`: probability that an element stays in float in a training step.
    `scale_rate`: learning rate of ranges and scales, relative to their size. `warmup`: share of the steps in which the
    rates rise from 0 (None: `rise` chooses it). `range_decay`: weight of the squares of the ranges in the loss.
    `weight_size`: for dorefa and qil, whether weights keep their size or end at 1.
    `threads`: of torch; other numbers of threads may give other roundings.
    """

    weights: str = "none"
    activations: str = "none"
    fold: int = 0
    asynchronous: int = 1
    loss: str = "outputs"
    temperature: float = 4.0
    scope: str = "network"
    epochs: int = 20
    batch: int = 32
    optimizer: str = "adam"
    learning_rate: float = 1e-4
    scale_rate: float = 1e-3
    warmup: float | None = None
    weight_decay: float = 0.0
    range_decay: float = 0.0
    drop: float = 0.0
    weight_size: str = "kept"
    threads: int = 1
    device: str = "cpu"

    def __post_init__(self) -> None:
        for key, legal in LEGAL.items():
            one_of(f"train.{key}", getattr(self, key), legal)
        for key, least in LEAST.items():
            if isinstance(least, int):
                integer(f"train.{key}", getattr(self, key), least=least)
            else:
                number(f"train.{key}", getattr(self, key), least=least, most=LARGEST_RATE)
        number("train.drop", self.drop, least=0, below=1)
        number("train.temperature", self.temperature, least=1)
        if self.warmup is not None:
            number("train.warmup", self.warmup, least=0, most=0.5, also=", or null")
        self._refuse_contradictions()

    @property
    def active(self) -> bool:
        """Return whether anything is learned."""
        return self.weights != "none" or self.activations != "none"

    @property
    def needs_labels(self) -> bool:
        """Return whether the loss reads labels."""
        return self.loss != "outputs"

    @property
    def rise(self) -> float:
        """Return the share of the steps in which the rates rise."""
        return self.warmup if self.warmup is not None else LABELS_WARMUP if self.needs_labels else 0.0

    def _refuse_contradictions(self) -> None:
        if self.weights == "adaround" and self.weight_decay:
            raise ConfigError(
                f"is {self.weight_decay}, and adaround learns roundings, not weights; legal with it is 0",
                where="train.weight_decay",
            )
        blocks = self.scope == "blocks"
        if blocks and self.loss != "outputs":
            raise ConfigError(
                f"is {self.loss}, and a block has no labels; legal with train.scope=blocks is outputs",
                where="train.loss",
            )
        if self.fold != 0:
            if self.weights == "adaround":
                raise ConfigError(
                    f"is {self.fold}, and train.weights=adaround learns the rounding of the folded weights; legal is 0",
                    where="train.fold",
                )
            if blocks:
                raise ConfigError(
                    f"is {self.fold}, and blocks train the folded convolutions; legal with train.scope=blocks is 0",
                    where="train.fold",
                )
            if self.weights == "none":
                raise ConfigError(
                    f"is {self.fold}, and train.weights=none learns no weights; legal is 0", where="train.fold"
                )
        if self.asynchronous > 1 and self.fold not in (2, 3, 4, -1):
            raise ConfigError(
                f"is {self.asynchronous}, and train.fold={self.fold} uses no statistics of the batch; legal is 1, or "
                "train.fold of -1, 2, 3 or 4",
                where="train.asynchronous",
            )


NO_TRAINING = TrainOptions()


def takes_any_factor(weights: TensorSchema) -> bool:
    """Return whether a factor on each channel of a weight, of any sign, changes its scales alone (`fold=-1`)."""
    by_channel = weights.granularity is Granularity.PER_CHANNEL and weights.power_of_two is PowerOfTwo.NONE
    return by_channel and weights.symmetry is not Symmetry.ASYMMETRIC
