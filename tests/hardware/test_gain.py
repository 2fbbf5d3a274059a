"""Bits that a device gains from, kernels that follow from them, and what that costs."""

from __future__ import annotations

from typing import Any

import pytest

from quantpipe.annotate.conditions import AnnotateOptions
from quantpipe.annotate.limits import ChoiceLimits, left_out, pinned
from quantpipe.annotate.variants import Topologies
from quantpipe.errors import ConfigError
from quantpipe.evaluate.slower import slower_warning, speed_of
from quantpipe.hardware.cost import COSTS
from quantpipe.hardware.gain import own_cost
from quantpipe.hardware.load import load_hardware
from quantpipe.hardware.storage import storage_types
from quantpipe.types import ChoiceSpace, DType, HardwareSpec, LatencyPart
from tests.ops.line import Line, Net, hardware, hardware_data, line

PAIR = [
    {"in": ["int8", "int8"], "out": ["int8", "int16"]},
    {"in": ["int16", "int16"], "out": ["int16", "int8"]},
    {"in": ["int8", "int16"], "out": ["int8", "int16"]},
    {"in": ["int16", "int8"], "out": ["int8", "int16"]},
]
"""A device whose convolutions read int8 or int16 on either side, and write either."""


def both_widths(**changes: Any) -> HardwareSpec:
    data = hardware_data("mixed_npu")
    rates = {"macs_per_cycle": {"int8": 32, "int16": 16, "float32": 4}, "bytes_per_cycle": 16}
    return load_hardware(data | {"ops": {"Conv": PAIR}, "add_inputs": None, "fuse": [], "cost": rates} | changes)


def chain() -> Net:
    net = Net()
    x = net.conv(net.input(None, 3, 6, 6), 3, 4, 3, 3, name="first")
    net.output(net.conv(x, 4, 4, 1, 1, name="second"))
    return net


def space(made: Line, *, every: bool = False, **options: Any) -> ChoiceSpace:
    options = {"choices": ("auto",), **options}
    return Topologies(made.graph, made.spec, made.schema, AnnotateOptions(**options)).space(every=every)


def options(found: ChoiceSpace) -> set[tuple[Any, ...]]:
    return {choice.options for choice in found}


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("ort_cpu", {(8,)}),
        ("vta", {(8,)}),
        ("int4_weights", {(8,), (4,)}),
        ("mixed_npu", {(16, 8, 4), (16,)}),  # the last result is read by no product, and stored in int16 always
    ],
)
def test_only_bits_that_the_device_gains_from_are_offered(spec: str, expected: set[tuple[int, ...]]) -> None:
    made = line(chain(), spec)
    assert options(space(made)) == expected
    assert options(space(made, every=True)) == options(space(made, choices=("bits",)))
    assert all(len(choice.options) > 1 for choice in space(made, choices=("bits",)) if choice.options != (4,))


def test_where_sums_may_overflow_every_bit_counts() -> None:
    made = line(chain(), "hago_int16_acc")
    assert (8, 7, 6, 5, 4) in options(space(made))


def test_a_rate_of_its_own_is_a_gain_and_one_that_is_no_faster_is_none() -> None:
    data = hardware_data("ort_cpu")

    def rated(int4: float) -> HardwareSpec:
        return load_hardware(data | {"cost": {"macs_per_cycle": {"int4": int4, "int8": 64, "float32": 32}}})

    assert (8, 4) in options(space(line(chain(), rated(128))))
    assert options(space(line(chain(), rated(64)))) == {(8,)}


