"""Kernels that are patterns of ops: where they lie, what runs in them, and which files are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from quantpipe.app import compose
from quantpipe.app.hardware_place import load_located
from quantpipe.errors import HardwareError
from quantpipe.hardware.cost import cycles
from quantpipe.hardware.load import load_hardware
from quantpipe.hardware.matching import sites_of, unmatched
from quantpipe.types import DType, Form, HardwareSpec, Lookup
from tests.ops.line import Line, Net, line
from tests.simulate.test_against_interpreter import check

PLAIN: dict[str, Any] = {
    "name": "patterns",
    "source": "made for these tests",
    "like": "ort_cpu",
    "description": "int8 kernels, and patterns of them",
    "preferred_schema": "symmetric",
    "realize": "integer",
    "activations": {"symmetric": True, "bits": 16, "narrow": True},
    "functions": None,
    "fuse": [],
    "cost": {"launch_cycles": 100, "macs_per_cycle": {"int16": 1, "int8": 2, "float32": 1}},
}
OPS: dict[str, Any] = {
    "Conv": {"in": ["int8", "int8"], "out": ["int8"]},
    "Reshape|Transpose|MaxPool": {"in": "T", "out": "T"},
    "Add": {"in": "int8", "out": "int8"},
}
SWISH = {
    "pattern": {"y": "Conv(x, w)", "z": "HardSwish(y) | Sigmoid(y) | PRelu(y) | LeakyRelu(y)"},
    "types": {"x": "int8", "w": "int8", "y": "int16", "z": "int8"},
}
ATTENTION = {
    "pattern": {
        "s": "MatMul(q, k)",
        "scaled": "Mul(s, 0.5)",
        "p": "Softmax(scaled, axis=-1)",
        "o": "MatMul(p, v)",
    },
    "types": {"q": "int8", "k": "int8", "v": "int8", "s": "int16", "scaled": "int16", "p": "int8", "o": "int8"},
}


def device(kernels: dict[str, Any], ops: dict[str, Any] | None = None, **changes: Any) -> HardwareSpec:
    base = {key: value for key, value in PLAIN.items() if key != "like"}
    other = compose.option("hardware", "ort_cpu")
    data = other | base | {"ops": OPS if ops is None else ops, "types": {"T": ["int8", "int16"]}, "kernels": kernels}
    return load_hardware(data | {"functions": {}} | changes)


def conv_net(*functions: str) -> Net:
    net = Net(seed=3)
    value = net.input(None, 4, 6, 6)
    for number, function in enumerate(functions):
        value = net.node("Conv", value, net.floats(4, 4, 1, 1, scale=0.2), net.floats(4), name=f"conv{number}")
        if function:
            slope = (net.floats(4, 1, 1),) if function == "PRelu" else ()
            value = net.node(function, value, *slope, name=f"{function.lower()}{number}")
    net.output(value)
    return net


def kinds(made: Line) -> dict[str, list[str]]:
    return {site.kernel: list(site.nodes) for site in made.topology.sites}


@pytest.mark.sliced(3)
@pytest.mark.parametrize("function", ["HardSwish", "Sigmoid", "PRelu", "LeakyRelu"])
def test_a_convolution_with_its_function_is_one_kernel(function: str) -> None:
    """The value between keeps 16 bits, though the device stores 8 anywhere else; what runs is what is planned."""
    made = line(conv_net(function, ""), device({"swish": SWISH}))
    assert not made.topology.float_nodes and len(made.topology.sites) == 1
    inner = made.graph.by_name["conv0"].outputs[0]
    assert made.topology.group_of[inner].dtype is DType.INT16 and made.topology.group_of[inner].max_bits == 16
    assert made.topology.group_of["x"].max_bits == 8
    plan = made.plan(16)
    assert isinstance(plan.kernels[f"{function.lower()}0"], Lookup)
    check(made, plan, "integer")
    assert made.agree(plan, "integer").differing == 0


def test_the_op_alone_is_not_declared_by_a_kernel() -> None:
    made = line(conv_net("Sigmoid", ""), device({}))
    assert set(made.topology.float_nodes) == {"sigmoid0"}
    net = Net(seed=1)
    net.output(net.node("Sigmoid", net.node("MaxPool", net.input(None, 2, 4, 4), kernel_shape=[2, 2]), name="alone"))
    other = line(net, device({"swish": SWISH}))
    assert "does not declare Sigmoid" in other.topology.float_nodes["alone"].text


def test_a_kernel_runs_whole_or_not_at_all() -> None:
    """The convolution's own signature is taken where the function is kept in float, or its value is read elsewhere."""
    kept = line(conv_net("Sigmoid", ""), device({"swish": SWISH}), float_nodes=("sigmoid0",))
    assert not kept.topology.sites and set(kept.topology.float_nodes) == {"sigmoid0"}
    assert kept.topology.group_of[kept.graph.by_name["sigmoid0"].inputs[0]].dtype is DType.INT8 or (
        kept.graph.by_name["sigmoid0"].inputs[0] not in kept.topology.group_of
    )
    net = conv_net("Sigmoid")
    net.output(net.node("MaxPool", "conv0_out", kernel_shape=[2, 2], name="pool"))
    read = line(net, device({"swish": SWISH}))
    assert not read.topology.sites


