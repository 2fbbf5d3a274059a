"""CPUs without VNNI saturate pairs of uint8 x int8 products: what `isa` makes of that, and what the report names."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from quantpipe.check.host import host_warning
from quantpipe.graph import execute
from quantpipe.graph.execute import Kernels, Session, pairs_saturate
from quantpipe.graph.session_options import KEY
from quantpipe.plan import kernels_with_wide_pairs
from tests.ops.line import Net, hardware, line
from tests.simulate.test_pairs import BITS8

K = 64
SCALES = {"xs": np.float32(1), "ws": np.float32(1), "ys": np.float32(K * 260), "wz": np.int8(0), "yz": np.uint8(100)}


def model(op: str, domain: str = "") -> onnx.ModelProto:
    """One integer kernel on `[5, K]` uint8 data; the weights of each output are alike, so that every pair saturates."""
    weight = np.full((K, 3), (120, -127, 127), np.int8)
    plain = op == "MatMulInteger"
    scales = ["xs", "xz", "w", "ws", "wz", *([""] if op == "QGemm" else []), "ys", "yz"]
    node = helper.make_node(op, ["x", "w", "xz"] if plain else ["x", *scales], ["y"], domain=domain)
    values = {"w": weight, "xz": np.uint8(3), **({} if plain else SCALES)}
    graph = helper.make_graph(
        [node],
        "kernel",
        [helper.make_tensor_value_info("x", TensorProto.UINT8, [5, K])],
        [helper.make_tensor_value_info("y", TensorProto.INT32 if plain else TensorProto.UINT8, [5, 3])],
        [numpy_helper.from_array(np.asarray(v), n) for n, v in values.items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


@pytest.mark.parametrize(("op", "domain"), [("MatMulInteger", ""), ("QLinearMatMul", ""), ("QGemm", "com.microsoft")])
def test_sums_are_exact_on_every_cpu(op: str, domain: str) -> None:
    x = np.full((5, K), 255, np.uint8)
    (found,) = Session(model(op, domain).SerializeToString()).run({"x": x}).values()
    sums = [K * (255 - 3) * w for w in (120, -127, 127)]
    if op != "MatMulInteger":
        sums = [min(max(round(s / (K * 260)) + 100, 0), 255) for s in sums]
    np.testing.assert_array_equal(found, np.tile(sums, (5, 1)))


def test_the_probe_says_what_the_default_kernel_does() -> None:
    x = np.full((5, K), 255, np.uint8)
    (found,) = Session(model("MatMulInteger").SerializeToString(), kernels=Kernels.NATIVE).run({"x": x}).values()
    assert pairs_saturate() == (int(found[0, 2]) != K * (255 - 3) * 127)


def convolution(**attrs: Any) -> Net:
    net = Net(seed=5)
    x = net.input(None, 4, 6, 6)
    weight = net.signs(4, 4 // attrs.get("group", 1), 3, 3, scale=0.4)
    net.output(net.node("Conv", x, weight, name="first", **attrs))
    return net


@pytest.mark.parametrize(
    ("net", "changes", "said"),
    [
        (convolution(), {}, False),
        (convolution(), {"isa": "vnni"}, True),
        (convolution(), {"isa": "vnni", "runs_here": False}, False),
        (convolution(), {"isa": "vnni", "weights": {**BITS8, "reduce_range": True}}, False),
        (convolution(group=4), {"isa": "vnni"}, False),  # depthwise kernels multiply in 32 bits
        (convolution(group=2), {"isa": "vnni"}, True),
    ],
)
def test_kernels_whose_sums_depend_on_the_processor_are_named(net: Net, changes: dict[str, Any], said: bool) -> None:
    made = line(net, hardware("ort_cpu", **changes))
    plan = made.plan(8)
    warning = host_warning(made.graph, made.topology, plan, made.spec)
    assert (warning is not None) == said
    if warning is not None:
        assert "products of first can saturate" in warning and '"session.x64quantprecision": "1"' in warning
    asks = '"session.x64quantprecision": "1"' in made.realize(plan, "qdq").model.metadata_props[KEY]
    assert asks == (said or changes.get("runs_here") is False)


@pytest.mark.parametrize("name", ["int4_weights", "openvino_x86", "ort_cpu", "fbgemm"])
def test_no_pair_of_shipped_files_saturates(name: str) -> None:
    made = line(convolution(), name)
    plan = made.plan(8 if name != "int4_weights" else 4)
    assert not kernels_with_wide_pairs(made.graph, made.topology, plan)
    assert made.realize(plan, "qdq").model.metadata_props[KEY] == "{}"


@pytest.mark.parametrize(("isa", "exact"), [("any", False), ("vnni", True)])
def test_sessions_ask_for_exact_kernels_only_for_files_that_name_them(
    isa: str, exact: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a CPU whose pairs saturate; what such a session costs would be measured for files that do without."""
    asked: list[str] = []
    monkeypatch.setattr(execute, "pairs_saturate", lambda: True)
    for name in ("_loaded", "_loaded_exact"):
        own = getattr(execute, name)
        monkeypatch.setattr(execute, name, lambda *a, own=own, name=name: asked.append(name) or own(*a))
    made = line(convolution(), hardware("ort_cpu", isa=isa))
    realized = made.realize(made.plan(8), "qdq").model
    asked.clear()
    Session(realized)
    assert ("_loaded_exact" in asked) == exact