def test_who_names_an_option_gets_it() -> None:
    made = line(chain(), "ort_cpu")
    offered, every = space(made), space(made, every=True)
    limits = ChoiceLimits(fix={"bits:x": 5}, restrict={"bits:c1": [8, 4]})
    narrowed = {c.key: c.options for c in limits.narrowed(offered, every)}
    assert narrowed["bits:x"] == (5,) and narrowed["bits:c1"] == (8, 4) and narrowed["bits:c3"] == (8,)
    assert pinned(offered, limits.narrowed(offered, every)) == {"bits:x": 5}
    assert left_out(every, offered, offered) == {"options": 4 * len(every), "choices": len(every)}
    assert left_out(every, every, every) == {}
    with pytest.raises(ConfigError, match="leaves bits:x nothing; it has 8, 7, 6, 5, 4"):
        ChoiceLimits(fix={"bits:x": 9}).narrowed(offered, every)


def test_the_hardwares_own_cost() -> None:
    assert own_cost(hardware("vta")) == "cycles"
    assert own_cost(hardware("vta", cost={"macs_per_cycle": {"float32": 1}})) == "stored_bytes"


def test_bytes_count_as_they_are_stored() -> None:
    for spec, per_value in (("ort_cpu", 1.0), ("int4_weights", 0.5), ("mixed_npu", 1.0)):
        made = line(chain(), spec)
        bits = made.strategy(4).bits
        assert COSTS["stored_bytes"](made.topology, made.graph, made.spec, bits) == per_value * (3 * 4 * 9 + 16)


def test_a_device_with_kernels_of_two_widths_begins_with_the_wide_ones() -> None:
    made = line(chain(), both_widths())
    assert {g.max_bits for g in made.topology.groups} == {w.max_bits for w in made.topology.weights} == {16}
    narrow = hardware_data("mixed_npu")["activations"] | {"bits": 8}
    made = line(chain(), both_widths(activations=narrow))
    assert {g.dtype for g in made.topology.groups} == {DType.INT8}


@pytest.mark.parametrize("seed", range(4))
def test_kernels_follow_from_the_bits_and_both_are_used(seed: int) -> None:
    """Each tensor has the narrowest type that holds its bits; integers are equal in every form."""
    made = line(chain(), both_widths())
    plan = made.plan((16, 12, 8, 5), seed)
    for stored in (*plan.quantizers.values(), *plan.weights.values()):
        assert stored.dtype is (DType.INT8 if stored.bits <= 8 else DType.INT16)
    assert all(w.values.dtype == w.dtype.numpy for w in plan.weights.values())
    assert made.agree(plan, "integer").differing == 0


def test_types_do_not_change_the_integers() -> None:
    both, wide = line(chain(), both_widths()), line(chain(), both_widths(ops={"Conv": [PAIR[1]]}))
    first, second = both.plan(8), wide.plan(8)
    for name, weight in first.weights.items():
        assert weight.dtype is DType.INT8 and second.weights[name].dtype is DType.INT16
        assert (weight.values == second.weights[name].values).all()


def test_a_kernel_of_one_width_holds_its_neighbours_there() -> None:
    """Nothing converts on the way: a pool of int8 keeps the convolution before it in int8, too."""
    net = Net()
    x = net.conv(net.input(None, 3, 6, 6), 3, 4, 1, 1, name="first")
    x = net.node("MaxPool", x, name="pool", kernel_shape=[2, 2])
    net.output(net.conv(x, 4, 2, 1, 1, name="second"))
    spec = both_widths(ops={"Conv": PAIR, "MaxPool": [{"in": ["int8"], "out": ["int8"]}]})
    made = line(net, spec)
    assert made.topology.float_nodes == {}
    types = {t: g.dtype for g in made.topology.groups for t in g.tensors}
    assert types["x"] is DType.INT16 and types["first_out"] is types["pool_out"] is DType.INT8
    assert made.agree(made.plan((16, 8)), "integer").differing == 0


def test_cycles_go_by_the_kernel_that_is_taken() -> None:
    made = line(chain(), both_widths())
    found = {b: COSTS["cycles"](made.topology, made.graph, made.spec, made.strategy(b).bits) for b in (16, 8, 4)}
    macs, values = 4 * 4 * 4 * 27 + 4 * 4 * 16, 3 * 4 * 9 + 16
    assert found[16] == pytest.approx(macs / 16 + 2 * values / 16)
    assert found[8] == found[4] == pytest.approx(macs / 32 + values / 16), "4 bits are stored and run as 8"


