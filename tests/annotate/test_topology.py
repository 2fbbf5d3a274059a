"""Node conditions, forms, fusing and scale groups on small graphs."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper

from quantpipe.annotate.choices import bits_of, choice_space, clips_of
from quantpipe.annotate.conditions import AnnotateOptions
from quantpipe.annotate.disjoint import DisjointSets
from quantpipe.errors import ConfigError
from quantpipe.types import DType, Form, Reason, ReasonKind
from tests.ops.line import Line, Net, hardware, hardware_data, line, with_products
from tests.ops.test_every_op import graph_of, line_of


def reason(made: Line, node: str) -> str:
    assert made.topology.node_conds[node] is False
    return made.topology.float_nodes[node].text


# --- node conditions ------------------------------------------------------------------------------------------------


def test_integer_only_ops_run_in_integers_wherever_they_stand() -> None:
    made = line_of("softmax_island", "ort_cpu", "auto")
    assert made.topology.node_conds == {"front": True, "mid": False, "back": True}
    assert reason(made, "mid") == "ort_cpu does not declare Softmax"


def test_an_op_with_both_stays_in_float_behind_float_producers() -> None:
    """The RFC's rule: opening an island for a pool alone would only add two conversions."""
    net = Net()
    x = net.node("MaxPool", net.input(None, 3, 8, 8), kernel_shape=[2, 2], name="first")
    x = net.node("MaxPool", net.conv(x, 3, 4, 1, 1, name="conv"), kernel_shape=[2, 2], name="second")
    x = net.node("Erf", x, name="erf")
    net.output(net.node("MaxPool", x, kernel_shape=[2, 2], name="third"))
    made = line(net)
    assert made.topology.node_conds == {"first": False, "conv": True, "second": True, "erf": False, "third": False}
    assert reason(made, "first") == reason(made, "third") == "all its producers are in float, and so can it be"
    assert reason(made, "erf") == "ort_cpu does not declare Erf"


def test_one_integer_producer_is_enough() -> None:
    net = Net()
    x = net.input(None, 3, 8, 8)
    joined = net.node("Concat", x, net.conv(x, 3, 4, 1, 1, name="conv"), axis=1, name="join")
    net.output(net.node("Erf", joined))
    assert line(net).topology.node_conds["join"] is True


def test_hago_sample_reads_what_its_file_says() -> None:
    made = line_of("conv_chain", "hago_sample", "auto")
    kernels = made.topology.kernels
    assert [(k.op, k.form) for k in kernels] == [
        ("Conv", Form.RAW), ("Relu", Form.RAW), ("Conv", Form.RAW), ("Clip", Form.RAW), ("Conv", Form.RAW)
    ]  # fmt: skip
    assert [k.operands[0].form for k in kernels] == [
        Form.QUANTIZED, Form.RAW, Form.QUANTIZED, Form.RAW, Form.QUANTIZED
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("case", "node", "spec", "why"),
    [
        ("average_pool_pads_not_counted", "mid", "ort_cpu", "its window counts fewer elements at the border"),
        ("average_pool_ceil", "mid", "ort_cpu", "ceil_mode makes its border windows smaller"),
        ("average_pool_odd", "mid", "vta", "window is 9, the device wants power of two"),
        ("global_average_pool_odd", "mid", "vta", "window is 35, the device wants power of two"),
        ("pad_value", "mid", "ort_cpu", "it pads with something else than zero"),
        ("gather_table", "mid", "ort_cpu", "it looks rows up in a constant table"),
        ("mul_activations", "mid", "vta", "vta does not declare Mul"),
        ("global_max_pool", "mid", "ort_cpu", "ort_cpu runs GlobalMaxPool in float only"),
        ("gather_table", "abs1", "ort_cpu", "ort_cpu does not declare Abs"),
    ],
)
def test_each_refusal_has_its_reason(case: str, node: str, spec: str, why: str) -> None:
    assert why in reason(line_of(case, spec, "auto"), node)


