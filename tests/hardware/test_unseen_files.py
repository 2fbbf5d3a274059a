"""Hardware files as somebody writes them who has read the list of fields and nothing else: they do what they say, or
are refused in one paragraph with the field and what is legal."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import yaml

from quantpipe.check.compatibility import EXIT_CODES, DeviceVerdict
from quantpipe.check.compatibility import check as fit
from quantpipe.errors import HardwareError
from quantpipe.hardware.cost import cycles
from quantpipe.hardware.load import _note_align, load_hardware
from quantpipe.types import Form, HardwareSpec
from tests.ops.line import Line, Net, line
from tests.simulate.test_against_interpreter import check

DSP = """
name: dsp
description: a signal processor with a 16-lane multiplier
source: data sheet, section 4
preferred_schema: symmetric
ops:
  Conv: [{in: [int8, int8], out: int8, when: {group: 1|depthwise}}, {in: float32, out: float32}]
  Gemm: {in: int8, out: [int8, float32]}
  Add: [{in: int8, out: int8}, {in: float32, out: float32}]
  Relu: [{in: int8, out: int8}, {in: float32, out: float32}]
  MaxPool: [{in: int8, out: int8}, {in: float32, out: float32}]
  Flatten: [{in: int8, out: int8}, {in: float32, out: float32}]
  LayerNormalization: [{in: float32, out: float32}]
weights: {symmetric: true, granularity: per_channel, bits: 8, narrow: true, reduce_range: false}
activations: {symmetric: true, signed: true, granularity: per_tensor, bits: 8, narrow: true}
scales: any
unify: free
bias: {dtype: int32, scale: product}
requantize: {kind: float_multiplier, rounding: half_even, max_shift: 31}
narrowing: saturate
accumulator: {dtype: int32, overflow: never}
fuse: [[Conv, Relu]]
add_inputs: both
pad: {value: zero, max: 1}
align: {channels: 16}
skip: {first: false, last: false, ops: []}
float_on: cpu
cost: {macs_per_cycle: {int8: 16, float32: 1}, bytes_per_cycle: 4, clock_hz: 1000000, launch_cycles: 100}
"""

NPU = """
name: npu
description: asymmetric bytes, fixed-point multipliers, no host
source: data sheet
preferred_schema: asymmetric
ops:
  Conv: {in: [uint8, uint8], out: uint8}
  Gemm: {in: [uint8, uint8], out: uint8}
  Add: {in: uint8, out: uint8}
  Relu: {in: uint8, out: uint8}
  MaxPool: {in: uint8, out: uint8}
  Flatten: {in: uint8, out: uint8}
weights: {symmetric: false, granularity: [per_tensor], bits: 8, narrow: false}
activations: {symmetric: false, signed: false, granularity: [per_tensor], bits: 8, narrow: false}
scales: any
unify: free
bias: int32
requantize: fixed_point
accumulator: int32
fuse: []
pad: {value: zero_point}
align: 8
float_on: none
cost: {macs_per_cycle: {int8: 8, float32: 1}}
"""

SHIFTER = """
name: shifter
description: shifts only
source: data sheet
preferred_schema: symmetric_with_power2_scale
ops:
  Conv: {in: [int8, int8], out: int8}
  Gemm: {in: [int8, int8], out: int8}
  Add: {in: int8, out: int8}
  Relu: {in: int8, out: int8}
  MaxPool: {in: int8, out: int8}
  Flatten: {in: int8, out: int8}
