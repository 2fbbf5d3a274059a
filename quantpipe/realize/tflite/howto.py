"""The section of SHIP.md on the use of a .tflite file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quantpipe.graph.view import Graph
from quantpipe.realize.ship_samples import RAW, real, stored
from quantpipe.realize.tflite.run import LiteRTKernels
from quantpipe.realize.tflite.write import TfliteFile
from quantpipe.types import QuantPlan

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