def attention_net(factor: float = 0.5) -> Net:
    net = Net(seed=5)
    q, k, v = (net.input(None, 2, 4, 4, name=name) for name in ("q", "k", "v"))
    scores = net.node("Mul", net.node("MatMul", q, k, name="qk"), net.constant(np.float32(factor)), name="scale")
    net.output(net.node("MatMul", net.node("Softmax", scores, axis=-1, name="softmax"), v, name="pv"))
    return net


def test_attention_as_a_whole_has_wide_values_inside_and_stored_bytes_outside() -> None:
    spec = device({"attention": ATTENTION}, ops={"Conv": OPS["Conv"]}, functions={"Softmax": "table"})
    made = line(attention_net(), spec)
    assert kinds(made) == {"attention": ["qk", "scale", "softmax", "pv"]} and not made.topology.float_nodes
    assert made.topology.group_of["qk_out"].dtype is DType.INT16
    plan = made.plan(16)
    check(made, plan, "integer")
    assert made.agree(plan, "integer").differing == 0
    other = line(attention_net(0.25), spec)
    assert not other.topology.sites, "the number is a part of the pattern"


def test_a_mean_and_a_variance_are_two_results_of_one_kernel() -> None:
    pattern = {
        "m": "ReduceMean(x)",
        "d": "Sub(x, m)",
        "s": "Mul(d, d)",
        "v": "ReduceMean(s)",
    }
    types = dict.fromkeys(("x", "m", "d", "s", "v"), "int16")
    spec = device({"norm": {"pattern": pattern, "types": types, "results": ["d", "v"]}}, ops={"Conv": OPS["Conv"]})
    net = Net(seed=2)
    x = net.input(None, 4, 8)
    mean = net.node("ReduceMean", x, axes=[-1], keepdims=1, name="mean")
    centred = net.node("Sub", x, mean, name="centred")
    square = net.node("Mul", centred, centred, name="square")
    net.output(net.node("ReduceMean", square, axes=[-1], keepdims=1, name="variance"))
    net.output(centred)
    made = line(net, spec)
    assert kinds(made) == {"norm": ["mean", "centred", "square", "variance"]}
    assert made.agree(made.plan(16), "integer").differing == 0


def normalization(net: Net, x: str, square: str) -> str:
    """A LayerNormalization as exporters write it out, or the op itself."""
    if square == "op":
        return net.node("LayerNormalization", x, net.floats(16), net.floats(16), axis=-1, name="norm")
    centred = net.node("Sub", x, net.node("ReduceMean", x, axes=[-1], keepdims=1))
    powers = {"Pow": net.constant(np.float32(2)), "Mul": centred}
    variance = net.node("ReduceMean", net.node(square, centred, powers[square]), axes=[-1], keepdims=1)
    root = net.node("Sqrt", net.node("Add", variance, net.constant(np.float32(1e-5))))
    gained = net.node("Mul", net.node("Div", centred, root), net.floats(16))
    return net.node("Add", gained, net.floats(16), name="norm")


