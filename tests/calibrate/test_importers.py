"""Profiles of other tools, from files as those tools write them, on the digits model and on a chain made here."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper, save_model

from quantpipe.calibrate import profile_yaml
from quantpipe.calibrate.collector import StatsCollector
from quantpipe.calibrate.estimators import KL, MSE, Estimator, MaxRange, MeanRange, MovingAverage, Percentile, Searched
from quantpipe.calibrate.histogram import borders
from quantpipe.calibrate.importers import load_profile
from quantpipe.calibrate.needs import require
from quantpipe.errors import ArtifactError, ConfigError
from quantpipe.graph.execute import Session
from quantpipe.graph.normalize import expose
from quantpipe.graph.view import Graph
from quantpipe.intake.load import load_graph
from quantpipe.intmath import scale_zero_point
from quantpipe.types import DType, PowerOfTwo, Profile, Symmetry, TensorSchema

ASYMMETRIC = TensorSchema(symmetry=Symmetry.ASYMMETRIC)


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Graph:
    """x -> Conv 1x1 -> a -> Relu -> b -> Clip [0, 1] -> c -> Reshape -> d; a and b joined to e -> AveragePool -> f."""
    rng = np.random.default_rng(0)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], "conv/1"),
        helper.make_node("Relu", ["a"], ["b"], "relu"),
        helper.make_node("Clip", ["b", "zero", "one"], ["c"], "clip"),
        helper.make_node("Reshape", ["c", "shape"], ["d"], "reshape"),
        helper.make_node("Concat", ["a", "b"], ["e"], "join", axis=1),
        helper.make_node("AveragePool", ["b"], ["f"], "average", kernel_shape=[2, 2]),
    ]
    constants = {
        "w": rng.standard_normal((3, 2, 1, 1)).astype(np.float32),
        "zero": np.float32(0),
        "one": np.float32(1),
        "shape": np.asarray([-1, 3 * 16], np.int64),
    }
    model = helper.make_model(
        helper.make_graph(
            nodes,
            "chain",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 2, 4, 4])],
            [helper.make_tensor_value_info(o, TensorProto.FLOAT, None) for o in ("d", "e", "f")],
            [numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items()],
        ),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=9,
    )
    path = tmp_path_factory.mktemp("model") / "chain.onnx"
    save_model(model, path)
    return load_graph(path, lambda raw: {"x": rng.standard_normal((2, 2, 4, 4)).astype(np.float32)})


@pytest.fixture(scope="module")
def measured(graph: Graph) -> Profile:
    """What a calibration of every tensor finds."""
    names = ["a", "b", "c", "d", "e", "f"]
    session = Session(expose(graph.model, names[:3]), where="chain")
    data = np.random.default_rng(1).standard_normal((64, 2, 4, 4)).astype(np.float32) * 2
    collectors = {t: StatsCollector(t) for t in ("x", *names)}
    for batch in np.split(data, 4):
        found = {"x": batch, **session.run({"x": batch}, names)}
        for name, collector in collectors.items():
            collector.update(found[name], 0)
    return Profile(graph.model_hash, 64, {t: c.finish() for t, c in collectors.items()}, 1.5, 0.5, 99.0)


def write(folder: Path, content: str | bytes, name: str = "profile") -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


# --- our own --------------------------------------------------------------------------------------------------------


def test_our_own_file_gives_the_same_thresholds(graph: Graph, measured: Profile, tmp_path: Path) -> None:
    loaded = load_profile(write(tmp_path, profile_yaml(measured)), graph, list(measured.tensors))
    assert loaded.loaded["format"] == "quantpipe" and loaded.loaded["warnings"] == []
    assert (loaded.samples, loaded.seconds) == (64, 1.5)
    for estimator in (MaxRange(), MeanRange(), MovingAverage(), Percentile(), MSE(), KL()):
        require(estimator, loaded)
        for name, stats in measured.tensors.items():
            assert estimator(loaded.tensors[name], 6, ASYMMETRIC) == estimator(stats, 6, ASYMMETRIC)


def test_another_models_file_is_refused(graph: Graph, measured: Profile, tmp_path: Path) -> None:
    text = profile_yaml(measured).replace(graph.model_hash, "sha256:" + 64 * "0")
    with pytest.raises(ArtifactError, match=r"measured on the model sha256:0000.*this one is"):
        load_profile(write(tmp_path, text), graph, ["a"])


# --- Glow -----------------------------------------------------------------------------------------------------------


def glow(stats: Profile, names: dict[str, str], bins: int) -> str:
    """As Glow's serializer writes it: counts over [Min, Max], full decimals."""
    lines = ["---", "GlowToolsVersion: '2020-11-16'", "...", "---", "GraphPreLowerHash: 0x6F2A", "...", "---"]
    for tensor, name in names.items():
        s = stats.tensors[tensor]
        cumulative = np.concatenate([[0], np.cumsum(s.histogram)])
        edges = np.linspace(s.minimum, s.maximum, bins + 1)
        at = np.interp(edges, borders(s.limit, len(s.histogram)), cumulative)
        counts = ", ".join(f"{c:.6f}" for c in np.diff(at))
        lines += [
            f"- NodeOutputName: '{name}'",
            f"  Min: {np.format_float_positional(s.minimum)}",
            f"  Max: {np.format_float_positional(s.maximum)}",
            f"  Histogram: [ {counts} ]",
        ]
    return "\n".join([*lines, "..."]) + "\n"


