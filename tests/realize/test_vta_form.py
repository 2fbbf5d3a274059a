"""VTA's instruction streams, executed instruction by instruction, hold the plan's integers."""

from __future__ import annotations

import ctypes
import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from quantpipe.check.exact_forms import loaded_forms
from quantpipe.errors import HardwareError
from quantpipe.evaluate.compared_models import SimulatedModel
from quantpipe.evaluate.forms_agreement import WrittenBeside, executed
from quantpipe.hardware.cost import node_cycles
from quantpipe.lowering import Rendered
from quantpipe.realize.vta.isa import Alu, Instruction, Memory, Op, Uop, decoded
from quantpipe.realize.vta.machine import Machine
from quantpipe.realize.vta.vta_form import CONSTANTS, FILE, STREAM, VtaForm
from quantpipe.types import FormRow, QuantPlan, Sum
from tests.ops.cases import CASES
from tests.ops.line import Line, Net, line, load
from tests.ops.test_every_op import line_of
from tests.realize.executed import MADE

REFUSED = {"matmul_activations", "matmul_activations_deep", "attention", "erf_island", "conv_3d", "add_full",
           "add_broadcast_activation", "add_scalar", "add_channel", "add_channel_first"}  # fmt: skip
"""Products of two activations as matrices, windows of three axes, operands that are constants or broadcast."""


def run_vta(made: Line, plan: QuantPlan, change: Callable[[dict[str, bytes]], None] = lambda files: None) -> FormRow:
    """The form's row in the report; `change` plants faults into its files."""
    form = VtaForm()
    files = dict(form.write(made.graph, made.topology, plan, MADE).files)
    change(files)
    with tempfile.TemporaryDirectory() as folder:
        for name, content in files.items():
            (Path(folder) / name).write_bytes(content)
        runner = form.open(Path(folder), made.graph, made.topology, plan)
        simulation = made.simulate(plan)
        held = Rendered(simulation.rendered.model, {tensor: tensor for tensor in runner.tensors})
        simulated = SimulatedModel(made.graph, made.topology, plan, simulation, realized=held)
        try:
            return executed(WrittenBeside("vta", FILE, 0, 0.0), runner, simulated, made.samples, timed=False)
        finally:
            runner.close()


@pytest.mark.sliced(60)
@pytest.mark.parametrize("name", [n for n in CASES if n not in REFUSED])
def test_every_op_that_vta_runs(name: str) -> None:
    made = line_of(name, "vta", "auto")
    for plan in (made.plan((8, 7, 6, 5, 4), seed=1), made.ties((8, 8, 6, 4), seed=2)):
        row = run_vta(made, plan)
        assert row["differing"] == 0 and (row["elements"] or 0) > 0, row


def steps_of(program: Sequence[Any]) -> int:
    """The steps of the matrix unit and of the ALU in a program, one a cycle."""
    return sum(
        (fields["uop_end"] - fields.get("uop_begin", 0)) * fields["iter_out"] * fields["iter_in"]
        for op, fields in program
        if op in ("GEMM", "ALU")
    )


def shifted_otherwise(made: Line, plan: QuantPlan, layer: dict[str, Any]) -> int:
    """What a layer's shifts take beyond the two steps of a narrowing and one of each further operand of an addition.

    Halves are rounded up by ADD and SHR; beyond 15 bits by SHR, ADD, SHR; to the left it is SHR alone; by 0 nothing.
    """
    numbers, made_of = plan.kernels[layer["node"]], layer["output"]
    output = getattr(numbers, "output", None)
    more = 0
    if output is not None:
        more = (0 if output.shift == 0 else 1 if output.shift < 0 else 2 if output.shift <= 15 else 3) - 2
    if isinstance(numbers, Sum):
        more += sum(t.shift != 0 for t in numbers.terms) - (len(numbers.terms) - 1)
    return more * made_of["blocks"] * made_of["height"] * made_of["width"]


def unpriced(made: Line, plan: QuantPlan, more: Sequence[Any] = ()) -> dict[str, tuple[float, float]]:
    """Layer -> (cycles that a search pays for it, bytes apart; steps that are written), where they are not equal.

    `more`: instructions that every program has beside its own.
    """
    written = VtaForm().write(made.graph, made.topology, plan, MADE).files[FILE]
    spec = replace(made.spec, cost=replace(made.spec.cost, bytes_per_cycle=1e30))
    paid = node_cycles(made.topology, made.graph, spec, made.strategy().bits)
    found = {}
    for layer in json.loads(written)["layers"]:
        cost = sum(paid.get(node, 0.0) for node in (layer["node"], *layer["absorbed"]))
        cost += shifted_otherwise(made, plan, layer)
        steps = steps_of(layer["program"]) + steps_of(more)
        if cost != pytest.approx(steps, rel=1e-12):
            found[layer["node"]] = (cost, steps)
    return found


