"""The metrics of a file in a session without the options that it asks for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx_ir as ir

from quantpipe.errors import ModelError
from quantpipe.evaluate.agreement import same_kernels
from quantpipe.graph.execute import Kernels, Session
from quantpipe.graph.external_weights import is_outside
from quantpipe.graph.session_options import carried
from quantpipe.metrics.outputs import summary
from quantpipe.metrics.reference import Reference
from quantpipe.types import Outputs, Samples


def in_default_session(
    model: ir.Model, samples: Samples, same: Reference, run: Callable[..., Any], *, known: Outputs
) -> dict[str, Any]:
    """Return the metrics of a file without the session options that it asks for, by the key of the report.

    The result is empty where it asks for none, where the runtime loads it with them only, and for mapped weights. If
    both sessions have the same kernels, the outputs are the `known` ones.
    """
    if not carried(model) or is_outside(model):
        return {}
    if same_kernels(model, carried(model), {}):
        return {"default_session": summary(same.outputs, known, same.labels)}
    try:
        session = Session(model, options={}, kernels=Kernels.NATIVE, where="realized model, default session")
        outputs, _ = run("default session", session, samples)
    except ModelError:
        return {}
    found = next(iter(outputs.values()))
    return {"default_session": summary(same.outputs, found, same.labels)}
