"""The TFLite form against LiteRT's reference kernels: every stored tensor, element by element, op by op."""

from __future__ import annotations

import io
import zipfile
from dataclasses import replace
from fractions import Fraction
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np
import onnx
import pytest
from flatbuffers import number_types
from flatbuffers.table import Table
from hypothesis import given
from hypothesis import strategies as st

from quantpipe.errors import HardwareError
from quantpipe.evaluate.compared_models import SimulatedModel
from quantpipe.evaluate.counting import Counter
from quantpipe.graph.view import Graph
from quantpipe.intake.tflite import litert
from quantpipe.intake.tflite.layout import behind_transpose, between, channels_last, plain, same_memory
from quantpipe.intmath import requantize_fixed_point
from quantpipe.lowering import Rendered
from quantpipe.realize.tflite.container import packed
from quantpipe.realize.tflite.form import kernels_of
from quantpipe.realize.tflite.litert_kernels import departures
from quantpipe.realize.tflite.run import LiteRTKernels, TfliteModel, TfliteRunner, metadata_of
from quantpipe.realize.tflite.write import TfliteFile, write_model
from quantpipe.types import Accumulate, QuantPlan
from tests.ops.cases import CASES
from tests.ops.line import Line, Net, hardware, hardware_data, line, load, normal_samples
from tests.ops.test_every_op import line_of

pytestmark = pytest.mark.usefixtures("litert_here")


def differing(
    made: Line, plan: QuantPlan, *, whole: bool = True, content: bytes | None = None
) -> tuple[Counter, TfliteFile]:
    """Compare a file, run by LiteRT's reference kernels, with the simulated model."""
    written = write_model(made.graph, made.topology, plan, whole=whole)
    runner = TfliteRunner(TfliteModel(content or written.content, "memory"), LiteRTKernels.REFERENCE)
    simulation = made.simulate(plan)
    held = Rendered(simulation.rendered.model, {t: t for t in runner.tensors})
    simulated = SimulatedModel(made.graph, made.topology, plan, simulation, realized=held)
    count = Counter()
    for batch in made.samples.batches(made.graph.fixed_batch or 4):
        found = runner.run(batch.inputs)
        simulated.start(batch.inputs)
        expected = simulated.run(found)
        for tensor in simulated.watched.integers:
            count.integers(tensor, simulated.integers(expected, tensor), simulated.centred(tensor, found[tensor]))
    return count, written


REFUSED = {
    "top_k_smallest": "legal is the largest of a fixed number",
    "conv_3d": "slides over three axes",
    "transposed_dilations": "without dilations",
    "transposed_1d": "transposed convolutions of two axes",
    "max_pool_dilations": "without dilations",
    "pad_edge": "legal are pads of constants and by reflection",
    "depth_to_space": "legal is the mode DCR",
}
"""Cases whose node in the middle runs in integers on the device, but that no .tflite file holds."""


DEVICES = {"tflite_int8": (8, 7, 5, 4), "tflite_16x8": (16, 13, 8, 4)}
"""Device -> the bits that its tensors get in turn."""


@pytest.mark.sliced(60)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", CASES)
def test_every_op_computes_what_was_searched(name: str, device: str) -> None:
    """With bits of all widths, and with scales at which many accumulators are ties."""
    if device == "tflite_16x8" and name in ("reduce_max", "reduce_min"):
        pytest.skip("its graph is made for an opset without 16-bit tensors; in a test of its own below")
    made = line_of(name, device, "auto")
    for plan in (made.plan(DEVICES[device], seed=5), made.ties()):
        try:
            count, _ = differing(made, plan)
        except HardwareError as error:
            if name in REFUSED:
                assert REFUSED[name] in str(error)
            else:
                # Anything else that is refused stays in float, or is none of the ops that the format has.
                legal = ("it stays in float", "no way to write", "must be stored at the scale")
                assert any(text in str(error) for text in legal), error
            return
        assert name not in REFUSED
        assert count.elements and count.differing == 0, f"{count.differing} of {count.elements}, {count.first}"


