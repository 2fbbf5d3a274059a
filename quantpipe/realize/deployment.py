"""Describe how onnxruntime runs a written file: its session options in words, and code that loads it.

SHIP.md, the report, the page, the terminal and Python results show these texts and make none of their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from quantpipe.graph.custom_ops import custom_ops
from quantpipe.graph.session_options import WITHOUT
from quantpipe.graph.stored_ports import StoredPort
from quantpipe.graph.view import Graph
from quantpipe.realize.ship_samples import feeds
from quantpipe.types import HardwareSpec

THREADS = "intra_op_num_threads = 1"
"""The option of a file whose results depend on the number of threads."""


def how_to_run(file: str, options: Mapping[str, str], spec: HardwareSpec, *, one_thread: bool = False) -> str:
    """Return in one or two sentences which session options of onnxruntime a file needs, and what they are for.

    `one_thread`: its results depend on the number of threads.
    """
    run = f"run {file} in onnxruntime" if spec.runs_here else f"to compare with {spec.name}, run {file} in onnxruntime"
    if libraries := custom_ops():
        run += f" with the custom ops of {', '.join(Path(library).name for library in libraries)} registered, and"
    if not options:
        default = f"{THREADS} and otherwise default session options" if one_thread else "its default session options"
        return f"{run} with {default}; every processor computes the searched integers"
    asked = ", ".join(f"{key}={value}" for key, value in sorted(options.items()))
    lost = "; ".join(WITHOUT[key] for key in sorted(options) if key in WITHOUT)
    several = "options" if len(options) > 1 else "option"
    threads = f", and with {THREADS}" if one_thread else ""
    return f"{run} with the session {several} {asked}{f' ({lost})' if lost else ''}{threads}"


def loading_code(
    file: str,
    options: Mapping[str, str],
    graph: Graph,
    given: Mapping[str, Any],
    *,
    caches: Sequence[StoredPort] = (),
    one_thread: bool = False,
) -> str:
    """Return Python that loads a file with its options and runs one sample of zeros, in the folder of the file.

    `given` is the preprocessing of a raw sample, `caches` are those in integers. `one_thread`: as in `how_to_run`.
    """
    asked = [f"options.{THREADS}"] if one_thread else []
    asked += [f'options.add_session_config_entry("{k}", "{v}")' for k, v in options.items()]
    asked += [f'options.register_custom_ops_library("{Path(library).name}")' for library in custom_ops()]
    session = (
        ["options = ort.SessionOptions()", *asked, f'session = ort.InferenceSession("{file}", options)']
        if asked
        else [f'session = ort.InferenceSession("{file}")']
    )
    lines = [
        "import numpy as np, onnxruntime as ort",
        *session,
        feeds(graph, given, caches),
        "outputs = session.run(None, feeds)",
    ]
    return "\n".join(lines)
