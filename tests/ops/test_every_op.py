"""Each op in each way it can be used, on each hardware and in each output form: the simulated and the realized model
hold the same integers, and the realized model is near the float one."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest

from quantpipe.graph.normalize import expose
from quantpipe.graph.view import Graph
from quantpipe.oprules import OP_RULES, Family
from tests.ops.cases import CASES, ISLANDS
from tests.ops.line import Line, Net, hardware, hardware_data, line, load, normal_samples

TARGETS = {
    "ort_cpu-qdq": ("ort_cpu", "auto", "qdq"),
    "ort_cpu-qoperator": ("ort_cpu", "auto", "qoperator"),
    "ort_cpu-integer": ("ort_cpu", "auto", "integer"),
    "ort_cpu_symmetric-qdq": ("ort_cpu", "symmetric", "qdq"),  # uint8 around 128
    "ort_cpu_symmetric-qoperator": ("ort_cpu", "symmetric", "qoperator"),
    "ort_cpu_symmetric-integer": ("ort_cpu", "symmetric", "integer"),
    "int8-qdq": ("tensorrt_both", "auto", "qdq"),
    "int8-qoperator": ("tensorrt_both", "auto", "qoperator"),
    "vta-integer": ("vta", "auto", "integer"),
    "tflite_int8-integer": ("tflite_int8", "auto", "integer"),
    "hago_sample-integer": ("hago_sample", "auto", "integer"),
}
NOTHING_TO_DO = {"gemm_row_bias", "matmul_matrix", "matmul_rank3", "matmul_activations", "matmul_activations_deep",
                 "matmul_rank3_add", "attention", "function_prelu_last", "layer_norm", "layer_norm_no_offset",
                 "rms_norm", "divide", "reduce_mean", "reduce_sum", "softmax_last"}  # fmt: skip
"""Cases without an op that hago_sample runs in integers."""

REFUSED = {("attention", "int8-qoperator")}
"""Accumulators that go from op to op, which the form has no way to write."""

ORACLES: dict[str, Callable[[float, float], float]] = {
    "Sigmoid": lambda x, c: 1 / (1 + math.exp(-x)),
    "Tanh": lambda x, c: math.tanh(x),
    "LeakyRelu": lambda x, c: x if x >= 0 else x * float(np.float32(0.1)),
    "PRelu": lambda x, c: x if x >= 0 else x * c,
    "HardSigmoid": lambda x, c: min(max(0.25 * x + float(np.float32(0.4)), 0.0), 1.0),
    "HardSwish": lambda x, c: x * min(max(x / 6 + 0.5, 0.0), 1.0),
    "Elu": lambda x, c: x if x >= 0 else math.expm1(x),
    "Selu": lambda x, c: 1.0507009873554805 * (x if x > 0 else 1.6732632423543772 * math.expm1(x)),
    "Celu": lambda x, c: max(0.0, x) + min(0.0, math.expm1(x)),
    "ThresholdedRelu": lambda x, c: x if x > 1.0 else 0.0,
    "Softplus": lambda x, c: math.log1p(math.exp(x)),
    "Softsign": lambda x, c: x / (1 + abs(x)),
    "Mish": lambda x, c: x * math.tanh(math.log1p(math.exp(x))),
    "Swish": lambda x, c: x / (1 + math.exp(-1.5 * x)),
    "Gelu": lambda x, c: 0.5 * x * (1 + math.erf(x / math.sqrt(2))),
    "Erf": lambda x, c: math.erf(x),
    "Exp": lambda x, c: math.exp(x),
    "Log": lambda x, c: math.log(x) if x > 0 else -math.inf,
    "Sqrt": lambda x, c: math.sqrt(max(x, 0.0)),
    "Reciprocal": lambda x, c: 1 / x if x else math.inf,
    "Pow": lambda x, c: x**c,
    "Abs": lambda x, c: abs(x),
    "Neg": lambda x, c: -x,
    "Sign": lambda x, c: float(np.sign(x)),
    "Floor": lambda x, c: math.floor(x),
    "Ceil": lambda x, c: math.ceil(x),
    "Round": lambda x, c: round(x),
    "Sin": lambda x, c: math.sin(x),
    "Cos": lambda x, c: math.cos(x),
}
"""Each function in double precision, with the constants of its case; `c` is its constant operand."""

JUMPS = {f"function_{op}" for op in ("sign", "floor", "ceil", "round", "thresholdedrelu")}
"""Functions that jump: rounding their input moves values near a jump to its other side, by a whole step."""

FLIPS = {("gather_table", "hago_sample")}
"""The input is quantized before it is rounded to a table row: another row may be looked up, so outputs may be far."""


@cache
def graph_of(name: str) -> Graph:
    net = Net(seed=len(name))
    CASES[name](net)
    return load(net, declared=("Swish",) if name == "function_swish" else ())


@cache
def line_of(name: str, spec: str, schema: str) -> Line:
    graph = graph_of(name)
    return line(graph, spec, schema, samples=normal_samples(graph, 6))


@pytest.mark.sliced(540)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", CASES)
def test_simulated_and_realized_hold_the_same_integers(name: str, target: str) -> None:
    spec, schema, backend = TARGETS[target]
    if spec == "hago_sample" and name in NOTHING_TO_DO:
        pytest.skip("hago_sample runs every node of it in float")
    if (name, target) in REFUSED:
        pytest.skip("the form cannot express it")
    made = line_of(name, spec, schema)
    assert not made.graph.notes
    # Bits all over the place, then scales that are powers of two with odd zero points: most halves are met there.
    for plan in (made.plan((8, 7, 6, 5, 4), seed=1), made.ties((8, 8, 6, 4), seed=2)):
        found = made.agree(plan, backend)
        assert found.differing == 0, found
        assert found.first_tensor is None
        assert found.tensors > 0 and found.elements > 0
        assert found.max_lsb <= 1
        if not islands(made):
            assert found.behind_float == 0, found


def islands(made: Line) -> bool:
    """Whether a float node feeds integers in this line."""
    outputs = {t for n in made.topology.float_nodes for t in made.graph.by_name[n].outputs}
    return any(o.tensor in outputs for k in made.topology.kernels for o in k.operands)


@pytest.mark.sliced(16)
@pytest.mark.parametrize(
    "target", ["ort_cpu-qdq", "ort_cpu-qoperator", "ort_cpu-integer", "vta-integer", "hago_sample-integer"]
)
@pytest.mark.parametrize("name", CASES)
def test_the_realized_model_is_near_the_float_one(name: str, target: str) -> None:
    spec, schema, backend = TARGETS[target]
    if (name, spec) in FLIPS or (spec == "hago_sample" and name in NOTHING_TO_DO):
        pytest.skip("nothing to compare")
    made = line_of(name, spec, schema)
    wanted = made.outputs()
    found = made.outputs(made.realize(made.plan(8), backend).model)
    assert list(found) == list(wanted), "outputs keep names and order"
    for output, expected in wanted.items():
        assert found[output].shape == expected.shape and found[output].dtype == expected.dtype
        noise = np.sqrt(np.mean((found[output] - expected) ** 2)) / np.std(expected)
        assert noise < (0.06 if spec == "ort_cpu" and name not in JUMPS else 0.15), (output, noise)


def test_islands_are_islands() -> None:
    """The list of cases with a float node in the middle is right where nothing but its op decides."""
    assert {n for n in ISLANDS if islands(line_of(n, "ort_cpu", "auto"))} == ISLANDS
    assert not islands(line_of("conv_chain", "ort_cpu", "auto"))


@pytest.mark.sliced(4)
@pytest.mark.parametrize("target", TARGETS)
def test_every_op_of_the_hardware_file_was_met_in_integers(target: str) -> None:
    """No op is declared in integers without a case above that runs it so."""
    spec, schema, _ = TARGETS[target]
    symmetric = schema == "symmetric" or hardware(spec).activations.symmetric
    declared = {
        op
        for op, signatures in hardware(spec).ops.items()
        if any(s.is_integer and (s.input(0).signed or not symmetric) for s in signatures)
    }
    met = set()
    for name in CASES:
        made = line_of(name, spec, schema)
        kernels = made.topology.kernels
        met |= {k.op for k in kernels} | {made.graph.by_name[f].op for k in kernels for f in k.fused}
    assert declared <= met, declared - met


FUNCTIONS = [op for op, rule in OP_RULES.items() if rule.family is Family.LOOKUP]


@pytest.mark.sliced(20)
@pytest.mark.parametrize("form", ["qdq", "qoperator", "integer"])
@pytest.mark.parametrize("op", FUNCTIONS)
def test_every_function_is_a_table(op: str, form: str) -> None:
    """Declared in integers, each function is exact in every form, and each code has the value it should have."""
    data = hardware_data("ort_cpu")
    data["ops"] |= {op: [{"in": ["uint8"], "out": ["uint8"]}], "Sub": [{"in": ["uint8"], "out": ["uint8"]}]}
    made = line(graph_of(f"function_{op.lower()}"), hardware("ort_cpu", ops=data["ops"]))
    assert made.topology.kernel_of["mid"].op == op
    for plan in (made.ties((8, 6), seed=3), made.plan(8)):
        found = made.agree(plan, form)
        assert found.differing == 0 and found.behind_float == 0, found
    node = made.graph.by_name["mid"]
    data_q, out_q = plan.quantizers[node.inputs[0]], plan.quantizers["mid_out"]
    stored = made.outputs(expose(made.realize(plan, form).model, [f"{node.inputs[0]}_q", "mid_out_q"]))
    slope = float(made.graph.constant(node.inputs[1]).reshape(-1)[0]) if len(node.inputs) > 1 else 0.0
    for code in np.unique(stored[f"{node.inputs[0]}_q"]):
        x = float(data_q.scale) * (int(code) - data_q.zero_point)
        wanted = np.clip(ORACLES[op](x, slope) / float(out_q.scale) + out_q.zero_point, out_q.qmin, out_q.qmax)
        found_codes = np.unique(stored["mid_out_q"][stored[f"{node.inputs[0]}_q"] == code])
        assert len(found_codes) == 1 and abs(int(found_codes[0]) - wanted) <= 0.51, (op, x, found_codes, wanted)


@pytest.mark.parametrize("form", ["qdq", "qoperator", "integer"])
def test_differences_of_activations(form: str) -> None:
    """No shipped file declares Sub: it has a formula in every form all the same."""
    data = hardware_data("ort_cpu")
    data["ops"] |= {"Sub": [{"in": ["uint8"], "out": ["uint8"]}]}
    made = line(graph_of("sub_activations"), hardware("ort_cpu", ops=data["ops"]))
    assert made.topology.kernel_of["mid"].op == "Sub"
    for plan in (made.ties((8, 6), seed=3), made.plan(8)):
        assert made.agree(plan, form).differing == 0
    wanted, found = made.outputs(), made.outputs(made.realize(plan, form).model)
    for name in wanted:
        assert np.sqrt(np.mean((wanted[name] - found[name]) ** 2)) < 0.06 * np.std(wanted[name])


def test_differences_on_a_device_that_shifts() -> None:
    data = hardware_data("vta")
    data["ops"]["Sub"] = data["ops"]["Add"]
    made = line(graph_of("sub_activations"), hardware("vta", ops=data["ops"]))
    assert made.topology.kernel_of["mid"].op == "Sub"
    for plan in (made.ties((8, 6), seed=3), made.plan(8)):
        assert made.agree(plan, "integer").differing == 0
    wanted, found = made.outputs(), made.outputs(made.realize(plan, "integer").model)
    for name in wanted:
        assert np.sqrt(np.mean((wanted[name] - found[name]) ** 2)) < 0.15 * np.std(wanted[name])


@pytest.mark.parametrize("op", ["GlobalMaxPool", "SpaceToDepth"])
def test_ops_that_no_shipped_file_runs_in_integers(op: str) -> None:
    """Their rows are there for other hardware: the QDQ form can always write them."""
    data = hardware_data("ort_cpu")
    data["ops"][op] = [{"in": ["uint8"], "out": ["uint8"]}]
    name = {"GlobalMaxPool": "global_max_pool", "SpaceToDepth": "space_to_depth"}[op]
    made = line(graph_of(name), hardware("ort_cpu", ops=data["ops"]))
    assert made.topology.kernel_of["mid"].op == op
    assert made.agree(made.ties(8), "qdq").differing == 0


def test_every_case_is_named_after_what_it_builds() -> None:
    ops = {n.op for name in CASES for n in graph_of(name).nodes}
    assert set(OP_RULES) <= ops, set(OP_RULES) - ops


@pytest.mark.parametrize("name", [n for n in CASES if n.split("_")[0] in ("add", "mul")])
def test_the_clean_up_leaves_the_op_of_the_case(name: str) -> None:
    assert {"add": "Add", "mul": "Mul"}[name.split("_")[0]] in {n.op for n in graph_of(name).nodes}
