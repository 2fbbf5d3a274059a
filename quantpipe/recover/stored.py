"""Recovered weights and biases as arrays for a file, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantpipe.errors import ArtifactError
from quantpipe.plan import Overrides
from quantpipe.types import Topology, WeightTensor

Arrays = dict[str, NDArray[Any]]


def overrides_arrays(overrides: Overrides) -> Arrays:
    """`weight/T`, `scale/T`, `bits/T`, and `zero/T` where some is not 0, per weight tensor T; `bias/N` per node N."""
    found: Arrays = {}
    for tensor, weight in overrides.weights.items():
        found |= {
            f"weight/{tensor}": weight.values,
            f"scale/{tensor}": weight.scale,
            f"bits/{tensor}": np.asarray(weight.bits),
            **({f"zero/{tensor}": weight.zero_point} if weight.has_zero_point else {}),
        }
    return found | {f"bias/{node}": bias for node, bias in overrides.biases.items()}


def overrides_from_arrays(arrays: Mapping[str, NDArray[Any]], topology: Topology, where: str) -> Overrides:
    """The inverse. Raises ArtifactError for tensors and nodes that the topology does not have."""
    found = Overrides({}, {})
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
            found.weights[name] = WeightTensor(name, array, scale, site.axis, site.dtype, bits, zero)
    return found
