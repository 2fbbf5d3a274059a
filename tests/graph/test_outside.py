"""Models whose weights stay in their files: the same nets, numbers and integer models as with the weights in memory."""

from __future__ import annotations

import errno
import gc
import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

from quantpipe.artifacts import Origin
from quantpipe.errors import ModelError, StorageError
from quantpipe.graph import external_weights as outside
from quantpipe.graph import store
from quantpipe.graph.execute import Kernels, Session
from quantpipe.graph.external_weights import (
    file_array,
    is_mapped,
    is_outside,
    model_size,
    place_of,
    turned,
    without_large_weights,
)
from quantpipe.graph.io import SMALL, model_bytes
from quantpipe.graph.normalize import expose
from quantpipe.graph.store import data_files, is_model_current, write_model
from quantpipe.graph.view import Graph
from quantpipe.intake.read_model import read_model
from quantpipe.plan import Planner
from quantpipe.recover import LayerOptions
from quantpipe.recover import recover as walk
from quantpipe.recover.reconstruct.layerwise import Effort
from quantpipe.simulate.simulator import Simulator, bind
from quantpipe.types import QuantPlan
from tests.graph.outside_nets import conv_net, dense_net, read, saved
from tests.ops.line import Line, Net, line, normal_samples

NETS = {"dense": dense_net, "conv": conv_net}
ORIGIN = Origin("realize", {"strategy": "a"})


@pytest.fixture(scope="module", params=list(NETS))
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Graph, Graph]:
    """One file, read with its weights in memory and left outside."""
    path = saved(NETS[request.param](), tmp_path_factory.mktemp(request.param))
    return read(path, 1024), read(path, 0)


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> tuple[Graph, Graph]:
    path = saved(dense_net(), tmp_path_factory.mktemp("net"))
    return read(path, 1024), read(path, 0)


def numbers(plan: QuantPlan) -> dict[str, Any]:
    """Every array of a plan by name."""
    found: dict[str, Any] = {f"weight {t}": w.values for t, w in plan.weights.items()}
    found |= {f"scale {t}": w.scale for t, w in plan.weights.items()}
    found |= {f"quantizer {t}": (q.scale, q.zero_point, q.qmin, q.qmax) for t, q in plan.quantizers.items()}
    for name, kernel in plan.kernels.items():
        found |= {f"{name}.{key}": getattr(kernel, key, None) for key in ("bias", "bound", "acc_scale")}
    return found


def run_file(path: Path, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    """onnxruntime alone, as a user would."""
    return list(ort.InferenceSession(str(path), providers=["CPUExecutionProvider"]).run(None, feeds))


# --- reading --------------------------------------------------------------------------------------------------------


def test_the_same_graph_is_read(pair: tuple[Graph, Graph]) -> None:
    inside, out = pair
    assert not is_outside(inside.model) and is_outside(out.model)
    assert [(n.name, n.op, n.inputs, n.outputs) for n in out.nodes] == [
        (n.name, n.op, n.inputs, n.outputs) for n in inside.nodes
    ]
    assert out.model_hash == inside.model_hash and dict(out.shapes) == dict(inside.shapes)
    assert dict(out.dtypes) == dict(inside.dtypes)
    assert not inside.notes
    (note,) = out.notes
    assert "stay in their files" in note and "model.resident_mb" in note
    for name in inside.constant_names():
        np.testing.assert_allclose(out.constant(name), inside.constant(name), rtol=2e-6, atol=1e-6)


def test_large_weights_stay_outside_and_small_ones_do_not(pair: tuple[Graph, Graph]) -> None:
    _, out = pair
    sizes = {n: out.constant_tensor(n).nbytes for n in out.constant_names()}
    outside = {n for n in sizes if place_of(out.constant_tensor(n))}
    assert outside == {n for n, size in sizes.items() if size > SMALL} and 0 < len(outside) < len(sizes)


def test_statistics_are_those_of_the_model_in_memory(pair: tuple[Graph, Graph]) -> None:
    inside, out = (line(g).table._stats for g in pair)
    assert inside.keys() == out.keys()
    for name, stats in inside.items():
        for key in ("count", "minimum", "maximum", "mean", "variance"):
            assert getattr(out[name], key) == pytest.approx(getattr(stats, key), rel=1e-4, abs=1e-5), (name, key)


def test_the_models_size_counts_weights_without_serializing_them(pair: tuple[Graph, Graph]) -> None:
    inside, out = (model_size(g.model) for g in pair)
    assert inside == len(model_bytes(pair[0].model))
    assert out == pytest.approx(inside, rel=0.01)


# --- the whole line -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec,backend", [("ort_cpu", "qdq"), ("ort_cpu", "qoperator"), ("ort_cpu", "integer"),
                                          ("vta", "integer"), ("int4_weights", "qdq")])  # fmt: skip
