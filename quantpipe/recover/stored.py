"""What recovery found as arrays for a file, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantpipe.errors import ArtifactError
from quantpipe.plan import ChannelChange, Overrides
from quantpipe.types import BlockGrid, Range, Topology, WeightTensor

Arrays = dict[str, NDArray[Any]]


def overrides_arrays(overrides: Overrides) -> Arrays:
    """Return overrides as named arrays.

    Per weight tensor T these are `weight/T`, `scale/T`, `bits/T`, and `zero/T` where some zero point is not 0, and of
    one in blocks `multiplier/T`, `block_zero/T` and `blocks/T` (size, most, bounds of the codes); `bias/N`
    per node N; `range/G` (low, high) per scale group and `threshold/T` per weight; `factor/T`, `offset/T` and, where
    they are the change's own, `limits/T` per tensor whose channels are changed; `rotation/T` per stream that begins
    with T.
    """
    found: Arrays = {}
    for tensor, weight in overrides.weights.items():
        found |= {
            f"weight/{tensor}": weight.values,
            f"scale/{tensor}": weight.scale,
            f"bits/{tensor}": np.asarray(weight.bits),
            **({f"zero/{tensor}": weight.zero_point} if weight.has_zero_point else {}),
            **({} if weight.block is None else _blocks(tensor, weight.block)),
        }
    found |= {f"bias/{node}": bias for node, bias in overrides.biases.items()}
    found |= {f"range/{group}": np.asarray([r.low, r.high]) for group, r in overrides.ranges.items()}
    found |= {f"threshold/{tensor}": np.asarray(t, np.float64) for tensor, t in overrides.thresholds.items()}
    for tensor, change in overrides.channels.items():
        found |= {f"factor/{tensor}": change.factor, f"offset/{tensor}": change.offset}
        if change.limits is not None:
            found[f"limits/{tensor}"] = np.asarray(change.limits)
    return found | {f"rotation/{tensor}": matrix for tensor, matrix in overrides.rotations.items()}


def overrides_from_arrays(arrays: Mapping[str, NDArray[Any]], topology: Topology, where: str) -> Overrides:
    """Return the overrides that `overrides_arrays` gave as arrays.

    Raises ArtifactError for tensors and nodes that the topology does not have.
    """
    ranges: dict[str, Range] = {}
    thresholds: dict[str, NDArray[np.float64]] = {}
    channels: dict[str, ChannelChange] = {}
    rotations: dict[str, NDArray[np.float64]] = {}
    found = Overrides({}, {}, ranges, thresholds, channels, rotations)
    groups = {group.key for group in topology.groups}
    for key, array in arrays.items():
        kind, _, name = key.partition("/")
        if kind == "bias":
            if name not in topology.kernel_of:
                raise ArtifactError(f"holds a bias of {name}, which does not fit this model", where=where)
            found.biases[name] = array
        elif kind == "weight":
            site = topology.weight_of.get(name)
            if site is None or f"scale/{name}" not in arrays or f"bits/{name}" not in arrays:
                raise ArtifactError(f"holds the weight {name}, which does not fit this model", where=where)
            scale, bits = np.asarray(arrays[f"scale/{name}"], np.float32), int(arrays[f"bits/{name}"])
            zero = np.asarray(arrays.get(f"zero/{name}", np.zeros(())), np.int64)
            grid = _read_blocks(arrays, name)
            if (grid is None) != (site.block is None):
                raise ArtifactError(f"holds the weight {name} in other blocks than it has here", where=where)
            found.weights[name] = WeightTensor(name, array, scale, site.axis, site.dtype, bits, zero, grid)
        elif kind == "range":
            if name not in groups or array.shape != (2,):
                raise ArtifactError(f"holds a range of {name}, which does not fit this model", where=where)
            ranges[name] = Range(*array.tolist())
        elif kind == "threshold":
            if name not in topology.weight_of:
                raise ArtifactError(f"holds a threshold of {name}, which does not fit this model", where=where)
            thresholds[name] = array
        elif kind == "factor":
            if f"offset/{name}" not in arrays:
                raise ArtifactError(f"holds a factor of {name} without its offset", where=where)
            limits = arrays.get(f"limits/{name}")
            own = None if limits is None else (float(limits[0]), float(limits[1]))
            channels[name] = ChannelChange(array, arrays[f"offset/{name}"], own)
        elif kind == "rotation":
            rotations[name] = array
    return found


def _blocks(tensor: str, grid: BlockGrid) -> Arrays:
    return {
        f"multiplier/{tensor}": grid.multiplier,
        f"block_zero/{tensor}": grid.zero_point,
        f"blocks/{tensor}": np.asarray([grid.size, grid.most, grid.low, grid.high]),
    }


def _read_blocks(arrays: Mapping[str, NDArray[Any]], tensor: str) -> BlockGrid | None:
    multiplier, zero, numbers = (arrays.get(f"{kind}/{tensor}") for kind in ("multiplier", "block_zero", "blocks"))
    if multiplier is None or zero is None or numbers is None or numbers.shape != (4,):
        return None
    size, most, low, high = (int(v) for v in numbers)
    return BlockGrid(size, multiplier.astype(np.int64), zero.astype(np.int64), most, low, high)
