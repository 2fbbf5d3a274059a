"""Functions of rows in integers: graphs carry out their programs exactly, on every way to requantize."""

from __future__ import annotations

import numpy as np
import pytest

from quantpipe.graph.normalize import expose
from quantpipe.oprules import OP_RULES, Family
from quantpipe.plan.formulas import FORMULAS
from quantpipe.plan.programs import PROGRAMS
from quantpipe.types import Contract, FunctionKind, Program, StepOp
from tests.functions.devices import BASES, NORMS, device
from tests.ops.line import Net, hardware, line
from tests.ops.test_every_op import graph_of
from tests.simulate.test_against_interpreter import check

CASE = {"Softmax": "softmax_last", "LogSoftmax": "log_softmax_island", "LpNormalization": "norm_island",
        "LayerNormalization": "layer_norm", "RMSNormalization": "rms_norm",
        "InstanceNormalization": "instance_norm", "LRN": "local_response", "ReduceMean": "reduce_mean",
        "ReduceSum": "reduce_sum", "Div": "divide", "AveragePool": "average_pool_pads_not_counted"}  # fmt: skip


@pytest.mark.sliced(32)
@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize(("op", "kind"), PROGRAMS)
def test_graphs_carry_out_the_program(op: str, kind: FunctionKind, base: str) -> None:
    made = line(graph_of(CASE[op]), device(base, {op: kind.value}))
    assert isinstance(made.plan(8).kernels["mid"], Program), made.topology.float_nodes
    check(made, made.plan((8, 6), seed=6), "integer")
    check(made, made.ties((8, 7), seed=5), "integer")
    assert made.agree(made.plan(8), "integer").differing == 0


@pytest.mark.sliced(6)
@pytest.mark.parametrize("form", ["qdq", "qoperator"])
@pytest.mark.parametrize(("op", "kind"), PROGRAMS)
def test_kernel_forms_write_programs_too(op: str, kind: FunctionKind, form: str) -> None:
    made = line(graph_of(CASE[op]), device("multiplier", {op: kind.value}, realize=form))
    found = made.agree(made.plan(8), form)
    assert found.differing == 0 and found.behind_float == 0, found


@pytest.mark.sliced(3)
@pytest.mark.parametrize("base", ["multiplier", "fixed", "shift"])
@pytest.mark.parametrize("case", ["layer_norm", "layer_norm_no_offset", "rms_norm", "instance_norm", "softmax_last"])
def test_results_are_near_the_float_model(case: str, base: str) -> None:
    kinds = {**NORMS, "Softmax": "shift" if base == "shift" else "table"}
    made = line(graph_of(case), device(base, kinds))
    assert "mid" in made.topology.kernel_of
    wanted, found = made.outputs(), made.outputs(made.realize(made.plan(8), "integer").model)
    for name in wanted:
        assert np.sqrt(np.mean((wanted[name] - found[name]) ** 2)) < 0.15 * np.std(wanted[name])


@pytest.mark.parametrize(("case", "op", "kind"), [("layer_norm", "LayerNormalization", "integer_sqrt"),
                                                 ("softmax_last", "Softmax", "table")])  # fmt: skip
def test_a_program_says_what_its_integers_are_worth(case: str, op: str, kind: str) -> None:
    """What it makes, by its scale, is what its multiplier brings to the scale of the result; or is stored as it is."""
    made = line(graph_of(case), device("multiplier", {op: kind}))
    plan = made.plan(8)
    program, out = plan.kernels["mid"], plan.quantizers[made.topology.kernel_of["mid"].output]
    assert isinstance(program, Program)
    if program.output is None:
        assert program.acc_scale == out.scale
    else:
        np.testing.assert_allclose(program.output.multiplier, program.acc_scale / out.scale, rtol=1e-6)
        assert program.acc_scale != out.scale


@pytest.mark.parametrize(("base", "size", "divided"), [("multiplier", 3, False), ("fixed", 3, False),
                                                      ("shift", 4, False), ("shift", 3, True)])  # fmt: skip
