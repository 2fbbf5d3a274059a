"""What every stage starts from: the cleaned model and the three splits that fit it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from quantpipe.data.splits import ROLES, Splits
from quantpipe.data.subset import First
from quantpipe.errors import DataError
from quantpipe.graph.normalize import load_graph
from quantpipe.graph.view import Graph
from quantpipe.settings import Settings
from quantpipe.types import Samples

CHECK_SAMPLES = 4


@dataclass(frozen=True, eq=False)
class Inputs:
    """What every stage starts from."""

    graph: Graph
    calibrate: Samples
    search: Samples
    evaluate: Samples


def load(settings: Settings) -> Inputs:
    """Read the model and the data, check that they fit, clean the model on real samples."""
    made: list[Any] = []

    def example(raw: Graph) -> dict[str, Any]:
        outputs = raw.outputs[0].shape
        classes = outputs[-1] if len(outputs) == 2 else None
        splits = settings.dataset.splits(raw.inputs, classes, settings.seed)
        size = raw.inputs[0].shape[0] if raw.inputs and raw.inputs[0].shape else None
        splits = _whole_batches(splits, size or 1)
        made.append(splits)
        first = next(iter(splits.calibrate.batches(size or CHECK_SAMPLES)), None)
        if first is None:
            raise DataError("there are no calibration samples", stage="data")
        return first.inputs

    graph = load_graph(settings.model, example, settings.resident_mb)
    splits = made[0]
    return Inputs(graph, splits.calibrate, splits.search, splits.evaluate)


def _whole_batches(splits: Splits, size: int) -> Splits:
    """The splits without the last samples that would not fill a batch of the model's own, fixed size."""
    parts = {role: getattr(splits, role) for role in ROLES}
    for role, samples in parts.items():
        count = len(samples) // size * size
        if count == 0:
            raise DataError(
                f"the model takes batches of exactly {size} samples and {role} has {len(samples)}; give more samples, "
                "or a model whose batch axis is free",
                stage="data",
            )
        parts[role] = samples if count == len(samples) else First(samples, count)
    return Splits(**parts)
