"""The comparison of simulated and realized models finds what is planted, where it is, and nothing else."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx_ir as ir
import pytest

from quantpipe.errors import AgreementError
from quantpipe.evaluate.agreement import Agreement, SessionAgreement, compare, float_warning, session_kinds
from quantpipe.evaluate.compared_tensors import island_entries, watched
from quantpipe.evaluate.evaluation import Evaluation
from quantpipe.evaluate.layers import ELEMENTS, FEWEST, layer_report, samples_for
from quantpipe.graph.session_options import INT8_KERNELS, carried
from quantpipe.lowering import Rendered
from quantpipe.metrics.outputs import summary
from quantpipe.types import Form, QuantPlan
from tests.lint.test_lint import attention
from tests.ops.line import Line, Net, hardware, line
from tests.ops.test_every_op import graph_of, line_of

FORMS = [("ort_cpu", "qdq"), ("ort_cpu", "qoperator"), ("ort_cpu", "integer"), ("vta", "integer")]


def compared(made: Line, plan: QuantPlan, realized: Rendered) -> Agreement:
    return compare(made.graph, made.topology, plan, made.simulate(plan), realized=realized, samples=made.samples)


def tamper(realized: Rendered, constant: str, by: int = 1) -> None:
    """Change the greatest element of a constant of the realized model."""
    value = realized.model.graph.initializers[constant]
    array = np.array(value.const_value.numpy())
    array[np.unravel_index(np.argmax(array), array.shape)] -= by
    value.const_value = ir.tensor(array)


@pytest.mark.parametrize(("spec", "backend"), FORMS)
def test_one_changed_weight_is_found_and_named(spec: str, backend: str) -> None:
    made = line_of("residual_block", spec, "auto")
    plan = made.plan()
    weighted = [k for k in made.topology.kernels if k.weight is not None]
    assert len(weighted) == 4
    for kernel in weighted:
        realized = made.realize(plan, backend)
        tamper(realized, f"{kernel.weight}_q", by=20)
        found = compared(made, plan, realized)
        expected = kernel.output if kernel.form is Form.QUANTIZED else f"{kernel.output} (accumulator)"
        assert found.differing > 0 and found.first_tensor == expected and found.max_lsb >= 1
        assert found.behind_float == 0
    assert made.agree(plan, backend).differing == 0


@pytest.mark.parametrize("constant", ["x_scale", "x_zero_point"])
def test_a_changed_grid_is_found_at_the_input(constant: str) -> None:
    made = line_of("conv_chain", "ort_cpu", "auto")
    plan = made.plan()
    realized = made.realize(plan, "qdq")
    tamper(realized, constant)
    found = compared(made, plan, realized)
    assert found.differing > 0 and found.first_tensor == "x"


def test_counts_are_of_every_element_of_every_tensor() -> None:
    made = line_of("conv_chain", "ort_cpu", "auto")
    found = made.agree(made.plan(), "qdq", everywhere=True)
    stored = set(made.topology.group_of)
    outputs = sum(int(np.prod(made.graph.shapes[o.name])) for o in made.graph.outputs)
    integers = sum(int(np.prod(made.graph.shapes[t])) for t in stored)
    assert found.tensors == len(stored)
    assert found.real_elements == len(made.samples) * outputs
    assert found.elements == len(made.samples) * (integers + outputs)
    assert (found.differing, found.behind_float, found.real_inexact, found.max_lsb) == (0, 0, 0, 0.0)
    assert found.first_tensor is None and found.samples == len(made.samples) and not found.warnings
    names = [(s.session, s.decides, s.elements) for s in found.sessions]
    assert names[:2] == [("default", True, found.elements), ("default", True, found.real_elements)]
    assert names[-1] == ("optimization off", False, found.elements)


@pytest.mark.parametrize("isa", ["any", "vnni"])
def test_the_session_that_a_file_names_decides(isa: str) -> None:
    """A default session where it is exact on every processor; else the one with the option that the metadata name."""
    made = line(graph_of("conv_chain"), hardware("ort_cpu", isa=isa))
    kinds = [(k.name, k.decides) for k in session_kinds(made.realize(made.plan(), "qdq").model)]
    exact, default = "session.x64quantprecision=1", "default"
    first, other = (default, exact) if isa == "any" else (exact, default)
    assert kinds == [(first, True), (first, True), (other, False), ("optimization off", False)]


def test_accumulators_are_compared_where_both_have_them() -> None:
    made = line_of("residual_block", "vta", "auto")
    simulation, plan = made.simulate(made.plan()), made.plan()
    accumulators = {t for t in simulation.rendered.integers if t.endswith("(accumulator)")}
    assert accumulators == {"last_out (accumulator)"}
    assert accumulators <= set(made.realize(plan, "integer").integers)


@pytest.mark.parametrize("backend", ["qdq", "qoperator", "integer"])
def test_a_fault_inside_an_island_is_found_and_does_not_cascade(backend: str) -> None:
    made = line_of("erf_island", "ort_cpu", "auto")
    plan = made.plan()
    (entry,) = island_entries(made.graph, made.topology)
    realized = made.realize(plan, backend)
    next(n for n in realized.model.graph if n.op_type == "Erf").op_type = "Tanh"
    found = compared(made, plan, realized)
    size = len(made.samples) * int(np.prod(made.graph.shapes[entry]))
    assert 0 < found.differing <= size and found.first_tensor == entry
    assert entry in made.topology.group_of


@pytest.mark.parametrize("backend", ["qdq", "qoperator", "integer"])
def test_a_weight_of_an_island_that_feeds_an_output_is_found(backend: str) -> None:
    """The last layer in float: real outputs are compared with the simulated model, within what rounding explains."""
    net = Net(seed=3)
    x = net.conv(net.input(None, 3, 6, 6), 3, 4, 1, 1, name="front")
    flat = net.node("Flatten", net.node("Exp", x, name="exp"), name="flat")
    net.output(net.dense(flat, 144, 5, name="last"))
    made = line(net, float_nodes=("last",))
    plan = made.plan()
    assert made.agree(plan, backend).differing == 0
    realized = made.realize(plan, backend)
    weight = made.graph.by_name["last"].inputs[1]
    value = realized.model.graph.initializers[weight]
    array = np.array(value.const_value.numpy())
    array[2, 7] += 1e-2
    value.const_value = ir.tensor(array)
    found = compared(made, plan, realized)
    assert found.differing > 0 and found.first_tensor == made.graph.outputs[0].name


@pytest.mark.parametrize("spec", ["ort_cpu", "tensorrt_both"])
@pytest.mark.parametrize("backend", ["qdq", "qoperator", "integer"])
def test_rows_of_the_last_layer_are_compared_with_the_simulated_model(backend: str, spec: str) -> None:
    """Its result leaves the realized model as real numbers; it was once compared with the realized model itself."""
    made = line_of("gemm_trans", spec, "auto")
    plan = made.plan()
    last = made.topology.kernels[-1]
    assert last.form is Form.RAW and last.output == made.graph.outputs[0].name
    realized = made.realize(plan, backend)
    names = [n for n in realized.model.graph.initializers if n.startswith(f"{last.weight}_q")]
    value = realized.model.graph.initializers[names[0]]
    axis = 0 if backend == "qdq" else 1  # kernels take the transposed matrix
    value.const_value = ir.tensor(np.roll(np.array(value.const_value.numpy()), 1, axis))
    found = compared(made, plan, realized)
    assert found.differing > 0.5 * found.real_elements


def test_int8_activations_carry_the_session_option_they_need() -> None:
    made = line_of("matmul_matrix", "tensorrt_both", "auto")
    plan = made.plan()
    realized = made.realize(plan, "qdq")
    assert carried(realized.model) == INT8_KERNELS
    assert carried(made.realize(plan, "qoperator").model) == {}
    other = line_of("matmul_matrix", "ort_cpu", "auto")
    assert carried(other.realize(other.plan(), "qdq").model) == {}
    found = made.agree(plan, "qdq", everywhere=True)
    assert found.differing == found.real_inexact == 0
    default = [s for s in found.sessions if s.session == "default"]
    assert [s.decides for s in default] == [False], "a default session computes the product in float"
    assert default[0].inexact > 0 and default[0].differing == 0, "within the bound of a float32 sum"


def test_a_session_that_computes_otherwise_is_told() -> None:
    other = SessionAgreement("default", False, 6, 100, 7, 0, "y")
    asked = SessionAgreement("session.qdqisint8allowed=1", True, 6, 100, 0)
    (said,) = Agreement(1, 100, 0, 0, 0.0, None, sessions=(asked, other)).warnings
    assert "in a session with default" in said or "in a default session" in said
    assert "7 of 100" in said and "session.qdqisint8allowed=1" in said
    off = SessionAgreement("optimization off", False, 6, 100, 7, 0, "y")
    assert not Agreement(1, 100, 0, 0, 0.0, None, sessions=(asked, off)).warnings, "told in the list of sessions"
    assert not Agreement(1, 100, 7, 0, 0.0, "y", sessions=(asked, other)).warnings, "the run fails anyway"


def test_a_model_that_lacks_a_tensor_of_the_plan_is_refused() -> None:
    made = line_of("conv_chain", "ort_cpu", "auto")
    plan = made.plan()
    realized = made.realize(plan, "qdq")
    with pytest.raises(AgreementError, match="holds no tensor 'gone'"):
        compared(made, plan, Rendered(realized.model, {**realized.integers, "x": "gone"}))


def test_decisions_on_real_numbers_are_loose_and_what_they_decide_on_is_compared() -> None:
    net = Net(seed=5)
    x = net.conv(net.input(None, 3, 6, 6), 3, 4, 1, 1, name="front")
    soft = net.node("Softmax", x, axis=1, name="soft")
    net.output(net.node("Cast", net.node("ArgMax", soft, axis=1, keepdims=0), to=1, name="best"), soft)
    made = line(net)
    what = watched(made.graph, made.topology, ["front_out"])
    assert what.loose == {"best_out"} and what.outside == ("soft_out", "best_out")
    assert made.agree(made.plan(), "qdq").differing == 0


def test_a_softmax_behind_moves_in_float_is_not_approximated() -> None:
    """As in the decode tail of a detector: the runtime carries DequantizeLinear through Reshape and Transpose."""
    net = Net(seed=5)
    x = net.conv(net.input(None, 3, 6, 6), 3, 16, 1, 1, name="front")
    four = net.node("Reshape", x, net.constant(np.int64([0, 4, 4, 36])), name="four")
    soft = net.node("Softmax", net.node("Transpose", four, perm=[0, 2, 1, 3], name="turned"), axis=1, name="soft")
    net.output(net.conv(soft, 4, 2, 1, 1, name="back"))
    made = line(net, float_nodes=("four", "turned"))
    assert {"four", "turned", "soft"} <= set(made.topology.float_nodes)
    assert made.agree(made.plan(), "qdq").differing == 0


@pytest.mark.parametrize("backend", ["qdq", "qoperator"])
def test_an_island_that_is_fused_otherwise_when_watched(backend: str) -> None:
    net = Net()
    x = net.conv(net.input(None, 3, 6, 6), 3, 4, 1, 1, name="front")
    rest = net.node("Sub", x, net.node("ReduceMean", x, axes=[1], keepdims=1, name="mean"), name="rest")
    net.output(net.conv(rest, 4, 2, 1, 1, name="back"))
    made = line(net)
    assert island_entries(made.graph, made.topology) == {"rest_out"}
    assert made.agree(made.plan(), backend).differing == 0


def test_entries_of_islands() -> None:
    def entries(case: str) -> set[str]:
        made = line_of(case, "ort_cpu", "auto")
        return set(island_entries(made.graph, made.topology))

    assert entries("softmax_island") == {"mid_out"}
    assert entries("conv_chain") == set(), "the model's own input is no island"
    assert entries("add_channel") == set(), "a constant neither"


def test_a_swapped_output_is_found() -> None:
    """The plain model is compared as well: its outputs, not only its inner integers."""
    made = line_of("conv_plain", "ort_cpu", "auto")
    plan = made.plan()
    realized = made.realize(plan, "qdq")
    other = made.realize(made.plan(4), "qdq")
    wrong = Rendered(other.model, realized.integers)
    assert compared(made, plan, wrong).differing > 0


# --- errors per layer -----------------------------------------------------------------------------------------------


def test_large_tensors_are_compared_on_fewer_samples() -> None:
    net = Net(seed=1)
    net.output(net.conv(net.input(None, 3, 6, 6), 3, 4, 3, 3))
    made = line(net)
    plan = made.plan()
    assert samples_for(made.graph, plan, 32) == 32
    tenth = {t: (1, ELEMENTS // 10 // len(plan.quantizers)) for t in plan.quantizers}
    assert samples_for(replace(made.graph, shapes=tenth), plan, 32) == 10
    vast = dict.fromkeys(plan.quantizers, (1, ELEMENTS))
    assert samples_for(replace(made.graph, shapes=vast), plan, 32) == FEWEST
    assert samples_for(replace(made.graph, shapes=vast), plan, 2) == 2


def test_layer_report_against_numpy() -> None:
    made = line_of("relu_standalone", "ort_cpu", "auto")
    plan = made.plan(5)
    found = {e["tensor"]: e for e in layer_report(made.graph, plan, made.simulate(plan), made.samples)}
    assert list(found) == [t for n in made.graph.nodes for t in n.outputs if t in plan.quantizers]
    from quantpipe.graph.execute import Session
    from quantpipe.graph.normalize import expose

    inputs = made.samples.inputs  # type: ignore[attr-defined]
    real = Session(expose(made.graph.model, list(found))).run(inputs, list(found))
    for tensor, entry in found.items():
        x, q = real[tensor].astype(np.float64), plan.quantizers[tensor]
        scale = float(q.scale)
        alone = np.clip(np.rint(x / scale), q.low, q.high) * scale
        total = np.mean((x - alone) ** 2) / np.mean(x**2)
        assert (entry["bits"], entry["scale"], entry["zero_point"]) == (5, scale, q.zero_point)
        assert entry["saturation"] == pytest.approx(
            np.mean((x - np.clip(x, q.low * scale, q.high * scale)) ** 2) / np.mean(x**2), rel=1e-6, abs=1e-12
        )
        assert entry["rounding"] == pytest.approx(total - entry["saturation"], rel=0.02)
        assert 5 < entry["sqnr_db"] < 40


def test_fewer_bits_make_more_noise() -> None:
    made = line_of("conv_chain", "ort_cpu", "auto")
    noise = []
    for bits in (8, 6, 4):
        plan = made.plan(bits)
        noise.append([e["sqnr_db"] for e in layer_report(made.graph, plan, made.simulate(plan), made.samples)])
    assert all(a > b > c for a, b, c in zip(*noise, strict=True))


@pytest.mark.parametrize(
    ("differing", "simulated", "realized", "warned"),
    [
        (0, 20.0, 3.0, True),
        (0, 20.0, 19.5, False),
        (0, None, None, False),
        (0, None, 120.0, False),  # all in float: sums in another order
        (0, None, 30.0, True),
        (7, 20.0, 3.0, False),  # said already
        (0, 20.0, float("-inf"), True),
    ],
)
def test_a_realized_model_that_is_worse_with_the_same_integers_is_told(
    differing: int, simulated: float | None, realized: float | None, warned: bool
) -> None:
    agreement = Agreement(3, 100, differing, 0, 1.0, None, 64)
    said = float_warning(agreement, {"sqnr_db": simulated}, {"sqnr_db": realized})
    assert (said is not None) == warned and (said is None or "a float node differs" in said)
    metrics = {"simulated": {"sqnr_db": simulated}, "realized": {"sqnr_db": realized}}
    assert Evaluation(metrics, agreement, (), alike=metrics["simulated"]).warnings == ([said] if said else [])


def test_the_metrics_that_the_warning_reads_are_those_that_there_are() -> None:
    outputs = np.random.default_rng(0).standard_normal((8, 3)).astype(np.float32)
    assert "sqnr_db" in summary(outputs, outputs + 0.5, None)


def test_what_enters_integers_behind_float_nodes_is_counted_among_the_tensors() -> None:
    made = line(attention(), "ort_cpu")
    found = made.agree(made.plan(), "qdq")
    assert found.behind_float == found.differing == 0
    assert found.tensors == len(made.topology.group_of)
    assert set(island_entries(made.graph, made.topology)), "there are some"