NAMES = {"x": "x:0", "a": "conv_1:0", "b": "relu:0", "c": "clip:0", "e": "join:0", "f": "average:0"}


def test_glows_file_by_node_names(graph: Graph, measured: Profile, tmp_path: Path) -> None:
    path = write(tmp_path, glow(measured, NAMES | {"d": "gone_12:0"}, 600))
    loaded = load_profile(path, graph, list(NAMES))
    assert loaded.loaded["unknown"] == ["gone_12:0"]
    assert "no hash of this model" in loaded.loaded["warnings"][0]
    for name in NAMES:
        ours, theirs = measured.tensors[name], loaded.tensors[name]
        assert (theirs.minimum, theirs.maximum) == (ours.minimum, ours.maximum)
        assert MaxRange()(theirs, 8, ASYMMETRIC) == MaxRange()(ours, 8, ASYMMETRIC)
        bin_ = (ours.maximum - ours.minimum) / 600 + ours.limit / 2048
        a, b = (Percentile(95.0)(s, 8, ASYMMETRIC) for s in (ours, theirs))
        assert abs(a.low - b.low) <= 2 * bin_ and abs(a.high - b.high) <= 2 * bin_
        assert theirs.mean == pytest.approx(ours.mean, abs=bin_)
        assert MSE()(theirs, 4, ASYMMETRIC).threshold == pytest.approx(MSE()(ours, 4, ASYMMETRIC).threshold, rel=0.1)


def test_a_coarse_glow_file_says_so(graph: Graph, measured: Profile, tmp_path: Path) -> None:
    loaded = load_profile(write(tmp_path, glow(measured, NAMES, 10)), graph, list(NAMES))
    assert "histograms have 10 bins" in loaded.loaded["warnings"][1]


@pytest.mark.parametrize("value", [0.0, 1.5, -1.5])
def test_a_constant_tensor_of_glow(graph: Graph, value: float, tmp_path: Path) -> None:
    entry = f"- NodeOutputName: x\n  Min: {value}\n  Max: {value}\n  Histogram: [ 5, 7 ]\n"
    text = f"---\nGlowToolsVersion: ''\n---\nGraphPreLowerHash: 0x1\n---\n{entry}"
    stats = load_profile(write(tmp_path, text), graph, ["x"]).tensors["x"]
    assert stats.histogram.sum() == stats.count == 12 and np.count_nonzero(stats.histogram) == 1
    assert MSE()(stats, 8, ASYMMETRIC).threshold == abs(value)


# --- TensorRT -------------------------------------------------------------------------------------------------------


def tensorrt(scales: dict[str, float]) -> str:
    lines = [f"{name}: {struct.pack('>f', scale).hex()}" for name, scale in scales.items()]
    return "\n".join(["TRT-8601-EntropyCalibration2", *lines]) + "\n"


