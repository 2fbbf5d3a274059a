"""Plug-in packages: the worked example through every stage, and packages with one fault each."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import quantpipe
from quantpipe import extend
from quantpipe.errors import AgreementError, ConfigError, HardwareError, ModelError
from quantpipe.extend import DeviceOp, Extension
from quantpipe.hardware.load import load_hardware
from quantpipe.oprules import OP_RULES
from quantpipe.realize import BACKENDS, Integer
from quantpipe.testing import check_extension, check_model, installed
from quantpipe.types import Quantizer, Range
from tests.extend.example import DOMAIN, FOLDER, hardware, net
from tests.ops.line import Net

from example_npu.conv_hard_swish import CONV_HARD_SWISH  # isort: skip
from example_npu.extension import EXTENSION  # isort: skip
from example_npu.gate import GATE, INTEGERS  # isort: skip
from example_npu.squash import SQUASH  # isort: skip


BLOCK = re.compile(r"^```python\n(.*?)^```", re.M | re.S)


def changed(function: onnx.FunctionProto, name: str, change: Callable[[onnx.FunctionProto], None]) -> Any:
    made = onnx.FunctionProto()
    made.CopyFrom(function)
    made.name = name
    change(made)
    return made


def node_of(function: onnx.FunctionProto, output: str) -> onnx.NodeProto:
    return next(n for n in function.node if n.output[0] == output)


def check(*ops: DeviceOp) -> None:
    check_model(net(squash=False), hardware(), Extension((*ops, SQUASH)), package="faulty", forms=["integer"])


def test_the_worked_example() -> None:
    check_extension(EXTENSION, package="example_npu")
    found = check_model(net(), hardware(), EXTENSION, package="example_npu", forms=["integer", "example_npu"])
    assert found.kernels == ("first", "gate", "squash", "third")
    assert found.elements > 10_000
    assert not extend.installed() and not extend.functions() and "example_npu" not in BACKENDS


@pytest.mark.sliced(4)
@pytest.mark.parametrize("form", ["qdq", "qoperator"])
@pytest.mark.parametrize("definitions", [False, True])
def test_the_worked_example_in_kernels(form: str, definitions: bool) -> None:
    """The model may hold the definitions of the ops itself: they are the same."""
    functions = (GATE.reference, SQUASH.reference) if definitions else ()
    found = check_model(net(functions=functions), hardware(), EXTENSION, package="example_npu", forms=[form])
    assert found.forms == (form,)


def test_arithmetic_that_departs_from_its_interpreter() -> None:
    """The first differing element is named, whichever of the two models has it."""

    def forget(function: onnx.FunctionProto) -> None:
        node_of(function, "lifted").input[1] = "step"  # in place of the half step: rounds otherwise

    wrong = changed(INTEGERS, "GateWrong", forget)
    text = r"faulty: its op example\.npu\.Gate at node gate: \d+ of \d+ elements differ, the first at \[.*\], where "
    with pytest.raises(ConfigError, match=text + r"the simulated model \(function GateWrong\) gives -?\d+ and its"):
        check(replace(GATE, integers=wrong), CONV_HARD_SWISH)
    with pytest.raises(ConfigError, match=text + r"the realized model \(function GateWrong\) gives -?\d+ and its"):
        check(replace(GATE, device=wrong), CONV_HARD_SWISH)


def test_arithmetic_that_departs_from_its_reference() -> None:
    """Interpreter and integers agree, and compute something else than the float op."""

    def steeper(site: Any) -> Mapping[str, Any]:
        found = dict(GATE.numbers(site))
        return found | {"slope": found["slope"] * 2}

    with pytest.raises(ConfigError, match=r"Gate at node gate: its integers are up to \d+ steps away from its refere"):
        check(replace(GATE, numbers=steeper), CONV_HARD_SWISH)


def test_parts_that_raise() -> None:
    def fails(*_: Any) -> Any:
        raise ZeroDivisionError("no scale")

    for part in ("numbers", "interpret", "refuse", "macs", "rectify"):
        op = replace(GATE, **{part: fails})
        with pytest.raises(ConfigError, match=rf"faulty: {part} of its op example\.npu\.Gate raised ZeroDivisionError"):
            check(op, CONV_HARD_SWISH)
            OP_RULES  # noqa: B018  (macs are asked for by costs only)
            with installed(Extension((op,)), "faulty"):
                extend.called("example.npu.Gate", part, getattr(op, part))


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        (
            lambda site: {"x_zero": np.int64(0)},
            "asks for 'g_zero', which no stage has .*there are the stored g, x",
        ),
        (lambda site: [1], "gave a list; legal is a dict of arrays by name"),
        (lambda site: {**GATE.numbers(site), "half": np.float32("nan")}, r"gave 'half' as float32 \(\[nan\]\); legal"),
    ],
)
def test_numbers_that_cannot_be_used(numbers: Any, text: str) -> None:
    with pytest.raises(ConfigError, match=r"^plugins: the plug-in package faulty: .*" + text):
        check(replace(GATE, numbers=numbers), CONV_HARD_SWISH)


def named(function: onnx.FunctionProto, domain: str) -> onnx.FunctionProto:
    return changed(function, function.name, lambda f: setattr(f, "domain", domain))


@pytest.mark.parametrize(
    ("extension", "text"),
    [
        (Extension((replace(GATE, reference=named(GATE.reference, "com.microsoft")),)), "whose ops are already known"),
        (Extension((GATE, GATE)), r"two ops example\.npu\.Gate"),
        (Extension((replace(GATE, weight="w"),)), r"names the input 'w'; its reference has x, g"),
        (Extension((replace(GATE, constants=("x", "g")),)), "reads no activation"),
        (Extension((replace(GATE, same_scale=("y",)),)), r"ties 'y' to its result \(same_scale\); legal .* x, g"),
        (Extension((replace(GATE, constants=("g",), same_scale=("g",)),)), "ties 'g' .* activations x$"),
        (Extension((replace(GATE, integers=named(INTEGERS, "other")),)), "has the domain 'other'"),
        (Extension((replace(GATE, integers=GATE.reference, device=changed(INTEGERS, "Gate", lambda f: None)),)),
         "two functions|the name of its reference"),
        (Extension((replace(GATE, integers="text"),)), "has a str for a definition"),  # type: ignore[arg-type]
        (Extension(("gate",)), "its ops hold a str"),  # type: ignore[arg-type]
        (Extension(forms={"qdq": Integer}), "its form 'qdq' has the name of one that quantpipe has"),
        ("none", "is a str; legal is a quantpipe.extend.Extension"),
    ],
)  # fmt: skip
def test_extensions_that_cannot_be_installed(extension: Any, text: str) -> None:
    with pytest.raises(ConfigError, match=f"faulty: .*({text})"):
        check_extension(extension, package="faulty")
    assert not extend.installed()


@pytest.mark.sliced(3)
@pytest.mark.parametrize("tied", [(), ("x",), ("g",), ("x", "g")])
def test_inputs_that_an_op_ties_are_stored_as_its_result(tied: tuple[str, ...]) -> None:
    sites: list[extend.Site] = []

    def watched(site: extend.Site) -> extend.Numbers:
        sites.append(site)
        return GATE.numbers(site)

    check(replace(GATE, numbers=watched, same_scale=tied), CONV_HARD_SWISH)
    assert sites
    for site in sites:
        same = {name for name, q in site.operands.items() if as_stored(q) == as_stored(site.result)}
        assert same == {*tied}


def derived(**functions: Any) -> list[extend.Site]:
    """The sites of a run with these functions."""
    sites: list[extend.Site] = []

    def watched(site: extend.Site) -> extend.Numbers:
        sites.append(site)
        return GATE.numbers(site)

    check(replace(GATE, numbers=watched, derive=functions), CONV_HARD_SWISH)
    assert sites
    return sites


RESULT = GATE.reference.output[0]


def test_an_input_has_the_range_that_follows_from_the_result() -> None:
    """Half of the result's range, and of that a third for the other input, in whatever order they are listed."""
    functions = {
        "x": lambda ranges, facts: Range(ranges["g"].low / 3, ranges["g"].high / 3),
        "g": lambda ranges, facts: Range(ranges[RESULT].low / 2, ranges[RESULT].high / 2),
    }
    for site in derived(**functions):
        scales = [float(q.scale) for q in (site.result, site.operands["g"], site.operands["x"])]
        assert scales[0] / scales[1] == pytest.approx(2, rel=1e-5)
        assert scales[1] / scales[2] == pytest.approx(3, rel=1e-5)