@pytest.mark.parametrize("square", ["Pow", "Mul", "op"])
def test_a_sum_and_a_layer_normalization_in_any_decomposition_are_one_kernel(square: str) -> None:
    """The clean-up has made one node of it, which is what the pattern names."""
    kernel = {
        "pattern": {"r": "Add(x, y)", "n": "LayerNormalization(r)"},
        "types": {"x": "int8", "y": "int8", "r": "int16", "n": "int8"},
        "functions": {"n": "integer_sqrt"},
    }
    net = Net(seed=2)
    x, y = net.input(None, 4, 16), net.input(None, 4, 16, name="y")
    net.output(normalization(net, net.node("Add", x, y, name="sum"), square))
    made = line(net, device({"norm": kernel}, ops={"Conv": OPS["Conv"]}))
    assert kinds(made) == {"norm": ["sum", "norm"]} and not made.topology.float_nodes
    assert made.topology.group_of["sum_out"].dtype is DType.INT16
    plan = made.plan(16)
    check(made, plan, "integer")
    assert made.agree(plan, "integer").differing == 0


@pytest.mark.parametrize("kind", ["polynomial", "shift", "table"])
def test_a_product_with_its_bias_and_gelu_is_one_kernel(kind: str) -> None:
    """MatMul, Add and the Erf form of Gelu, which the clean-up makes a Gemm and a Gelu of."""
    kernel = {
        "pattern": {"y": "Gemm(x, w) | MatMul(x, w)", "z": "Gelu(y)"},
        "types": {"x": "int8", "w": "int8", "y": "int16" if kind == "table" else "int8", "z": "int8"},
        "functions": {"z": kind},
    }
    net = Net(seed=3)
    y = net.node(
        "Add", net.node("MatMul", net.input(None, 8), net.floats(8, 8, scale=0.3), name="dense"), net.floats(8)
    )
    erf = net.node("Erf", net.node("Div", y, net.constant(np.float32(np.sqrt(2)))))
    gated = net.node("Mul", y, net.node("Add", erf, net.constant(np.float32(1))))
    net.output(net.node("Mul", gated, net.constant(np.float32(0.5)), name="gelu"))
    bits = 16 if kind == "table" else 8
    spec = device({"dense": kernel}, ops={"Conv": OPS["Conv"]}, activations={"symmetric": True, "bits": bits})
    made = line(net, spec)
    assert kinds(made) == {"dense": ["dense", "gelu"]} and not made.topology.float_nodes
    plan = made.plan(bits)
    check(made, plan, "integer")
    assert made.agree(plan, "integer").differing == 0


def test_a_result_that_nothing_in_the_pattern_reads_is_found_forwards() -> None:
    kernel = {"pattern": {"b": "Sigmoid(y)", "y": "Conv(x, w)", "a": "Tanh(y)"}, "results": ["a", "b"],
              "types": {"x": "int8", "w": "int8", "y": "int16", "a": "int8", "b": "int8"}}  # fmt: skip
    net = conv_net("Tanh")
    net.output(net.node("Sigmoid", "conv0_out", name="gate"))
    made = line(net, device({"both": kernel}))
    assert [set(site.nodes) for site in made.topology.sites] == [{"conv0", "tanh0", "gate"}]
    assert made.agree(made.plan(16), "integer").differing == 0


