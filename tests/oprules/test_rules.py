"""The rows of OP_RULES: reasons, counts, bounds and axes, node by node; windows and refusals against onnxruntime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantpipe.check.sample import made_up
from quantpipe.intake.load import load_as_written
from quantpipe.oprules import OP_RULES, Family, rule_of
from quantpipe.oprules.rule import mean_of_map, mean_of_window
from tests.ops.line import Net, load
from tests.ops.test_every_op import graph_of


def why(net: Net, name: str) -> str | None:
    graph = load(net)
    rule = rule_of(graph.by_name[name])
    assert rule is not None
    return rule.refuse(graph.by_name[name], graph)


def why_as_written(net: Net, name: str, folder: Path) -> str | None:
    """Return the rule's reason for a node that no clean-up changed."""
    onnx.save(net.proto(), folder / "net.onnx")
    graph = load_as_written(folder / "net.onnx", lambda g: made_up(g.inputs, {}), isolate=False)
    rule = rule_of(graph.by_name[name])
    assert rule is not None
    return rule.refuse(graph.by_name[name], graph)


def gemm(**attrs: float) -> Net:
    net = Net()
    net.output(net.node("Gemm", net.input(4, 4), net.floats(4, 4), net.floats(4), name="g", **attrs))
    net.fix_batch(4)
    return net


@pytest.mark.parametrize(("attrs", "reason"), [
    ({"transA": 1}, "transA or alpha is set"),
    ({"alpha": 0.5}, "transA or alpha is set"),
    ({"beta": 2.0}, "its bias is computed at run time or scaled by beta"),
    ({}, None),
])  # fmt: skip
def test_gemm_attributes(attrs: dict[str, float], reason: str | None, tmp_path: Path) -> None:
    """The clean-up takes them away; what it could not is refused."""
    assert why_as_written(gemm(**attrs), "g", tmp_path) == reason
    assert why(gemm(**attrs), "g") is None


def test_gemm_with_a_scalar_bias(tmp_path: Path) -> None:
    net = Net()
    net.output(net.node("Gemm", net.input(None, 4), net.floats(4, 3), net.floats(1), name="g"))
    assert why_as_written(net, "g", tmp_path) == "its bias is not one value per output channel"
    assert why(net, "g") is None


@pytest.mark.parametrize("port", [1, 2])
def test_convolutions_with_operands_made_at_run_time(port: int) -> None:
    net = Net()
    x, other = net.input(None, 3, 6, 6), net.input(3, 3, 1, 1, name="other")
    weight = net.node("Relu", other) if port == 1 else net.floats(3, 3, 1, 1)
    bias = [] if port == 1 else [net.node("ReduceSum", other, net.constant(np.array([1, 2, 3])), keepdims=0)]
    net.output(net.node("Conv", x, weight, *bias, name="c"))
    proto = net.proto()
    from tests.ops.line import ArraySamples

    def samples(graph: object) -> ArraySamples:
        rng = np.random.default_rng(0)
        return ArraySamples({
            "x": rng.standard_normal((3, 3, 6, 6)).astype(np.float32),
            "other": rng.standard_normal((3, 3, 1, 1)).astype(np.float32),
        })  # fmt: skip

    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 3
    graph = load(proto, samples)
    text = OP_RULES["Conv"].refuse(graph.by_name["c"], graph)
    assert text == ("its weight" if port == 1 else "its bias") + " is computed at run time, not constant"


def test_matmul_sides() -> None:
    net = Net()
    x = net.input(None, 2, 4, 4)
    y = net.node("MatMul", net.floats(4, 4), x, name="left")
    net.output(net.node("MatMul", net.node("MatMul", y, x, name="both"), net.floats(2, 4, 3), name="batched"))
    graph = load(net)
    reasons = {n.name: OP_RULES["MatMul"].refuse(n, graph) for n in graph.nodes}
    assert reasons == {
        "left": "its left side is constant", "both": None,
        "batched": "its constant is not a matrix",
    }  # fmt: skip