def test_the_integer_model_is_the_same_bit_by_bit(
    dense: tuple[Graph, Graph], spec: str, backend: str, tmp_path: Path
) -> None:
    """One strategy, planned and realized from memory and from files: equal numbers, equal models, equal results."""
    inside, out = (line(g, spec) for g in dense)
    bits = 4 if spec == "int4_weights" else (4, 8)
    strategy = inside.strategy(bits)
    plans = inside.planner.plan(strategy), out.planner.plan(strategy)
    a, b = map(numbers, plans)
    assert a.keys() == b.keys()
    for key, value in a.items():
        np.testing.assert_array_equal(b[key], value, err_msg=key)
    large = [w.tensor for w in plans[1].weights.values() if w.values.nbytes > SMALL]
    assert large and all(is_mapped(plans[1].weights[t].values) for t in large)
    models = [made.realize(plan, backend).model for made, plan in zip((inside, out), plans, strict=True)]
    for name, model in zip(("inside", "out"), models, strict=True):
        write_model(tmp_path / name / "model.onnx", model, ORIGIN)
    assert not data_files(tmp_path / "inside" / "model.onnx")
    assert len(data_files(tmp_path / "out" / "model.onnx")) == 1
    assert (tmp_path / "out" / "model.onnx").stat().st_size < (tmp_path / "inside" / "model.onnx").stat().st_size
    onnx.checker.check_model(str(tmp_path / "out" / "model.onnx"))
    feeds = next(iter(normal_samples(dense[0]).batches(12))).inputs
    found = [run_file(tmp_path / name / "model.onnx", feeds) for name in ("inside", "out")]
    for x, y in zip(*found, strict=True):
        np.testing.assert_array_equal(x, y)
    sessions = [
        s.prepare(p) for s, p in zip((Simulator(m.graph, m.topology) for m in (inside, out)), plans, strict=True)
    ]
    for name, expected in sessions[0][0].run({**feeds, **sessions[0][1]}).items():
        np.testing.assert_allclose(
            sessions[1][0].run({**feeds, **sessions[1][1]})[name], expected, rtol=1e-5, atol=1e-6
        )


def test_simulated_integers_equal_realized_ones(pair: tuple[Graph, Graph]) -> None:
    made = line(pair[1])
    for backend in ("qdq", "integer"):
        agreement = made.agree(made.plan((4, 8)), backend)
        assert agreement.differing == 0 and agreement.elements > 1000


@pytest.mark.parametrize("net", [dense_net, partial(conv_net, norms=False)])
def test_simulated_integers_equal_those_of_the_model_in_memory(net: Callable[[], Net], tmp_path: Path) -> None:
    """Mapped integers are bound as they are and cast in the graph: up to the first float node nothing may differ."""
    path = saved(net(), tmp_path)
    made = [line(read(path, resident)) for resident in (1024, 0)]
    strategy, values = made[0].strategy((4, 8)), []
    feeds = next(iter(normal_samples(made[0].graph).batches(12))).inputs
    for one in made:
        simulation = one.simulate(one.planner.plan(strategy))
        integers = simulation.rendered.integers
        model = expose(bind(simulation.rendered.model, simulation.weights), list(integers.values()))
        found = Session(model, kernels=Kernels.AS_WRITTEN).run({**feeds, **simulation.scalars})
        values.append({tensor: found[name] for tensor, name in integers.items()})
    casts = sum(node.op_type == "Cast" and node.name.endswith(".q") for node in model.graph)
    assert casts >= 1  # sums that float32 holds; the others take the integers as they are
    order = [t for node in made[0].graph.nodes for t in node.outputs]
    first = order.index("erf_out") if "erf_out" in order else len(order)
    exact = [t for t in values[0] if t not in order or order.index(t) < first]
    assert len(exact) >= 4 and values[0].keys() == values[1].keys()
    for tensor in exact:
        np.testing.assert_array_equal(values[1][tensor], values[0][tensor], err_msg=tensor)