@pytest.mark.parametrize(
    ("functions", "text"),
    [
        ({"x": lambda ranges, facts: None}, "derive of x of its op example.npu.Gate gave None; legal is a Range"),
        ({"x": lambda ranges, facts: Range(-1.0, float("inf"))}, "derive of x .* finite numbers with 0 within"),
        ({"x": lambda ranges, facts: ranges["z"]}, "derive of x of its op example.npu.Gate raised KeyError: 'z'"),
        ({"w": lambda ranges, facts: Range(-1.0, 1.0)}, f"derives the range of 'w'; legal are x, g, {RESULT}"),
        (
            {
                "x": lambda ranges, facts: Range(2 * ranges["g"].low, 2 * ranges["g"].high),
                "g": lambda ranges, facts: Range(2 * ranges["x"].low, 2 * ranges["x"].high),
            },
            "depend on each other in a circle, at gate",
        ),
    ],
)
def test_ranges_that_cannot_be_derived(functions: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=f"the plug-in package .*{text}"):
        derived(**functions)


def as_stored(q: Quantizer) -> tuple[Any, ...]:
    return float(q.scale), q.zero_point, q.bits, q.dtype


def test_a_tie_between_two_types_is_rejected() -> None:
    ops = hardware()["ops"] | {f"{DOMAIN}.Gate": [{"in": ["uint8", "uint8"], "out": ["int8"]}]}
    extension = Extension((replace(GATE, same_scale=("g",)), CONV_HARD_SWISH, SQUASH))
    with pytest.raises(ConfigError, match=r"ops\.example\.npu\.Gate: .* has uint8 for the one and int8 for the other"):
        check_model(net(squash=False), hardware(ops=ops), extension, package="faulty", forms=["integer"])


