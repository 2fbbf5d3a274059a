"""The QONNX form: one ONNX file for FINN and hls4ml, run node by node by the package `qonnx`."""

from __future__ import annotations

import importlib
from dataclasses import replace
from pathlib import Path

from quantpipe.errors import HardwareError
from quantpipe.graph.io import model_bytes
from quantpipe.graph.view import Graph
from quantpipe.lowering import Rendered, render
from quantpipe.realize.opset import with_least_opset
from quantpipe.realize.protocol import Runner, WrittenForm
from quantpipe.realize.provenance import Provenance, stamp
from quantpipe.realize.qonnx.dialect import Qonnx
from quantpipe.realize.qonnx.nodes import DOMAIN, VERSION
from quantpipe.realize.qonnx.run_qonnx import QonnxRunner
from quantpipe.realize.ship_samples import feeds
from quantpipe.types import QuantPlan, Topology

EXTRA = "qonnx"
HOWTO = """FINN and hls4ml read `model.qonnx.onnx`. Its tensors are float. Where integers are stored there is a
node `Quant`, whose result is `scale * (integer - zero point)`. The package qonnx runs it:

```python
import numpy as np
from qonnx.core.modelwrapper import ModelWrapper
from qonnx.core.onnx_exec import execute_onnx
from qonnx.transformation.infer_shapes import InferShapes
{feeds}
model = ModelWrapper("model.qonnx.onnx")
[model.set_tensor_shape(name, value.shape) for name, value in feeds.items()]
outputs = execute_onnx(model.transform(InferShapes()), feeds)
```

- FINN: `ModelWrapper("model.qonnx.onnx")`, then `ConvertQONNXtoFINN()`. It only takes zero points of 0.
- hls4ml: `hls4ml.converters.convert_from_onnx_model(onnx.load("model.qonnx.onnx"), …)`, after `qonnx-cleanup` and
  `qonnx-to-channels-last`."""


class QonnxForm:
    """Write a plan as QONNX, and run it by the package `qonnx`."""

    name = "qonnx"
    file = "model.qonnx.onnx"

    def unavailable(self) -> str | None:
        """Return why no QONNX file can be executed here; None where the package is installed."""
        try:
            importlib.import_module("qonnx.core.onnx_exec")
        except ImportError as error:
            return (
                f"the qonnx form is run by the package qonnx, which cannot be loaded ({error}): "
                f'pip install "quantpipe-onnx[{EXTRA}]"'
            )
        return None

    def write(self, graph: Graph, topology: Topology, plan: QuantPlan, made: Provenance) -> WrittenForm:
        """Write the file.

        Raises HardwareError for ops of packages, for which QONNX has no node.
        """
        rendered = written(graph, topology, plan)
        stamp(rendered.model, made.entries(graph, plan, self.name), made.version)
        nodes = [node.op_type for node in rendered.model.graph if node.domain == DOMAIN]
        facts = {op: nodes.count(op) for op in dict.fromkeys(nodes)}
        said = HOWTO.format(feeds=feeds(graph, made.preprocessing))
        return WrittenForm({self.file: model_bytes(rendered.model)}, facts, said, inexact=rendered.inexact)

    def open(self, folder: Path, graph: Graph, topology: Topology, plan: QuantPlan) -> Runner:
        """Return a runner of the file in a folder."""
        why = self.unavailable()
        if why is not None:
            raise HardwareError(why, stage="evaluate", where=self.name)
        return QonnxRunner(folder / self.file, written(graph, topology, plan).integers, plan)


def written(graph: Graph, topology: Topology, plan: QuantPlan) -> Rendered:
    """Return the model, with the lowest opset of ONNX's own that its nodes need."""
    rendered = render(graph, topology, plan, Qonnx())
    model = rendered.model
    model.graph.opset_imports[DOMAIN] = VERSION
    return replace(rendered, model=with_least_opset(model, kernels=(DOMAIN,)))