def test_tensorrts_cache_keeps_the_scales(graph: Graph, tmp_path: Path) -> None:
    scales = {name: float(np.float32(0.01234 * (i + 1))) for i, name in enumerate("xabef")}
    scales["(Unnamed Layer* 7) [Shuffle]: 1"] = 1.0
    loaded = load_profile(write(tmp_path, tensorrt(scales)), graph, list("xabcef"))
    for name in "xae":
        assert loaded.tensors[name].minimum == -loaded.tensors[name].maximum
        range_ = MaxRange()(loaded.tensors[name], 8, TensorSchema())
        assert scale_zero_point(range_, 8, DType.INT8, TensorSchema())[0] == np.float32(scales[name])
    for name in "bf":
        assert (loaded.tensors[name].minimum, loaded.tensors[name].maximum) == (0.0, 127 * scales[name])
    assert loaded.loaded["derived"] == {"c": "b"}
    assert loaded.tensors["c"].maximum == min(1.0, 127 * scales["b"])
    assert loaded.loaded["unknown"] == ["(Unnamed Layer* 7) [Shuffle]: 1"]
    signless = loaded.loaded["warnings"][1]
    assert "x, a, e;" in signless and "without a sign" in signless


def test_power_of_two_scales_survive(graph: Graph, tmp_path: Path) -> None:
    schema = TensorSchema(power_of_two=PowerOfTwo.UP)
    for exponent in (-20, -3, 0, 5):
        stats = load_profile(write(tmp_path, tensorrt({"x": 2.0**exponent})), graph, ["x"]).tensors["x"]
        assert scale_zero_point(MaxRange()(stats, 8, schema), 8, DType.INT8, schema)[0] == 2.0**exponent


@pytest.mark.parametrize("line", ["x 3c010a14", "x: 3c010a1", "x: 7f800000", "x: bc010a14", "x: zzzzzzzz"])
def test_a_damaged_cache_is_refused_by_line(graph: Graph, line: str, tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="line 3 of this TensorRT cache"):
        load_profile(write(tmp_path, tensorrt({"a": 1.0}) + line + "\n"), graph, ["x"])


# --- onnxruntime ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ort_tables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Every kind of file that the installed onnxruntime writes, for values of its own types."""
    from onnxruntime.quantization.calibrate import CalibrationMethod, TensorData, TensorsData, save_tensors_data
    from onnxruntime.quantization.quant_utils import write_calibration_table

    folder = tmp_path_factory.mktemp("ort")
    pairs = {"x": (-3.0, 2.5), "a": (-1.25, 4.5), "b": (0.0, 4.5), "e": (-1.25, 4.5), "f": (0.0, 3.0)}
    f = np.float32
    table = {n: TensorData(lowest=f(low), highest=np.asarray([high], f)) for n, (low, high) in pairs.items()}
    histogram: dict[str, Any] = {"hist": np.asarray([1, 2, 3]), "bins": np.asarray([-9, -3, 3, 9], f)}
    table["gone"] = TensorData(lowest=f(-1), highest=np.asarray(f(1)), **histogram)
    write_calibration_table(table, str(folder))
    save_tensors_data(TensorsData(CalibrationMethod.MinMax, table), folder / "saved.json")
    return {p.name: p for p in folder.iterdir()}


@pytest.mark.parametrize("name", ["calibration.json", "saved.json"])
def test_onnxruntimes_json_tables(graph: Graph, ort_tables: dict[str, Path], name: str) -> None:
    loaded = load_profile(ort_tables[name], graph, list("xabcef"))
    found = {n: (s.minimum, s.maximum) for n, s in loaded.tensors.items()}
    assert found == {
        "x": (-3.0, 2.5), "a": (-1.25, 4.5), "b": (0.0, 4.5), "c": (0.0, 1.0), "e": (-1.25, 4.5), "f": (0.0, 3.0)
    }  # fmt: skip
    assert loaded.loaded["unknown"] == ["gone"] and loaded.loaded["derived"] == {"c": "b"}
    assert any("no hash" in w for w in loaded.loaded["warnings"])


