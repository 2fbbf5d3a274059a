"""CPUs without VNNI saturate pairs of uint8 x int8 products: sessions are exact there too, and the user is told."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from quantpipe.check import host
from quantpipe.check.host import host_warning
from quantpipe.graph.execute import Kernels, Session, pairs_saturate
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
        (convolution(), {}, True),
        (convolution(), {"weights": {**BITS8, "reduce_range": True}}, False),
        (convolution(group=4), {}, False),  # depthwise kernels multiply in 32 bits
        (convolution(group=2), {}, True),
    ],
)
def test_the_user_is_told_where_a_sum_could_suffer(
    net: Net, changes: dict[str, Any], said: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = line(net, hardware("ort_cpu", **changes))
    plan = made.plan(8)
    monkeypatch.setattr(host, "pairs_saturate", lambda: True)
    warning = host_warning(made.graph, made.topology, plan)
    assert (warning is not None) == said
    if warning is not None:
        assert "those of first can saturate" in warning and '"session.x64quantprecision": "1"' in warning
    monkeypatch.setattr(host, "pairs_saturate", lambda: False)
    assert host_warning(made.graph, made.topology, plan) is None


@pytest.mark.parametrize(("name", "said"), [("int4_weights", False), ("openvino_x86", False), ("ort_cpu", True)])
def test_devices_whose_pairs_fit(name: str, said: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    made = line(convolution(), name)
    monkeypatch.setattr(host, "pairs_saturate", lambda: True)
    assert (host_warning(made.graph, made.topology, made.plan(8 if name != "int4_weights" else 4)) is not None) == said