def test_max_pool_with_indices() -> None:
    import onnx

    net = Net()
    x = net.conv(net.input(None, 3, 6, 6), 3, 3, 1, 1)
    net.output(net.node("MaxPool", x, kernel_shape=[2, 2], name="pool"))
    proto = net.proto()
    proto.graph.node[1].output.append("where")
    proto.graph.output.append(onnx.helper.make_tensor_value_info("where", onnx.TensorProto.INT64, None))
    graph = load(proto)
    assert OP_RULES["MaxPool"].refuse(graph.by_name["pool"], graph) == "its indices are used"


def test_clip_bounds_made_at_run_time() -> None:
    net = Net()
    x = net.conv(net.input(None, 3, 6, 6), 3, 3, 1, 1)
    top = net.node("ReduceMax", net.node("Abs", x), keepdims=0)
    net.output(net.node("Clip", x, "", top, name="clip"))
    assert why(net, "clip") == "its bounds are computed at run time"


@pytest.mark.parametrize(("case", "count"), [
    ("average_pool", 4), ("average_pool_odd", 9), ("average_pool_1d", 4), ("average_pool_pads_counted", 8),
    ("global_average_pool", 64), ("global_average_pool_odd", 35), ("global_average_pool_1d", 16),
])  # fmt: skip
def test_windows(case: str, count: int) -> None:
    graph = graph_of(case)
    node = graph.by_name["mid"]
    rule = OP_RULES[node.op]
    assert rule.count(node, graph) == count == rule.facts(node, graph)["window"]


@pytest.mark.parametrize(("case", "bounds"), [
    ("relu_standalone", (0.0, np.inf)), ("clip_below", (-np.inf, np.float32(0.9))), ("clip_both", (-1.0, 1.0)),
    ("clip_above", (np.float32(0.4), np.inf)),
])  # fmt: skip
def test_bounds(case: str, bounds: tuple[float, float]) -> None:
    graph = graph_of(case)
    node = graph.by_name["mid"]
    assert OP_RULES[node.op].bounds(node, graph) == bounds


@pytest.mark.parametrize(("case", "kind"), [
    ("conv_plain", "1"), ("conv_grouped", "grouped"), ("conv_depthwise", "depthwise"),
])  # fmt: skip
def test_facts_of_convolutions(case: str, kind: str) -> None:
    graph = graph_of(case)
    assert OP_RULES["Conv"].facts(graph.nodes[0], graph)["group"] == kind
    asymmetric = graph_of("conv_asymmetric_pads")
    assert OP_RULES["Conv"].facts(asymmetric.nodes[0], asymmetric)["pad_max"] == 2


def test_foreign_domains_have_no_rule() -> None:
    net = Net()
    net.output(net.node("Inverse", net.conv(net.input(None, 3, 6, 6), 3, 3, 1, 1), domain="com.microsoft", name="own"))
    graph = load(net)
    assert rule_of(graph.by_name["own"]) is None


@given(st.floats(2.0**-16, 8, width=32), st.floats(2.0**-16, 8, width=32), st.integers(1, 1024))
def test_multipliers_of_averages(s_x: float, s_y: float, count: int) -> None:
    exact = float(np.float32(s_x)) / (float(np.float32(s_y)) * count)
    for mean in (mean_of_map, mean_of_window):
        found = mean(np.float32(s_x), np.float32(s_y), count)
        assert found.dtype == np.float32 and found == pytest.approx(exact, rel=3e-7)


def test_same_scale_ops_have_one_winner_each() -> None:
    winners = {op: r.winner for op, r in OP_RULES.items() if r.family is Family.MOVE}
    joining = {"Concat", "Max", "Min", "Where", "ScatterND", "ScatterElements", "TensorScatter"}
    assert {op for op, winner in winners.items() if winner == "output"} == joining