def test_recovery_walks_the_same_layers(dense: tuple[Graph, Graph]) -> None:
    layers, strategy = [], line(dense[0]).strategy(4)
    for graph in dense:
        made = line(graph)
        found = walk(made.problem, strategy, made.samples, LayerOptions(), effort=Effort(4096, 64))
        layers.append({str(entry["node"]): float(entry["error_recovered"]) for entry in found.layers})
        inside = replace(found.overrides, weights={t: replace(w, values=np.array(w.values))
                                                   for t, w in found.overrides.weights.items()})  # fmt: skip
        for overrides in (found.overrides, inside):  # as the walk made them, and as they are read from a file
            stored = made.planner.plan(strategy, overrides).weights
            for tensor, weight in found.overrides.weights.items():
                np.testing.assert_array_equal(stored[tensor].values, weight.values)
                assert is_mapped(stored[tensor].values) == (place_of(graph.constant_tensor(tensor)) is not None)
                assert is_mapped(weight.values) == is_mapped(stored[tensor].values)
    assert layers[0].keys() == layers[1].keys() and len(layers[0]) >= 3
    for name, after in layers[0].items():
        assert layers[1][name] == pytest.approx(after, rel=0.2), name  # a tie in one weight moves all that follow


# --- sessions -------------------------------------------------------------------------------------------------------


def test_a_skeleton_holds_no_weights_and_refers_to_the_users_file(dense: tuple[Graph, Graph], tmp_path: Path) -> None:
    data, folder = without_large_weights(dense[1].model, tmp_path)
    assert len(data) < SMALL and not list(tmp_path.iterdir())
    proto = onnx.ModelProto.FromString(data)
    places = [{e.key: e.value for e in t.external_data} for t in proto.graph.initializer if t.external_data]
    assert len(places) == 5 and {(folder / p["location"]).name for p in places} == {"net.data"}


def test_weights_too_many_for_a_protobuf_are_spooled(
    dense: tuple[Graph, Graph], monkeypatch: pytest.MonkeyPatch
) -> None:
    inside = dense[0]
    feeds = next(iter(normal_samples(inside).batches(4))).inputs
    expected = Session(inside.model).run(feeds)
    monkeypatch.setattr(outside, "MOST_INSIDE", 1000)
    sizes: list[int] = []
    monkeypatch.setattr(outside, "relocated", lambda *a: sizes.append(len(real := _relocated(*a))) or real)
    session = Session(inside.model)
    assert sizes and max(sizes) < SMALL
    for name, value in session.run(feeds).items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-4, atol=1e-4)


_relocated = outside.relocated


def test_copies_share_their_weights(dense: tuple[Graph, Graph]) -> None:
    for graph in dense:
        copy = expose(graph.model, ["gemm_out"])
        for name, value in copy.graph.initializers.items():
            tensor = graph.constant_tensor(name)
            assert tensor.nbytes <= SMALL or value.const_value is tensor


# --- arrays in files ------------------------------------------------------------------------------------------------


