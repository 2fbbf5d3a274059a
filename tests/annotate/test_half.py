"""Nodes left in float that compute in float16, where a device declares it: which they are, and what they compute."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import quantpipe
from quantpipe.app.chosen_forms import refuse_half
from quantpipe.errors import ConfigError, HardwareError
from quantpipe.evaluate.agreement import compare_with, session_kinds
from quantpipe.evaluate.compared_models import SimulatedModel
from quantpipe.graph.execute import Session
from quantpipe.graph.io import model_proto
from quantpipe.hardware.cost import bops, cycles, peak_activation_bytes
from quantpipe.hardware.load import load_hardware
from quantpipe.verify.half_precision import casts_of_floats
from tests.ops.line import Line, Net, hardware_data, line

SIZE = 3
ADDED = "offset"


def island(added: float = 0.3) -> Net:
    """A convolution, an LRN (which the device has in float only) and a constant that is added, and a convolution."""
    net = Net(seed=3)
    x = net.conv(net.input(None, 3, 6, 6), 3, 4, 3, 3, name="first")
    y = net.node("LRN", x, size=SIZE, name="norm")
    y = net.node("Add", y, net.constant(np.float32([[[[added]]]]), name=ADDED), name="sum")
    net.output(net.conv(y, 4, 5, 3, 3, pads=[1, 1, 1, 1], name="last"))
    return net


def made(net: Net, float_type: str = "float16", hardware: str = "tensorrt") -> Line:
    return line(net, hardware, float_type=float_type, float_ops=("LRN", "Add"))


def written(here: Line, form: str = "integer") -> onnx.ModelProto:
    proto = model_proto(here.realize(here.plan(), form).model)
    onnx.checker.check_model(proto, full_check=True)
    return proto


def kinds(model: onnx.ModelProto) -> dict[str, int]:
    graph = onnx.shape_inference.infer_shapes(model, strict_mode=True).graph
    found = {v.name: v.type.tensor_type.elem_type for v in (*graph.value_info, *graph.output, *graph.input)}
    return found | {t.name: t.data_type for t in graph.initializer}


@pytest.mark.parametrize("form", ["integer", "qdq"])
def test_nodes_left_in_float_compute_in_float16_between_casts(form: str) -> None:
    here = made(island())
    assert here.topology.half_nodes == {"norm", "sum"}
    model = written(here, form)
    kind = kinds(model)
    inside = [n for n in model.graph.node if n.name in here.topology.half_nodes]
    assert len(inside) == 2
    assert {kind[t] for n in inside for t in (*n.input, *n.output)} == {TensorProto.FLOAT16}
    assert {kind[p.name] for p in (*model.graph.input, *model.graph.output)} == {TensorProto.FLOAT}
    halves = {t for t, k in kind.items() if k == TensorProto.FLOAT16}
    around = {n.op_type for n in model.graph.node if halves.intersection((*n.input, *n.output)) and n not in inside}
    assert around == {"Cast"}  # scales and what is quantized stay in float32


def test_integers_of_simulation_and_realization_are_equal() -> None:
    here = made(island())
    assert here.agree(here.plan(), "integer", everywhere=True).differing == 0


def test_what_is_computed_is_what_onnx_says_of_float16() -> None:
    here = made(island())
    rendered = here.realize(here.plan(), "integer")
    model = model_proto(rendered.model)
    half = next(n for n in model.graph.node if n.name == "norm").input[0]
    result = next(n for n in model.graph.node if n.name == "sum").output[0]
    for name in (half, result):
        model.graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT16, None))
    feeds = next(iter(here.samples.batches(4))).inputs
    found = Session(ir.from_proto(model)).run(feeds, [half, result])
    nodes = [
        helper.make_node("LRN", ["x"], ["y"], size=SIZE),
        helper.make_node("Add", ["y", "c"], ["z"]),
    ]
    ports = [helper.make_tensor_value_info(n, TensorProto.FLOAT16, None) for n in ("x", "z")]
    constant = helper.make_tensor("c", TensorProto.FLOAT16, [1, 1, 1, 1], [np.float16(0.3)])
    graph = helper.make_graph(nodes, "g", ports[:1], ports[1:], [constant])
    (expected,) = ReferenceEvaluator(helper.make_model(graph)).run(None, {"x": found[half]})
    assert found[result].dtype == expected.dtype == np.float16
    np.testing.assert_allclose(found[result].astype(float), expected.astype(float), rtol=2**-9, atol=2**-10)


def test_what_float16_does_not_hold_stays_in_float32() -> None:
    """A constant of 1e5 and what is made with it; the LRN in front of it is as before."""
    assert made(island(added=1e5)).topology.half_nodes == {"norm"}
    assert made(island(added=6e4)).topology.half_nodes == {
        "norm"
    }  # float16 holds it, but hardly what other samples make


def test_the_largest_values_decide_with_a_margin() -> None:
    assert made(island(added=1e4)).topology.half_nodes == {"norm", "sum"}
    assert made(island(added=1.7e4)).topology.half_nodes == {"norm"}


def test_nodes_that_make_real_numbers_of_others_and_those_of_shapes_stay_as_they_are() -> None:
    net = Net(seed=4)
    x = net.conv(net.input(None, 3, 6, 6), 3, 4, 3, 3, name="first")
    y = net.node("LRN", x, size=3, name="norm")
    mask = net.node("Cast", net.node("Greater", y, net.constant(np.float32(0)), name="above"), to=1, name="mask")
    scales = net.constant(np.float32([1, 1, 2, 2]))
    big = net.node("Resize", net.node("Mul", y, mask, name="masked"), "", scales, mode="nearest", name="larger")
    net.output(net.conv(big, 4, 5, 3, 3, name="last"))
    here = line(net, "tensorrt", float_type="float16", float_ops=("LRN", "Mul", "Resize"))
    assert here.topology.half_nodes == {"norm", "masked", "larger"}
    model = written(here)
    larger = next(n for n in model.graph.node if n.name == "larger")
    assert [kinds(model)[t] for t in larger.input if t] == [TensorProto.FLOAT16, TensorProto.FLOAT]
    assert here.agree(here.plan(), "integer").differing == 0


def test_the_cost_of_float16_is_that_of_its_width() -> None:
    net = Net(seed=5)
    net.output(net.conv(net.conv(net.input(None, 3, 6, 6), 3, 4, 3, 3, name="a"), 4, 5, 3, 3, name="b"))
    wide, half = (line(net, "tensorrt", float_type=kind, float_nodes=("a",)) for kind in ("float32", "float16"))
    bits = dict.fromkeys([*(g.key for g in wide.topology.groups), *(w.tensor for w in wide.topology.weights)], 8)
    a, b = 16 * 4 * 27, 4 * 5 * 36
    costs = [[cost(x.topology, x.graph, x.spec, bits) for cost in (bops, cycles)] for x in (wide, half)]
    assert costs[0][0] - costs[1][0] == a * (32 * 32 - 16 * 16) and b
    assert costs[0][1] - costs[1][1] == pytest.approx(a / 16 - a / 32 + 4 * 27 * 2 / 32)
    peaks = [peak_activation_bytes(x.topology, x.graph, x.spec, bits) for x in (wide, half)]
    assert peaks[0] > peaks[1]


def test_a_device_that_does_not_declare_it_refuses_it() -> None:
    with pytest.raises(
        ConfigError, match=r"float16, and ort_cpu computes.*in float32; legal is float32, or a hardware"
    ):
        _ = made(island(), hardware="ort_cpu").topology
    with pytest.raises(ConfigError, match=r"'float61' \(did you mean 'float16'.*legal are float32, float16"):
        made(island(), "float61")


@pytest.mark.parametrize(("given", "said"), [
    (["float16"], "is float16; legal is a list with float32 in it"),
    (["float32", "bfloat16"], "is 'bfloat16'.*legal are float32, float16"),
])  # fmt: skip
def test_a_wrong_list_of_types_is_refused(given: list[str], said: str) -> None:
    with pytest.raises(HardwareError, match=f"float_types {said}"):
        load_hardware(hardware_data("tensorrt") | {"float_types": given})


def test_a_rate_of_float16_without_the_type_is_refused() -> None:
    data = {k: v for k, v in hardware_data("tensorrt").items() if k != "float_types"}
    with pytest.raises(HardwareError, match=r"macs_per_cycle.float16 is read by nothing"):
        load_hardware(data)


@pytest.mark.parametrize("form", ["c", "tflite", "vta"])
def test_forms_without_float16_are_refused_before_anything_runs(form: str) -> None:
    with pytest.raises(
        ConfigError, match=rf"float_type: is float16, and realize={form} computes.*legal are float32, or"
    ):
        refuse_half(("integer", form), "float16")
    refuse_half(("integer", form), "float32")


def test_a_certificate_looks_through_casts_of_float_nodes_and_through_no_others() -> None:
    def cast(source: str, result: str, to: int) -> onnx.NodeProto:
        return helper.make_node("Cast", [source], [result], name=f"cast {result}", to=to)

    def node(source: str, result: str) -> onnx.NodeProto:
        return helper.make_node("Relu", [source], [result], name=result)

    half, single = int(TensorProto.FLOAT16), int(TensorProto.FLOAT)
    inside = [cast("a", "b", half), node("b", "c"), cast("c", "d", single)]
    beyond = [
        cast("d", "e", half),
        node("e", "kernel"),
        cast("kernel", "f", single),
        cast("d", "g", int(TensorProto.INT8)),
    ]
    assert casts_of_floats([*inside, *beyond], {"c"}) == {"cast b", "cast d"}
    assert casts_of_floats(inside, {"c"}) == {"cast b", "cast d"}
    assert casts_of_floats([*inside, node("b", "kernel")], {"c"}) == {"cast d"}  # something else reads half precision


def test_rounding_that_the_runtime_leaves_out_between_two_nodes_is_no_difference() -> None:
    """onnxruntime computes in float32, and rounds in between or not by what else reads a tensor: here, of a Softmax."""
    net = Net(seed=3)
    x = net.conv(net.input(None, 4, 8, 8), 4, 6, 3, 3, name="first")
    y = net.node("Softmax", x, axis=1, name="soft")
    joined = net.node("Concat", net.node("Neg", y, name="minus"), y, axis=1, name="joined")
    net.output(net.conv(y, 6, 5, 3, 3, name="last"), net.conv(joined, 12, 5, 3, 3, name="other"))
    here = line(net, "tensorrt", float_type="float16", float_ops=("Softmax", "Neg", "Concat"))
    found = here.agree(here.plan(), "integer", everywhere=True)
    assert found.differing == 0 and found.elements > 0


def test_a_wrong_integer_behind_a_node_in_float16_is_found() -> None:
    here = made(island())
    plan = here.plan()
    (entry,) = [t for t in plan.quantizers if t not in {k.output for k in here.topology.kernels} and t != "x"]
    quantizer = plan.quantizers[entry]
    other = {**plan.quantizers, entry: replace(quantizer, scale=np.float32(quantizer.scale) * np.float32(1.02))}
    rendered, simulation = here.realize(replace(plan, quantizers=other), "integer"), here.simulate(plan)
    simulated = SimulatedModel(here.graph, here.topology, plan, simulation, realized=rendered)
    kinds = [kind for kind in session_kinds(rendered.model) if kind.decides]
    assert compare_with(simulated, rendered, here.samples, kinds).differing > 0


@pytest.mark.parametrize("factor", [1, 60])
def test_values_that_float16_does_not_hold_are_told_where_only_other_samples_have_them(factor: int) -> None:
    """onnxruntime keeps float32 between such nodes, so that neither integers nor outputs show it."""
    net = Net(seed=3)
    x = net.conv(net.input(None, 3, 6, 6), 3, 4, 3, 3, name="first")
    y = net.node("Mul", net.node("Neg", x, name="minus"), net.constant(np.float32(2000.0)), name="scaled")
    back = net.node("Mul", y, net.constant(np.float32(5e-4)), name="back")
    net.output(net.conv(back, 4, 5, 3, 3, name="last"), back)
    pixels = np.random.default_rng(0).standard_normal((48, 3, 6, 6)).astype(np.float32)
    pixels[:4] *= np.float32(0.2)
    pixels[4:] *= np.float32(factor)
    samples = quantpipe.SampleSets(calibrate=pixels[:32], search=pixels[32:40], evaluate=pixels[40:])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = quantpipe.quantize(
            net.proto(), samples, "tensorrt", annotate={"float_type": "float16", "float_ops": ["Neg", "Mul"]},
            recover="none", precision="none", evaluate={"latency_runs": 1, "baseline": "none", "explain": "none"},
        )  # fmt: skip
    assert {row["node"] for row in result.report["float_nodes"] if row.get("type") == "float16"} == {
        "minus", "scaled", "back"
    }  # fmt: skip
    told = [text for text in result.warnings if "float16 nodes exceed 65504" in text]
    assert len(told) == (factor > 1) and all("annotate.float_type=float32" in text for text in told)
