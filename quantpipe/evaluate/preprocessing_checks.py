"""Tell whether the samples reach the float model as those did that it was trained on.

A mistake here affects all later stages, so the samples are checked before anything else runs, and reported first.

Four signs are checked, on some samples. They are accuracy near guessing; a model that is sure of itself and wrong; one
answer of a classifier for all samples; and values far outside the training statistics. The last sign are values before
the first BatchNormalization that are far from its stored mean and variance. Without a BatchNormalization it is a first
Clip that cuts off most values. A forgotten `dataset.preprocess.scale` shows all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantpipe.data.subset import First
from quantpipe.errors import QuantpipeError
from quantpipe.graph.execute import Session, joined
from quantpipe.graph.external_weights import is_outside
from quantpipe.graph.normalize import expose
from quantpipe.graph.view import Graph
from quantpipe.metrics.interval import chance_of, wilson
from quantpipe.metrics.outputs import all_finite, is_distribution, log_probabilities
from quantpipe.oprules.expectations import Expectation, expectation
from quantpipe.oprules.scores import is_normalized
from quantpipe.types import Samples

MOST_SAMPLES = 64
BATCH = 8
GUESSED = 0.01
"""Of guessing as well or better: above, accuracy is no better than chance."""
NEAR = 4.0
"""Times the accuracy of guessing (and at most a half), below which a model that is better than guessing is doubted."""
SAME = 16
"""Samples, at least, that are given the same answer where that is a sign."""
TOO_SURE = 0.3
"""By how much the mean probability of the model's own answer may exceed the accuracy's upper bound."""
FAR = 8.0
"""Times as wide or as narrow, or standard deviations beside: the median channel of what training had is far off."""
CUT_OFF = 0.5
USUAL = 20.0
"""Magnitude that prepared float inputs stay below: 255 levels of a picture do not."""

CAUSE = (
    "the samples are not prepared as in training. Check dataset.preprocess first (scale, mean, std, layout), then the "
    "order of the classes. Until then accuracies and tolerances of this run are meaningless"
)


@dataclass(frozen=True)
class SampleDoubts:
    """Hold doubts about the samples as sentences.

    `wrong`: the float model is hardly better than guessing, and its inputs are far outside of what it was trained on.
    """

    said: tuple[str, ...] = ()
    wrong: bool = False


def doubts(raw: Graph, samples: Samples, output: str, size: int | None) -> SampleDoubts:
    """Return doubts about the samples after one run of the model as it was given.

    It returns nothing for a model with external weights, and where the model cannot be run (the next stage that runs it
    reports why).
    """
    if is_outside(raw.model):
        return SampleDoubts()
    watched = expectation(raw)
    tensor = [] if watched is None else [watched.tensor]
    answers = is_normalized(raw, output)
    if watched is None and not samples.labelled and not answers:
        return SampleDoubts()  # nothing to hold its values against
    try:
        session = Session(expose(raw.model, tensor), where=raw.source)
        found = [
            (batch, session.run(batch.inputs, [output, *tensor]))
            for batch in First(samples, MOST_SAMPLES).batches(size or BATCH)
        ]
    except QuantpipeError:
        return SampleDoubts()
    feeds = [batch.inputs for batch, _ in found]
    inputs = _extent(feeds)
    said = [_of_values(watched, [values[tensor[0]] for _, values in found], inputs)] if watched is not None else []
    far, guesses = any(said) or _largest(feeds) > USUAL, False
    labels = [batch.labels for batch, _ in found]
    outputs = joined([values[output] for _, values in found])
    if all(part is not None for part in labels) and isinstance(outputs, np.ndarray) and outputs.ndim == 2:
        right = np.concatenate([part for part in labels if part is not None])
        said.insert(0, _of_answers(outputs, right, inputs))
        guesses = said[0] is not None and _guesses(outputs, right) is not None
    elif answers and isinstance(outputs, np.ndarray) and outputs.ndim == 2:
        said.insert(0, _of_one_answer(outputs, inputs))
    return SampleDoubts(tuple(text for text in said if text), guesses and far)


def _guesses(outputs: NDArray[Any], labels: NDArray[np.int64]) -> str | None:
    """Return "no" or "little" if the share of right answers is no better, or little better, than chance; else None."""
    count, classes = outputs.shape
    right = int(np.sum(outputs.argmax(axis=1) == labels))
    if chance_of(right, count, classes) > GUESSED:
        return "no"
    _, high = wilson(right / count, count) or (0.0, 1.0)
    return "little" if high < min(NEAR / classes, 0.5) else None


def _of_answers(outputs: NDArray[Any], labels: NDArray[np.int64], inputs: str) -> str | None:
    """Return a doubt from the share of right answers, and from the model's certainty about its own."""
    count, classes = outputs.shape
    if classes < 2 or not all_finite(outputs):
        return None
    right = int(np.sum(outputs.argmax(axis=1) == labels))
    low, high = wilson(right / count, count) or (0.0, 1.0)
    known = f"the float model itself is right on {right} of {count} samples ({_percent(low)} to {_percent(high)} %"
    if (better := _guesses(outputs, labels)) is not None:
        return (
            f"{known} with 95 % confidence), {better} better than guessing among {classes} classes, and its inputs run "
            f"{inputs}: {CAUSE}"
        )
    sure = float(np.mean(np.exp(log_probabilities(outputs, is_distribution(outputs)).max(axis=1))))
    if sure > high + TOO_SURE:
        return (
            f"{known} with 95 % confidence) and gives its own answers a probability of {sure:.2g}, and its inputs run "
            f"{inputs}: {CAUSE}"
        )
    return None