def test_a_product_of_two_activations_has_no_weight() -> None:
    net = Net()
    x = net.conv(net.input(None, 3, 8, 8), 3, 4, 1, 1)
    y = net.node("MatMul", net.node("Transpose", x, perm=[0, 1, 3, 2]), x, name="both")
    net.output(net.node("Conv", y, net.floats(2, 4, 1, 1), name="last"))
    made = line(net, with_products())
    assert made.topology.kernel_of["both"].weight is None


def test_a_float_signature_before_the_integer_one_is_preferred() -> None:
    """As ort_cpu has it for products of two activations; the rest of the graph stays in integers."""
    net = Net()
    x = net.conv(net.input(None, 3, 8, 8), 3, 4, 1, 1)
    y = net.node("MatMul", net.node("Transpose", x, perm=[0, 1, 3, 2]), x, name="both")
    net.output(net.node("Conv", y, net.floats(2, 4, 1, 1), name="last"))
    made = line(net)
    assert reason(made, "both") == "ort_cpu prefers MatMul in float (ops)"
    assert "last" in made.topology.kernel_of
    assert made.agree(made.plan(8), "qdq").differing == 0


def test_pads_wider_than_the_device_allows() -> None:
    net = Net()
    net.output(net.conv(net.input(None, 3, 8, 8), 3, 4, 3, 3, pads=[16, 1, 1, 1], name="wide"))
    made = line(graph_of("conv_plain"), "vta")
    assert not made.topology.float_nodes
    wide = line(net, "vta")
    assert reason(wide, "wide") == "pad_max is 16, the device wants 15"
    with pytest.raises(ConfigError, match=r"no node of this model runs in integers.*wide: pad_max is 16"):
        choice_space(wide.topology, wide.options)


# --- options --------------------------------------------------------------------------------------------------------


def test_float_nodes_are_globs() -> None:
    made = line(graph_of("residual_block"), float_nodes=["con*", "la?t"])
    assert not made.topology.node_conds["conv1"] and not made.topology.node_conds["last"]
    assert made.topology.node_conds["front"]
    assert reason(made, "last") == "kept in float by annotate.float_nodes (la?t)"
    assert made.agree(made.plan(), "qdq").differing == 0


def test_a_pattern_without_a_match_names_what_is_near() -> None:
    made = line(graph_of("residual_block"), float_nodes=["frnt"])
    with pytest.raises(ConfigError, match=r"'frnt' matches no node of the model \(did you mean 'front'\?\)"):
        _ = made.topology


def test_float_ops() -> None:
    made = line(graph_of("residual_block"), float_ops=["Add"])
    assert reason(made, "join") == "kept in float by annotate.float_ops"
    with pytest.raises(ConfigError, match="no node is a 'Gemm'; the model has Add, Conv, Relu"):
        _ = line(graph_of("residual_block"), float_ops=["Gemm"]).topology


def test_a_clamp_that_is_kept_in_float_is_not_swallowed() -> None:
    made = line(graph_of("relu_swallowed"), float_nodes=["mid"])
    assert made.topology.kernel_of["front"].fused == ()
    assert made.topology.node_conds == {"front": True, "mid": False, "back": True}


def test_skip_first_and_last_mean_accumulating_nodes() -> None:
    net = Net()
    x = net.node("MaxPool", net.input(None, 3, 8, 8), kernel_shape=[2, 2], name="pool")
    x = net.conv(x, 3, 4, 1, 1, name="one")
    x = net.conv(x, 4, 4, 1, 1, name="two")
    x = net.conv(x, 4, 4, 1, 1, name="three")
    net.output(net.node("Relu", x, name="relu"))
    made = line(net, skip_first=True, skip_last=True)
    assert made.topology.float_nodes["one"].text == "kept in float by annotate.skip_first"
    assert made.topology.float_nodes["three"].text == "kept in float by annotate.skip_last"
    assert made.topology.node_conds["two"]


