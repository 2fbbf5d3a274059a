"""The inputs of training in a run, and the checks before the first stage."""

from __future__ import annotations

from quantpipe.errors import ConfigError
from quantpipe.metrics.losses import LossKind
from quantpipe.metrics.soft_kl import softness_of
from quantpipe.pipeline.context import RunContext
from quantpipe.train.torch_checks import refuse_without_torch
from quantpipe.train.train_options import takes_any_factor
from quantpipe.train.training_data import KL, MSE, OutputTarget, TrainingData

KINDS = {LossKind.KL: KL, LossKind.MSE: MSE}
"""Losses that have a gradient."""


def training_data(context: RunContext) -> TrainingData | None:
    """Return the inputs of training; None where nothing is learned."""
    if not context.settings.train.active:
        return None
    inputs = context.inputs
    losses = [loss for loss in inputs.compared.losses if loss.kind in KINDS and loss.factor > 0]
    targets = tuple(OutputTarget(loss.output, KINDS[loss.kind], loss.factor, loss.parts) for loss in losses)
    return TrainingData(inputs.training, targets, inputs.output, inputs.norms, softness_of)


def refuse_untrainable(context: RunContext) -> None:
    """Raise ConfigError for training that could not begin, before any stage."""
    options = context.settings.train
    data = training_data(context)
    if data is None:
        return
    if options.loss != "outputs" and not data.samples.labelled:
        raise ConfigError(
            f"is {options.loss}, and the samples have no labels; legal is outputs, or a data set with labels",
            where="train.loss",
        )
    if options.loss != "labels" and not data.targets:
        raise ConfigError(
            f"is {options.loss}, and the compared outputs are integers, which have no gradient; legal is labels",
            where="train.loss",
        )
    if options.fold and not data.norms:
        raise ConfigError(
            f"is {options.fold}, and no BatchNormalization follows a convolution in this model; legal is 0",
            where="train.fold",
        )
    if options.fold == -1 and not takes_any_factor(context.settings.schema.weights):
        raise ConfigError(
            "is -1, which needs symmetric weights with a scale per channel that may be any number, and this device's "
            "weights are others; legal are 0, 1, 2, 3 and 4",
            where="train.fold",
        )
    refuse_without_torch(context.graph, options, f"train={context.settings.choices.get('train', 'own options')}")
