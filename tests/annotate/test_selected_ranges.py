"""Max, Min and Where leave values of their operands out: what else reads an operand still gets all of its range."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from quantpipe.annotate.conditions import AnnotateOptions
from quantpipe.annotate.variants import Topologies
from quantpipe.errors import ConfigError
from quantpipe.types import Structure, Topology
from tests.ops.line import Line, Net, line


def selecting(op: str, device: str, *, shared: bool, leaves: bool = False) -> Line:
    """An operand whose half the result has none of; `shared`: another layer reads it, `leaves`: it is an output."""
    net = Net(seed=1)
    x = net.input(None, 3, 8, 8)
    a, b = net.conv(x, 3, 4, 3, 3, name="a"), net.node("Relu", net.conv(x, 3, 4, 3, 3, name="b"))
    if op == "Where":
        chosen = net.node(op, net.constant(np.zeros((1, 4, 1, 1), bool)), a, b, name="mid")
    elif op == "Min":
        a, b = (net.node("Mul", v, net.constant(np.float32(-1))) for v in (a, b))
        chosen = net.node(op, a, b, name="mid")
    else:
        chosen = net.node(op, a, b, name="mid")
    net.output(net.conv(chosen, 4, 3, 1, 1, name="behind"))
    if shared:
        net.output(net.conv(a, 4, 3, 1, 1, name="other"))
    if leaves:
        net.output(a)
    return line(net, device)


@pytest.mark.sliced(3)
@pytest.mark.parametrize("device", ["ort_cpu", "tflite_int8", "qnn_htp", "vta"])
@pytest.mark.parametrize("op", ["Max", "Min", "Where"])
def test_another_reader_gets_the_whole_range(op: str, device: str) -> None:
    made = selecting(op, device, shared=True)
    plan = made.plan(8)
    assert made.agree(plan, "integer").differing == 0
    wanted, found = made.outputs(), made.outputs(made.realize(plan, "integer").model)
    for name in wanted:
        noise = np.square(wanted[name] - found[name]).sum() / np.square(wanted[name]).sum()
        assert 10 * np.log10(noise) < -25, name


def test_who_rescales_keeps_a_scale_for_the_result() -> None:
    """Where operands are brought to another scale, result and operand have one each; elsewhere one holds both."""
    for device, apart in (("ort_cpu", True), ("tflite_int8", False)):
        made = selecting("Max", device, shared=True)
        kernel, plan = made.topology.kernel_of["mid"], made.plan(8)
        first, second = kernel.operands
        assert first.rescaled == apart and not second.rescaled
        scales = [float(plan.quantizers[t].scale) for t in (first.tensor, kernel.output)]
        assert (scales[0] > scales[1]) == apart


@pytest.mark.parametrize("leaves", [False, True])
def test_alone_the_result_decides(leaves: bool) -> None:
    made = selecting("Max", "tflite_int8", shared=False, leaves=leaves)
    kernel = made.topology.kernel_of["mid"]
    group = made.topology.group_of[kernel.output]
    assert (kernel.operands[0].tensor in group.sources) == leaves
    assert not any(o.rescaled for o in kernel.operands)


def joined(device: str, *, also: bool, join: str = "Concat", second: str = "Tanh") -> Line:
    """A Tanh and what has another range, or (`also`) another function, in one op."""
    net = Net(seed=1)
    x = net.input(None, 3, 8, 8)
    a, b = net.conv(x, 3, 4, 3, 3, name="a"), net.node("Tanh", net.conv(x, 3, 4, 3, 3, name="b"), name="tanh")
    other = net.node(second, a, name="other") if also else a
    more = {"axis": 1} if join == "Concat" else {}
    net.output(net.conv(net.node(join, b, other, name="mid", **more), 8 if more else 4, 3, 1, 1), a)
    return line(net, device)


@pytest.mark.parametrize("also", [False, True])
def test_a_scale_that_a_device_fixes_is_that_of_one_operand_alone(also: bool) -> None:
    """Tanh has 1/32768 there: in a Concat it is brought to the scale of the whole, and cuts nothing else off."""
    made = joined("npu_w8a16", also=also)
    kernel = made.topology.kernel_of["mid"]
    assert [o.rescaled for o in kernel.operands] == [not also, False]
    plan = made.plan(16)
    assert made.agree(plan, "integer").differing == 0
    wanted, found = made.outputs(), made.outputs(made.realize(plan, "integer").model)
    for name in wanted:
        assert np.square(wanted[name] - found[name]).sum() < 1e-3 * np.square(wanted[name]).sum(), name


@pytest.mark.parametrize("join", ["Concat", "Max"])
@pytest.mark.parametrize("device", ["tflite_int8", "tflite_16x8"])
def test_what_nothing_rescales_is_joined_in_float(device: str, join: str) -> None:
    made = joined(device, also=False, join=join)
    reason = str(made.topology.float_nodes["mid"])
    assert "a scale that the device fixes for one of its operands would cut the others off" in reason
    plan = made.plan(16 if device == "tflite_16x8" else 8)
    assert made.agree(plan, "integer").differing == 0
    wanted, found = made.outputs(), made.outputs(made.realize(plan, "integer").model)
    for name in wanted:
        assert np.square(wanted[name] - found[name]).sum() < 3e-3 * np.square(wanted[name]).sum(), name
    alike = joined(device, also=True, join=join)
    assert "mid" in alike.topology.kernel_of  # both have the same scale
    other = joined(device, also=True, join=join, second="Sigmoid")
    assert "mid" in other.topology.float_nodes  # each has one of its own
    assert other.agree(other.plan(8), "integer").differing == 0


def unequal(op: str, device: str, factor: float = 50.0) -> tuple[Line, Topologies]:
    """A tensor of a small range meets one of a large range, and another layer reads the small one, too."""
    net = Net(seed=1)
    x = net.input(None, 3, 8, 8)
    a, b = net.conv(x, 3, 4, 3, 3, name="a"), net.conv(x, 3, 4, 3, 3, name="b")
    big = net.node("Mul", b, net.constant(np.float32(factor)), name="big")
    more: dict[str, Any] = {"axis": 1} if op == "Concat" else {}
    net.output(net.conv(net.node(op, a, big, name="mid", **more), 8 if more else 4, 3, 1, 1))
    net.output(net.conv(a, 4, 3, 1, 1, name="other"))
    made = line(net, device)
    return made, Topologies(made.graph, made.spec, made.schema, AnnotateOptions(choices=("rescale",)))


def with_topology(made: Line, topology: Topology) -> Line:
    chosen = replace(made)
    chosen.__dict__["topology"] = topology
    return chosen


@pytest.mark.sliced(2)
@pytest.mark.parametrize("device", ["ort_cpu", "qnn_htp"])
@pytest.mark.parametrize("op", ["Concat", "Max", "Min"])
def test_a_join_has_a_scale_of_its_own_by_choice(op: str, device: str) -> None:
    """Operands keep their scales then, and all forms compute the same integers."""
    made, variants = unequal(op, device)
    choice = next(c for c in variants.choices if c.key == "rescale:mid")
    assert choice.options == ("shared", "own")
    assert {"a_out", "big_out", "mid_out"} <= set(variants.measured)
    own = variants.topology_of({"rescale:mid": "own"})
    assert all(o.rescaled for o in own.kernel_of["mid"].operands)
    assert len({own.group_of[t].key for t in ("a_out", "big_out", "mid_out")}) == 3
    chosen = with_topology(made, own)
    plan = chosen.plan(8)
    scales = [float(plan.quantizers[t].scale) for t in ("a_out", "big_out")]
    assert scales[1] > 10 * scales[0]
    for form in ("integer", "qdq"):
        assert chosen.agree(plan, form).differing == 0, form


def test_a_tensor_that_meets_a_larger_one_keeps_its_precision_for_other_readers() -> None:
    made, variants = unequal("Concat", "ort_cpu")
    wanted, noise = made.outputs(), {}
    for option in ("shared", "own"):
        chosen = with_topology(made, variants.topology_of({"rescale:mid": option}))
        found = chosen.outputs(chosen.realize(chosen.plan(8), "qdq").model)["other_out"]
        noise[option] = float(np.square(wanted["other_out"] - found).sum())
    assert noise["own"] < noise["shared"] / 100


def test_devices_that_rescale_nothing_have_no_such_choice() -> None:
    """Nor has a join of one tensor, and a structure with one is rejected."""
    _, variants = unequal("Concat", "tflite_int8")
    assert not variants.choices
    with pytest.raises(ConfigError, match="rescale:mid is own; there is no such choice"):
        variants.at(Structure((("rescale:mid", "own"),)))