weights: {granularity: per_tensor}
activations: {}
scales: power_of_two
unify: max_scale
bias: int32
requantize: shift
accumulator: {dtype: int32}
fuse: []
skip: {last: true}
cost: {macs_per_cycle: {int8: 8, float32: 1}}
"""
FILES = {"dsp": DSP, "npu": NPU, "shifter": SHIFTER}


def data_of(name: str, **changes: Any) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(FILES[name])
    return deepcopy(found) | changes


def spec_of(name: str, **changes: Any) -> HardwareSpec:
    return load_hardware(data_of(name, **changes))


def small(pads: int = 1) -> Net:
    """Two convolutions (the second with wide pads), a sum, a pool and a dense layer."""
    net = Net(seed=9)
    x = net.conv(net.input(None, 3, 8, 8), 3, 5, 3, 3, pads=[1, 1, 1, 1], name="stem")
    y = net.conv(net.node("Relu", x), 5, 5, 3, 3, pads=[pads] * 4, dilations=[pads, pads], name="wide")
    y = net.node("MaxPool", net.node("Add", x, y), kernel_shape=[2, 2], strides=[2, 2])
    net.output(net.dense(net.node("Flatten", y, axis=1), 80, 3))
    return net


@pytest.mark.parametrize("name", FILES)
def test_files_written_from_the_list_of_fields_run(name: str) -> None:
    made = line(small(), spec_of(name))
    assert len(made.topology.kernels) >= 4
    plan = made.plan(8)
    found = made.agree(plan, made.spec.realize)
    assert found.differing == 0 and found.tensors > 4
    if not made.topology.float_nodes:
        check(made, plan, made.spec.realize)


@pytest.mark.parametrize(
    ("changes", "form"),
    [
        ({}, "qdq"),
        ({"requantize": "fixed_point"}, "integer"),
        ({"requantize": {"kind": "float_multiplier", "rounding": "half_up"}}, "integer"),
        ({"fuse": [["Conv", "Add"]], "add_inputs": None}, "integer"),
        ({"isa": "avx2"}, "integer"),
        ({"realize": "qoperator"}, "qoperator"),
    ],
)
def test_the_form_follows_from_the_rest_unless_named(changes: dict[str, Any], form: str) -> None:
    assert spec_of("dsp", **changes).realize == form


def test_short_forms_mean_the_long_ones() -> None:
    long = data_of(
        "npu",
        requantize={"kind": "fixed_point"},
        accumulator={"dtype": "int32", "overflow": "wrap"},
        align={"channels": 8},
        bias={"dtype": "int32", "scale": "product"},
    )
    assert load_hardware(long) == spec_of("npu")


def test_pads_wider_than_the_device_makes_stay_in_float() -> None:
    made = line(small(pads=2), spec_of("dsp"))
    assert {n: why.text for n, why in made.topology.float_nodes.items()} == {
        "wide": "it pads by 2, dsp pads by at most 1 (pad.max)"
    }
    found = fit(made.graph, made.topology, made.spec, made.schema)
    assert [r.node for r in found.refused] == ["wide"] and found.float_on == "cpu"
    assert found.verdict is DeviceVerdict.FALLS_BACK


@pytest.mark.parametrize("auto", ["SAME_UPPER", "SAME_LOWER"])
def test_automatic_pads_count_too(auto: str) -> None:
    net = Net()
    net.output(net.node("Conv", net.input(None, 2, 9, 9), net.floats(3, 2, 5, 5), auto_pad=auto, name="c"))
    assert line(net, spec_of("dsp")).topology.float_nodes["c"].text.startswith("it pads by 2, dsp pads by at most 1")
    assert not line(net, spec_of("dsp", pad={"max": 2})).topology.float_nodes


def test_the_old_name_of_channel_blocks_works_with_one_note(caplog: pytest.LogCaptureFixture) -> None:
    _note_align.cache_clear()
    data = yaml.safe_load(DSP)
    assert [load_hardware(data).cost.channel_block for _ in range(3)] == [16] * 3
    assert [r.getMessage() for r in caplog.records] == [
        "the field 'align.channels' is deprecated: its name is now 'cost.channel_block'"
    ]
    caplog.clear()
    _note_align.cache_clear()
    del data["align"]
    data["cost"] = {**(data.get("cost") or {}), "channel_block": 16}
    assert load_hardware(data).cost.channel_block == 16 and not caplog.records


@pytest.mark.parametrize("word", ["saturate", "wrap"])
def test_what_storing_does_is_read_and_changes_nothing(word: str) -> None:
    data = yaml.safe_load(DSP)
    assert load_hardware({**data, "narrowing": word}) == load_hardware(
        {k: v for k, v in data.items() if k != "narrowing"}
    )


def test_alignment_is_told_by_check() -> None:
    made = line(small(), spec_of("dsp"))
    found = fit(made.graph, made.topology, made.spec, made.schema)
    waste = {w.node: w.factor for w in found.wasted}
    assert waste["stem"] == pytest.approx(16 / 3 * 16 / 5) and waste["wide"] == pytest.approx((16 / 5) ** 2)


def test_what_the_file_skips_stays_in_float_unless_told_otherwise() -> None:
    first = line(small(), spec_of("dsp", skip={"first": True, "ops": ["MaxPool", "Tanh"]}))
    kept = {node: why.text for node, why in first.topology.float_nodes.items()}
    assert kept["stem"] == "kept in float by hardware.skip.first"
    assert "kept in float by hardware.skip.ops" in kept.values()
    last = line(small(), spec_of("shifter"))
    assert [why.text for why in last.topology.float_nodes.values()] == ["kept in float by hardware.skip.last"]
    assert not line(small(), spec_of("shifter", skip={"last": False})).topology.float_nodes


def test_a_device_without_a_host_runs_whole_models_only() -> None:
    spec = spec_of("npu")
    assert not line(small(), spec).topology.float_nodes
    net = Net(seed=1)
    net.output(net.node("Erf", net.conv(net.input(None, 3, 6, 6), 3, 4, 3, 3)))
    with pytest.raises(HardwareError, match=r"float_on=none, and 1 nodes cannot.*does not declare Erf.*legal are"):
        _ = line(net, spec).topology
    made = line(net, spec_of("npu", float_on="cpu"))
    found = fit(made.graph, made.topology, replace(made.spec, float_on=spec.float_on), made.schema)
    assert EXIT_CODES[found.verdict] == 2


def test_signed_decides_types_that_no_op_names() -> None:
    """A Conv that reads what only int32 ops read and write: its input is stored as `signed` says."""
    for signed, dtype in ((False, "uint8"), (True, "int8")):
        spec = spec_of("npu", activations={"symmetric": False, "signed": signed, "narrow": False}, float_on="cpu",
                       ops={"MaxPool": {"in": "int32", "out": "int32"}})  # fmt: skip
        net = Net()
        net.output(net.node("MaxPool", net.input(None, 2, 4, 4), kernel_shape=[2, 2], name="p"))
        (group,) = line(net, spec).topology.groups
        assert group.dtype == dtype


def test_launches_and_clock_make_seconds() -> None:
    made = line(small(), spec_of("dsp"))
    bits = {t: 8 for g in made.topology.groups for t in g.tensors} | {w.tensor: 8 for w in made.topology.weights}
    free = replace(made.spec, cost=replace(made.spec.cost, launch_cycles=0.0))
    nodes = len(made.topology.kernels) + len(made.topology.float_nodes)
    paid = cycles(made.topology, made.graph, made.spec, bits)
    assert paid - cycles(made.topology, made.graph, free, bits) == 100 * nodes
    found = fit(made.graph, made.topology, made.spec, made.schema)
    assert found.seconds == pytest.approx(paid / 1e6)


def test_weights_of_an_asymmetric_device_have_zero_points() -> None:
    plan = line(small(), spec_of("npu")).plan(8)
    assert all(w.has_zero_point and w.values.dtype == np.uint8 for w in plan.weights.values())


def test_tensors_are_stored_as_the_file_says() -> None:
    made: Line = line(small(), spec_of("dsp"))
    assert {g.dtype for g in made.topology.groups} == {"int8"}
    assert all(k.form is Form.QUANTIZED for k in made.topology.kernels[:-1])


MISTAKES = {
    "pad text": ("dsp", {"pad": {"max": "wide"}}, "pad.max is 'wide'; legal are integers from 0"),
    "pad value": ("dsp", {"pad": {"value": "zeros"}},
                  "(did you mean 'zero' or 'zero_point'?); legal are zero, zero_point"),
    "pad key": ("dsp", {"pad": {"maximum": 3}}, "pad.maximum is not a field (did you mean 'max'?); legal are v"),
    "pad zero": ("npu", {"pad": {"value": "zero"}}, "pad.value is zero, which is not the real zero where activations"),
    "align": ("dsp", {"align": {"channels": 0}}, "align.channels is 0; it needs positive numbers from 1"),
    "align none": ("dsp", {"align": {"channel": 4}}, "align.channel is not a field (did you mean 'channels'?)"),
    "align empty": ("dsp", {"align": {}}, "align.channels is None"),
    "align twice": ("dsp", {"cost": {"macs_per_cycle": {"float32": 1}, "channel_block": 8}},
                    "align.channels is 16, and cost.channel_block is 8; legal is one of them"),
    "skip op": ("dsp", {"skip": {"ops": ["Softmx"]}}, "skip.ops names the unknown op 'Softmx' (did you mean 'Softmax'"),
    "skip flag": ("dsp", {"skip": {"first": 1}}, "skip.first is 1; legal are true and false"),
    "skip list": ("dsp", {"skip": ["first"]}, "skip must be a mapping of first, last, ops"),
    "float_on": ("dsp", {"float_on": "cpus"}, "(did you mean 'cpu' or 'gpu'?); legal are cpu, gpu, device, none"),
    "clock": ("dsp", {"cost": {"macs_per_cycle": {"float32": 1}, "clock_hz": "1 GHz"}}, "cost.clock_hz is '1 GHz'"),
    "launch": ("dsp", {"cost": {"macs_per_cycle": {"float32": 1}, "launch_cycles": -1}}, "cost.launch_cycles is -1"),
    "signed": ("npu", {"activations": {"symmetric": False, "signed": True}},
               "ops.Conv stores uint8, but activations.signed is true; legal are signed types"),
    "unsigned": ("dsp", {"activations": {"signed": False}}, "activations.signed must be true where"),
    "channels": ("dsp", {"activations": {"granularity": ["per_channel"]}}, "per tensor: legal is per_tensor"),
    "float op": ("dsp", {"ops": {"GroupNormalization": {"in": "int8", "out": "int8"}}},
                 "ops.GroupNormalization runs in float only (it divides by statistics"),
    "function unsaid": ("dsp", {"ops": {"LayerNormalization": {"in": "int8", "out": "int8"}}},
                        "ops.LayerNormalization runs in integers, but functions.LayerNormalization does not say how"),
    "function unknown": ("dsp", {"functions": {"Conv": "table"}}, "functions.Conv is no function"),
    "function of no such kind": ("dsp", {"functions": {"Softmax": "integer_sqrt"}},
                                 "functions.Softmax is 'integer_sqrt'; legal are table, tflite"),
    "unknown op": ("dsp", {"ops": {"Convolution": {"in": "int8", "out": "int8"}}}, "ops.Convolution is no op with a"),
    "missing": ("dsp", {"scales": ...}, "scales is missing; legal is any, power_of_two"),
    "unknown field": ("dsp", {"padding": {"max": 3}}, "padding is not a field"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_refused_by_field(mistake: str) -> None:
    name, changes, message = MISTAKES[mistake]
    data = {k: v for k, v in data_of(name, **changes).items() if v is not ...}
    with pytest.raises(HardwareError) as caught:
        load_hardware(data)
    text = str(caught.value)
    assert text.startswith(f"hardware: {name}: ") and message in text and "\n" not in text
    assert "legal" in text or "needs" in text or "must" in text or "did you mean" in text