def test_slower_than_float_is_said_with_the_ratio() -> None:
    made = line(chain(), hardware("vta", cost={"macs_per_cycle": {"int8": 1, "float32": 2}}))
    speed = speed_of(made.graph, made.topology, made.spec, made.strategy().bits, latency={"ratio": 0.5})
    assert speed is not None and speed.by == "cycles" and speed.ratio > 1.2
    assert f"{speed.ratio:.2f} times the cycles" in str(
        slower_warning(speed, made.topology, made.spec, latency={}, lacking=[])
    )
    made = line(chain(), "vta")
    speed = speed_of(made.graph, made.topology, made.spec, made.strategy().bits, latency={"ratio": 9.0})
    assert speed is not None and not speed.slower, "what is measured here says nothing of the device"


@pytest.mark.parametrize(("ratio", "low", "slower"), [(1.3, 1.1, True), (1.3, 0.9, False), (1.02, 1.01, False)])
def test_slower_than_float_by_the_clock(ratio: float, low: float, slower: bool) -> None:
    made = line(chain(), "ort_cpu")
    measured: LatencyPart = {"ratio": ratio, "ratio_low": low, "float_ms": 1.0, "realized_ms": ratio}
    speed = speed_of(made.graph, made.topology, made.spec, made.strategy().bits, latency=measured)
    said = slower_warning(speed, made.topology, made.spec, latency=measured, lacking=[])
    assert (said is not None) == slower
    assert said is None or ("1.30 times as long" in said and "objective.cost=latency" in said)


def test_a_wider_operand_takes_the_kernel_with_it() -> None:
    """Weights of 8 bits beside 16-bit inputs, on a device with kernels of one width only: both are stored in int16."""
    alike = both_widths(ops={"Conv": PAIR[:2]})
    made = line(chain(), alike)
    types = storage_types(made.topology)
    most = {t: (16 if t == "x" else 8) for t in (*made.topology.group_of, *made.topology.weight_of)}
    found = types.at(most)
    first = made.topology.kernel_of["first"].weight
    assert found["x"] is DType.INT16 and found[str(first)] is DType.INT16
    assert found[str(made.topology.kernel_of["second"].weight)] is DType.INT8


def test_microseconds_are_within_what_a_call_takes() -> None:
    made = line(chain(), "ort_cpu")
    measured: LatencyPart = {"ratio": 1.3, "ratio_low": 1.2, "float_ms": 0.020, "realized_ms": 0.026}
    speed = speed_of(made.graph, made.topology, made.spec, made.strategy().bits, latency=measured)
    assert speed is not None and speed.ratio == 1.3 and not speed.slower


def test_only_some_ops_are_quantized() -> None:
    net = Net()
    x = net.node("Relu", net.conv(net.input(None, 3, 6, 6), 3, 4, 1, 1, name="conv"), name="relu")
    net.output(net.node("GlobalAveragePool", x, name="pool"))
    made = line(net, "ort_cpu", only_ops=("Conv",))
    assert list(made.topology.kernel_of) == ["conv"] and made.topology.fused_into == {"relu": "conv"}
    assert {n: r.text for n, r in made.topology.float_nodes.items()} == {
        "pool": "GlobalAveragePool is not among annotate.only_ops"
    }
    apart = line(net, "ort_cpu", only_ops=("Conv",), float_ops=("Relu",)).topology
    assert apart.fused_into == {} and "float_ops" in apart.float_nodes["relu"].text
    with pytest.raises(ConfigError, match=r"only_ops.*'Conf' \(did you mean 'Conv'\?\); the model has"):
        _ = line(net, "ort_cpu", only_ops=("Conf",)).topology
    with pytest.raises(ConfigError, match="both name Conv"):
        AnnotateOptions(only_ops=("Conv", "Relu"), float_ops=("Conv",))
