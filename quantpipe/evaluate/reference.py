"""The float model's outputs and labels over a split: computed once, compared with many times."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantpipe.errors import ConfigError, DataError
from quantpipe.evaluate.metrics import all_finite, kl_divergence, relative_mse, top1
from quantpipe.graph.execute import Session, collect, joined
from quantpipe.types import Outputs, Samples

ValueOf = Callable[[Outputs, Outputs, NDArray[np.int64] | None], float]
"""A user's objective: (the float model's outputs, the candidate's outputs, labels or None) -> float, greater is
better."""


@dataclass(frozen=True, eq=False)
class Reference:
    """One output of the float model `[N, ...]` (N arrays where shapes differ), the labels `[N]`, if any, the user's own
    objective, and the output's name (empty: there is no model to ask)."""

    outputs: Outputs = field(repr=False)
    labels: NDArray[np.int64] | None = field(repr=False)
    value_of: ValueOf | None = None
    output: str = ""

    @property
    def own_value(self) -> float | None:
        """What the user's objective gives for the float model itself."""
        return None if self.value_of is None else user_value(self, self.outputs)


def outputs_of(
    session: Session,
    samples: Samples,
    size: int,
    extra: Mapping[str, NDArray[Any]] | None = None,
    output: str | None = None,
) -> Outputs:
    """One output (the first, if none is named) over all samples, `[N, ...]`, or N arrays where shapes differ."""
    return collect(session, samples, size, output or session.outputs[0], extra)


def reference_of(
    session: Session, samples: Samples, size: int, output: str | None = None, value_of: ValueOf | None = None
) -> Reference:
    """Run the float model for one output, the first if none is named; `value_of` is an objective of the user's.
    DataError when the outputs are not finite."""
    output = output or session.outputs[0]
    rows, parts = [], []
    for batch in samples.batches(size):
        rows.append(session.run(batch.inputs, [output])[output])
        parts.append(batch.labels)
    labels = [part for part in parts if part is not None]
    return checked_reference(joined(rows), np.concatenate(labels) if labels else None, value_of, output)


def checked_reference(
    outputs: Outputs, labels: NDArray[np.int64] | None, value_of: ValueOf | None, output: str
) -> Reference:
    """The reference that the float model's outputs make. DataError when they are not finite."""
    if not all_finite(outputs):
        sample = next(number for number, row in enumerate(outputs) if not np.all(np.isfinite(row)))
        raise DataError(f"the float model's own output is not finite for sample {sample}", stage="evaluate")
    return Reference(outputs, labels, value_of, output)


def first_samples(reference: Reference, count: int) -> Reference:
    """The reference of the first few samples of its split."""
    if count >= len(reference.outputs):
        return reference
    labels = None if reference.labels is None else reference.labels[:count]
    return replace(reference, outputs=reference.outputs[:count], labels=labels)


def output_metrics(reference: Reference, outputs: Outputs) -> dict[str, float]:
    """kl, mse and, with labels, top1 of some outputs; `callable` where the user gave a function."""
    found = {"kl": kl_divergence(reference.outputs, outputs), "mse": relative_mse(reference.outputs, outputs)}
    if reference.value_of is not None:
        found["callable"] = user_value(reference, outputs)
    accuracy = top1(outputs, reference.labels)
    return found if accuracy is None else found | {"top1": accuracy}


def user_value(reference: Reference, outputs: Outputs) -> float:
    """The user's objective. ConfigError when the function fails or gives no number (NaN is one: the worst)."""
    if reference.value_of is None:
        raise ConfigError("is not set", stage="search", where="objective.target")
    name = getattr(reference.value_of, "__qualname__", repr(reference.value_of))
    try:
        return float(reference.value_of(reference.outputs, outputs, reference.labels))
    except Exception as error:
        raise ConfigError(
            f"{name}(reference_outputs, outputs, labels) must give a number, and ended with "
            f"{type(error).__name__}: {' '.join(str(error).split())[:200]}",
            stage="search",
            where="objective.target",
        ) from error