def test_two_packages_with_one_op() -> None:
    text = r"second: its op example\.npu\.Gate is also one of first"
    with installed(Extension((GATE,)), "first"), pytest.raises(ConfigError, match=text):
        check_extension(Extension((GATE,)), package="second")


def test_a_form_without_a_lowering() -> None:
    class Poor(Integer):
        def __init__(self) -> None:
            super().__init__()
            self.ops = {op: how for op, how in self.ops.items() if not op.startswith(DOMAIN)}

    with pytest.raises(ConfigError, match=r"example\.npu\.Gate is written by no lowering of poor"):
        check_extension(Extension((GATE,), {"poor": Poor}), package="faulty")


def test_a_form_that_computes_something_else() -> None:
    class Off(Integer):
        def clip(self, context: Any, stored: Any, q: Any, low: int, *, high: int) -> Any:
            return super().clip(context, stored, q, low, high=high - 1)

        def _requantize(self, context: Any, r: Any, *given: Any, **more: Any) -> Any:
            return super()._requantize(context, replace(r, high=r.high - 3), *given, **more)

    with pytest.raises(AgreementError, match=r"package faulty: \d+ of \d+ elements differ .*the form off at 8 bits"):
        check_model(
            net(gate=False), hardware(), Extension(EXTENSION.ops, {"off": Off}), package="faulty", forms=["off"]
        )


def test_a_form_that_raises() -> None:
    class Broken(Integer):
        def clip(self, *_: Any, **__: Any) -> Any:
            raise IndexError("no such register")

        dequantize = clip

    own = Extension(EXTENSION.ops, {"broken": Broken})
    with pytest.raises(ConfigError, match=r"package faulty: its form 'broken' raised IndexError: no such register"):
        check_model(net(), hardware(), own, package="faulty", forms=["broken"])


def test_a_function_that_the_runtime_refuses() -> None:
    def of_text(function: onnx.FunctionProto) -> None:
        node_of(function, "raised").op_type = "And"

    wrong = changed(INTEGERS, "GateWrong", of_text)
    with pytest.raises(ModelError, match=r"cannot load it: .*\(with ops of the plug-in package faulty\)"):
        check(replace(GATE, integers=wrong), CONV_HARD_SWISH)


@pytest.mark.program
def test_the_page_that_tells_of_packages(tmp_path: Path) -> None:
    """Its example and its two checks run as they stand."""
    page = (FOLDER.parents[1] / "docs" / "extending.md").read_text(encoding="utf-8")
    first, calibrator, last = BLOCK.findall(page.split("## Ops, patterns, calibrators and forms of a package")[1])
    model = net(gate=False)
    for node in model.graph.node:
        node.domain = "my.npu" if node.domain else ""
    model.opset_import[1].domain = "my.npu"
    ops = {op: rows for op, rows in hardware()["ops"].items() if not op.startswith(DOMAIN)}
    ops["my.npu.Squash"] = [{"in": ["uint8"], "out": ["uint8"]}, {"in": ["float32"], "out": ["float32"]}]
    namespace: dict[str, Any] = {"model": model, "hardware": hardware(ops=ops, realize="integer")}
    exec(first + last, namespace)
    exec(calibrator, namespace)
    plain = Net(seed=1)
    plain.output(plain.node("Relu", plain.conv(plain.input(None, 3, 8, 8), 3, 4, 3, 3)))
    found = check_model(plain.proto(), "ort_cpu", namespace["EXTENSION"], package="my_npu", forms=["qdq"])
    assert len(found.kernels) == 1 and not extend.installed()


