"""The TFLite form: one .tflite file with the plan's own integers and scales, run and compared by LiteRT's interpreter.

`tflite` takes and gives floats, by a Quantize and a Dequantize at its ends; `tflite_integer_io` takes and gives the
stored integers, as microcontrollers have them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from quantpipe.errors import HardwareError
from quantpipe.graph.view import Graph
from quantpipe.intake.tflite import litert
from quantpipe.realize.protocol import Runner, WrittenForm
from quantpipe.realize.provenance import PREFIX, Provenance
from quantpipe.realize.ship_samples import RAW, real, stored
from quantpipe.realize.tflite.litert_kernels import departures
from quantpipe.realize.tflite.run import LiteRTKernels, TfliteModel, TfliteRunner
from quantpipe.realize.tflite.write import TfliteFile, write_model
from quantpipe.types import QuantPlan, RequantizeKind, Topology

ROUNDING = {
    LiteRTKernels.REFERENCE: (
        "LiteRT's reference kernels compute these integers; XNNPACK, LiteRT's default, rounds some of them\n"
        "in another way."
    ),
    LiteRTKernels.XNNPACK: (
        "XNNPACK, LiteRT's default, computes these integers; LiteRT's reference kernels round some of them\n"
        "in another way."
    ),
}


def howto(
    file: str,
    written: TfliteFile,
    *,
    whole: bool,
    graph: Graph,
    plan: QuantPlan,
    given: Mapping[str, Any],
    kernels: LiteRTKernels,
) -> str:
    """Return the section as Markdown.

    `whole`: its inputs and outputs are the stored integers. `kernels` are those that compute the plan's integers.
    """
    kind = "the stored integers (scale and zero point: `get_input_details`)" if whole else "preprocessed float values"
    name, first = next(iter(written.inputs.items()))
    feeds = []
    for port in graph.inputs:
        made = stored(port, graph, given, plan) if whole else real(port, graph, given)
        order = written.inputs[port.name].order
        moved = made if order == tuple(range(len(order))) else f"np.transpose({made}, {order})"
        feeds.append(f'"{port.name}": {moved}')
    return f"""The file has the plan's own integers and scales; LiteRT quantizes nothing. Its inputs and outputs are
{kind}.
Axes of maps lie as TFLite has them, channels last: `{name}` is {first.layout} here. {ROUNDING[kernels]}

```python
import numpy as np
from ai_edge_litert.interpreter import Interpreter, OpResolverType
interpreter = Interpreter("{file}", experimental_op_resolver_type=OpResolverType.{kernels.value})
feeds = {{{", ".join(feeds)}}}{RAW}
outputs = interpreter.get_signature_runner()(**feeds)
```
"""


class TfliteForm:
    """Write a plan as a .tflite file, and run it by the kernels of LiteRT whose arithmetic the device has."""

    def __init__(self, name: str = "tflite", file: str = "model.tflite", *, whole: bool = False) -> None:
        """`whole`: its inputs and outputs are the stored integers."""
        self.name, self.file, self._whole = name, file, whole

    def unavailable(self) -> str | None:
        """Return why no .tflite file can be executed here; None where LiteRT is installed."""
        return litert.missing()

    def write(self, graph: Graph, topology: Topology, plan: QuantPlan, made: Provenance) -> WrittenForm:
        """Write the file.

        Raises HardwareError where LiteRT's package is missing, and for nodes that the format cannot hold, all of them.
        """
        why = litert.missing()
        if why is not None:
            raise HardwareError(why, stage="realize", where=self.name)
        written = write_model(
            graph, topology, plan, whole=self._whole, provenance=_plain(made.entries(graph, plan, self.name))
        )
        said = howto(
            self.file,
            written,
            whole=self._whole,
            graph=graph,
            plan=plan,
            given=made.preprocessing,
            kernels=kernels_of(plan),
        )
        reason = departures(kernels_of(plan), graph, topology, plan)
        return WrittenForm({self.file: written.content}, _facts(written), said, inexact=reason)

    def open(self, folder: Path, graph: Graph, topology: Topology, plan: QuantPlan) -> Runner:
        """Return a runner of the file in a folder; the other kernels run too, but decide nothing."""
        model, own = TfliteModel.read(folder / self.file), kernels_of(plan)
        others = {other.word: TfliteRunner(model, other) for other in COMPARED if other is not own}
        return TfliteRunner(model, own, others)


COMPARED = (LiteRTKernels.REFERENCE, LiteRTKernels.XNNPACK)
"""Kernels that a file is run by."""


def kernels_of(plan: QuantPlan) -> LiteRTKernels:
    """Return the kernels that compute the plan's integers: XNNPACK's multiply by float32, the reference's never."""
    outputs = [output for k in plan.kernels.values() if (output := getattr(k, "output", None)) is not None]
    real = any(output.kind is RequantizeKind.FLOAT_MULTIPLIER for output in outputs)
    whole = any(getattr(kernel, "whole", False) for kernel in plan.kernels.values())
    return LiteRTKernels.XNNPACK if real or whole else LiteRTKernels.REFERENCE


def _facts(written: TfliteFile) -> dict[str, float | int | str]:
    layouts = {name: port.layout for name, port in written.inputs.items()}
    return {
        "operators": sum(written.operators.values()),
        "transposes": written.transposes,
        "input_layout": ", ".join(dict.fromkeys(layouts.values())),
    }


def _plain(entries: Mapping[str, str]) -> dict[str, Any]:
    """Return the entries by their short names, with JSON parsed; the writer describes ports with their layouts."""
    found: dict[str, Any] = {}
    for key, text in entries.items():
        name = key.removeprefix(PREFIX)
        try:
            found[name] = json.loads(text)
        except json.JSONDecodeError:
            found[name] = text
    return found
