"""Hardware files: the shipped ones load, and every mistake is named with its field and what would be legal."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import asdict
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quantpipe.errors import ConfigError, HardwareError
from quantpipe.hardware.like import taken_over
from quantpipe.hardware.load import FIELDS, load_hardware
from quantpipe.hardware.schemas import legal_schemas, resolve_schema
from quantpipe.report.compatibility import chip_line
from quantpipe.types import Granularity, PowerOfTwo, RequantizeKind, Symmetry
from tests.ops.line import CONF, hardware, hardware_data, schema_for, schemas
from website.hardware import page

SHIPPED = sorted(p.stem for p in (CONF / "hardware").glob("*.yaml"))
FILES = {name: hardware_data(name) for name in SHIPPED}


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_files_load_and_name_their_source(name: str) -> None:
    spec = hardware(name)
    assert spec.name == name and spec.source and spec.description
    schema = schema_for(spec)
    assert schema.name == spec.preferred_schema
    assert spec.preferred_schema in legal_schemas(spec, schemas())
    shift = spec.requantize.kind is RequantizeKind.SHIFT
    assert shift == (schema.weights.power_of_two is not PowerOfTwo.NONE)
    assert schema.weights.granularity is spec.weights.granularity[0]
    assert schema.activations.narrow is spec.activations.narrow


def test_a_file_that_is_no_mapping() -> None:
    with pytest.raises(HardwareError, match="the file must be a mapping of name, description"):
        load_hardware(None)  # type: ignore[arg-type]


def changed(base: str, path: str, value: Any) -> dict[str, Any]:
    """A shipped file with one field set (or, for `...`, taken away)."""
    data = deepcopy(FILES[base])
    *parents, last = path.split("/")
    part = data
    for key in parents:
        part = part[int(key)] if isinstance(part, list) else part[key]
    if value is ...:
        del part[last]
    else:
        part[last] = value
    return data


BAD = {
    "unknown key": ("ort_cpu", "weigths", {}, "weigths is not a field (did you mean 'weights'?); legal are name"),
    "unknown key in a part": ("ort_cpu", "weights/bit", 8, "weights.bit is not a field (did you mean 'bits'?)"),
    "unknown key in an op": ("ort_cpu", "ops/Conv/0/wen", {}, "ops.Conv.wen is not a field"),
    "unknown condition": ("vta", "ops/Conv/0/when", {"padmax": 3}, "ops.Conv.when.padmax is not a field"),
    "part is no mapping": ("vta", "cost", 3, "cost must be a mapping of macs_per_cycle"),
    "empty source": ("vta", "source", " ", "source is empty; name the source of the facts"),
    "dtype": ("vta", "ops/Conv/0/in", ["int7", "int8"], "ops.Conv.in is 'int7' (did you mean"),
    "output dtype": ("vta", "ops/Add/0/out", ["float16"], "legal are int2, uint2, int4, uint4, int8, uint8, int16"),
    "no dtype": ("vta", "ops/Add/0/out", [], "ops.Add needs at least one dtype in `in` and in `out`"),
    "no signature": ("vta", "ops/Add", [], "ops.Add must be a list of {in: [...]"),
    "no input": ("vta", "ops/Add", [{"out": ["int8"]}], "ops.Add needs `in` and `out`"),
    "unknown op": ("vta", "ops/Convv", [{"in": ["int8"], "out": ["int8"]}], "ops.Convv is no op with a rule (did you"),
    "bits": ("vta", "weights/bits", 17, "weights.bits is 17; legal are 2 to 16"),
    "bits text": ("vta", "activations/bits", "8", "activations.bits is '8'; legal are 2 to 16"),
    "granularity": ("vta", "weights/granularity", ["per_row"], "weights.granularity is 'per_row'"),
    "no granularity": ("vta", "weights/granularity", [], "weights.granularity is empty"),
    "scales": ("vta", "scales", "power2", "scales is 'power2'"),
    "unify": (
        "vta",
        "unify",
        "max",
        "unify is 'max' (did you mean 'max_scale'?); legal are max_scale, min_scale, free",
    ),
    "bias": ("vta", "bias", "int33", "bias is 'int33'"),
    "kind": ("vta", "requantize/kind", "shifts", "requantize.kind is 'shifts' (did you mean 'shift'?)"),
    "sum of too many bits": ("vta", "accumulator/bits", 49, "accumulator.bits is 49; legal are 9 to 48, or a dtype"),
    "bits beyond a type": ("hago_int16_acc", "accumulator/bits", 18, "accumulator.bits is 18, more than accumulator"),
    "narrow fixed point": ("tflite_int8", "accumulator", {"bits": 24}, "ops.Add adds in fixed point, which takes sums"),
    "overflow": ("vta", "accumulator/overflow", "explode", "accumulator.overflow is 'explode'; legal are wrap"),
    "flag": ("vta", "activations/symmetric", "no", "activations.symmetric is 'no'; legal are true and false"),
    "condition value": ("vta", "ops/Conv/0/when", {"pad_max": "wide"}, "ops.Conv.when.pad_max is 'wide', which means"),
    "max_shift": ("vta", "requantize/max_shift", "many", "requantize.max_shift is 'many'; it needs positive numbers"),
    "multiplier": ("cmsis_nn", "requantize/multiplier_bits", 32, "requantize.multiplier_bits is 32; legal are 2 to 31"),
    "no multiplier": ("vta", "requantize/multiplier_bits", 8, "requantize.multiplier_bits is of fixed_point alone"),
    "rate of what": ("vta", "cost/macs_per_cycle", {"int9": 1, "float32": 1}, "cost.macs_per_cycle is 'int9' (did you"),
    "block": ("vta", "cost/channel_block", 0, "cost.channel_block is 0; it needs positive numbers from 1"),
    "bias in float": ("vta", "bias", "float32", "; legal are int8, int16, int32"),
    "ops is a list": ("vta", "ops", ["Conv"], "ops must be a mapping of ops, not ['Conv']"),
    "fuse is flat": ("vta", "fuse", ["Conv", "Relu"], "fuse must be a list of lists of ops"),
    "fuse op": ("vta", "fuse", [["Conv", "Rleu"]], "fuse names the unknown op 'Rleu' (did you mean 'Relu'"),
    "no float cost": ("vta", "cost/macs_per_cycle", {"int8": 2}, "cost.macs_per_cycle needs a float32 entry"),
    "negative cost": ("vta", "cost/macs_per_cycle", {"int8": -2, "float32": 1}, "needs positive numbers"),
    "shift, any scale": ("vta", "scales", "any", "scales must be power_of_two where requantize.kind is shift"),
    "shift, channels": ("vta", "weights/granularity", ["per_channel"], "must be per_tensor where requantize.kind is"),
    "shift, free": ("vta", "unify", "free", "unify must be max_scale or min_scale"),
    "multiplier, unify": ("ort_cpu", "unify", "max_scale", "unify must be free where requantize.kind is float_mult"),
    "shift, asymmetric": ("vta", "activations/symmetric", False, "activations.symmetric must be true"),
    "rounding of a shift": (
        "vta",
        "requantize/rounding",
        "double",
        "requantize.rounding is 'double'; legal are half_up",
    ),
    "rounding of a product": (
        "ort_cpu",
        "requantize/rounding",
        "half_evn",
        "; legal are half_even, half_up, half_away, floor",
    ),
    "rounding of fixed point": (
        "ort_cpu",
        "requantize",
        {"kind": "fixed_point", "rounding": "half_up"},
        "requantize.rounding is 'half_up'; legal are double, single, single_away",
    ),
    "fixed point, unify": (
        "vta",
        "requantize/kind",
        "fixed_point",
        "unify must be free where requantize.kind is fixed_point",
    ),
    "accumulator type": ("vta", "accumulator/dtype", "int8", "accumulator.dtype is 'int8' (did you mean"),
    "add_inputs": ("vta", "add_inputs", "all", "add_inputs is 'all'; legal are both, residual_only, none"),
    "add_inputs list": (
        "vta",
        "add_inputs",
        ["both", "all"],
        "add_inputs is 'all'; legal are both, residual_only, none",
    ),
    "add_inputs twice": (
        "vta",
        "add_inputs",
        ["both", "both"],
        "add_inputs lists both, both; name each treatment once",
    ),
    "add_inputs empty": (
        "vta",
        "add_inputs",
        [],
        "add_inputs is an empty list; legal are null, or one or more of both",
    ),
    "add_inputs that qdq cannot write": (
        "ort_cpu",
        "add_inputs",
        ["both", "residual_only"],
        "add_inputs lists residual_only with other values, but realize is qdq",
    ),
    "vector steps": ("vta", "cost/vector_steps/narrow", -1, "cost.vector_steps.narrow is -1; legal are numbers from 0"),
    "no vector step": ("vta", "cost/vector_steps/narow", 1, "narow"),
    "scale bytes": ("vta", "cost/scale_bytes", -1, "cost.scale_bytes is -1; legal are numbers from 0"),
    "isa": ("ort_cpu", "isa", "avx", "isa is 'avx' (did you mean 'avx2'?); legal are any, vnni, avx2"),
    "narrowing": ("vta", "narrowing", "clip", "narrowing is 'clip'; legal are saturate, wrap"),
    "ratio of scales": ("tflite_int8", "requantize", {"kind": "fixed_point", "ratio": "float16"}, "legal are float64"),
    "ratio of another kind": (
        "ort_cpu",
        "requantize",
        {"kind": "float_multiplier", "ratio": "float32"},
        "is of fixed_point alone",
    ),
    "biases of Q/DQ": ("tensorrt", "qdq_bias", "int32", "qdq_bias is 'int32'; legal are float32, and null for"),
    "channel bounds": ("vta", "channel_bounds", "yes", "channel_bounds is 'yes'; legal are true and false"),
    "channel bounds in kernels": ("ort_cpu", "channel_bounds", True, "must be false where requantize.kind is float"),
    "bias scale": ("vta", "bias", {"dtype": "int8", "scale": "free"}, "bias.scale is 'free'; legal are product, own"),
    "bias key": ("vta", "bias", {"type": "int8"}, "bias.type is not a field"),
    "own bias scale": ("ort_cpu", "bias", {"dtype": "int8", "scale": "own"}, "bias.scale must be product where scales"),
    "wide bias": ("vta", "accumulator/dtype", "int16", "bias is int32, wider than accumulator.dtype, which is int16"),
    "mixed types": ("vta", "ops/Add/0/in", ["int8", "float32"], "ops.Add.in mixes float and integer types"),
    "integers from float": (
        "vta",
        "ops/Add",
        [{"in": ["float32"], "out": ["int8"]}],
        "ops.Add.out must be float32 where",
    ),
    "reduce_range": ("ort_cpu", "weights/reduce_range", 1, "weights.reduce_range is 1; legal are true and false"),
    "reduced to nothing": (
        "ort_cpu",
        "weights",
        {"granularity": ["per_tensor"], "bits": 2, "reduce_range": True},
        "weights.reduce_range leaves one bit of weights.bits=2",
    ),
    "kernel's rounding": (
        "tflite_int8",
        "ops/Conv/0/requantize",
        {"kind": "fixed_point", "rounding": "half_up"},
        "ops.Conv.requantize.rounding is 'half_up'; legal are double, single, single_away",
    ),
    "kernel's key": ("tflite_int8", "ops/Conv/0/requantize", {"rounds": 1}, "ops.Conv.requantize.rounds is not a fi"),
    "kernel's shift": ("tflite_int8", "ops/Conv/0/requantize", "shift", "must be power_of_two where ops.Conv.requanti"),
    "kernel's unify": (
        "vta",
        "ops/Add/0/requantize",
        "fixed_point",
        "unify must be free where ops.Add.requantize.kind is fixed_point",
    ),
    "kernel without a sum": ("tflite_int8", "ops/Relu/0/requantize", "fixed_point", "ops.Relu.requantize has no eff"),
    "kernel in float": ("tflite_int8", "ops/Conv/1/requantize", "fixed_point", "has no effect where `in` is float32"),
    "64 bits between ops": ("vta", "ops/Add/0/out", ["int64"], "ops.Add.out is 'int64' (did you mean"),
}


@pytest.mark.parametrize("mistake", BAD)
def test_mistakes_are_named(mistake: str) -> None:
    base, path, value, message = BAD[mistake]
    with pytest.raises(HardwareError) as caught:
        load_hardware(changed(base, path, value))
    text = str(caught.value)
    assert text.startswith(f"hardware: {base}: ") and message in text and "\n" not in text
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("field", FIELDS)
def test_a_missing_field_is_named(field: str) -> None:
    with pytest.raises(HardwareError, match=f"{field} is missing"):
        load_hardware(changed("ort_cpu", field, ...))


@pytest.mark.program
@pytest.mark.parametrize("field", [f for f in FIELDS if f not in ("name", "description", "source", "preferred_schema")])
@settings(max_examples=10, deadline=None)
@given(
    value=st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.text(max_size=5),
        st.lists(st.integers(), max_size=2),
        st.dictionaries(st.text(max_size=4), st.integers(), max_size=2),
    )
)
def test_nonsense_never_escapes_the_error_family(field: str, value: Any) -> None:
    """Whatever stands in a field, the answer is a HardwareError or a valid spec."""
    try:
        load_hardware(changed("ort_cpu", field, value))
    except HardwareError as error:
        assert field in str(error)


# --- schemas --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "schema", "why"),
    [
        ("vta", "asymmetric", "it needs power-of-two activation scales"),
        ("vta", "symmetric", "it needs power-of-two activation scales"),
        ("hago_sample", "symmetric_with_uint8", "it needs power-of-two"),
    ],
)
def test_schemas_the_device_cannot_run_are_refused_with_the_legal_ones(spec: str, schema: str, why: str) -> None:
    with pytest.raises(HardwareError) as caught:
        schema_for(hardware(spec), schema)
    assert why in str(caught.value)
    assert str(caught.value).endswith("legal are auto, symmetric_with_power2_scale")


def test_every_shipped_schema_runs_on_onnxruntime() -> None:
    assert legal_schemas(hardware("ort_cpu"), schemas()) == sorted(schemas())


def test_symmetric_devices_refuse_zero_points() -> None:
    spec = hardware("ort_cpu", activations={"symmetric": True, "bits": 8, "narrow": True}, preferred_schema="symmetric")
    with pytest.raises(HardwareError, match=r"activations must be symmetric \(zero point 0\).*legal are auto, symm"):
        schema_for(spec, "asymmetric")


def test_the_user_overrides_what_the_file_leaves_open() -> None:
    known = schemas()
    spec = hardware("ort_cpu")
    chosen = deepcopy(known["symmetric"])
    chosen["weights"] |= {"granularity": "per_tensor", "narrow": False}
    found = resolve_schema(spec, chosen, known)
    assert found.weights.granularity is Granularity.PER_TENSOR and found.weights.narrow is False
    assert found.activations.symmetry is Symmetry.SYMMETRIC


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"activations": None}, "activations must be a mapping of symmetry"),
        ({"weights": {"symetry": "symmetric"}}, r"weights.symetry is not a field \(did you mean 'symmetry'\?\)"),
        ({"weights": {"symmetry": "sym"}}, "weights: 'sym' is not a valid Symmetry"),
    ],
)
def test_malformed_schemas(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve_schema(hardware("ort_cpu"), schemas()["symmetric"] | change, schemas())


def test_granularity_the_device_lacks() -> None:
    chosen = deepcopy(schemas()["symmetric_with_power2_scale"])
    chosen["weights"]["granularity"] = "per_channel"
    with pytest.raises(HardwareError, match="weights may be per_tensor"):
        resolve_schema(hardware("vta"), chosen, schemas())


def test_an_unknown_preferred_schema_lists_the_known() -> None:
    spec = hardware("ort_cpu", preferred_schema="asymetric")
    with pytest.raises(HardwareError, match=r"preferred_schema is 'asymetric' \(did you mean 'asymmetric'"):
        schema_for(spec)


def test_the_form_follows_every_kernel() -> None:
    """One kernel that onnxruntime's do not compute, and the device's own form is the integer one."""
    data = deepcopy(FILES["ort_cpu"])
    data.pop("realize", None)
    assert load_hardware(data).realize == "qdq"
    data["ops"]["Mul"] = [
        {"in": ["uint8"], "out": ["uint8"], "requantize": {"kind": "float_multiplier", "rounding": "floor"}}
    ]
    spec = load_hardware(data)
    assert spec.realize == "integer"
    assert [how.rounding for how in spec.requantizations] == ["half_even", "floor"]


@pytest.mark.parametrize("name", SHIPPED)
def test_every_file_names_its_chip_as_the_list_of_files_does(name: str) -> None:
    chip = hardware(name).device
    assert chip is not None and chip.chip and (chip.provider == "none") <= (chip.type in ("none", "npu", "fpga"))
    assert f"| [`{name}`](#{name}) | {chip_line(asdict(chip))} |" in page()


WRONG_CHIPS = {
    "no section": ("fpga", "device must be a mapping of type, provider, chip, not 'fpga'"),
    "no chip": ({"type": "npu", "provider": "Arm"}, "device.chip is missing"),
    "no text": ({"type": "npu", "provider": 5, "chip": "x"}, "device.provider is 5"),
    "unknown type": ({"type": "npv", "provider": "x", "chip": "x"}, "device.type is 'npv'.*npu.* legal are cpu, gpu"),
    "unknown field": ({"type": "npu", "provider": "x", "chip": "x", "clock": 1}, "clock"),
}


@pytest.mark.parametrize("case", WRONG_CHIPS)
def test_a_wrong_chip_is_named(case: str) -> None:
    given, said = WRONG_CHIPS[case]
    with pytest.raises(HardwareError, match=said):
        hardware("vta", device=given)


def test_a_file_like_another_one_is_another_chip() -> None:
    found = taken_over({"like": "vta", "name": "own", "source": "a test", "unify": "min_scale"}, hardware_data)
    assert load_hardware(found).device is None


@pytest.mark.parametrize("name", [n for n in SHIPPED if hardware(n).runs_here])
def test_what_runs_in_onnxruntime_runs_there_in_float_too(name: str) -> None:
    """Every op has a float kernel there, so a device without such a row would hide a remedy from `precision=auto`."""
    spec = hardware(name)
    assert not [op for op, rows in spec.ops.items() if all(row.is_integer for row in rows)]