def test_sums_beyond_int32_are_held() -> None:
    """All inputs and weights at their ends: products of 16 and 8 bits, 1200 of them a sum."""
    net = Net(seed=4)
    net.output(net.conv(net.input(None, 1200, 1, 1), 1200, 4, 1, 1, name="deep"))
    made = line(net, "tflite_16x8")
    plan = made.plan()
    weight = plan.weights[plan.kernels["deep"].weight]  # type: ignore[union-attr]
    ends = replace(weight, values=np.where(weight.values < 0, -127, 127).astype(np.int8))
    assert np.abs(ends.values.astype(np.int64)).sum(axis=(1, 2, 3)).max() * 32767 > 2**32
    full = replace(plan, weights={**plan.weights, weight.tensor: ends})
    written = write_model(made.graph, made.topology, full, whole=True)
    runner = TfliteRunner(TfliteModel(written.content, "memory"), LiteRTKernels.REFERENCE)
    signs = np.sign(ends.values[:, :, 0, 0]).astype(np.float32) * 1e9
    found = runner.run({"x": signs[:, :, None, None]})
    q, kernel = plan.quantizers["deep_out"], plan.kernels["deep"]
    assert isinstance(kernel, Accumulate) and kernel.output is not None and kernel.output.fixed is not None
    stored = found["x"].reshape(4, 1200).astype(object)
    for sample in range(4):
        for channel in range(4):
            acc = int(stored[sample] @ ends.values[channel, :, 0, 0].astype(object)) + int(kernel.bias[channel])  # type: ignore[index]
            m, shift = (
                int(v.reshape(-1)[channel]) for v in (kernel.output.fixed.multiplier, kernel.output.fixed.shift)
            )
            exact = Fraction(acc * m) * Fraction(2) ** (shift - 31) + Fraction(1, 2)
            wanted = min(max(exact.numerator // exact.denominator, q.qmin), q.qmax)
            assert int(found["deep_out"].reshape(4, 4)[sample, channel]) == wanted


@cache
def detector() -> Graph:
    """The embedded detector: a backbone, nearest resizing, heads of two strides, boxes from a Softmax over bins."""
    return load(onnx.load(str(files("quantpipe.assets") / "digits_detect.onnx")))


@pytest.mark.sliced(2)
@pytest.mark.parametrize("device", DEVICES)
def test_a_detector(device: str) -> None:
    graph = detector()
    made = line(graph, device, samples=normal_samples(graph, 2))
    count, written = differing(made, made.plan())
    assert count.elements > 100_000 and count.differing == 0, count.first
    assert {"RESIZE_NEAREST_NEIGHBOR", "LOGISTIC", "SOFTMAX", "CONCATENATION"} <= set(written.operators)
    # Both heads are read as rows of channels, which no layout of maps gives, and so is the Softmax over bins.
    assert written.transposes == written.operators["TRANSPOSE"] == 5


def small(seed: int = 3) -> Net:
    """Convolutions, a residual sum, pools, a dense layer."""
    net = Net(seed=seed)
    x = net.input(None, 3, 9, 9)
    front = net.node("Relu", net.conv(x, 3, 8, 3, 3, pads=[1, 1, 1, 1], strides=[2, 2]))
    arm = net.conv(front, 8, 8, 3, 3, pads=[1, 1, 1, 1], group=8)
    joined = net.node("Relu", net.node("Add", front, arm))
    pooled = net.node("Flatten", net.node("GlobalAveragePool", joined))
    net.output(net.dense(pooled, 8, 5))
    return net


def test_real_ends_and_free_batch() -> None:
    made = line(small(), "tflite_int8")
    plan = made.plan()
    count, written = differing(made, plan, whole=False)
    assert count.differing == 0 and written.transposes == 0
    model = TfliteModel(written.content, "memory")
    runner = TfliteRunner(model)
    batch = next(iter(made.samples.batches(3)))
    (output,) = runner.outputs(batch.inputs).values()
    scale, zero = plan.quantizers["gemm1_out"].scale, plan.quantizers["gemm1_out"].zero_point
    np.testing.assert_array_equal(output, (runner.run(batch.inputs)["gemm1_out"].astype(np.float32) - zero) * scale)
    assert output.shape == (3, 5)
    assert (runner.latency(batch.inputs) or 0) > 0


def test_metadata_and_signature_say_how_to_feed_it() -> None:
    made = line(small(), "tflite_int8")
    written = write_model(made.graph, made.topology, made.plan(), whole=True, provenance={"model": "sha256:0"})
    told = metadata_of(written.content, "memory")
    assert told["model"] == "sha256:0"
    port = told["inputs"]["x"]
    q = made.plan().quantizers["x"]
    assert (port["layout"], port["shape"], port["dtype"]) == ("NHWC", [1, 9, 9, 3], "int8")
    assert (port["scale"], port["zero_point"]) == (float(q.scale), q.zero_point)
    interpreter = litert.interpreter().Interpreter(model_content=written.content)
    assert interpreter.get_signature_list() == {"serving_default": {"inputs": ["x"], "outputs": ["gemm1_out"]}}
    (detail,) = interpreter.get_input_details()
    assert list(detail["shape_signature"]) == [-1, 9, 9, 3] and detail["quantization"] == (float(q.scale), q.zero_point)


def of_table(table: Any, place: int, kind: str) -> Any:
    """A field of a flatbuffer table by its place in the schema: a text, a byte, floats, or tables."""
    at = table.Offset(4 + 2 * place)
    if not at:
        return None
    if kind == "byte":
        return table.Get(number_types.Int8Flags, table.Pos + at)
    if kind == "text":
        return table.String(table.Pos + at).decode()
    if kind == "table":
        return Table(table.Bytes, table.Indirect(table.Pos + at))
    start, count = table.Vector(at), table.VectorLen(at)
    if kind == "floats":
        return [table.Get(number_types.Float32Flags, start + 4 * n) for n in range(count)]
    return [Table(table.Bytes, table.Indirect(start + 4 * n)) for n in range(count)]


def test_what_tensorflow_lite_reads_of_itself() -> None:
    """Normalization and labels in the place of the metadata schema, by the places of its fields."""
    made = line(small(), "tflite_int8")
    names = [f"class {n}" for n in range(5)]
    preprocessing = {"scale": 0.5, "mean": (1.0, 2.0, 3.0), "std": (4.0,)}
    told = {"version": "1.2", "preprocessing": preprocessing, "class_names": names}
    content = write_model(made.graph, made.topology, made.plan(), provenance=told).content
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        assert archive.read("labels.txt").decode().split("\n") == names
    model = litert.schema().Model.GetRootAs(content)
    entries = {model.Metadata(n).Name(): model.Metadata(n).Buffer() for n in range(model.MetadataLength())}
    data = model.Buffers(entries[b"TFLITE_METADATA"]).DataAsNumpy().tobytes()
    assert data[4:8] == b"M001"
    root = Table(data, int.from_bytes(data[:4], "little"))
    assert (of_table(root, 2, "text"), of_table(root, 7, "text")) == ("1.2", "1.0.0")
    (graph,) = of_table(root, 3, "tables")
    (port,), (result,) = of_table(graph, 2, "tables"), of_table(graph, 3, "tables")
    (unit,), (labels,) = of_table(port, 4, "tables"), of_table(result, 6, "tables")
    assert (of_table(port, 0, "text"), of_table(result, 0, "text")) == ("x", "gemm1_out")
    assert of_table(unit, 0, "byte") == 1 and of_table(port, 6, "tables") is None
    numbers = of_table(unit, 1, "table")
    pixel = np.array([10.0, 20.0, 30.0])
    mean, std = (np.array(of_table(numbers, place, "floats")) for place in (0, 1))
    np.testing.assert_allclose((pixel - mean) / std, (pixel * 0.5 - [1, 2, 3]) / 4)
    assert (of_table(labels, 0, "text"), of_table(labels, 2, "byte")) == ("labels.txt", 2)
    batch = next(iter(made.samples.batches(2)))
    plain = TfliteRunner(TfliteModel(write_model(made.graph, made.topology, made.plan()).content, "memory"))
    found = TfliteRunner(TfliteModel(content, "memory")).run(batch.inputs)
    for tensor, value in plain.run(batch.inputs).items():
        np.testing.assert_array_equal(found[tensor], value)
    assert metadata_of(content, "memory")["class_names"] == names


def test_transposes_of_the_model_cost_nothing() -> None:
    """A model whose input lies channels last, as converted from TensorFlow."""
    net = Net(seed=5)
    turned = net.node("Transpose", net.input(None, 7, 7, 3), perm=[0, 3, 1, 2])
    maps = net.conv(turned, 3, 6, 3, 3, pads=[1, 1, 1, 1])
    net.output(net.node("Transpose", maps, perm=[0, 2, 3, 1]))
    made = line(net, "tflite_int8")
    count, written = differing(made, made.plan(), whole=False)
    assert count.differing == 0 and written.transposes == 0 and "TRANSPOSE" not in written.operators


def test_a_transposition_that_cannot_go_away_is_counted() -> None:
    net = Net(seed=5)
    maps = net.conv(net.input(None, 3, 4, 4), 3, 6, 3, 3)
    net.output(net.dense(net.node("Flatten", maps), 24, 5))
    made = line(net, "tflite_int8")
    count, written = differing(made, made.plan())
    assert count.differing == 0
    assert written.transposes == written.operators["TRANSPOSE"] == 1


def test_weights_of_four_bits() -> None:
    net = Net(seed=2)
    net.output(net.dense(net.node("Flatten", net.input(None, 3, 4, 4)), 48, 7))
    once = {"kind": "fixed_point", "rounding": "single_away"}
    ops = {"Gemm": [{"in": ["int8", "int4"], "out": ["int8"], "requantize": once}],
           "Flatten": [{"in": ["int8"], "out": ["int8"]}]}  # fmt: skip
    spec = hardware("tflite_int8", ops=ops, fuse=[], functions={}, weights={"granularity": ["per_channel"], "bits": 4})
    made = line(net, spec)
    count, written = differing(made, made.plan())
    assert count.differing == 0
    reader = litert.schema().Model.GetRootAs(written.content).Subgraphs(0)
    kinds = {reader.Tensors(i).Type() for i in range(reader.TensorsLength())}
    assert litert.schema().TensorType.INT4 in kinds


def test_four_bits_are_packed_low_half_first() -> None:
    assert packed(np.array([1, -1, 7, -8, 3], np.int8)).tolist() == [0xF1, 0x87, 0x03]


def test_another_weight_is_found() -> None:
    """The comparison is worth something: one weight more, and elements differ."""
    made = line(small(), "tflite_int8")
    plan = made.plan()
    name = next(iter(plan.weights))
    values = plan.weights[name].values.copy()
    values.flat[0] += -1 if values.flat[0] > 0 else 1
    other = replace(plan, weights={**plan.weights, name: replace(plan.weights[name], values=values)})
    planted = write_model(made.graph, made.topology, other, whole=True)
    count, _ = differing(made, plan, content=planted.content)
    assert count.differing > 0 and count.first is not None


@pytest.mark.sliced(80)
@pytest.mark.parametrize("device", ["tflite_int8", "tflite_16x8", "tflite_xnnpack"])
@pytest.mark.parametrize("name", CASES)
def test_shipped_devices_narrow_as_the_kernels_do(name: str, device: str) -> None:
    try:
        made = line_of(name, device, "auto")
        plan = made.plan()
    except HardwareError:
        pytest.skip("the device does not run it")
    assert departures(kernels_of(plan), made.graph, made.topology, plan) is None


TWICE = {"kind": "fixed_point", "rounding": "double"}
DENSE = {
    "pattern": {"y": "Gemm(x, w, ...)", "z": "Relu(y)"},
    "types": dict.fromkeys("xwyz", "int8"),
    "requantize": {"y": TWICE},
}
OTHERWISE: dict[str, Any] = {
    "own": {"ops": {"Gemm": [{"in": ["int8", "int8"], "out": ["int8"]}]}},
    "pattern": {"fuse": [], "kernels": {"dense": DENSE}},
    "away": {"requantize": {"kind": "fixed_point", "rounding": "single_away"}},
}


@pytest.mark.parametrize("change", OTHERWISE)
def test_kernels_that_round_otherwise_are_not_called_exact(change: str) -> None:
    """What LiteRT computes differs there, and the form names the kernels before anything is compared."""
    net = Net(seed=2)
    maps = net.node("Relu", net.conv(net.input(None, 3, 6, 6), 3, 4, 3, 3))
    net.output(net.node("Relu", net.dense(net.node("Flatten", maps), 64, 40, name="dense")))
    changed = OTHERWISE[change]
    if "ops" in changed:
        changed = {"ops": hardware_data("tflite_int8")["ops"] | changed["ops"]}
    made = line(net, hardware("tflite_int8", **changed))
    plan = made.ties()
    reason = str(departures(kernels_of(plan), made.graph, made.topology, plan))
    assert "LiteRT's kernels round otherwise" in reason and ("dense (Gemm)" in reason) == (change != "away")
    count, _ = differing(made, plan)
    assert count.differing > 0


def test_every_node_that_it_cannot_hold_is_named() -> None:
    net = Net(seed=2)
    x = net.conv(net.input(None, 4, 6, 6), 4, 8, 1, 1)
    x = net.node("ConvTranspose", x, net.floats(8, 8, 3, 3, scale=0.2), name="dilated", dilations=[2, 2])
    x = net.node("Erf", net.node("Celu", x, name="celu"), name="erf")
    net.output(x)
    made = line(net, "tflite_int8")
    with pytest.raises(HardwareError, match=r"cannot hold 3 of .*: dilated \(ConvTranspose\): .*; celu \(Celu\)"):
        write_model(made.graph, made.topology, made.plan())


def test_accumulators_are_refused() -> None:
    made = line(small(), hardware("tflite_int8", add_inputs="residual_only"))
    with pytest.raises(HardwareError, match="accumulator"):
        write_model(made.graph, made.topology, made.plan())


def test_another_file_is_refused() -> None:
    with pytest.raises(HardwareError, match=r"is no \.tflite file|has no metadata"):
        metadata_of(b"TFL3 and nothing else", "junk.tflite")


def test_a_missing_package_is_named_by_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(litert, "PACKAGES", ("a_package_that_nobody_has",))
    assert 'pip install "quantpipe-onnx[tflite]"' in str(litert.missing())


@given(acc=st.integers(-(2**31), 2**31 - 1), m=st.integers(2**30, 2**31 - 1), shift=st.integers(-31, 0))
def test_rounding_once_away_from_zero(acc: int, m: int, shift: int) -> None:
    exact = Fraction(acc * m) * Fraction(2) ** (shift - 31)
    size = abs(exact) + Fraction(1, 2)
    expected = (1 if exact >= 0 else -1) * (size.numerator // size.denominator)
    wide = 2**31 - 1
    assert (
        int(requantize_fixed_point(acc, (m, shift), 0, qmin=-wide - 1, qmax=wide, rounding="single_away")) == expected
    )


def test_orders() -> None:
    last = channels_last(4)
    assert last == (0, 2, 3, 1) and between(last, plain(4)) == (0, 3, 1, 2)
    assert behind_transpose(last, (0, 2, 3, 1)) == plain(4)  # the memory of NHWC, seen by who wants NHWC
    assert same_memory((1, 8, 1, 1), last, plain(4)) and not same_memory((1, 8, 2, 1), last, plain(4))
