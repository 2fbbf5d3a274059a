"""What `fuse` says in short is a kernel without types: the same topology and the same numbers as the pattern."""

from __future__ import annotations

from quantpipe.hardware.matching import unmatched
from quantpipe.types import Form
from tests.hardware.test_kernels import OPS, conv_net, device, kinds
from tests.ops.line import Net, line


def residual() -> Net:
    net = Net(seed=9)
    x = net.node("Relu", net.conv(net.input(None, 3, 6, 6), 3, 4, 3, 3, name="first"), name="relu")
    y = net.conv(x, 4, 4, 1, 1, name="second")
    net.output(net.node("Relu", net.node("Add", y, x, name="sum"), name="last"))
    return net


def test_a_chain_of_fuse_is_read_as_a_kernel_without_types() -> None:
    """What the file says as `fuse`, and as the patterns that it is short for, is one and the same from there on."""
    ops = OPS | {"Relu": {"in": "int8", "out": "int8"}}
    written = {
        "conv_relu": {"pattern": {"y": "Conv(...)", "z": "Relu(y, ...)"}},
        "conv_add": {"pattern": {"y": "Conv(...)", "z": "Add(y, ...) | Add(x, y)"}},
        "add_relu": {"pattern": {"y": "Add(...)", "z": "Relu(y, ...)"}},
    }
    short = device({}, ops=ops, add_inputs=None, fuse=[["Conv", "Relu"], ["Conv", "Add", "Relu"]])
    long = device(written, ops=ops, add_inputs=None)
    assert [(k.steps, k.results, k.signatures) for k in short.kernels] == [
        (k.steps, k.results, k.signatures) for k in long.kernels
    ]
    assert [k.chain for k in short.kernels] == [("Conv", "Relu"), ("Conv", "Add"), ("Add", "Relu")]
    made = [line(residual(), spec) for spec in (short, long)]
    assert made[0].topology == made[1].topology
    assert made[0].topology.fused_into == {"relu": "first", "last": "sum"}
    assert made[0].topology.kernel_of["second"].form is Form.RAW, "the addition takes the accumulator in"
    assert made[1].agree(made[1].plan(8), "integer").differing == 0
    alone = line(residual(), device({}, ops=ops, add_inputs=None)).topology
    assert not alone.fused_into and alone.kernel_of["second"].form is Form.QUANTIZED, "without either nothing is fused"


def test_the_types_of_a_kernel_say_whether_an_accumulator_is_handed_on_whatever_fuse_says() -> None:
    types = dict.fromkeys(("x", "w", "y", "r", "z"), "int8")
    kernel = {"pattern": {"y": "Conv(x, w)", "z": "Add(y, r)"}, "types": types}
    ops = OPS | {"Relu": {"in": "int8", "out": "int8"}}
    made = line(residual(), device({"sum": kernel}, ops=ops, add_inputs=None, fuse=[["Conv", "Add"]]))
    assert kinds(made) == {"sum": ["second", "sum"]}
    assert made.topology.kernel_of["second"].form is Form.QUANTIZED


def test_a_chain_of_fuse_and_the_same_kernel_with_types_give_the_same_numbers() -> None:
    ops = OPS | {"Relu": {"in": "int8", "out": "int8"}}
    types = {"x": "int8", "y": "int8", "z": "int8", "w": "int8"}
    patterns = {
        "conv_relu": {"pattern": {"y": "Conv(x, w)", "z": "Relu(y)"}, "types": types},
        "add_relu": {"pattern": {"y": "Add(x, w)", "z": "Relu(y)"}, "types": types},
    }
    short = line(residual(), device({}, ops=ops, fuse=[["Conv", "Relu"], ["Add", "Relu"]]))
    long = line(residual(), device(patterns, ops=ops))
    assert short.topology.kernels == long.topology.kernels and len(short.topology.fused_into) == 2
    assert [g.key for g in short.topology.groups] == [g.key for g in long.topology.groups]
    a, b = short.plan(8), long.plan(8)
    assert {t: (float(q.scale), q.bits) for t, q in a.quantizers.items()} == {
        t: (float(q.scale), q.bits) for t, q in b.quantizers.items()
    }
    assert long.agree(b, "integer").differing == 0


def test_check_says_which_kernel_without_types_lies_nowhere_and_nothing_of_chains() -> None:
    spec = device({"pair": {"pattern": {"y": "Conv(...)", "z": "Relu(y)"}}}, ops=OPS, fuse=[["Conv", "Clip"]])
    said = list(unmatched(line(conv_net(""), spec).graph, spec))
    assert said == ["hardware.kernels.pair has no effect: its pattern (Conv -> Relu) does not occur in this model"]
    assert not list(unmatched(line(residual(), spec).graph, spec))
