"""Model files that say what is not so: each is refused by name, in seconds, and takes nothing with it."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from quantpipe.check.sample import made_up
from quantpipe.errors import ConfigError, ModelError
from quantpipe.intake import isolated_process as apart_module
from quantpipe.intake import load
from quantpipe.intake.isolated_process import Limits, apart
from quantpipe.intake.load import load_graph
from tests.e2e.models import DIGITS

LIMITS = Limits(seconds=1.0, bytes=1 << 30)


def digits() -> onnx.ModelProto:
    return onnx.load(DIGITS)


def refusal(model: onnx.ModelProto, path: Path, **options: Any) -> str:
    path.write_bytes(model.SerializeToString())
    begin = time.monotonic()
    with pytest.raises((ModelError, ConfigError)) as error:
        load_graph(path, lambda raw: made_up(raw.inputs, {}), **options)
    assert time.monotonic() - begin < 20
    text = str(error.value)
    assert "\n" not in text
    assert str(path) in text or "model.fixed" in text
    return text


def ending_in(node: onnx.NodeProto, *initializers: onnx.TensorProto) -> onnx.ModelProto:
    """The digits model with one more node behind its logits."""
    model = digits()
    model.graph.node.append(node)
    model.graph.initializer.extend(initializers)
    del model.graph.output[:]
    model.graph.output.append(helper.make_tensor_value_info("odd", TensorProto.FLOAT, ["N", 10]))
    return model


def constant(value: Any, name: str) -> onnx.TensorProto:
    return numpy_helper.from_array(np.asarray(value), name)


def first_weight(change: Callable[[onnx.TensorProto], None]) -> onnx.ModelProto:
    model = digits()
    change(model.graph.initializer[0])
    return model


def set_dims(*dims: int) -> Callable[[onnx.TensorProto], None]:
    def change(tensor: onnx.TensorProto) -> None:
        tensor.dims[:] = dims

    return change


def set_type(kind: int) -> Callable[[onnx.TensorProto], None]:
    def change(tensor: onnx.TensorProto) -> None:
        tensor.data_type = kind

    return change


def outside(kind: int, dims: int, **entries: str) -> Callable[[onnx.TensorProto], None]:
    def change(tensor: onnx.TensorProto) -> None:
        tensor.Clear()
        tensor.name, tensor.data_type, tensor.data_location = "s", kind, TensorProto.EXTERNAL
        tensor.dims.append(dims)
        for key, value in entries.items():
            tensor.external_data.add(key=key, value=value)

    return change


def test_tensors_that_cannot_be_what_they_say(tmp_path: Path) -> None:
    (tmp_path / "x.bin").write_bytes(bytes(64))
    text, real = TensorProto.STRING, TensorProto.FLOAT
    for change, said in (
        (set_dims(2**40, 2**20), "which takes 4611686018427387904 bytes, and holds 4"),
        (set_dims(-1), "has the shape [-1]"),
        (set_type(TensorProto.UNDEFINED), "has the type 0"),
        (set_type(99), "has the type 99"),
        (outside(text, 3, location="x.bin"), "holds text in a file next to the model"),
        (outside(real, 2**50, location="x.bin"), "it ends at byte 64"),
        (outside(real, 2, location="x.bin", offset="-5"), "has the offset '-5'"),
        (outside(real, 2), "refers to no file"),
    ):
        assert said in refusal(first_weight(change), tmp_path / "m.onnx")


def test_ports_that_have_no_type(tmp_path: Path) -> None:
    for port in ("input", "output"):
        model = digits()
        getattr(model.graph, port)[0].type.tensor_type.elem_type = TensorProto.UNDEFINED
        assert "has the type 0" in refusal(model, tmp_path / "m.onnx")


def test_the_version_of_the_ops_must_be_there(tmp_path: Path) -> None:
    """By either name of their domain."""
    model = digits()
    model.opset_import[0].domain = "ai.onnx"
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    assert load_graph(tmp_path / "m.onnx", lambda raw: made_up(raw.inputs, {})).opset == 17
    model.opset_import[0].domain = "own"
    assert "opset_import holds 'own' " in refusal(model, tmp_path / "m.onnx")


def test_an_input_that_no_sample_is_made_up_for(tmp_path: Path) -> None:
    model = digits()
    model.graph.input[0].type.tensor_type.shape.dim[2].dim_value = 2**40
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(ConfigError, match="which no sample is made up of"):
        load_graph(tmp_path / "m.onnx", lambda raw: made_up(raw.inputs, {}))


def test_functions_without_end(tmp_path: Path) -> None:
    sets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]

    def calling(name: str, *inner: str) -> onnx.FunctionProto:
        names = ["x", *(f"h{i}" for i in range(len(inner) - 1)), "y"]
        nodes = [
            helper.make_node(op, [names[i]], [names[i + 1]], domain="" if op == "Relu" else "own")
            for i, op in enumerate(inner)
        ]
        return helper.make_function("own", name, ["x"], ["y"], nodes, sets)

    doubling = [calling(f"F{i}", f"F{i + 1}", f"F{i + 1}") for i in range(40)] + [calling("F40", "Relu")]
    for functions, said in (
        ([calling("F0", "F0")], "the function 'F0' holds itself"),
        ([calling("F0", "F1"), calling("F1", "F0")], "holds itself"),
        (doubling, "nodes with its functions written out"),
    ):
        model = ending_in(helper.make_node("F0", ["logits"], ["odd"], domain="own"))
        model.opset_import.append(helper.make_opsetid("own", 1))
        model.functions.extend(functions)
        assert said in refusal(model, tmp_path / "m.onnx")


@pytest.mark.grid
def test_nodes_that_give_other_numbers_each_time(tmp_path: Path) -> None:
    """Named; what is in training mode in name only is taken."""
    path = tmp_path / "m.onnx"
    ones, half = np.ones(10, np.float32), np.float32(0.5)
    norm = ["logits", "scale", "shift", "mean", "variance"]
    numbers = [constant(ones, name) for name in norm[1:]]
    random = [helper.make_node(op, ["logits"], ["odd"], name="odd") for op in ("Bernoulli", "RandomNormalLike")]
    dropout = helper.make_node("Dropout", ["logits", "ratio", "mode"], ["odd"], name="odd")
    for model in (
        *(ending_in(node) for node in random),
        ending_in(dropout, constant(half, "ratio"), constant(True, "mode")),
        ending_in(
            helper.make_node("BatchNormalization", norm, ["odd", "a", "b"], name="odd", training_mode=1), *numbers
        ),
    ):
        assert "node 'odd'" in refusal(model, path)
    for mode, ratio in ((False, half), (True, np.float32(0))):
        path.write_bytes(ending_in(dropout, constant(ratio, "ratio"), constant(mode, "mode")).SerializeToString())
        load_graph(path, lambda raw: made_up(raw.inputs, {}))


def test_every_input_fixed(tmp_path: Path) -> None:
    assert "fixes every input" in refusal(digits(), tmp_path / "m.onnx", fixed={"image": 0})
    model = digits()
    model.graph.initializer.append(constant(np.zeros((1, 1, 8, 8), np.float32), "image"))
    assert "has no input" in refusal(model, tmp_path / "m.onnx")


def test_a_loop_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "STEP_SECONDS", 1.0)
    scalar = [helper.make_tensor_value_info(n, k, []) for n, k in (("i", TensorProto.INT64), ("c", TensorProto.BOOL))]
    value = helper.make_tensor_value_info("v", TensorProto.FLOAT, ["N", 10])
    results = [
        helper.make_tensor_value_info("again", TensorProto.BOOL, []),
        helper.make_tensor_value_info("next", TensorProto.FLOAT, ["N", 10]),
    ]
    nodes = [helper.make_node("Identity", ["c"], ["again"]), helper.make_node("Relu", ["v"], ["next"])]
    body = helper.make_graph(nodes, "body", [*scalar, value], results)
    loop = helper.make_node("Loop", ["rounds", "go", "logits"], ["odd"], name="odd", body=body)
    model = ending_in(loop, constant(2**62, "rounds"), constant(True, "go"))
    assert "running it on a few samples is not done after 1 s" in refusal(model, tmp_path / "m.onnx")


def test_more_memory_than_a_model_can_need(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "LEAST_BYTES", 1 << 30)
    model = ending_in(helper.make_node("Add", ["logits", "most"], ["odd"]), constant(np.array([2**31]), "size"))
    model.graph.node.insert(0, helper.make_node("ReduceMax", ["big"], ["most"], keepdims=0))
    model.graph.node.insert(0, helper.make_node("ConstantOfShape", ["size"], ["big"]))
    assert "onnxruntime cannot run it" in refusal(model, tmp_path / "m.onnx")


def children() -> set[str]:
    """Processes below this one, ended ones that nobody has waited for included."""
    return {pid for task in Path("/proc/self/task").glob("*/children") for pid in task.read_text().split()}


def test_what_ends_the_process_is_an_error_of_the_model() -> None:
    def step(tell: Callable[[str], None], end: Callable[[], object]) -> None:
        tell("the step")
        end()

    ends: dict[str, Callable[[], object]] = {
        "the step ended the process it ran in (SIGSEGV)": lambda: os.kill(os.getpid(), signal.SIGSEGV),
        "the step ended the process it ran in (SIGABRT)": os.abort,
        "the step ended the process it ran in (exit 7)": lambda: os._exit(7),
        "the step was killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
        "the step is not done after 1 s": lambda: time.sleep(60),
        "the step needs more memory": lambda: np.ones(1 << 28),
        "the step fails (ValueError: no, at quantpipe/": lambda: (_ for _ in ()).throw(ValueError("no")),
    }
    before = children()
    for said, end in ends.items():
        with pytest.raises(ModelError) as error:
            apart(lambda tell, end=end: step(tell, end), lambda: None, LIMITS, "m.onnx")  # type: ignore[misc]
        assert said in str(error.value)
        assert children() == before, "nothing is left of the process that ended"


def test_where_forking_does_not_work_the_work_is_done_here() -> None:
    assert apart(lambda tell: os.getpid(), lambda: os._exit(1), LIMITS, "m.onnx") == os.getpid()
    assert apart(lambda tell: os.getpid(), lambda: None, LIMITS, "m.onnx") != os.getpid()


def test_work_that_waits_for_a_lock_that_nobody_holds_there_is_done_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a lock of native code that another thread of this process held when it forked."""
    monkeypatch.setattr(apart_module, "IDLE_SECONDS", 0.5)
    monkeypatch.setattr(apart_module, "POLL_SECONDS", 0.1)
    parent = os.getpid()

    def work(tell: Callable[[str], None]) -> int:
        tell("the step")
        if os.getpid() != parent:
            threading.Event().wait()
        return os.getpid()

    before = children()
    assert apart(work, lambda: None, Limits(30.0, 1 << 28), "m.onnx") == parent
    assert children() == before


def test_a_model_is_the_same_wherever_it_was_loaded() -> None:
    graphs = [load_graph(DIGITS, lambda raw: made_up(raw.inputs, {}), isolate=isolate) for isolate in (True, False)]
    first, second = ([(n.name, n.op, n.inputs, n.outputs) for n in graph.nodes] for graph in graphs)
    assert first == second
    assert graphs[0].shapes == graphs[1].shapes
    assert graphs[0].dtypes == graphs[1].dtypes
    assert set(graphs[0].constant_names()) == set(graphs[1].constant_names())
    for name in graphs[0].constant_names():
        assert np.array_equal(graphs[0].constant(name), graphs[1].constant(name))


def test_an_error_of_ours_says_where_it_came_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The user cannot know whose fault it is, and we cannot without the place."""

    def broken(*_: Any, **__: Any) -> Any:
        return {}["absent"]

    monkeypatch.setattr(load, "measure", broken)
    with pytest.raises(ModelError, match=r"KeyError: 'absent', at quantpipe/\S+\.py:\d+\).*please report it"):
        load_graph(DIGITS, lambda raw: made_up(raw.inputs, {}))