def test_larger_patterns_come_first_and_a_name_of_types_is_one_type() -> None:
    pair = {"pattern": {"y": "Conv(x, w)", "z": "Conv(y, u)"},
            "types": {"x": "int8", "w": "int8", "u": "int8", "y": "int8", "z": "int8"}}  # fmt: skip
    triple = {"pattern": {"y": "Conv(x, w)", "z": "Conv(y, u)", "s": "Sigmoid(z)"},
              "types": {**pair["types"], "s": "int8"}}  # fmt: skip
    made = line(conv_net("", "Sigmoid", "", ""), device({"pair": pair, "triple": triple}))
    assert kinds(made) == {"triple": ["conv0", "conv1", "sigmoid1"], "pair": ["conv2", "conv3"]}
    spec = device({})
    assert [s.inputs for s in spec.ops["Transpose"]] == [(DType.INT8,), (DType.INT16,)]
    assert all(s.inputs == s.outputs for op in ("Reshape", "Transpose", "MaxPool") for s in spec.ops[op])
    swapped = device({"swish": SWISH | {"types": {"x": "T", "w": "int8", "y": "int16", "z": "T"}}})
    ways = swapped.kernels[0].signatures["y"]["Conv"]
    assert [s.inputs[0] for s in ways] == [DType.INT8, DType.INT16]


def test_a_relu_in_a_pattern_is_the_bound_of_its_kernel_as_in_fuse() -> None:
    kernel = {"pattern": {"y": "Conv(x, w)", "z": "Relu(y)"}, "types": dict.fromkeys(("x", "w", "y", "z"), "int8")}
    net = conv_net("Relu", "")
    by_kernel, by_fuse = line(net, device({"relu": kernel})), line(net, device({}, fuse=[["Conv", "Relu"]]))
    assert by_kernel.topology.kernels == by_fuse.topology.kernels
    assert by_kernel.topology.kernel_of["conv0"].fused == ("relu0",)


def test_limits_of_values_are_the_most_bits() -> None:
    limits = {"x": {"bits": 7}, "y": {"min": -2048, "max": 2047}, "w": {"min": -7, "max": 7}}
    made = line(conv_net("Sigmoid"), device({"swish": SWISH | {"limits": limits}}))
    most = {t: made.topology.group_of[t].max_bits for t in ("x", "conv0_out")}
    assert most == {"x": 7, "conv0_out": 12} and made.topology.weights[0].max_bits == 4
    plan = made.plan(16)
    assert plan.quantizers["conv0_out"].bits == 12
    check(made, plan, "integer")


def test_a_kernel_starts_once_and_costs_what_it_says() -> None:
    net = conv_net("Sigmoid")
    plain = line(net, device({}, ops=OPS | {"Sigmoid": {"in": "int8", "out": "int8"}}))
    joined = line(net, device({"swish": SWISH}))
    fast = line(net, device({"swish": SWISH | {"cost": {"macs_per_cycle": {"int8": 8}}}}))
    spent = []
    for made in (plain, joined, fast):
        bits = {t: g.max_bits for g in made.topology.groups for t in g.tensors}
        bits |= {w.tensor: w.max_bits for w in made.topology.weights}
        spent.append(cycles(made.topology, made.graph, made.spec, bits))
    work = 4 * 4 * 6 * 6
    assert spent[0] - spent[1] == 100, "one node fewer is started"
    assert spent[1] - spent[2] == work / 2 - work / 8


def test_check_says_which_kernel_lies_nowhere() -> None:
    spec = device({"swish": SWISH, "attention": ATTENTION}, functions={"Softmax": "table"})
    made = line(conv_net("Sigmoid"), spec)
    said = list(unmatched(made.graph, spec))
    assert said == [
        "hardware.kernels.attention has no effect: its pattern (MatMul -> Mul -> Softmax -> MatMul) does not occur in "
        "this model"
    ]


def test_two_patterns_of_one_size_over_one_node_are_ambiguous() -> None:
    one = {"pattern": {"y": "Conv(x, w)", "z": "Sigmoid(y) | Tanh(y)"}, "types": SWISH["types"]}
    made = line(conv_net("Sigmoid"), device({}))
    with pytest.raises(HardwareError, match=r"b.pattern and kernels.a.pattern have the same size and both match conv0"):
        sites_of(made.graph, device({"a": SWISH, "b": one}))
    apart = {"a": SWISH | {"when": {"y": {"group": "depthwise"}}}, "b": one}
    assert [s.kernel for s in sites_of(made.graph, device(apart))] == ["b"]