@pytest.mark.program
def test_arrays_in_files_know_their_place_and_vanish(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    array = file_array((6, 5), np.int16)
    array[:] = np.arange(30).reshape(6, 5)
    part = np.asarray(array)[2:4]
    place = place_of(ir.tensor(part, name="part"))
    assert place is not None and place.path.parent == tmp_path.resolve() and (place.offset, place.length) == (20, 20)
    array.flush()  # type: ignore[attr-defined]
    stored = np.frombuffer(place.path.read_bytes()[place.offset : place.offset + place.length], "<i2")
    np.testing.assert_array_equal(stored, np.arange(10, 20))
    assert not is_mapped(array.T) and not is_mapped(array[:, 1:]) and not is_mapped(part.copy())
    assert is_mapped(turned(array)) and not is_mapped(turned(part.copy()))
    np.testing.assert_array_equal(turned(array), np.asarray(array).T)
    del array
    gc.collect()
    assert place.path.is_file() and part[0, 0] == 10  # a view keeps it
    del part
    gc.collect()
    assert not list(tmp_path.iterdir())


def test_a_full_disk_is_an_error_and_not_a_crash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(StorageError, match=r"no room for 4000 bytes of integer weights \(No space left.*TMPDIR"):
        file_array((1000,), np.float32)
    assert not list(tmp_path.iterdir())


# --- writing --------------------------------------------------------------------------------------------------------


def realized(made: Line, planner: Planner, bits: int) -> ir.Model:
    return made.realize(planner.plan(made.strategy(bits)), "qdq").model


def test_a_model_and_its_data_are_replaced_together(
    dense: tuple[Graph, Graph], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = line(dense[1])
    path, feeds = tmp_path / "model.onnx", next(iter(normal_samples(dense[0]).batches(4))).inputs
    write_model(path, realized(made, made.planner, 8), ORIGIN)
    before, (old,) = run_file(path, feeds), data_files(path)
    assert is_model_current(path, ORIGIN)

    def crash(*_: Any) -> None:
        raise StorageError("the disk is full")

    with monkeypatch.context() as patch:  # the data file is written, the model file is not
        patch.setattr(store.ArtifactUnit, "bytes", crash)
        with pytest.raises(StorageError):
            write_model(path, realized(made, made.planner, 4), Origin("realize", {"strategy": "b"}))
    assert data_files(path) == [old] and is_model_current(path, ORIGIN)
    np.testing.assert_array_equal(run_file(path, feeds)[0], before[0])
    write_model(path, realized(made, made.planner, 4), Origin("realize", {"strategy": "b"}))
    (new,) = data_files(path)
    assert new != old and sorted(p.name for p in tmp_path.glob("*.data*")) == [new.name, f"{new.name}.origin.json"]
    assert not np.array_equal(run_file(path, feeds)[0], before[0])
    write_model(path, realized(line(dense[0]), line(dense[0]).planner, 8), ORIGIN)
    assert not data_files(path) and not list(tmp_path.glob("*.data*"))


def test_a_damaged_or_missing_data_file_is_noticed(dense: tuple[Graph, Graph], tmp_path: Path) -> None:
    made, path = line(dense[1]), tmp_path / "model.onnx"
    write_model(path, realized(made, made.planner, 8), ORIGIN)
    (data,) = data_files(path)
    assert is_model_current(path, ORIGIN) and not is_model_current(path, Origin("realize", {"strategy": "b"}))
    whole = data.read_bytes()
    data.write_bytes(whole[:100] + bytes([whole[100] ^ 1]) + whole[101:])
    assert not is_model_current(path, ORIGIN)
    data.unlink()
    assert not is_model_current(path, ORIGIN)


# --- bad data files -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("resident_mb", [0, 1024])
@pytest.mark.parametrize("fault", ["missing", "cut", "length", "link"])
def test_bad_data_files_are_refused_by_name(tmp_path: Path, fault: str, resident_mb: int) -> None:
    path = saved(dense_net(), tmp_path / "model")
    data, size = path.with_name("net.data"), path.with_name("net.data").stat().st_size
    first = next(t.name for t in onnx.load(path, load_external_data=False).graph.initializer)
    if fault == "missing":
        data.unlink()
        wanted = f"the data of its tensor {first!r} cannot be read from {data}: there is no such file"
    elif fault == "cut":
        os.truncate(data, size - 1)
        wanted = f"cannot be read from {data}: it ends at byte {size - 1}, the tensor needs bytes"
    elif fault == "length":
        proto = onnx.load(path, load_external_data=False)
        next(e for e in proto.graph.initializer[0].external_data if e.key == "length").value = "12"
        path.write_bytes(proto.SerializeToString())
        held = "the model declares 12 bytes, FLOAT of shape [400, 64] takes"
        wanted = f"tensor {first!r} cannot be read from {data}: {held}"
    else:
        data.rename(tmp_path / "elsewhere.data")
        data.symlink_to(tmp_path / "elsewhere.data")
        wanted = f"tensor {first!r} cannot be read from {data}: ValueError"
    with pytest.raises(ModelError) as caught:
        read(path, resident_mb)
    text = str(caught.value)
    assert wanted in text and str(path) in text and "\n" not in text and caught.value.exit_code == 2
    assert "legal is a data file in the model's own folder" in text


def test_reading_alone_touches_no_data(tmp_path: Path) -> None:
    path = saved(dense_net(), tmp_path)
    path.with_name("net.data").unlink()
    assert len(read_model(path).graph.initializers) > 5