@pytest.mark.parametrize("name", ["calibration.cache", "calibration.flatbuffers"])
def test_onnxruntimes_tables_of_one_value(graph: Graph, ort_tables: dict[str, Path], name: str) -> None:
    loaded = load_profile(ort_tables[name], graph, list("xabcef"))
    found = {n: (s.minimum, s.maximum) for n, s in loaded.tensors.items()}
    assert found == {
        "x": (-2.5, 2.5), "a": (-4.5, 4.5), "b": (0.0, 4.5), "c": (0.0, 1.0), "e": (-4.5, 4.5), "f": (0.0, 3.0)
    }  # fmt: skip
    assert any("max(lowest, highest)" in w for w in loaded.loaded["warnings"])


def test_damaged_tables_are_refused(graph: Graph, ort_tables: dict[str, Path], tmp_path: Path) -> None:
    binary = ort_tables["calibration.flatbuffers"].read_bytes()
    for cut in (6, 20, len(binary) // 2, len(binary) - 9):
        with pytest.raises(ArtifactError):
            load_profile(write(tmp_path, binary[:cut]), graph, ["x"])
    for text in ('{"x": {"lowest": 1}}', '{"x": 3}', '{"x": ', '{"x": {"lowest": 2, "highest": 1}}'):
        with pytest.raises(ArtifactError, match=r"calibration table|range"):
            load_profile(write(tmp_path, text), graph, ["x"])


# --- fitting --------------------------------------------------------------------------------------------------------


def test_what_the_file_lacks_is_named(graph: Graph, tmp_path: Path) -> None:
    path = write(tmp_path, json.dumps({"a": {"lowest": -1, "highest": 2}}))
    assert load_profile(path, graph, ["a", "b", "c", "d", "e"]).loaded["derived"].keys() == {"b", "c", "d", "e"}
    with pytest.raises(ArtifactError, match="lacks statistics of 2 of the 3 tensors that are needed: x, f"):
        load_profile(path, graph, ["a", "x", "f"])


def test_derived_statistics_are_those_that_a_run_would_find(graph: Graph, measured: Profile, tmp_path: Path) -> None:
    path = write(tmp_path, profile_yaml(Profile(graph.model_hash, 64, {"a": measured.tensors["a"]})))
    loaded = load_profile(path, graph, list("abcde"))
    for name in "bcde":
        ours, derived = measured.tensors[name], loaded.tensors[name]
        assert (derived.minimum, derived.maximum, derived.count) == (ours.minimum, ours.maximum, ours.count)
        width = derived.limit / 2048 + ours.limit / 2048
        assert derived.mean == pytest.approx(ours.mean, abs=width)
        assert derived.variance == pytest.approx(ours.variance, rel=0.01, abs=width)
        for p in (50.0, 90.0, 99.0):
            found = Percentile(p)(derived, 8, ASYMMETRIC).high - Percentile(p)(ours, 8, ASYMMETRIC).high
            assert abs(found) <= width * 1.01
    assert MovingAverage()(loaded.tensors["c"], 8, ASYMMETRIC) == MovingAverage()(measured.tensors["c"], 8, ASYMMETRIC)


@pytest.mark.parametrize("estimator", [KL(), MSE(), Percentile(), MeanRange(), MovingAverage(), Searched(MSE())])
def test_estimators_that_need_more_are_refused(graph: Graph, estimator: Estimator, tmp_path: Path) -> None:
    loaded = load_profile(write(tmp_path, tensorrt({"x": 1.0})), graph, ["x"])
    require(MaxRange(), loaded)
    require(Searched(), loaded)
    with pytest.raises(ConfigError, match="legal with it are threshold=max_range, power2_range, search"):
        require(estimator, loaded)


@pytest.mark.parametrize("content", ["", "hello world\n", "a: 1\nb: 2\n", b"\x00\x01", b"\xff\xfe\x00\x00rubbish"])
def test_what_is_no_profile_is_refused(graph: Graph, content: str | bytes, tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"legal are profile\.yaml|neither stats.npz"):
        load_profile(write(tmp_path, content), graph, ["x"])
    with pytest.raises(ArtifactError, match="cannot be read"):
        load_profile(tmp_path / "nowhere", graph, ["x"])
