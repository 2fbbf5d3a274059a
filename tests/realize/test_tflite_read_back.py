"""Files of TensorFlow Lite that are read again: their integers against LiteRT's run of the file itself."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from quantpipe.errors import HardwareError, ModelError
from quantpipe.evaluate.imported import Quantized, imported_part
from quantpipe.hardware.legality import reachable
from quantpipe.intake.load import load_graph, read_graph
from quantpipe.intake.tflite import litert
from quantpipe.intake.tflite.read_tables import METADATA
from quantpipe.realize.tflite.container import Container, TensorQuantization
from quantpipe.realize.tflite.run import LiteRTKernels, TfliteModel, TfliteRunner
from quantpipe.realize.tflite.write import write_model
from quantpipe.types import Accumulate, ImportedPart
from tests.intake.tflite_rows import small_net
from tests.ops.cases import CASES
from tests.ops.line import Line, hardware, line, normal_samples
from tests.ops.test_every_op import line_of

pytestmark = pytest.mark.usefixtures("litert_here")
CONVERTED = Path(__file__).parent / "converted"
DEVICES = {"tflite_int8": 8, "tflite_16x8": 16}
INSIDE = "it is inside the kernel"
"""Why a tensor that the file stores is not stored again: an operator of the file becomes part of a kernel."""

PADDED = "(padded)"
"""The end of the name of a tensor that only the file has: a Pad that becomes the pads of a pool again."""


DIFFERING = {
    # pads that TensorFlow Lite does not know: the average is in float, and one result lies next to a tie of 16 bits
    ("average_pool_pads_not_counted", "tflite_16x8"): 1,
    # the op between is in float, and its result lies next to a tie of 16 bits
    **{(f"function_{op}", "tflite_16x8"): 2 for op in ("sin", "cos", "log", "sqrt")},
}
"""Elements that may differ, those that follow from them included."""


def read_again(path: Path, device: str) -> Line:
    spec = hardware(device)
    graph = load_graph(
        path,
        lambda raw: next(iter(normal_samples(raw, 6).batches(raw.inputs[0].shape[0] or 4))).inputs,
        isolate=False,
        declared=reachable(spec),
    )
    return line(graph, spec, samples=normal_samples(graph, 6))


def compared(made: Line, bits: int) -> ImportedPart:
    plan = made.plan(bits)
    realized = made.realize(plan, "integer")
    part = imported_part(Quantized(made.graph, made.topology, plan, made.spec, made.schema, realized), made.samples)
    assert part is not None and part["why_not"] is None
    return part


def same(part: ImportedPart, most: int = 0) -> bool:
    """Whether all integers of a file are the same, but for `most`, and something was compared."""
    found = part["compared"]
    assert found is not None and found["elements"] > 0 and part["weight_integers"] > 0
    kept = all(row["reason"].startswith(INSIDE) for row in part["changed"])
    lost = [row["name"] for row in part["lost"] if not row["name"].endswith(PADDED)]
    return kept and not lost and part["weight_differing"] == 0 and found["differing"] <= most


@pytest.mark.sliced(120)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", CASES)
def test_a_written_file_has_the_same_integers_when_it_is_read(name: str, device: str, tmp_path: Path) -> None:
    made = line_of(name, device, "auto")
    path, bits = tmp_path / "m.tflite", DEVICES[device]
    try:
        path.write_bytes(write_model(made.graph, made.topology, made.plan(bits), whole=True).content)
        made.simulate(made.plan(bits))
    except HardwareError:
        pytest.skip("the device or the format does not hold it; other tests say why")
    assert same(compared(read_again(path, device), bits), DIFFERING.get((name, device), 0))


@pytest.mark.parametrize("name", ["function_hardswish", "function_prelu_channels", "function_clamped"])
def test_a_table_without_a_record_is_refused(name: str, tmp_path: Path) -> None:
    made = line_of(name, "tflite_int8", "auto")
    content = write_model(made.graph, made.topology, made.plan(), whole=True).content
    path = tmp_path / "m.tflite"
    path.write_bytes(content)
    assert same(compared(read_again(path, "tflite_int8"), 8))
    for record in (b'"functions"', b'"op": "'):  # no record, and one that is no JSON
        damaged = content.replace(record, record[:-2] + b"X" + record[-1:])
        assert damaged != content and len(damaged) == len(content)
        path.write_bytes(damaged)
        with pytest.raises(ModelError, match="as numbers, as a table of a function does"):
            read_graph(path)


CONVERTERS = {"conv1d_int8": "tflite_int8", "conv1d_int16": "tflite_16x8", "upconv_int8": "tflite_int8"}


@pytest.mark.parametrize("name", CONVERTERS)
def test_a_file_of_another_converter_keeps_its_integers(name: str) -> None:
    """A bilinear Resize stays in float on this device; what is stored around it is still the file's."""
    device = CONVERTERS[name]
    made = read_again(CONVERTED / f"{name}.tflite", device)
    part = compared(made, DEVICES[device])
    assert part["weight_differing"] == 0 and not part["lost"]
    if name.startswith("conv1d"):
        assert same(part)