def _of_one_answer(outputs: NDArray[Any], inputs: str) -> str | None:
    """Return the sign that samples without labels all get one answer."""
    count, classes = outputs.shape
    if count < SAME or classes < 3 or not all_finite(outputs):
        return None
    found = np.unique(outputs.argmax(axis=1))
    if len(found) > 1:
        return None
    return (
        f"the float model gives all of {count} samples the same answer, class {found[0]} of {classes}, and its inputs "
        f"run {inputs}: unless they are all of that class, {CAUSE}"
    )


def _of_values(expected: Expectation, values: list[NDArray[Any]], inputs: str) -> str | None:
    """Return a doubt from the values at a layer that knows its training statistics."""
    if expected.mean is None or expected.deviation is None:
        cut = float(np.mean([np.mean(part >= expected.limit) for part in values]))
        if cut <= CUT_OFF:
            return None
        return (
            f"{100 * cut:.0f} % of the values are cut off by the first {expected.op} ({expected.node}), and the inputs "
            f"run {inputs}: {CAUSE}"
        )
    rows = np.concatenate([np.moveaxis(part, 1, 0).reshape(part.shape[1], -1) for part in values], axis=1)
    rows = rows.astype(np.float64)
    wide = float(np.median(rows.std(axis=1) / expected.deviation))
    beside = float(np.median(np.abs(rows.mean(axis=1) - expected.mean) / expected.deviation))
    if 1 / FAR <= wide <= FAR and beside <= FAR:
        return None
    return (
        f"the values before the first {expected.op} ({expected.node}) spread {wide:.3g} times as wide as in training, "
        f"and their mean is off by {beside:.3g} standard deviations (median channel). The inputs run {inputs}: {CAUSE}"
    )


def _largest(feeds: Sequence[Mapping[str, NDArray[Any]]]) -> float:
    """Return the largest magnitude of the float inputs."""
    real = [a for feed in feeds for a in feed.values() if a.dtype.kind == "f" and a.size]
    return max((float(np.abs(a).max()) for a in real), default=0.0)


def _extent(feeds: Sequence[Mapping[str, NDArray[Any]]]) -> str:
    """Return the range of the float inputs, in words."""
    real = [a for feed in feeds for a in feed.values() if a.dtype.kind == "f" and a.size]
    if not real:
        return "over integers"
    return f"from {min(float(a.min()) for a in real):.3g} to {max(float(a.max()) for a in real):.3g}"


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"