def test_strict_refuses_unknown_ops_only() -> None:
    assert line(graph_of("softmax_island"), strict=True).topology.float_nodes  # known, with a reason
    net = Net()
    x = net.node("Inverse", net.conv(net.input(None, 3, 8, 8), 3, 4, 1, 1), domain="com.microsoft", name="mid")
    net.output(x)
    with pytest.raises(ConfigError, match=r"strict=true rejects ops without a rule: .*mid \(Inverse\)"):
        _ = line(net, strict=True).topology


@pytest.mark.parametrize("options", [{"min_bits": 1}, {"min_bits": 17}, {"threshold_steps": (1, 2)}])
def test_options_are_checked(options: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=r"annotate\."):
        AnnotateOptions(**options)  # type: ignore[arg-type]


# --- fusing ---------------------------------------------------------------------------------------------------------


def test_clamps_are_swallowed_in_chains() -> None:
    made = line_of("clamps_in_a_row", "ort_cpu", "auto")
    kernel = made.topology.kernel_of["front"]
    assert kernel.fused == ("relu1",)  # [Relu, Clip] is in no chain of the file
    data = hardware_data("ort_cpu")
    made = line(graph_of("clamps_in_a_row"), hardware("ort_cpu", fuse=[*data["fuse"], ["Relu", "Clip"]]))
    kernel = made.topology.kernel_of["front"]
    assert (kernel.fused, kernel.bounds, kernel.output) == (("relu1", "mid"), (0.0, 1.0), "mid_out")
    assert made.topology.fused_into == {"relu1": "front", "mid": "front"}
    assert made.topology.node_conds["mid"] is True and not made.topology.float_nodes
    assert made.agree(made.ties(), "qdq").differing == 0


@pytest.mark.parametrize("case", ["relu_standalone", "intermediate_output"])
def test_a_tensor_that_others_need_is_not_swallowed_away(case: str) -> None:
    made = line_of(case, "ort_cpu", "auto")
    assert made.topology.kernel_of["front"].fused == ()
    assert made.topology.kernel_of["mid"].bounds == (0.0, float("inf"))


def test_without_fuse_each_clamp_is_a_kernel() -> None:
    made = line(graph_of("relu_swallowed"), hardware("ort_cpu", fuse=[]))
    assert [k.node for k in made.topology.kernels] == ["front", "mid", "back"]


def test_the_later_arm_of_a_sum_hands_on_its_accumulator() -> None:
    made = line_of("residual_projection", "vta", "auto")
    forms = {k.node: k.form for k in made.topology.kernels}
    order = [n.name for n in made.graph.nodes]
    later, earlier = sorted(("arm", "short"), key=order.index, reverse=True)
    assert (forms[later], forms[earlier]) == (Form.RAW, Form.QUANTIZED)
    join = made.topology.kernel_of["join"]
    assert {o.tensor: o.form for o in join.operands} == {
        f"{later}_out": Form.RAW, f"{earlier}_out": Form.QUANTIZED
    }  # fmt: skip
    assert join.fused  # [Conv, Add, Relu]: the clamp goes along
    assert all(k.form is not Form.RAW for k in line_of("residual_projection", "ort_cpu", "auto").topology.kernels)


def test_a_result_that_only_float_nodes_read_leaves_wide_where_offered() -> None:
    made = line_of("gemm_trans", "ort_cpu", "auto")
    assert [k.form for k in made.topology.kernels] == [Form.QUANTIZED, Form.RAW]
    assert "gemm2_out" not in made.topology.group_of
    assert [k.form for k in line_of("conv_plain", "ort_cpu", "auto").topology.kernels] == [Form.QUANTIZED]


# --- groups ---------------------------------------------------------------------------------------------------------


def test_pools_share_the_scale_of_their_input() -> None:
    made = line_of("max_pool", "ort_cpu", "auto")
    group = made.topology.group_of["front_out"]
    assert group.tensors == ("front_out", "mid_out") and group.sources == ("front_out",)
    assert group.dtype is DType.UINT8
    assert set(group.edges) == {"front->mid:0", "mid->back:0"}


def test_averages_and_convolutions_start_a_new_scale() -> None:
    made = line_of("average_pool", "ort_cpu", "auto")
    assert made.topology.group_of["front_out"] is not made.topology.group_of["mid_out"]