@pytest.mark.program
def test_from_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "example_npu-0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: example-npu\nVersion: 0.1\n")
    (info / "entry_points.txt").write_text("[quantpipe.extensions]\nnpu = example_npu.extension:EXTENSION\n")
    monkeypatch.syspath_prepend(tmp_path)
    images = np.random.default_rng(0).standard_normal((40, 3, 8, 8)).astype(np.float32)
    try:
        result = quantpipe.quantize(
            onnx.load_from_string(net().SerializeToString()), images, hardware(), plugins=["example_npu"],
            folder=tmp_path / "run", evaluate={"latency_runs": 1, "baseline": "none"},
        )  # fmt: skip
        assert result.report["agreement"]["differing"] == 0
        assert result.report["model"]["float_nodes"] == 0
    finally:
        extend.forget("example_npu")


def test_a_hardware_file_that_names_an_op_of_nobody() -> None:
    with pytest.raises(HardwareError, match=r"ops\.example\.npu\.\w+ is no op with a rule.*plugins=\[PACKAGE\]"):
        load_hardware(hardware())


def test_an_accumulator_for_an_op_of_a_package() -> None:
    ops = {**hardware()["ops"], "example.npu.Gate": [{"in": ["uint8"], "out": ["int32"]}]}
    with pytest.raises(HardwareError, match=r"ops\.example\.npu\.Gate has an accumulator in `in` or `out`"):
        check_model(net(squash=False), hardware(ops=ops), EXTENSION, package="example_npu", forms=["integer"])


def test_a_definition_in_the_model_that_is_another() -> None:
    def steeper(function: onnx.FunctionProto) -> None:
        node_of(function, "slope").attribute[0].t.CopyFrom(onnx.numpy_helper.from_array(np.float32(0.5)))

    other = changed(GATE.reference, "Gate", steeper)
    with pytest.raises(ConfigError, match=r"its reference of example\.npu\.Gate is not the definition that the model"):
        check_model(net(squash=False, functions=(other,)), hardware(), EXTENSION, package="example_npu")


def test_rectified_ranges_are_what_the_package_says() -> None:
    seen: list[Range] = []

    def rectify(found: Range) -> Range:
        seen.append(found)
        return Range(0.0, 0.25)

    wild = replace(SQUASH, rectify=rectify, steps=1000)
    own = Extension((wild, GATE, CONV_HARD_SWISH))
    check_model(net(gate=False), hardware(), own, package="own", forms=["integer"])
    assert seen and seen[0].high > 0.25


@pytest.mark.program
def test_a_run_says_where_a_package_departs_from_its_reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its simulated integers, its reference and its interpreter are compared in every run, not by the kit alone."""
    info = tmp_path / "faulty-0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: faulty\nVersion: 0.1\n")
    (info / "entry_points.txt").write_text("[quantpipe.extensions]\nnpu = faulty:EXTENSION\n")
    (tmp_path / "faulty.py").write_text(
        "from dataclasses import replace\n"
        "from example_npu.extension import EXTENSION as right\n"
        "def interpret(stored, numbers, attributes):\n"
        "    return gate.interpret(stored, numbers, attributes) + 1\n"
        "gate = next(op for op in right.ops if op.name == 'Gate')\n"
        "EXTENSION = replace(right, ops=tuple(\n"
        "    replace(op, interpret=interpret) if op is gate else op for op in right.ops), forms={})\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    images = np.random.default_rng(0).standard_normal((40, 3, 8, 8)).astype(np.float32)
    text = (
        r"the plug-in package faulty: its op example\.npu\.Gate at node gate: \d+ of \d+ elements differ, the first at "
    )
    try:
        with pytest.raises(ConfigError, match=text) as caught:
            quantpipe.quantize(
                onnx.load_from_string(net().SerializeToString()), images, hardware(realize="integer"),
                plugins=["faulty"], folder=tmp_path / "run", evaluate={"latency_runs": 1},
            )  # fmt: skip
        assert caught.value.exit_code == 2 and "\n" not in str(caught.value)
    finally:
        extend.forget("faulty")
