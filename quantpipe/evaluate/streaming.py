"""Run a streaming model on its own states, instead of the float model's."""

from __future__ import annotations

from itertools import islice

import numpy as np

from quantpipe.data.recurrent_state import StatefulSamples
from quantpipe.data.subset import underlying
from quantpipe.graph.execute import Session, joined
from quantpipe.metrics.outputs import summary
from quantpipe.metrics.reference import Reference
from quantpipe.types import (
    ModelMetrics,
    Samples,
)


def free_running(session: Session, samples: Samples, reference: Reference) -> ModelMetrics | None:
    """Return top1, kl and sqnr_db of a model with states of its own, against the float model with its own.

    What quantization does to a state adds up here, as it does on the device. The result is {} where the samples carry
    no state.
    """
    carried = underlying(samples)
    if not isinstance(carried, StatefulSamples):
        return None
    found = [np.asarray(out[reference.output]) for out in islice(carried.free_run(session.run), len(samples))]
    return summary(reference.outputs, joined(found), reference.labels)