@pytest.mark.parametrize("device", ["ort_cpu", "tflite_int8"])
def test_a_float_file_runs_the_line(device: str) -> None:
    made = read_again(CONVERTED / "upconv_float.tflite", device)
    assert made.graph.imported is None
    found = made.agree(made.plan(), "qdq" if device == "ort_cpu" else "integer")
    assert found.differing == 0 and found.elements > 0


def test_integer_weights_of_a_file_with_float_tensors_are_kept(tmp_path: Path) -> None:
    """Dynamic range: the file has int8 weights alone."""
    file, values = Container(), np.random.default_rng(2).integers(-127, 128, (5, 8)).astype(np.int8)
    x, y = file.tensor("x", (1, 8), "float32"), file.tensor("y", (1, 5), "float32")
    weight = file.constant("w", values, "int8", TensorQuantization(np.float32(0.02)))
    file.operator("FULLY_CONNECTED", [x, weight, -1], [y], 3, kind="FullyConnectedOptions")
    path = tmp_path / "m.tflite"
    path.write_bytes(file.build({"x": x}, {"y": y}, "", {}, free=False))
    made = read_again(path, "tflite_int8")
    given = made.graph.imported
    assert (
        given is not None
        and [t.tensor for t in given.tensors] == [given.weights[0].tensor]
        and np.array_equal(given.weights[0].values, values)
    )
    assert [np.array_equal(w.values, values) for w in made.plan().weights.values()] == [True]


@pytest.mark.parametrize(("kind", "device"), [("int8", "tflite_int8"), ("int16", "tflite_16x8")])
@pytest.mark.parametrize("rows", [1, 3])
def test_a_small_net_and_what_a_planted_difference_does(kind: str, device: str, rows: int, tmp_path: Path) -> None:
    path = tmp_path / "m.tflite"
    content = small_net(kind, rows=rows)
    path.write_bytes(content)
    made = read_again(path, device)
    assert same(compared(made, DEVICES[device]))
    weight = next(w for w in made.graph.imported.weights if w.stored == "w_q")  # type: ignore[union-attr]
    raw = np.ascontiguousarray(weight.values.transpose(0, 2, 3, 1)).tobytes()
    assert content.count(raw) == 1
    path.write_bytes(content.replace(raw, bytes([raw[0] ^ 64]) + raw[1:]))  # LiteRT runs another file now
    assert not same(compared(made, DEVICES[device]))


def test_biases_beyond_float32_are_the_files(tmp_path: Path) -> None:
    """2^28 and a few hundred: float32 holds every 32nd integer there."""
    path = tmp_path / "m.tflite"
    path.write_bytes(small_net("int16", bias_steps=2**28))
    made = read_again(path, "tflite_16x8")
    given = made.graph.imported
    assert given is not None
    wanted = sorted(b.tolist() for b in given.biases.values())
    assert len(wanted) == 2 and biases_of(made) == wanted
    free = replace(made.graph, imported=replace(given, biases={}))
    assert biases_of(line(free, made.spec, samples=made.samples)) != wanted


def biases_of(made: Line) -> list[list[int]]:
    kernels = made.plan(16).kernels.values()
    return sorted(k.bias.tolist() for k in kernels if isinstance(k, Accumulate) and k.bias is not None)


def test_a_file_records_the_functions_of_its_tables() -> None:
    made = line_of("function_hardsigmoid", "tflite_int8", "auto")
    content = write_model(made.graph, made.topology, made.plan(), whole=True).content
    model = litert.schema().Model.GetRootAs(content)
    entries = {model.Metadata(n).Name(): model.Metadata(n).Buffer() for n in range(model.MetadataLength())}
    told = json.loads(model.Buffers(entries[METADATA.encode()]).DataAsNumpy().tobytes())
    (function,) = told["functions"].values()
    assert function["op"] == "HardSigmoid" and function["bounds"] == [None, None]


def test_an_index_beyond_a_table_is_said(tmp_path: Path) -> None:
    file = Container()
    x = file.tensor("x", (1,), "int32")
    table = file.constant("t", np.ones((3, 2), np.float32), "float32")
    y = file.tensor("y", (1, 2), "float32")
    file.operator("GATHER", [table, x], [y], 1, kind="GatherOptions")
    content = file.build({"x": x}, {"y": y}, "", {})
    places = {side: {name: {"index": n, "axes": []}} for side, name, n in (("inputs", "x", x), ("outputs", "y", y))}
    runner = TfliteRunner(TfliteModel(content, "m.tflite", {**places, "tensors": {}}), LiteRTKernels.REFERENCE)
    with pytest.raises(HardwareError, match=r"LiteRT cannot run m\.tflite"):
        runner.outputs({"x": np.asarray([7], np.int32)})
