"""Run folders for the checker: a plan realized in some form and written with its certificate, without the program
around it; and changes of what lies there, with or without the digests made to fit."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from quantpipe.artifacts import Origin
from quantpipe.artifacts.digest import digest_file, digest_json
from quantpipe.certify import certificate
from quantpipe.graph.view import Graph
from quantpipe.intake.load import load_graph
from quantpipe.pipeline.origin_parts import device_part
from quantpipe.pipeline.run_folder import RunFolder
from quantpipe.types import QuantPlan
from tests.ops.line import CONF, ArraySamples, Line, hardware, line

FORMS = ("qdq", "qoperator", "integer")
DIGITS = CONF.parent / "quantpipe" / "assets" / "digits.onnx"


@cache
def digits() -> Graph:
    return load_graph(DIGITS, lambda raw: {raw.inputs[0].name: _images(2)})


def _images(count: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(5).random((count, 1, 8, 8)).astype(np.float32)


@cache
def digits_line(spec: str, **changes: Any) -> Line:
    """The digits model on a shipped hardware file."""
    samples = ArraySamples({digits().inputs[0].name: _images(12)})
    return line(digits(), hardware(spec, **changes), samples=samples)


def hardware_files() -> list[str]:
    return sorted(p.stem for p in (CONF / "hardware").glob("*.yaml"))


def write(made: Line, plan: QuantPlan, form: str, root: Path, **config: Any) -> Path:
    """A folder as the realize stage leaves it. HardwareError where the form cannot express the plan."""
    realized = made.realize(plan, form)
    claims = certificate(made.graph, made.topology, plan, made.spec, realized=realized, form=form)
    written = device_part(made.spec) | config
    origin = Origin("realize", {"model": made.graph.model_hash, "strategy": "sha256:0"}, {"hardware": written})
    RunFolder(root).write_realized(plan, made.topology, realized, claims, origin=origin)
    return root


def read(root: Path, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((root / "realize" / name).read_text())
    return found


def put(root: Path, name: str, content: dict[str, Any]) -> None:
    """A JSON file with its content digest made to fit."""
    body = {k: v for k, v in content.items() if k != "origin"}
    content["origin"]["content"] = digest_json(body)
    (root / "realize" / name).write_text(json.dumps(content))


def refreshed(root: Path) -> None:
    """All digests made to fit what lies there now."""
    claims = read(root, "certificate.json")
    claims["digests"] |= {
        n: digest_file(root / "realize" / f) for n, f in (("model", "model.onnx"), ("plan", "plan.json"))
    }
    claims["digests"]["data"] = {n: digest_file(root / "realize" / n) for n in claims["digests"]["data"]}
    put(root, "certificate.json", claims)


def changed(root: Path, name: str, change: Callable[[Any], None]) -> None:
    """plan.json or certificate.json with something else in it, and all digests made to fit."""
    content = read(root, name)
    change(content)
    put(root, name, content)
    refreshed(root)


def constants(root: Path) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
    model = onnx.load(root / "realize" / "model.onnx")
    for tensor in model.graph.initializer:
        yield tensor.name, numpy_helper.to_array(tensor)


def with_constant(root: Path, name: str, array: np.ndarray[Any, Any]) -> None:
    """The model with another value of one initializer, and all digests made to fit."""
    path = root / "realize" / "model.onnx"
    model = onnx.load(path)
    for tensor in model.graph.initializer:
        if tensor.name == name:
            tensor.CopyFrom(numpy_helper.from_array(array.astype(numpy_helper.to_array(tensor).dtype), name))
    path.write_bytes(model.SerializeToString())
    refreshed(root)