@pytest.mark.parametrize("op", ["ReduceMean", "ReduceSum"])
def test_a_mean_divides_where_no_shift_does(op: str, base: str, size: int, divided: bool) -> None:
    net = Net(seed=2, opset=18)
    x = net.conv(net.input(None, 3, 5, size), 3, 4, 1, 1)
    net.output(net.node(op, x, net.constant(np.asarray([3], np.int64)), name="mid"))
    made = line(net, device(base, {op: "sum"}))
    plan = made.plan(8)
    program, data = plan.kernels["mid"], plan.quantizers[x]
    assert isinstance(program, Program)
    steps = [step.op for step in program.steps]
    assert (StepOp.DIV in steps) == (divided and op == "ReduceMean")
    if StepOp.DIV not in steps:
        share = size if op == "ReduceMean" else 1
        np.testing.assert_allclose(program.acc_scale, data.scale / share, rtol=1e-6)
    wanted, found = made.outputs(), made.outputs(made.realize(plan, "integer").model)
    for name in wanted:
        assert np.abs(wanted[name] - found[name]).max() < 4 * float(plan.quantizers[name].scale) + 4 * float(data.scale)


@pytest.mark.parametrize("case", ["matmul_activations", "matmul_activations_deep"])
def test_products_of_two_activations_of_sixteen_bits(case: str) -> None:
    """Their sums leave float32 and int32: in float64 and in int64 they are the same integers."""
    made = line(graph_of(case), hardware("npu_w8a16"))
    plan = made.plan((16, 12), seed=3)
    assert isinstance(plan.kernels["mid"], Contract) and plan.kernels["mid"].bound > 1 << 31
    found = made.agree(plan, "integer")
    assert found.differing == 0 and found.behind_float == 0, found
    tensors = [o.tensor for o in made.topology.kernel_of["mid"].operands]
    names = made.realize(plan, "integer").integers
    stored = made.outputs(expose(made.realize(plan, "integer").model, [names[t] for t in (*tensors, "mid_out")]))
    a, b = (stored[names[t]].astype(np.int64) - plan.quantizers[t].zero_point for t in tensors)
    output, q = plan.kernels["mid"].output, plan.quantizers["mid_out"]
    assert output is not None
    wanted = np.clip((a @ b) * np.float64(output.multiplier), q.low, q.high)
    assert np.abs(stored[names["mid_out"]].astype(np.int64) - q.zero_point - wanted).max() <= 0.51


def test_rows_of_a_table_are_integers_of_one_scale_where_a_file_asks_for_them() -> None:
    made = line(graph_of("gather_table"), hardware("npu_w8a16"))
    kernel = made.topology.kernel_of["mid"]
    plan = made.plan(16)
    assert made.agree(plan, "integer").differing == 0
    table, q = made.graph.constant(kernel.operands[0].tensor), plan.quantizers[kernel.output]
    np.testing.assert_array_equal(plan.constants[kernel.operands[0].tensor], np.rint(table / q.scale))
    assert "mid" in line(graph_of("gather_table"), hardware("mixed_npu")).topology.float_nodes


def test_every_kind_of_a_rule_is_formed() -> None:
    """OP_RULES says which kinds a file may name; each has a program, a formula, or is a table of the float op."""
    for op, rule in OP_RULES.items():
        if rule.family in (Family.ROWS, Family.AVERAGE):
            assert {(op, k) for k in rule.kinds} == {key for key in PROGRAMS if key[0] == op}
        else:
            assert {(op, k) for k in rule.kinds if k is not FunctionKind.TABLE} == {k for k in FORMULAS if k[0] == op}
            assert bool(rule.kinds) == (rule.family is Family.LOOKUP)


def test_exponentials_of_values_far_below_zero_on_a_device_that_shifts() -> None:
    """Codes of a symmetric grid reach as far above zero, where no shift could bring an exponential down."""
    net = Net(seed=3)
    x = net.node("MatMul", net.input(None, 6, 16), net.floats(16, 12, scale=1.5), name="first")
    x = net.node("Clip", x, net.constant(np.float32(-110)), net.constant(np.float32(0.5)))
    net.output(net.node("MatMul", net.node("Exp", x, name="exp"), net.floats(12, 5, scale=0.3), name="last"))
    made = line(net, "fpga_shift")
    assert not made.topology.float_nodes
    plan = made.plan(8)
    check(made, plan, "integer")
    assert made.agree(plan, "integer").differing == 0
