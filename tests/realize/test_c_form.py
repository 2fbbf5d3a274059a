"""The C form: each op on each device gives the simulated integers, under sanitizers, without a warning."""

from __future__ import annotations

import ctypes
import math
import re
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantpipe.errors import HardwareError
from quantpipe.realize.c import helpers, memory, nest, runner, source
from quantpipe.realize.c.form import CForm, walked
from quantpipe.realize.c.runner import STRICT
from quantpipe.types import DType, Program
from tests.ops.cases import CASES
from tests.ops.line import Net, hardware, line
from tests.ops.test_every_op import line_of
from tests.realize.executed import MADE, SANITIZED, c_text, islands_in, run_c

needs_compiler = pytest.mark.skipif(runner.compiler() is None, reason=runner.missing_compiler())
TARGETS = ("ort_cpu", "vta", "tflite_int8", "fbgemm", "mixed_npu")
ROWS = (
    "softmax_last",
    "layer_norm",
    "rms_norm",
    "instance_norm",
    "local_response",
    "reduce_mean",
    "reduce_sum",
    "attention",
)
"""Cases with functions of rows."""


def check(name: str, target: str) -> None:
    made = line_of(name, target, "auto")
    plan = made.ties((8, 8, 6, 4), seed=2)
    if islands_in(made):
        with pytest.raises(HardwareError, match="stay in float"):
            c_text(made, plan)
        return
    found = run_c(made, plan, flags=SANITIZED)
    assert found["differing"] == 0 and found["elements"], found


@needs_compiler
@pytest.mark.sliced(30)
@pytest.mark.parametrize("name", CASES)
def test_every_op_gives_the_simulated_integers(name: str) -> None:
    """On one device each; which one goes around."""
    check(name, TARGETS[list(CASES).index(name) % len(TARGETS)])


@needs_compiler
def test_an_operand_that_is_far_below_the_other_one_leaves_nothing() -> None:
    """It is shifted by a hundred bits, which no type of C has."""
    net = Net(0)
    x = net.input(None, 3, 5, 5)
    far = net.node("Mul", net.conv(x, 3, 4), net.constant(np.float32(1e30)))
    net.output(net.node("Add", net.conv(x, 3, 4), far, name="sum"))
    made = line(net, hardware("vta_mul"))
    plan = made.plan()
    assert min(t.shift for t in plan.kernels["sum"].terms) < -64  # type: ignore[union-attr]
    found = run_c(made, plan, flags=SANITIZED)
    assert found["differing"] == 0 and found["elements"], found


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", CASES)
def test_every_op_on_every_device(name: str, target: str) -> None:
    check(name, target)


@needs_compiler
@pytest.mark.sliced(7)
@pytest.mark.parametrize("target", ["fpga_shift", "npu_w8a16", "tflite_int8"])
@pytest.mark.parametrize("name", ROWS)
def test_functions_of_rows_are_written_step_by_step(name: str, target: str) -> None:
    made = line_of(name, target, "auto")
    plan = made.plan(16)
    if islands_in(made):
        pytest.skip(f"{target} keeps a node of it in float")
    assert any(isinstance(kernel, Program) for kernel in plan.kernels.values())
    found = run_c(made, plan, flags=SANITIZED)
    assert found["differing"] == 0 and found["elements"], found


@needs_compiler
def test_a_planted_fault_in_a_row_is_counted() -> None:
    made = line_of("softmax_last", "fpga_shift", "auto")
    found = run_c(made, made.plan(), change=lambda text: text.replace("acc > x0", "acc < x0"))
    assert found["differing"]


@needs_compiler
@given(st.integers(0, (1 << 52) - 1), st.integers(0, 40))
def test_helpers_of_rows_are_those_of_plain_integers(value: int, count: int) -> None:
    library = helpers_of_rows()
    assert library.qp_sqrt(value) == math.isqrt(value)
    assert library.qp_bits(value) == value.bit_length()
    assert library.qp_down(value, count) == (value + ((1 << count) >> 1)) >> count
    assert library.qp_up(value % 1024, count) == (value % 1024) << count


