"""Golden plans: decisions and numbers of small models, kept in `plans/`, so that no change of them goes unseen.

Two kinds of content. *Structure* (which nodes and edges are integers, kernels, scale groups, types, bits, choices,
nodes of the realized model) is compared exactly, always. *Numbers* (scales, ranges, zero points, multipliers, tables,
weights) are compared exactly for the dyadic nets (`nets.py`), where float32 holds every sum and ranges are extremes, so
that they are the same on every processor. The other cases (a trained model, Softmax, LayerNormalization, the estimators
mse and percentile, recovery) go through sums that a processor may order as it likes: there, real numbers may differ by
1e-6 of themselves, and integers that are rounded from such numbers by 1, a few of each array (`compare.py`). A choice
that a search or recovery makes there is taken to be the same everywhere: its margins are far above 1e-6.

A change that is meant to change numbers writes the files anew: `python -m tests.golden.write`, and shows their diff.
"""

from __future__ import annotations

import copy
import json
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import numpy_helper

from tests.golden.cases import CASES, NETS, SAMPLES
from tests.golden.compare import differences
from tests.golden.content import FOLDER, as_json, content_of, file_of

pytestmark = pytest.mark.filterwarnings("ignore::quantpipe.QuantpipeWarning")

SHOWN = 12


@pytest.mark.sliced(2)
@pytest.mark.parametrize("name", CASES)
def test_plan_is_the_golden_one(name: str) -> None:
    found = json.loads(as_json(content_of(name)))
    golden = json.loads(file_of(name).read_text())
    lines = list(differences(golden, found, CASES[name].exact))
    shown = "\n".join(lines[:SHOWN])
    assert not lines, f"{len(lines)} differences from {file_of(name).name}:\n{shown}\n(python -m tests.golden.write)"


def test_every_file_has_a_case() -> None:
    assert {path.stem for path in FOLDER.glob("*.json")} == set(CASES)


def test_layout_holds_every_number_and_reads_back() -> None:
    for name in CASES:
        text = file_of(name).read_text()
        assert as_json(json.loads(text)) == text


@pytest.mark.parametrize("net", sorted({case.net for case in CASES.values() if case.exact}))
def test_float32_holds_every_sum_of_a_dyadic_net(net: str) -> None:
    """A node whose inputs are all made positive gives an upper bound of its partial sums. In units of the power of two
    that divides its products, it has to stay below 2^24. The last layer may be beyond that: its result leaves the model
    in float, and no range is taken from it."""
    model = NETS[net]()
    values = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    values[model.graph.input[0].name] = SAMPLES[net]()
    for node in list(model.graph.node)[:-1]:
        inputs = {name: values[name] for name in node.input}
        values[node.output[0]] = result = _alone(node, inputs)
        units = [_unit(array) for array in inputs.values()]
        terms = 1
        if node.op_type in ("Conv", "Gemm", "MatMul"):
            units = [units[0] * units[1], *units[2:]]
        if node.op_type in ("AveragePool", "GlobalAveragePool"):
            terms = inputs[node.input[0]][0, 0].size // result[0, 0].size
            assert terms & (terms - 1) == 0
        positive = {name: np.asarray(np.abs(array)) for name, array in inputs.items()}
        bound = _alone(node, positive).max() * terms
        assert bound / min(units) < 1 << 24, node.name


def _unit(array: Any) -> float:
    """The greatest power of two, up to 1, that divides every value."""
    return next(2.0**-p for p in range(24) if np.array_equal(array * 2.0**p, np.round(array * 2.0**p)))


def _alone(node: onnx.NodeProto, inputs: dict[str, Any]) -> Any:
    """The result of one node."""
    ports = [onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, a.shape) for n, a in inputs.items()]
    result = onnx.helper.make_tensor_value_info(node.output[0], onnx.TensorProto.FLOAT, None)
    graph = onnx.helper.make_graph([node], "alone", ports, [result])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, inputs)[0]


def _changed(content: dict[str, Any], path: list[Any], change: Any) -> dict[str, Any]:
    made = copy.deepcopy(content)
    place = made
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = change(place[path[-1]])
    return made


def test_comparison_finds_each_kind_of_change() -> None:
    """What both modes find, what the exact one alone finds, and what neither may overlook: a lost or a new entry."""
    golden = json.loads(file_of("digits-ort_cpu").read_text())
    quantizer = ["plan", "quantizers", "stem.out"]
    kernel = ["plan", "kernels", "stem.conv"]
    always = [
        ([*quantizer, "bits"], lambda v: v - 1),
        ([*quantizer, "dtype"], lambda v: "int16"),
        ([*quantizer, "scale"], lambda v: v * (1 + 3e-6)),
        ([*quantizer, "zero_point"], lambda v: v + 2),
        ([*kernel, "bias", 0], lambda v: v + 2),
        ([*kernel, "bias"], lambda v: [b + 1 for b in v]),
        ([*kernel, "bias"], lambda v: v[1:]),
        ([*kernel, "requantize", "rounding"], lambda v: "half_up"),
        ([*kernel, "requantize", "zero_first"], lambda v: not v),
        (["plan", "weights", "classifier.weight", "values"], lambda v: v[:-1] + "x"),
        (["structure", "edges", next(iter(golden["structure"]["edges"]))], lambda v: not v),
        (["plan", "quantizers"], lambda v: {k: q for k, q in v.items() if k != "stem.out"}),
        (["plan", "quantizers"], lambda v: {**v, "more": {}}),
    ]
    exactly = [
        ([*quantizer, "scale"], lambda v: np.nextafter(v, 1.0).item()),
        ([*quantizer, "zero_point"], lambda v: v + 1),
        ([*kernel, "bias", 0], lambda v: v + 1),
    ]
    assert not list(differences(golden, golden, exact=True))
    for path, change in always + exactly:
        made = _changed(golden, path, change)
        assert list(differences(golden, made, exact=True)), path
        assert bool(list(differences(golden, made, exact=False))) == ((path, change) in always), path
