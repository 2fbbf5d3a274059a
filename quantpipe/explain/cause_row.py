"""The row of one thing that costs accuracy, before anything but its error alone is known of it."""

from __future__ import annotations

from quantpipe.explain.sensitivity import Alone
from quantpipe.types import CauseKind, CauseRow


def cause_row(name: str, kind: CauseKind, node: str, alone: Alone) -> CauseRow:
    """Return the row of something that is quantized, as far as its error alone says it."""
    return {
        "tensor": name,
        "kind": kind,
        "node": node,
        "role": node,
        "bits": 0,
        "alone": alone.loss,
        "samples": alone.samples,
        "outputs": list(alone.outputs),
        "rounding": None,
        "clipping": None,
        "accumulated": None,
        "local_rounding": None,
        "local_clipping": None,
        "saturated": None,
        "overflow": 0.0,
        "split": None,
        "before": None,
        "after": None,
        "channels": None,
        "fault": "",
    }