def test_concatenated_tensors_share_the_range_of_the_result() -> None:
    made = line_of("concat_three", "ort_cpu", "auto")
    group = made.topology.group_of["mid_out"]
    assert set(group.tensors) == {"x", "conv1_out", "relu1_out", "mid_out"}
    assert group.sources == ("mid_out",)
    twice = line_of("concat_twice", "ort_cpu", "auto").topology.group_of["front_out"]
    assert len(twice.tensors) == 5 and len(twice.sources) == 1


def test_every_stored_tensor_is_in_one_group() -> None:
    for case in ("concat_twice", "residual_projection", "tied_weights", "erf_island", "clip_standalone"):
        for spec in ("ort_cpu", "vta", "hago_sample"):
            topology = line_of(case, spec, "auto").topology
            members = [t for g in topology.groups for t in g.tensors]
            assert len(members) == len(set(members))
            stored = {o.tensor for k in topology.kernels for o in k.operands if o.form is Form.QUANTIZED}
            stored |= {k.output for k in topology.kernels if k.form is Form.QUANTIZED}
            assert stored <= set(members)
            for group in topology.groups:
                assert group.sources and set(group.sources) <= set(group.tensors)


def test_constants_that_are_data_have_ranges_of_their_own() -> None:
    made = line_of("add_channel", "ort_cpu", "auto")
    (constant,) = made.topology.constants
    assert made.topology.group_of[constant].sources == (constant,)
    assert constant not in made.topology.measured


def test_weight_sites() -> None:
    made = line_of("tied_weights", "ort_cpu", "auto")
    site = made.topology.weight_of["shared"]
    assert (site.nodes, site.channel_axis, site.axis, site.max_bits) == (("first", "second"), 0, 0, 8)
    assert line_of("gemm_plain", "ort_cpu", "auto").topology.weights[0].axis == 1
    assert line_of("gemm_trans", "ort_cpu", "auto").topology.weights[0].axis == 0
    assert line_of("matmul_rank3", "ort_cpu", "auto").topology.weights[0].axis == 1
    vta = line_of("gemm_plain", "vta", "auto").topology.weights[0]
    assert (vta.channel_axis, vta.axis) == (1, None)


# --- choices --------------------------------------------------------------------------------------------------------


def test_choices_run_from_the_most_precise_down() -> None:
    made = line_of("max_pool", "ort_cpu", "auto")
    space = choice_space(made.topology, AnnotateOptions(min_bits=3, threshold_steps=(-1, 0)))
    keys = {c.key: c for c in space}
    assert keys["bits:front_out"].options == (8, 7, 6, 5, 4, 3)
    assert keys["step:front_out"].options == (0, -1)
    assert "bits:mid_out" not in keys, "one decision per group"
    assert bits_of(made.topology, space.decode(space.start))["mid_out"] == 8
    assert space.encode(space.decode(space.start)) == space.start


def test_ranges_may_be_choices_of_their_own() -> None:
    made = line_of("max_pool", "ort_cpu", "auto")
    percents = {group.key: (100, 75, 50) for group in made.topology.groups}
    space = choice_space(made.topology, AnnotateOptions(), percents)
    assert {c.key: c for c in space}["clip:front_out"].options == (100, 75, 50)
    assert set(clips_of(made.topology, space.decode(space.start)).values()) == {100}
    changed = space.decode(space.start) | {"clip:front_out": 50}
    assert clips_of(made.topology, changed)["front_out"] == 50
    assert not any(c.key.startswith("clip:") for c in choice_space(made.topology, AnnotateOptions()))


def test_edges_have_conditions_of_their_readers() -> None:
    made = line_of("softmax_island", "ort_cpu", "auto")
    assert made.topology.edge_conds["front->mid:0"] is False
    assert made.topology.edge_conds["mid->back:0"] is True
    assert made.topology.edge_conds["x->front:0"] is True


