"""The opset of every ONNX file that is written is the least that its nodes need, whichever the model came in."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from quantpipe.graph.io import model_proto
from quantpipe.pipeline import stages
from quantpipe.realize import FILE_FORMS
from quantpipe.realize.opset import FLOOR, with_least_opset
from tests.ops.line import Line, Net, line
from tests.realize.executed import MADE


def small(opset: int) -> Net:
    """A convolution, a residual sum, a reshape, a padded window, an average, a dense layer."""
    net = Net(seed=5, opset=opset)
    a = net.node("Relu", net.conv(net.input(None, 4, 8, 8), 4, 4, 3, 3, pads=[1, 1, 1, 1]))
    a = net.node("Add", net.conv(a, 4, 4, 3, 3, pads=[1, 1, 1, 1]), a)
    a = net.node("Pad", a, net.constant(np.array([0, 0, 1, 1, 0, 0, 1, 1])), mode="constant")
    pooled = net.node("GlobalAveragePool", net.conv(a, 4, 4, 3, 3))
    net.output(net.dense(net.node("Reshape", pooled, net.constant(np.array([0, 4]))), 4, 3))
    return net


FORMS = {
    "qdq": "ort_cpu",
    "qdq for other tools": "tensorrt",
    "qdq of 16 bits": "tflite_16x8",
    "qoperator": "fbgemm",
    "integer": "vta",
    "integer of 16 bits": "tflite_16x8",
    "matmul_nbits": "ort_matmul_nbits",
    "qonnx": "vta",
    "sidecars": "ort_cpu",
}
"""Form, and how -> a device that has it."""


def written(form: str, made: Line) -> onnx.ModelProto:
    """The file of a form, as a run writes it."""
    name, plan = form.split(" ")[0], made.plan()
    if name in FILE_FORMS:
        writer = FILE_FORMS[name]()
        return onnx.load_from_string(writer.write(made.graph, made.topology, plan, MADE).files[writer.file])
    vendor = name == "qdq" and form != "qdq"
    return model_proto(stages.realize(made.graph, made.topology, plan, name, made=MADE, vendor=vendor).model)


def opset_of(proto: onnx.ModelProto) -> int:
    return int(next(o.version for o in proto.opset_import if o.domain == ""))


def naming(proto: onnx.ModelProto, opset: int) -> onnx.ModelProto:
    """The same file with another number."""
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    next(o for o in copy.opset_import if o.domain == "").version = opset
    return copy


def lower_ones(proto: onnx.ModelProto) -> Iterator[int]:
    """Opsets below the file's own by which it is legal and, where onnxruntime has all of its ops, runs there alike."""
    known = all(n.domain in ("", "com.microsoft") for n in proto.graph.node)
    feeds = {
        i.name: np.random.default_rng(1).standard_normal([d.dim_value or 2 for d in i.type.tensor_type.shape.dim])
        for i in proto.graph.input
    }
    fed = {name: value.astype(np.float32) for name, value in feeds.items()}

    def outputs(model: onnx.ModelProto) -> list[np.ndarray]:
        options = ort.SessionOptions()
        options.log_severity_level = 4
        return ort.InferenceSession(model.SerializeToString(), options).run(None, fed)

    wanted = outputs(proto) if known else []
    for opset in range(FLOOR, opset_of(proto)):
        other = naming(proto, opset)
        try:
            onnx.checker.check_model(other, full_check=True)
            found = outputs(other) if known else []
        except Exception:
            continue
        if all(np.array_equal(a, b) for a, b in zip(found, wanted, strict=True)):
            yield opset


@pytest.mark.sliced(6)
@pytest.mark.parametrize("opset", [17, 23])
@pytest.mark.parametrize("form", FORMS)
def test_no_lower_opset_would_do(form: str, opset: int) -> None:
    made = line(small(opset), FORMS[form])
    proto = written(form, made)
    assert made.topology.kernels or made.topology.weighted_of
    assert list(lower_ones(proto)) == [], f"it names {opset_of(proto)}"
    # The plant: the same nodes under the next number.
    assert opset_of(proto) in lower_ones(naming(proto, opset_of(proto) + 1))


def node_in(opset: int, op: str, kind: int, *more: np.ndarray, **attributes: object) -> ir.Model:
    """A model of one node, in some opset."""
    constants = [onnx.numpy_helper.from_array(value, f"c{n}") for n, value in enumerate(more)]
    node = helper.make_node(op, ["x", *(c.name for c in constants)], ["y"], name="node", **attributes)
    ends = [helper.make_tensor_value_info(name, kind, [1, 2, 4, 4]) for name in "xy"]
    graph = helper.make_graph([node], "one", ends[:1], ends[1:], constants)
    return ir.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9))


PADS, AXES, SHAPE = np.array([1, 1, 1, 1]), np.array([2, 3]), np.array([0, -1, 4, 4])


@pytest.mark.parametrize(
    ("model", "least"),
    [
        (node_in(23, "Reshape", TensorProto.FLOAT, SHAPE), 13),
        (node_in(23, "Reshape", TensorProto.FLOAT, SHAPE, allowzero=1), 14),
        (node_in(23, "Pad", TensorProto.FLOAT, np.zeros(8, np.int64), mode="edge"), 13),
        (node_in(23, "Pad", TensorProto.FLOAT, np.zeros(8, np.int64), mode="wrap"), 19),
        (node_in(23, "Pad", TensorProto.FLOAT, PADS, np.float32(0), AXES), 18),
        (node_in(23, "Pad", TensorProto.INT4, np.zeros(8, np.int64)), 21),
        (node_in(23, "Relu", TensorProto.INT8), 14),
    ],
    ids=lambda value: str(value) if isinstance(value, int) else f"{next(iter(value.graph)).op_type}",
)
def test_what_a_later_definition_added_keeps_it(model: ir.Model, least: int) -> None:
    assert with_least_opset(model).graph.opset_imports[""] == least