BAD = {
    "circle": ({"pattern": {"y": "Conv(z, w)", "z": "Sigmoid(y)"}}, "pattern.y depends on itself"),
    "apart": ({"pattern": {"y": "Conv(x, w)", "u": "Tanh(v)", "z": "Sigmoid(y)"}}, "pattern.u has nothing to do with"),
    "no op": ({"pattern": {"y": "Convv(x, w)"}}, "pattern.y names 'Convv', no op with a rule (did you mean 'Conv'"),
    "no call": ({"pattern": {"y": "x + w"}}, "pattern.y is 'x + w'; legal are ops with their operands"),
    "no expression": ({"pattern": {"y": "Conv(x,"}}, "pattern.y is 'Conv(x,', which is no expression"),
    "code": ({"pattern": {"y": "Conv(open('x'))"}}, "pattern.y has the operand \"open('x')\"; legal are names"),
    "no pattern": ({"pattern": {}}, "pattern is empty"),
    "no types": ({"types": None}, "types is missing, so it only lists fused ops: it has [Conv, HardSw"),
    "own without types": ({"types": None, "functions": {"z": "table"}}, "types is missing, and functions needs them"),
    "one op without types": ({"types": None, "pattern": {"y": "Conv(...)"}}, "types is missing, so it only lists"),
    "further operands": ({"pattern": {"y": "Conv(x, ..., w)"}}, "pattern.y has the operand '...'; legal are names"),
    "type missing": ({"types": {"x": "int8", "w": "int8", "z": "int8"}}, "types.y is missing; every value"),
    "type of nothing": ({"types": {**SWISH["types"], "q": "int8"}}, "types.q is no value of the pattern"),
    "no type": ({"types": {**SWISH["types"], "y": "int7"}}, "types.y is 'int7' (did you mean"),
    "mixed": ({"types": {**SWISH["types"], "w": "float32"}}, "Conv.in mixes float and integer types"),
    "when": ({"when": {"z": {"group": 1}}}, "when.group does not apply to"),
    "when of nothing": ({"when": {"q": {"group": 1}}}, "when.q is no value here"),
    "limits": ({"limits": {"y": {"bits": 8, "min": -64, "max": 63}}}, "limits.y says {'bits': 8, 'min': -64,"),
    "range": ({"limits": {"y": {"min": -5, "max": 9}}}, "limits.y has min -5 and max 9"),
    "wide limit": ({"limits": {"x": {"bits": 12}}}, "limits.x has 12 bits, and kernels.swish.types.x holds 8"),
    "limit of a fixed scale": (
        {"limits": {"z": {"bits": 4}}, "fixed_scale": {"z": "1/64"}},
        "limits.z contradicts kernels.swish.fixed_scale.z, which has all the bits of its type",
    ),
    "limit of an accumulator": (
        {"limits": {"y": {"bits": 12}}, "types": {**SWISH["types"], "y": "int32"}},
        "limits.y limits what is not stored: kernels.swish.types.y is int32",
    ),
    "limit of another sign": (
        {"limits": {"x": {"min": 0, "max": 127}}},
        "limits.x has min 0, and kernels.swish.types.x is int8; legal is its sign",
    ),
    "result": ({"results": ["q"]}, "results names 'q', which no step makes"),
    "requantize": ({"requantize": {"z": "float_multiplier"}}, "requantize has no effect, since"),
    "field": ({"patern": {}}, "kernels.swish.patern is not a field (did you mean 'pattern'?)"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_what_a_kernel_may_not_say(name: str) -> None:
    change, said = BAD[name]
    with pytest.raises(HardwareError) as error:
        device({"swish": SWISH | change})
    assert said in str(error.value) and "kernels.swish" in str(error.value), str(error.value)


def test_the_same_pattern_twice_and_bad_short_forms() -> None:
    renamed = {"pattern": {"a": "Conv(b, c)", "d": "HardSwish(a) | PRelu(a) | Sigmoid(a) | LeakyRelu(a)"},
               "types": {"b": "int8", "c": "int8", "a": "int8", "d": "int8"}}  # fmt: skip
    with pytest.raises(HardwareError, match=r"kernels.b.pattern is the same as in kernels.swish"):
        device({"swish": SWISH, "b": renamed})
    with pytest.raises(HardwareError, match=r"ops.Conv is named by two lines"):
        device({}, ops=OPS | {"Conv|Gemm": OPS["Conv"]})
    with pytest.raises(HardwareError, match=r"types.int8 is a type itself"):
        device({}, types={"int8": ["int16"]})
    with pytest.raises(HardwareError, match=r"types.T is 'int9'"):
        device({}, types={"T": ["int9"]})


def test_an_error_in_a_kernel_names_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        "name: mine\nsource: s\nlike: tflite_int8\nkernels:\n  swish:\n    pattern:\n      y: Conv(x, w)\n"
        "      z: HardSwish(q)\n    types: {x: int8, w: int8, y: int8, z: int8, q: int8}\n"
    )
    with pytest.raises(HardwareError, match=r"kernels.swish.pattern.y has nothing to do with z.*mine.yaml, line 7\)"):
        load_located(compose.read_hardware(path), path, {"hardware": "mine"})
    merged = compose.whole_hardware({"name": "n", "source": "s", "like": "tflite_int8", "kernels": {"swish": SWISH}})
    assert yaml.safe_dump(merged["kernels"]) == yaml.safe_dump({"swish": SWISH})


def test_an_accumulator_goes_through_a_kernel_into_an_addition() -> None:
    """`int32` between two steps is the accumulator itself, unrounded."""
    kernel = {"pattern": {"y": "Conv(x, w)", "z": "Add(y, r)"},
              "types": {"x": "int8", "w": "int8", "y": "int32", "r": "int8", "z": "int8"}}  # fmt: skip
    net = Net(seed=4)
    x = net.input(None, 3, 5, 5)
    first = net.node("Conv", x, net.floats(3, 3, 1, 1), name="first")
    second = net.node("Conv", first, net.floats(3, 3, 1, 1), name="second")
    net.output(net.node("Conv", net.node("Add", second, first, name="add"), net.floats(2, 3, 1, 1), name="last"))
    made = line(net, device({"residual": kernel}))
    assert made.topology.kernel_of["second"].form is Form.RAW and kinds(made) == {"residual": ["second", "add"]}
    assert made.agree(made.plan(8), "integer").differing == 0


def test_first_and_last_layer_have_bits_of_their_own() -> None:
    made = line(conv_net("Relu", "Relu", "Relu"), "academic")
    bits = {w.tensor: (w.min_bits, w.max_bits) for w in made.topology.weights}
    assert list(bits.values()) == [(8, 8), (2, 4), (8, 8)]
    inputs = [k.operands[0].tensor for k in made.topology.kernels]
    assert [made.topology.group_of[t].max_bits for t in inputs] == [8, 4, 8]
    plan = made.plan((4, 3), seed=1)
    assert [plan.weights[w].bits for w in bits][::2] == [8, 8]
    assert made.agree(plan, "integer").differing == 0
    with pytest.raises(HardwareError, match="first_last_bits is 17; legal are 2 to 16, or null"):
        device({}, first_last_bits=17)


def test_a_group_normalization_runs_in_integers_as_what_it_is_made_of() -> None:
    net = Net(seed=6, opset=21)
    x = net.node("Conv", net.input(None, 4, 6, 6), net.floats(4, 4, 1, 1), name="first")
    x = net.node("GroupNormalization", x, net.floats(4), net.floats(4), num_groups=2, name="norm")
    net.output(net.node("Conv", x, net.floats(2, 4, 1, 1), name="last"))
    made = line(net, "qnn_htp")
    assert not made.topology.float_nodes
    assert any(k.op == "LayerNormalization" for k in made.topology.kernels)
    assert made.agree(made.plan(16), "integer").differing == 0