@pytest.mark.sliced(60)
@pytest.mark.parametrize("name", [n for n in CASES if n not in REFUSED])
def test_the_cost_of_layers_is_the_steps_that_are_written(name: str) -> None:
    """What a search pays for a layer are the steps of GEMM and ALU in its program, but for the shifts of its ranges."""
    made = line_of(name, "vta", "auto")
    for plan in (made.plan(), made.plan((8, 7, 6, 5, 4), seed=1)):
        assert unpriced(made, plan) == {}


def test_the_cost_of_digits_is_the_steps_that_are_written() -> None:
    graph = load(onnx.load(str(files("quantpipe.assets") / "digits.onnx")))
    made = line(graph, "vta")
    plan = made.plan()
    assert unpriced(made, plan) == {}
    # The plants: a step that the file does not name, and an instruction that no price stands for.
    for name in ("narrow", "zero", "join"):
        steps = {**made.spec.cost.vector_steps, name: 0.0}
        other = replace(made.spec, cost=replace(made.spec.cost, vector_steps=steps))
        assert unpriced(replace(made, spec=other), plan), name
    assert unpriced(made, plan, [("ALU", {"uop_end": 1, "iter_out": 1, "iter_in": 1})])


@pytest.mark.sliced(5)
@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_has_no_instructions_is_refused_by_name_and_checked_beforehand(name: str) -> None:
    made = line_of(name, "vta", "auto")
    with pytest.raises(HardwareError, match="VTA has no instructions for"):
        VtaForm().write(made.graph, made.topology, made.plan(), MADE)
    (row,) = loaded_forms(made.graph, made.topology, made.spec)
    assert row.form == "vta" and row.written and not row.exact and "it rejects this model" in str(row.why)


def net(*shape: int, kernel: int = 3, **attrs: Any) -> Net:
    made = Net(seed=5)
    x = made.input(None, *shape)
    made.output(made.conv(made.conv(x, shape[0], 20, kernel, kernel, name="first", **attrs), 20, 5, name="last"))
    return made


@pytest.mark.grid
def test_maps_that_need_tiles_of_rows_and_columns() -> None:
    """Rows beyond the buffer of inputs, and more blocks than accumulators."""
    made = line(load(net(3, 4, 2300, pads=[1, 1, 1, 1])), "vta")
    assert run_vta(made, made.plan())["differing"] == 0
    wide = line(load(net(40, 30, 30, pads=[1, 1, 1, 1], strides=[2, 2])), "vta")
    assert run_vta(wide, wide.plan())["differing"] == 0


def test_a_window_that_fits_no_buffer_is_refused() -> None:
    made = line(load(net(3, 48, 48, kernel=46)), "vta")
    with pytest.raises(HardwareError, match=r"window of 2116 elements does not fit VTA's buffers"):
        VtaForm().write(made.graph, made.topology, made.plan(), MADE)
    (row,) = loaded_forms(made.graph, made.topology, made.spec)
    assert "first: its window of 2116 elements does not fit the buffers" in str(row.why)


def test_steps_that_are_counted_are_those_of_the_formula_and_those_that_are_run() -> None:
    made = line(load(net(3, 8, 8, pads=[1, 1, 1, 1])), "vta")
    written = VtaForm().write(made.graph, made.topology, made.plan(), MADE)
    products = 1 * 2 * 9 * 64 + 2 * 1 * 1 * 64  # ceil(Ci/16)·ceil(Co/16)·kh·kw·oh·ow
    program = list(decoded(written.files[STREAM]))
    resets = [i for i in program if i.op is Op.GEMM and i["reset"]]
    assert written.facts["instructions"] == len(program)
    assert written.facts["gemm_steps"] == products and not resets  # a bias takes the place of zeros
    told = json.loads(written.files[FILE])
    words = [Instruction(Op[name], fields) for layer in told["layers"] for name, fields in layer["program"]]
    assert b"".join(i.encoded for i in words) == written.files[STREAM]


def test_products_of_two_activations_need_a_core_that_multiplies() -> None:
    made = Net(seed=2)
    x = made.input(None, 4, 6, 6)
    a, b = made.conv(x, 4, 20, 1, 1), made.conv(x, 4, 20, 1, 1)
    made.output(made.conv(made.node("Mul", a, b, name="product"), 20, 5, 1, 1))
    graph = load(made)
    with_mul = line(graph, "vta_mul")
    assert unpriced(with_mul, with_mul.plan()) == {}
    assert "product" in with_mul.topology.kernel_of and "product" in line(graph, "vta").topology.float_nodes
    assert run_vta(with_mul, with_mul.plan())["differing"] == 0
    core = Machine(np.zeros(64, np.uint8))
    with pytest.raises(HardwareError, match="does not multiply"):
        core.run([Instruction(Op.ALU, {"alu_opcode": Alu.MUL, "iter_out": 1, "iter_in": 1, "uop_end": 1})])


# --- planted faults ---------------------------------------------------------------------------------------------------


def changed(one: Callable[[list[Instruction]], None]) -> Callable[[dict[str, bytes]], None]:
    def change(files: dict[str, bytes]) -> None:
        program = list(decoded(files[STREAM]))
        one(program)
        files[STREAM] = b"".join(i.encoded for i in program)

    return change