@cache
def helpers_of_rows() -> ctypes.CDLL:
    names = ("qp_sqrt", "qp_bits", "qp_down", "qp_up")
    folder = Path(tempfile.mkdtemp())
    text = "#include <stdint.h>\n" + "\n".join(helpers.HELPERS[n].replace("static ", "") for n in names)
    (folder / "rows.c").write_text(text)
    command = [str(runner.compiler()), "-std=c99", "-shared", "-fPIC", "-o", str(folder / "rows.so")]
    subprocess.run([*command, str(folder / "rows.c")], check=True)
    library = ctypes.CDLL(str(folder / "rows.so"))
    shutil.rmtree(folder)
    for name in names:
        function = getattr(library, name)
        function.restype, function.argtypes = ctypes.c_int64, [ctypes.c_int64] * (1 if name[-2:] in ("rt", "ts") else 2)
    return library


@pytest.fixture(scope="module")
def small() -> Net:
    net = Net(seed=3)
    x = net.input(None, 2, 7, 8)
    a = net.node("Relu", net.conv(x, 2, 4, 3, 3, pads=[1, 1, 1, 1], strides=[2, 1]))
    b = net.conv(a, 4, 4, 3, 3, pads=[1, 1, 1, 1], group=4)
    y = net.node("Add", a, b)
    pooled = net.node("GlobalAveragePool", net.node("MaxPool", y, kernel_shape=[2, 2], strides=[2, 2]))
    net.output(net.dense(net.node("Flatten", pooled), 4, 3))
    return net


@pytest.mark.sliced(3)
@needs_compiler
@pytest.mark.parametrize(
    ("pattern", "by"),
    [
        (r"acc\[j\] = ([^;]+);", r"acc[j] = \1 + 1;"),  # a bias
        (r"if \(p0 < 0", "if (p0 < 1"),  # the border of a map
        (r"x0\[at\] > best", "x0[at] < best"),  # a maximum
    ],
)
def test_a_planted_fault_is_counted(small: Net, pattern: str, by: str) -> None:
    made = line(small, "tflite_int8")
    plan = made.plan()
    assert run_c(made, plan)["differing"] == 0

    def plant(text: str) -> str:
        changed, count = re.subn(pattern, by, text)
        assert count
        return changed

    found = run_c(made, plan, change=plant)
    assert found["differing"] and found["first_tensor"]


@needs_compiler
@pytest.mark.parametrize("target", ["vta", "tflite_int8"])
def test_an_integer_model_has_no_real_numbers_and_allocates_nothing(small: Net, target: str, tmp_path: Path) -> None:
    made = line(small, target)
    (tmp_path / "model.c").write_text(c_text(made, made.plan()))
    command = [str(runner.compiler()), "-std=c99", "-E", "-P", str(tmp_path / "model.c")]
    seen = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert not re.search(r"\b(float|double|malloc|free)\b", seen.split("block8")[-1])
    own = seen[seen.index("qp_") :]
    assert not re.search(r"\b(float|double)\b", own)


@needs_compiler
def test_real_ends_are_those_of_the_model(small: Net, tmp_path: Path) -> None:
    """`QUANTPIPE_FLOAT_API` makes the integers of real inputs, and the real numbers of the outputs."""
    made = line(small, "ort_cpu")
    plan = made.plan()
    text = tmp_path / "model.c"
    text.write_text(c_text(made, plan))
    library = tmp_path / "model.so"
    flags = [*STRICT, "-DQUANTPIPE_FLOAT_API", "-shared", "-fPIC"]
    subprocess.run([str(runner.compiler()), *flags, "-o", str(library), str(text), "-lm"], check=True)
    model = ctypes.CDLL(str(library))
    walk = walked(made.graph, made.topology, plan)
    stored, acc = np.empty(112, np.uint8), np.empty(3, np.int32)
    assert walk.inputs[0].ctype == "uint8_t" and walk.outputs[0].ctype == "int32_t"
    found = np.empty(3, np.float32)
    wanted = made.outputs(made.realize(plan, "integer").model)[made.graph.outputs[0].name]
    for sample, expected in zip(made.samples.inputs["x"], wanted, strict=True):  # type: ignore[attr-defined]
        real = np.ascontiguousarray(sample)
        at = lambda array: array.ctypes.data_as(ctypes.c_void_p)  # noqa: E731
        model.quantpipe_quantize0(at(real), at(stored))
        model.quantpipe_run(at(stored), at(acc))
        model.quantpipe_dequantize0(at(acc), at(found))
        assert np.array_equal(found, expected)


