"""Bodies of If, Loop and Scan written out: the same function as onnxruntime computes from the file and as NumPy
computes by hand, then in integers on several devices; and bodies that must stay as they are."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import numpy_helper

from quantpipe.api.model import model_file
from quantpipe.errors import ConfigError
from quantpipe.graph.execute import Session
from quantpipe.graph.view import Graph
from quantpipe.hardware.bodies import Bodies, body_forms, read_bodies
from quantpipe.intake import control_flow
from quantpipe.intake.load import clean_graph, read_graph
from quantpipe.intake.rewrites import bodies
from quantpipe.types import BodyForms, LoopForms
from tests.ops.line import ArraySamples, hardware, line

Array = np.ndarray[Any, Any]
INLINE = body_forms(hardware("ort_cpu"), Bodies.INLINE)
IF, LOOP, SCAN = "If", "Loop", "Scan"
LONE = ("branches", "nested")
"""Whose answers depend on the mean of the batch."""

BRANCHES = """
<ir_version: 8, opset_import: ["" : 17]>
net (float[N, 3, 6, 6] x) => (float[N, 4, 6, 6] y, float[N, 4, 1, 1] z) {
    mean = ReduceMean <keepdims = 0> (x)
    flag = Greater (mean, zero)
    front = Conv (x, front_w)
    chosen, other = If (flag) <then_branch = then () => (a, p) {
        t = Conv <pads = [1, 1, 1, 1]> (front, then_w, then_b)
        a = Relu (t)
        p = GlobalAveragePool (a)
    }, else_branch = else () => (b, q) {
        t = Conv (front, else_w)
        b = Tanh (t)
        q = GlobalMaxPool (front)
    }>
    y = Conv (chosen, back_w)
    z = Identity (other)
}
"""
STEPS = """
<ir_version: 8, opset_import: ["" : 17]>
net (float[N, 5] x) => (float[N, 5] last, float[4, N, 5] all) {
    last, all = Loop (count, going, x) <body = step (int64 i, bool on, float[N, 5] h) => (bool on_out, float[N, 5] next,
        float[N, 5] shown) {
        on_out = Identity (on)
        product = Gemm (h, w, b)
        squashed = Tanh (product)
        at = Cast <to = 1> (i)
        next = Add (squashed, at)
        shown = Relu (next)
    }>
}
"""
SCANNED = """
<ir_version: 8, opset_import: ["" : 17]>
net (float[N, 6, 4] x) => (float[N, 5] last, float[N, 5, 6] all, float[6, N, 5] rows) {
    whole = ReduceMean <axes = [1], keepdims = 0> (x)
    first = MatMul (whole, v)
    last, all, rows = Scan <num_scan_inputs = 2, scan_input_axes = [1, 1], scan_input_directions = [0, 1],
        scan_output_axes = [2, 0], scan_output_directions = [1, 0],
        body = step (float[N, 5] h, float[N, 4] here, float[N, 4] there) => (float[N, 5] next, float[N, 5] shown,
        float[N, 5] row) {
        own = MatMul (here, w)
        back = MatMul (there, v)
        state = MatMul (h, u)
        s = Add (own, state)
        t = Add (s, back)
        next = Tanh (t)
        shown = Relu (s)
        row = Identity (next)
    }> (first, x, x)
}
"""
NESTED = """
<ir_version: 8, opset_import: ["" : 17]>
net (float[N, 5] x) => (float[N, 5] last) {
    mean = ReduceMean <keepdims = 0> (x)
    last = Loop (count, , x) <body = step (int64 i, bool on, float[N, 5] h) => (bool on_out, float[N, 5] next) {
        on_out = Constant <value = bool {1}> ()
        at = Cast <to = 1> (i)
        one = Constant <value = float {1.0}> ()
        first = Less (at, one)
        flag = And (first, first)
        positive = Greater (mean, zero)
        both = Or (flag, positive)
        next = If (both) <then_branch = then () => (a) {
            a = Gemm (h, w, b)
        }, else_branch = else () => (c) {
            d = Gemm (h, v, b)
            c = Sigmoid (d)
        }>
    }>
}
"""


def weights(seed: int = 0, **shapes: tuple[int, ...]) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    return {n: (rng.standard_normal(s) / max(np.prod(s[1:]), 1) ** 0.5).astype(np.float32) for n, s in shapes.items()}


def model(text: str, **constants: Array) -> onnx.ModelProto:
    proto = onnx.parser.parse_model(text)
    proto.graph.initializer.extend(numpy_helper.from_array(np.asarray(v), n) for n, v in constants.items())
    for number, node in enumerate(proto.graph.node):
        node.name = node.name or f"{node.op_type.lower()}{number}"
    return proto


def branches(**more: Array) -> onnx.ModelProto:
    own = weights(front_w=(4, 3, 1, 1), then_w=(4, 4, 3, 3), then_b=(4,), else_w=(4, 4, 1, 1), back_w=(4, 4, 1, 1))
    return model(BRANCHES, zero=np.float32(0), **{**own, **more})


def steps(count: int = 4) -> onnx.ModelProto:
    own = weights(w=(5, 5), b=(5,))
    return model(STEPS, count=np.int64(count), going=np.asarray(True), **own)


def scanned() -> onnx.ModelProto:
    own = weights(w=(4, 5), v=(4, 5), u=(5, 5))
    return model(SCANNED, **own)


def nested(count: int = 2) -> onnx.ModelProto:
    return model(NESTED, count=np.int64(count), zero=np.float32(0), **weights(w=(5, 5), v=(5, 5), b=(5,)))


def images(seed: int = 1, count: int = 16) -> Array:
    rng = np.random.default_rng(seed)
    signs = np.where(np.arange(count) % 2, 1.0, -1.0).reshape(-1, 1, 1, 1)
    return (rng.standard_normal((count, 3, 6, 6)) + 0.4 * signs).astype(np.float32)


def rows(*shape: int, seed: int = 1) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


CASES: dict[str, tuple[onnx.ModelProto, Array]] = {
    "branches": (branches(), images()),
    "steps": (steps(), rows(16, 5)),
    "scanned": (scanned(), rows(16, 6, 4)),
    "nested": (nested(), rows(16, 5)),
}


def cleaned(proto: onnx.ModelProto, feeds: dict[str, Array], forms: BodyForms = INLINE) -> Graph:
    with tempfile.TemporaryDirectory() as folder:
        raw = read_graph(model_file(proto, Path(folder)))
        return clean_graph(raw, feeds, isolate=False, cells=LoopForms(bodies=forms))


def ops(graph: Graph) -> set[str]:
    return {node.op for node in graph.nodes}


def conv(x: Array, w: Array, b: Array | None = None) -> Array:
    """A convolution that keeps the size of the map."""
    side = w.shape[-1] // 2
    padded = np.pad(x, ((0, 0), (0, 0), (side, side), (side, side)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, w.shape[2:], (2, 3))
    found = np.einsum("nchwij,ocij->nohw", windows, w)
    return np.asarray(found if b is None else found + b.reshape(1, -1, 1, 1), np.float32)


def by_hand(name: str, x: Array) -> dict[str, Array]:
    """What a model computes of one batch, in NumPy."""
    if name == "branches":
        own = weights(front_w=(4, 3, 1, 1), then_w=(4, 4, 3, 3), then_b=(4,), else_w=(4, 4, 1, 1), back_w=(4, 4, 1, 1))
        front = conv(x, own["front_w"])
        if x.mean() > 0:
            chosen = np.maximum(conv(front, own["then_w"], own["then_b"]), 0)
            other = chosen.mean((2, 3), keepdims=True)
        else:
            chosen, other = np.tanh(conv(front, own["else_w"])), front.max((2, 3), keepdims=True)
        return {"y": conv(chosen, own["back_w"]), "z": other}
    if name == "steps":
        own, state, shown = weights(w=(5, 5), b=(5,)), x, []
        for step in range(4):
            state = np.tanh(state @ own["w"] + own["b"]) + np.float32(step)
            shown.append(np.maximum(state, 0))
        return {"last": state, "all": np.stack(shown)}
    if name == "nested":
        own = weights(w=(5, 5), v=(5, 5), b=(5,))
        state = x
        for step in range(2):
            dense = state @ own["w" if step < 1 or x.mean() > 0 else "v"] + own["b"]
            state = dense if step < 1 or x.mean() > 0 else 1 / (1 + np.exp(-dense))
        return {"last": state}
    own = weights(w=(4, 5), v=(4, 5), u=(5, 5))
    state, shown, made = x.mean(1) @ own["v"], [], []
    for step in range(6):
        sums = x[:, step] @ own["w"] + state @ own["u"]
        state = np.tanh(sums + x[:, 5 - step] @ own["v"])
        shown.append(np.maximum(sums, 0))
        made.append(state)
    return {"last": state, "all": np.stack(shown[::-1], 2), "rows": np.stack(made)}


@pytest.mark.parametrize("name", CASES)
def test_bodies_written_out_compute_what_the_file_does(name: str) -> None:
    proto, x = CASES[name]
    graph = cleaned(proto, {"x": x[:4]})
    assert not ops(graph) & {IF, LOOP, SCAN} and not any("undone" in n or "skipped" in n for n in graph.notes)
    for batch in (x[:4], *(x[n : n + 1] for n in range(4, 8))):
        found, file = Session(graph.model).run({"x": batch}), run(proto, batch)
        for output, wanted in by_hand(name, batch).items():
            assert found[output].shape == wanted.shape
            np.testing.assert_allclose(found[output], wanted, atol=5e-6)
            np.testing.assert_allclose(found[output], file[output], atol=5e-6)


def run(proto: onnx.ModelProto, x: Array) -> dict[str, Array]:
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    return dict(zip([o.name for o in proto.graph.output], session.run(None, {"x": x}), strict=True))


DEVICES = [("ort_cpu", "qdq"), ("ort_cpu", "integer"), ("qnn_htp", "integer"), ("npu_w8a16", "integer")]


@pytest.mark.sliced(8)
@pytest.mark.parametrize(("device", "form"), DEVICES)
@pytest.mark.parametrize("name", CASES)
def test_ops_of_bodies_run_in_integers(name: str, device: str, form: str) -> None:
    proto, x = CASES[name]
    spec = hardware(device)
    graph = cleaned(proto, {"x": x[:1]}, INLINE if name == "scanned" else body_forms(spec, Bodies.AUTO))
    made = line(replace(graph, alone=True) if name in LONE else graph, spec, samples=ArraySamples({"x": x}))
    heavy = {n.name for n in graph.nodes if n.op in ("Conv", "Gemm", "MatMul")}
    assert heavy and heavy <= set(made.topology.kernel_of)
    selected = [n for n in graph.nodes if n.op == "Where"]
    assert len(selected) == {"branches": 2, "nested": 2}.get(name, 0)
    kernels = [made.topology.kernel_of[n.name] for n in selected if n.name in made.topology.kernel_of]
    assert kernels or not selected
    for kernel in kernels:  # both branches meet at the scale of the result: they have it, or are brought to it
        own = made.topology.group_of[kernel.output].key
        assert all(o.rescaled or made.topology.group_of[o.tensor].key == own for o in kernel.operands)
    plan = made.plan(16 if device == "npu_w8a16" else 8)
    assert made.agree(plan, form).differing == 0
    outputs = Session(made.realize(plan, form).model)
    for batch in (x[n : n + 1] for n in range(8)):
        for output, wanted in by_hand(name, batch).items():
            noise = np.square(outputs.run({"x": batch})[output] - wanted).sum()
            assert noise < (1e-4 if device == "npu_w8a16" else 3e-2) * max(np.square(wanted).sum(), 1e-3)


def test_each_step_has_scales_of_its_own_and_shares_weights() -> None:
    proto = steps()
    body = proto.graph.node[0].attribute[0].g
    del body.output[2:], body.node[5:], proto.graph.output[1:], proto.graph.node[0].output[1:]
    x = rows(16, 5)
    made = line(cleaned(proto, {"x": x[:4]}), samples=ArraySamples({"x": x}))
    kernels = [k for k in made.topology.kernels if k.op == "Gemm"]
    groups = {made.topology.group_of[k.operands[0].tensor].key for k in kernels}
    assert len(kernels) == len(groups) == 4 and {k.weight for k in kernels} == {"w"}
    plan = made.plan()
    assert len({float(plan.quantizers[k.operands[0].tensor].scale) for k in kernels}) == 4
    assert made.agree(plan, "qdq").differing == 0


STAY: dict[str, tuple[str, str]] = {
    "ends early": ("on_out = Identity (on)", "small = ReduceMax <keepdims = 0> (h)\n on_out = Less (small, bound)"),
    "computed count": ("last, all = Loop (count,", "size = Shape (x)\n most = ReduceMin <keepdims = 0> (size)\n"
                       "last, all = Loop (most,"),
}  # fmt: skip


@pytest.mark.parametrize("name", STAY)
def test_loops_of_unknown_length_stay(name: str) -> None:
    old, new = STAY[name]
    assert old in STEPS
    proto = model(STEPS.replace(old, new), count=np.int64(4), going=np.asarray(True), bound=np.float32(1.5),
                  **weights(w=(5, 5), b=(5,)))  # fmt: skip
    x = rows(16, 5)
    made = line(cleaned(proto, {"x": x[:4]}), samples=ArraySamples({"x": x}))
    (loop,) = (n for n in made.graph.nodes if n.op == LOOP)
    assert "(in them: " in str(made.topology.float_nodes[loop.name])


@pytest.mark.sliced(8)
@pytest.mark.parametrize(("count", "stays"), [(0, True), (1, False), (128, False), (129, True)])
def test_long_loops_and_loops_without_a_step_stay(count: int, stays: bool) -> None:
    graph = cleaned(steps(count), {"x": rows(4, 5)})
    assert (LOOP in ops(graph)) == stays


UNFIT: dict[str, tuple[str, str]] = {
    "an op that fails on some values": ("b = Tanh (t)", "b = Gather (t, place)"),
    "a pole": ("b = Tanh (t)", "b = Log (t)"),
    "another shape": ("b = Tanh (t)", "b = ReduceMean <axes = [2, 3]> (t)"),
    "a function of its own": ("b = Tanh (t)", "s = SequenceConstruct (t)\n b = SequenceAt (s, first)"),
}


@pytest.mark.parametrize("name", UNFIT)
def test_branches_that_cannot_always_compute_stay(name: str) -> None:
    old, new = UNFIT[name]
    text = BRANCHES.replace(old, new).replace("float[N, 4, 6, 6] y", "float[N, 4, a, b] y")
    text = text.replace("front = Conv", "place = Cast <to = 7> (flag)\n front = Conv")
    own = weights(front_w=(4, 3, 1, 1), then_w=(4, 4, 3, 3), then_b=(4,), else_w=(4, 4, 1, 1), back_w=(4, 4, 1, 1))
    proto = model(text, zero=np.float32(0), first=np.int64(0), **own)
    graph = cleaned(proto, {"x": np.abs(images()[:4])})
    assert IF in ops(graph)
    assert IF not in ops(cleaned(branches(), {"x": np.abs(images()[:4])}))


def test_branches_of_maps_of_any_size_stay() -> None:
    text = BRANCHES.replace("float[N, 3, 6, 6] x", "float[N, 3, H, W] x").replace("[N, 4, 6, 6] y", "[N, 4, H, W] y")
    own = weights(front_w=(4, 3, 1, 1), then_w=(4, 4, 3, 3), then_b=(4,), else_w=(4, 4, 1, 1), back_w=(4, 4, 1, 1))
    assert IF in ops(cleaned(model(text, zero=np.float32(0), **own), {"x": images()[:4]}))


def test_a_wrong_selection_is_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    right = bodies.Inliner.op

    def wrong(self: bodies.Inliner, op: str, *inputs: ir.Value, name: str, **attributes: Any) -> ir.Value:
        inputs = (inputs[0], inputs[2], inputs[1]) if op == "Where" else inputs
        return right(self, op, *inputs, name=name, **attributes)

    monkeypatch.setattr(bodies.Inliner, "op", wrong)
    graph = cleaned(branches(), {"x": images()[:4]})
    assert IF in ops(graph) and any("bodies was undone" in note for note in graph.notes)


def test_both_branches_are_named_in_a_note() -> None:
    graph = cleaned(branches(), {"x": images()[:4]})
    assert any(note.startswith("both branches of if3 compute for each sample") for note in graph.notes)
    assert any(node.op_type == IF for node in graph.timed.graph)


def test_devices_decide_unless_told() -> None:
    assert body_forms(hardware("ort_cpu"), Bodies.AUTO).holders == (IF, LOOP)
    assert body_forms(hardware("tflite_int8"), Bodies.AUTO).holders == (LOOP, SCAN)
    assert "Conv" in body_forms(hardware("vta"), Bodies.AUTO).ops
    assert body_forms(hardware("vta"), Bodies.KEEP) == BodyForms()
    with pytest.raises(ConfigError, match=r"model\.bodies: is 'inlined'.*inline"):
        read_bodies("inlined")


def test_bodies_without_products_stay_by_default() -> None:
    text = STEPS.replace("product = Gemm (h, w, b)", "product = Add (h, b)")
    proto = model(text, count=np.int64(4), going=np.asarray(True), **weights(b=(5,)))
    spec = hardware("ort_cpu")
    assert LOOP in ops(cleaned(proto, {"x": rows(4, 5)}, body_forms(spec, Bodies.AUTO)))
    assert LOOP not in ops(cleaned(proto, {"x": rows(4, 5)}, body_forms(spec, Bodies.INLINE)))


def test_a_node_whose_name_begins_like_that_of_an_if_is_no_branch() -> None:
    proto = branches()
    next(node for node in proto.graph.node if node.op_type == IF).name = "/model"
    proto.graph.node.append(onnx.helper.make_node("NonZero", ["z"], ["places"], name="/model/places"))
    proto.graph.output.append(onnx.helper.make_tensor_value_info("places", onnx.TensorProto.INT64, [4, None]))
    assert IF not in ops(cleaned(proto, {"x": images()[:4]}))


def test_branches_are_written_out_together_and_one_that_must_stay_holds_back_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = [f"if{n}" for n in range(6)]
    lines, flow = [], "x"
    for n, name in enumerate(names):
        body = "q = ReduceMean <axes = [1]> (t)" if n == 3 else "q = Tanh (t)"  # other shapes: this If stays
        lines.append(
            f"[{name}] y{n} = If (flag) <then_branch = a{n} () => (p) {{ p = MatMul ({flow}, w{n}) }}, "
            f"else_branch = b{n} () => (q) {{ t = MatMul ({flow}, w{n}) {body} }}>"
        )
        flow = f"y{n}"
    text = f"""<ir_version: 8, opset_import: ["" : 17]>
net (float[N, 4] x) => (float[N, c] {flow}) {{
    mean = ReduceMean <keepdims = 0> (x)
    flag = Greater (mean, zero)
    {" ".join(lines)}
}}"""
    proto = model(text, zero=np.float32(0), **weights(**{f"w{n}": (4, 4) for n in range(6)}))
    copies = []
    right = control_flow.copied
    monkeypatch.setattr(control_flow, "copied", lambda *given: copies.append(1) or right(*given))
    graph = cleaned(proto, {"x": rows(4, 4)})
    assert [node.op for node in graph.nodes].count(IF) == 1 and len(copies) <= 4
    x = np.abs(rows(3, 4, seed=2))
    np.testing.assert_allclose(Session(graph.model).run({"x": x})[flow], run(proto, x)[flow], atol=5e-6)
