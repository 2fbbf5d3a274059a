"""Say in every realized file what it was made of, and what its inputs and outputs mean.

ONNX files carry it in `metadata_props` under keys that begin with `quantpipe.`; other formats where they have a place
for it. Nothing in it depends on the time or the machine, so equal plans give equal files.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir

from quantpipe.graph.stored_ports import StoredPort
from quantpipe.graph.view import Graph
from quantpipe.realize.open_lengths import length_limits
from quantpipe.types import QuantPlan, TensorInfo

PREFIX = "quantpipe."


@dataclass(frozen=True)
class Provenance:
    """Hold the sources of a realized file.

    `version`: The version of quantpipe. `model`: Digest of the float model's file. `strategy`: Digest of the strategy's
    numbers, recovered weights included. `hardware`: Name of the hardware file. `hardware_digest`: Digest of its
    content. `preprocessing`: The steps from a raw sample to a model's input; empty where the data set has none.
    `class_names`: Names of the classes, by index; empty where they are not known.
    """

    version: str
    model: str
    strategy: str
    hardware: str
    hardware_digest: str
    preprocessing: Mapping[str, Any] = field(default_factory=dict)
    class_names: tuple[str, ...] = ()

    def entries(self, graph: Graph, plan: QuantPlan, form: str, caches: Sequence[StoredPort] = ()) -> dict[str, str]:
        """Return every entry `quantpipe.NAME` as text; values of more than one word are JSON.

        `caches`: those whose ports hold integers in this form.
        """
        found: dict[str, Any] = {
            "version": self.version,
            "form": form,
            "model": self.model,
            "strategy": self.strategy,
            "hardware": self.hardware,
            "hardware_digest": self.hardware_digest,
            "preprocessing": dict(self.preprocessing) or None,
            "class_names": list(self.class_names) or None,
            "lengths": [asdict(limit) for limit in length_limits(graph, plan)] or None,
            "inputs": {i.name: port_numbers(i, plan, caches) for i in graph.inputs},
            "outputs": {o.name: port_numbers(o, plan, caches) for o in graph.outputs},
        }
        return {
            PREFIX + name: value if isinstance(value, str) else json.dumps(value)
            for name, value in found.items()
            if value is not None
        }


def port_numbers(port: TensorInfo, plan: QuantPlan, caches: Sequence[StoredPort] = ()) -> dict[str, Any]:
    """Return the meaning of an input's or output's integers: real = scale · (q - zero_point).

    An output that leaves as an accumulator has its scale alone, of each channel where there are several; a port that is
    real everywhere has neither. A port of one of the `caches` has the type of its integers.
    """
    held = next((c.stored.value for c in caches if port.name in (c.input, c.output)), None)
    found: dict[str, Any] = {"dtype": held or port.given or port.dtype, "shape": list(port.shape)}
    quantizer, raw = plan.quantizers.get(port.name), plan.raw_scales.get(port.name)
    if raw is not None:
        found |= {"scale": np.asarray(raw, np.float64).tolist(), "stored": "accumulator"}
    elif quantizer is not None:
        grid = {"scale": float(quantizer.scale), "zero_point": quantizer.zero_point, "stored": str(quantizer.dtype)}
        found |= grid | {"range": [quantizer.qmin, quantizer.qmax]}
    return found


def stamp(model: ir.Model, entries: Mapping[str, str], version: str) -> None:
    """Write the provenance into an ONNX model, in place."""
    model.producer_name, model.producer_version = "quantpipe", version
    for key, value in entries.items():
        model.metadata_props[key] = value
