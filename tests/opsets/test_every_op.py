"""Every op of the tables in its oldest and newest form, and in every opset in which its definition changed.

The models are the cases of `tests/ops/cases`, one for each way an op is used, written in another opset: by onnx's
converter, or as they are where the older definition takes them. What is read of them is what onnxruntime computes of
the same file, the same ops run in integers, and the integers of the realized model are those of the simulated one.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import checker, defs, version_converter

from tests.ops.cases import CASES
from tests.ops.line import ArraySamples, Line, Net, line, load, normal_samples

FIRST, BASE, LAST = 7, 17, defs.onnx_opset_version()
PARTS = 8
"""The cases are divided into so many tests."""
RUNTIME_LAST = 27
"""The newest of which onnxruntime runs a file as it is, to compare with."""


def since() -> Mapping[str, set[int]]:
    """Op -> the opsets in which its definition changed."""
    found: dict[str, set[int]] = defaultdict(set)
    for schema in defs.get_all_schemas_with_history():
        if schema.domain == "":
            found[schema.name].add(schema.since_version)
    return found


SINCE = since()


@cache
def base(name: str) -> onnx.ModelProto:
    net = Net(seed=len(name))
    CASES[name](net)
    return net.proto()


@cache
def written_in(name: str, opset: int) -> onnx.ModelProto | None:
    """The model of a case in another opset; None where its ops had no such form."""
    model = base(name)
    try:
        return version_converter.convert_version(model, opset)
    except RuntimeError:  # the converter knows no way back
        copy = onnx.ModelProto()
        copy.CopyFrom(model)
        next(o for o in copy.opset_import if o.domain == "").version = opset
        try:
            checker.check_model(copy, full_check=True)
            dims = {i.name: [d.dim_value or 1 for d in i.type.tensor_type.shape.dim] for i in copy.graph.input}
            ran(copy, {port: np.ones(shape, np.float32) for port, shape in dims.items()})
        except Exception:  # the checker, shape inference and the runtime each have errors of their own
            return None
        return copy


def ran(model: onnx.ModelProto, feeds: Mapping[str, Any]) -> list[Any]:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
    return list(session.run(None, dict(feeds)))


def ops_of(name: str) -> set[str]:
    return {node.op_type for node in base(name).graph.node if not node.domain}


@cache
def forms() -> Mapping[str, list[int]]:
    """Case -> the opsets it is read in: those in which an op changed whose first case it is, and both ends."""
    found: dict[str, set[int]] = defaultdict(set)
    seen: set[str] = set()
    for name in CASES:
        for op in sorted(ops_of(name) - seen):
            found[name] |= {FIRST, LAST, *(v for v in SINCE[op] if v >= FIRST)} - {BASE}
            seen.add(op)
    return {name: sorted(opsets) for name, opsets in found.items()}


@cache
def made(name: str) -> Line:
    return line(load(base(name)))


def kernels(found: Line) -> Counter[str]:
    return Counter(kernel.op for kernel in found.topology.kernels)


@pytest.mark.grid
@pytest.mark.parametrize("part", range(PARTS))
def test_an_op_of_any_opset(part: int) -> None:
    for name in list(forms())[part::PARTS]:
        own = made(name)
        feeds = next(iter(normal_samples(own.graph, 4).batches(own.graph.batch_size))).inputs
        wanted = ran(base(name), feeds)
        for opset in forms()[name]:
            here = f"{name} in opset {opset}"
            model = written_in(name, opset)
            if model is None:
                assert opset < BASE, here
                continue
            found = line(load(model), samples=ArraySamples(dict(feeds)))
            told = ran(model, feeds) if opset <= RUNTIME_LAST else wanted
            for left, right in zip(found.outputs().values(), told, strict=True):
                np.testing.assert_allclose(left, right, rtol=1e-4, atol=1e-5, err_msg=here)
            if all(a.shape == b.shape and np.allclose(a, b, atol=1e-5) for a, b in zip(told, wanted, strict=True)):
                assert kernels(found) == kernels(own), here
            if opset == LAST:  # what is older than 17 is brought to 17
                assert found.agree(found.plan(8), "qdq").differing == 0, here


@pytest.mark.grid
def test_the_forms_are_most_of_those_there_are() -> None:
    """Counts against cases and converters that lost what they are for."""
    wanted = [(name, opset) for name, opsets in forms().items() for opset in opsets]
    missing = [(name, opset) for name, opset in wanted if written_in(name, opset) is None]
    assert {opset for _, opset in set(wanted) - set(missing)} >= {FIRST, 8, 9, 10, 11, 12, 13, 14, 18, 19, 21, 22, LAST}
    assert len(wanted) > 250
    assert len(missing) < 0.15 * len(wanted), missing