def test_disjoint_sets_keep_the_order_of_addition() -> None:
    sets = DisjointSets("abcde")
    sets.merge("e", "b")
    sets.merge("c", "e")
    assert sets.in_order() == [("a",), ("b", "c", "e"), ("d",)]
    assert sets["e"] == sets["b"] == sets["c"] != sets["a"]


def test_a_model_that_is_quantized_already_says_so_first() -> None:
    """As onnxruntime's dynamic quantization writes it: every other reason follows from this one."""
    net = Net()
    x = net.input(None, 3, 8, 8)
    net._nodes.append(helper.make_node("DynamicQuantizeLinear", [x], ["q", "s", "z"], name="dynamic"))
    weight = net.constant(np.arange(-12, 12, dtype=np.int8).reshape(8, 3, 1, 1))
    sums = net.node("Cast", net.node("ConvInteger", "q", weight, "z", name="conv"), to=1)
    net.output(net.node("Mul", sums, "s"))
    made = line(net)
    with pytest.raises(ConfigError, match=r"nothing to search; dynamic: .*quantized already; give the float model"):
        choice_space(made.topology, made.options)
    assert reason(made, "conv") == reason(made, "dynamic")


def test_bodies_stay_in_float_as_a_whole_and_their_ops_are_listed() -> None:
    def branch(op: str, *more: str) -> onnx.GraphProto:
        nodes = [helper.make_node(o, [a], [b]) for o, a, b in zip((op, *more), ("c", "t"), ("t", "u"), strict=False)]
        result = nodes[-1].output[0]
        return helper.make_graph(nodes, op, [], [helper.make_tensor_value_info(result, onnx.TensorProto.FLOAT, None)])

    net = Net()
    net.conv(net.input(None, 3, 8, 8), 3, 4, 1, 1, name="front")
    net._nodes[-1].output[0] = "c"
    flag = net.node("Greater", net.node("ReduceSum", "c", keepdims=0), net.constant(np.float32(0)))
    net._nodes.append(
        helper.make_node(
            "If", [flag], ["y"], name="if", then_branch=branch("Tanh", "Relu"), else_branch=branch("Neg", "Relu")
        )
    )
    net.output(net.conv("y", 4, 2, 1, 1, name="back"))
    made = line(net)
    assert "stay in float as a whole" in reason(made, "if")
    assert reason(made, "if").endswith("(in them: Neg 1, Relu 2, Tanh 1)")
    assert made.topology.node_conds["front"] and made.topology.node_conds["back"]
    assert made.agree(made.plan(), "qdq").differing == 0


def test_every_reason_has_its_kind() -> None:
    """Decisions are made by kinds, so each must say what its sentence says."""
    net = Net()
    y = net.conv(net.input(None, 3, 8, 8), 3, 8, 3, 3)
    y = net.node("Softmax", net.node("Relu", y, name="clamp"), axis=1, name="softmax")
    net.output(net.node("Hardmax", net.node("Erf", y, name="erf"), axis=1, name="hardmax"))
    kinds = {node: why.kind for node, why in line(net, float_ops=("Relu",)).topology.float_nodes.items()}
    assert kinds == {
        "clamp": ReasonKind.KEPT, "softmax": ReasonKind.DEVICE, "erf": ReasonKind.DEVICE, "hardmax": ReasonKind.OP
    }  # fmt: skip


def test_a_clamp_is_fused_by_the_kind_of_its_reason_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another sentence changes nothing: a clamp that the user keeps in float is not fused, whatever is said of it."""

    def said_otherwise(key: str) -> Reason:
        return Reason(ReasonKind.KEPT, f"as you wish: {key}")

    monkeypatch.setattr("quantpipe.annotate.conditions._kept_by", said_otherwise)
    net = Net()
    y = net.conv(net.input(None, 3, 8, 8), 3, 8, 3, 3)
    net.output(net.conv(net.node("Relu", y, name="clamp"), 8, 8, 1, 1))
    made = line(net, float_ops=("Relu",))
    assert not made.topology.kernels[0].fused and made.topology.float_nodes["clamp"].text.startswith("as you wish")
    assert line(net).topology.kernels[0].fused == ("clamp",)