def test_the_provenance_stands_in_the_file(small: Net) -> None:
    made = line(small, "ort_cpu")
    text = c_text(made, made.plan())
    for word in ("sha256:model", "sha256:strategy", "sha256:hardware", '["cat", "dog"]', "zero_point"):
        assert word in text.split("*/")[0]


def test_nodes_in_float_are_refused_by_name() -> None:
    net = Net(seed=1)
    x = net.input(None, 4)
    net.output(net.dense(net.node("Softmax", net.dense(x, 4, 4), name="soft"), 4, 2))
    made = line(net, "ort_cpu")
    with pytest.raises(HardwareError, match=r"soft \(Softmax\).*annotate|soft \(Softmax\).*check"):
        CForm().write(made.graph, made.topology, made.plan(), MADE)


def test_pairs_that_saturate_are_refused(small: Net) -> None:
    made = line(small, hardware("ort_cpu", isa="avx2", realize="integer"))
    with pytest.raises(HardwareError, match="reduce_range"):
        c_text(made, made.plan())


def test_without_a_compiler_it_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    assert "no C compiler" in str(CForm().unavailable())
    monkeypatch.delenv("CC")
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert "no C compiler" in str(CForm().unavailable())


@needs_compiler
def test_long_constants_are_strings_of_the_same_bytes(tmp_path: Path) -> None:
    values = np.arange(source.LONG + 999) * 7919 % 256 - 128
    text = source.CSource()
    name = text.array(values, DType.INT8)
    assert '"' in text.constants[0]
    program = tmp_path / "a"
    main = f"int main(void) {{ return fwrite({name}, 1, {values.size}, stdout) != {values.size}; }}"
    (tmp_path / "a.c").write_text("#include <stdint.h>\n#include <stdio.h>\n" + text.constants[0] + main)
    subprocess.run([str(runner.compiler()), *STRICT, "-o", str(program), str(tmp_path / "a.c")], check=True)
    found = subprocess.run([str(program)], capture_output=True, check=True).stdout
    assert np.array_equal(np.frombuffer(found, np.int8), values)


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 5), st.sampled_from([DType.INT8, DType.INT32]))))
def test_buffers_that_live_together_do_not_overlap(made: list[tuple[int, int, DType]]) -> None:
    buffers = [memory.Buffer(f"b{n}", kind, (size,)) for n, (size, _, kind) in enumerate(made)]
    steps = []
    for number, buffer in enumerate(buffers):
        reads = tuple(
            b for b, (_, life, _) in zip(buffers[:number], made, strict=False) if buffers.index(b) + life >= number
        )
        steps.append(memory.MemoryStep("", reads, (buffer,)))
    sizes = memory.place(steps, buffers[-1:])
    last = {b: max(n for n, s in enumerate(steps) if b in (*s.reads, *s.writes)) for b in buffers}
    for n, a in enumerate(buffers):
        assert a.offset + a.count <= sizes[a.width]
        for b in buffers[n + 1 :]:
            together = last[a] >= buffers.index(b)
            apart = a.width != b.width or a.offset + a.count <= b.offset or b.offset + b.count <= a.offset
            assert apart or not together


@given(st.permutations(range(3)), st.tuples(*[st.integers(1, 4)] * 3), st.tuples(*[st.integers(1, 3)] * 3))
def test_loops_visit_the_places_they_are_made_of(
    axes: list[int], shape: tuple[int, int, int], steps: tuple[int, int, int]
) -> None:
    places = (
        np.arange(np.prod(shape)).reshape(shape)[tuple(slice(None, None, s) for s in steps)].transpose(axes).reshape(-1)
    )
    found = nest.regular([np.arange(places.size), places])
    if found is None:
        return
    sizes, (made, read), (start, begin) = found
    grid = np.indices(sizes).reshape(len(sizes), -1) if sizes else np.zeros((0, 1), int)
    assert np.array_equal(start + np.array(made, int) @ grid if sizes else [start], np.arange(places.size))
    assert np.array_equal(begin + np.array(read, int) @ grid if sizes else [begin], places)


def test_transposes_and_slices_are_loops() -> None:
    places = np.arange(60).reshape(3, 4, 5).transpose(2, 0, 1).reshape(-1)
    assert nest.regular([np.arange(60), places]) is not None
