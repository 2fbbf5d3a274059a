"""How long the inputs of a file may be, where integer sums run over an axis of free length.

ONNX declares no maximum of an axis. So the metadata of the file have it (`quantpipe.lengths`, a JSON list).
Sessions of quantpipe reject longer inputs before they run. No node of the file is needed for it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir
from numpy.typing import NDArray

from quantpipe.errors import DataError

KEY = "quantpipe.lengths"
"""Of the metadata entry, which `realize/provenance.py` writes."""


@dataclass(frozen=True)
class LengthLimit:
    """Hold the maximum of the sum of some axes' sizes: (input, axis), more than once if it counts more than once."""

    axes: tuple[tuple[str, int], ...]
    most: int

    def count(self, feeds: Mapping[str, NDArray[Any]]) -> int:
        """Return the sum of the sizes in a run."""
        return sum(int(feeds[name].shape[axis]) for name, axis in self.axes if name in feeds)

    def __str__(self) -> str:
        """Return the axes and the maximum in words."""
        return f"{' plus '.join(f'axis {axis} of {name}' for name, axis in self.axes)}: at most {self.most:,}"


def stated_lengths(model: ir.Model) -> tuple[LengthLimit, ...]:
    """Return the limits in a model's metadata; none where the entry has another form, as it is somebody else's."""
    ranks = {value.name: len(value.shape) for value in model.graph.inputs if value.shape is not None}
    try:
        rows = json.loads(model.metadata_props.get(KEY, "[]"))
        found = [LengthLimit(tuple((str(n), int(a)) for n, a in row["axes"]), int(row["most"])) for row in rows]
    except (ValueError, TypeError, KeyError):
        return ()
    return tuple(limit for limit in found if all(axis < ranks.get(name, 0) for name, axis in limit.axes))


def refuse_longer(limits: Sequence[LengthLimit], feeds: Mapping[str, NDArray[Any]], where: str) -> None:
    """Raise DataError where inputs are longer than the integer sums of a model hold."""
    for limit in limits:
        if (found := limit.count(feeds)) > limit.most:
            raise DataError(
                f"the inputs have a length of {found:,}, and the integer sums of the model hold {limit.most:,} terms; "
                f"legal is {limit}: give shorter texts, or begin again with an empty cache",
                stage="run",
                where=where,
            )