def first(program: list[Instruction], op: Op, **fields: int) -> Instruction:
    return next(i for i in program if i.op is op and all(i[k] == v for k, v in fields.items()))


FAULTS: dict[str, Callable[[list[Instruction]], None]] = {
    "a shift": lambda p: first(p, Op.ALU, alu_opcode=Alu.SHR).fields.update(imm=3),
    "a half": lambda p: first(p, Op.ALU, alu_opcode=Alu.ADD, use_imm=1).fields.update(imm=0),
    "a bound": lambda p: first(p, Op.ALU, alu_opcode=Alu.MIN).fields.update(imm=20),
    "a pad": lambda p: first(p, Op.LOAD, memory=Memory.INP, y_pad_0=1).fields.update(y_pad_0=0, y_pad_1=2),
    "a stride": lambda p: first(p, Op.LOAD, memory=Memory.INP).fields.update(x_stride=7),
    "an address": lambda p: first(p, Op.LOAD, memory=Memory.ACC).fields.update(dram=0),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_changed_instruction_is_found(fault: str) -> None:
    made = line(load(net(3, 8, 8, pads=[1, 1, 1, 1])), "vta")
    assert (run_vta(made, made.plan(), changed(FAULTS[fault]))["differing"] or 0) > 0


@pytest.mark.parametrize(
    ("flag", "op", "told"), [("push_next", Op.ALU, "wait for each other"), ("pop_prev", Op.STORE, "tokens are left")]
)
def test_a_missing_token_is_found(flag: str, op: Op, told: str) -> None:
    def drop(program: list[Instruction]) -> None:
        del first(program, op, **{flag: 1}).fields[flag]

    made = line(load(net(3, 8, 8, pads=[1, 1, 1, 1])), "vta")
    with pytest.raises(HardwareError, match=told):
        run_vta(made, made.plan(), changed(drop))


def test_changed_weights_are_found() -> None:
    def change(files: dict[str, bytes]) -> None:
        data = bytearray(files[CONSTANTS])
        places = np.flatnonzero(np.frombuffer(bytes(data), np.uint8))
        for place in places[:200]:
            data[place] ^= 1
        files[CONSTANTS] = bytes(data)

    made = line(load(net(3, 8, 8)), "vta")
    with pytest.raises((AssertionError, HardwareError)):
        assert run_vta(made, made.plan(), change)["differing"] == 0


# --- the published layout ---------------------------------------------------------------------------------------------


class MemoryWord(ctypes.LittleEndianStructure):
    """As the C header has it: bit fields of two 64-bit words."""

    _pack_ = 1
    _fields_ = [(n, ctypes.c_uint64, b) for n, b in [
        ("opcode", 3), ("pop_prev", 1), ("pop_next", 1), ("push_prev", 1), ("push_next", 1), ("memory", 3),
        ("sram", 16), ("dram", 32), ("unused", 6), ("y_size", 16), ("x_size", 16), ("x_stride", 16),
        ("y_pad_0", 4), ("y_pad_1", 4),
        ("x_pad_0", 4), ("x_pad_1", 4),
    ]]  # fmt: skip


class AluWord(ctypes.LittleEndianStructure):
    _pack_ = 1
    _fields_ = [(n, ctypes.c_uint64, b) for n, b in [
        ("opcode", 3), ("pop_prev", 1), ("pop_next", 1), ("push_prev", 1), ("push_next", 1), ("reset", 1),
        ("uop_begin", 13), ("uop_end", 14), ("iter_out", 14), ("iter_in", 14), ("unused", 1), ("dst_out", 11),
        ("dst_in", 11), ("src_out", 11), ("src_in", 11), ("alu_opcode", 3), ("use_imm", 1), ("imm", 16),
    ]]  # fmt: skip


@pytest.mark.parametrize(("word", "op"), [(MemoryWord, Op.LOAD), (MemoryWord, Op.STORE), (AluWord, Op.ALU)])
def test_the_bits_are_those_of_a_c_compilers_bit_fields(word: type[Any], op: Op) -> None:
    rng = np.random.default_rng(1)
    for _ in range(50):
        fields = {
            n: int(rng.integers(0, 1 << min(b, 62))) for n, _, b in word._fields_ if n not in ("opcode", "unused")
        }
        made = word(opcode=int(op), **fields)
        signed = {n: v - (1 << 16) if n == "imm" and v >= 1 << 15 else v for n, v in fields.items()}
        one = Instruction(op, signed)
        assert one.encoded == bytes(made) and len(one.encoded) == 16
        (back,) = decoded(one.encoded)
        assert back.op is op and {n: back[n] for n in signed} == signed
    word = int.from_bytes(Uop(5, 2047, 1023).encoded, "little")
    assert (word & 2047, (word >> 11) & 2047, word >> 22) == (5, 2047, 1023)


def test_a_field_that_does_not_hold_its_value_is_refused() -> None:
    with pytest.raises(HardwareError, match=r"ALU.imm is 40000; its 16 bits hold -32768 to 32767"):
        _ = Instruction(Op.ALU, {"imm": 40000}).encoded
