"""Measure with onnxruntime's profiler how long each node of a model takes."""

from __future__ import annotations

import json
import re
import tempfile
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
from numpy.typing import NDArray

from quantpipe.errors import ModelError
from quantpipe.graph.custom_ops import register_custom_ops
from quantpipe.graph.session_options import carried

WARM_UP = 5
_NEAR = 0.02
"""A run counts if it takes at most so much longer than the fastest quarter, besides the rounding."""
_END, _COPY = "_kernel_time", re.compile(r"_token_\d+$")


def layer_times(model: Path, feeds: Mapping[str, NDArray[Any]], runs: int) -> dict[str, float]:
    """Return the microseconds of each node of a model file on one thread: the mean over runs that nothing disturbed.

    The session has the options that the file names. Whole runs are kept or left out, not single times: the profiler
    counts whole microseconds, and the smallest of a node's own times would be rounded down.

    A node that the runtime fuses or renames has the name of the node in the file, as far as the runtime keeps it.
    """
    with tempfile.TemporaryDirectory(prefix="quantpipe-") as folder:
        options = ort.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 4
        options.enable_profiling = True
        options.profile_file_prefix = str(Path(folder) / "profile")
        register_custom_ops(options)
        try:
            for key, entry in carried(ir.load(str(model))).items():
                options.add_session_config_entry(key, entry)
            session = ort.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
            for _ in range(WARM_UP + runs):
                session.run(None, dict(feeds))
            events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
        except Exception as error:  # onnxruntime raises its own family of types
            raise ModelError(f"onnxruntime cannot profile it: {error}", stage="identify", where=str(model)) from error
    found: dict[str, list[float]] = defaultdict(list)
    for event in events:
        name = str(event.get("name", ""))
        if event.get("cat") == "Node" and name.endswith(_END):
            found[_COPY.sub("", name.removesuffix(_END))].append(float(event["dur"]))
    return means(found, runs)


def means(times: Mapping[str, list[float]], runs: int) -> dict[str, float]:
    """Return the mean time of each node in the last `runs` runs, without runs slower than the fastest quarter.

    A node may run several times in a run; then its times count one by one.
    """
    last = {name: np.array(one[-(len(one) // (WARM_UP + runs)) * runs :]) for name, one in times.items()}
    table = {name: one.reshape(runs, -1) for name, one in last.items() if one.size and one.size % runs == 0}
    total = sum((one.sum(axis=1) for one in table.values()), np.zeros(runs))
    spread = 3 * np.sqrt(sum(one.shape[1] for one in table.values()) / 6)  # of a sum of rounded times
    kept = total <= np.quantile(total, 0.25) * (1 + _NEAR) + spread
    others = {name: one for name, one in last.items() if name not in table}
    return {name: float(table[name][kept].mean() if name in table else others[name].mean()) for name in times}
