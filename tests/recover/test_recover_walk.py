"""The walk over whole networks: it helps, it repeats, it fits into any memory, and what it leaves can be realized."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quantpipe.data.sources.digits import digits_arrays
from quantpipe.errors import HardwareError
from quantpipe.graph.normalize import expose
from quantpipe.intake.load import load_graph
from quantpipe.metrics.outputs import kl_divergence
from quantpipe.pipeline import stages
from quantpipe.plan import NO_OVERRIDES, Overrides
from quantpipe.recover import LayerOptions, RecoverOptions, Recovery, recover
from quantpipe.recover.reconstruct.layerwise import Effort
from quantpipe.recover.reconstruct.moments import Moments
from quantpipe.recover.reconstruct.prepare import WeightLayer
from quantpipe.types import Quantizer, WeightTensor
from tests.ops.cases import CASES
from tests.ops.line import ArraySamples, Line, Net, hardware, hardware_data, line, load, normal_samples, schema_for
from tests.ops.test_every_op import NOTHING_TO_DO, graph_of

Array = np.ndarray[Any, Any]
DIGITS = Path(__file__).resolve().parents[2] / "quantpipe" / "assets" / "digits.onnx"


@cache
def digits(name: str, bits: int = 8) -> Line:
    data = hardware_data(name)
    data["weights"]["bits"] = bits
    images, _ = digits_arrays()
    x = (images[:128] / 16).astype(np.float32).reshape(-1, 1, 8, 8)
    graph = load_graph(DIGITS, lambda raw: {raw.inputs[0].name: x[:4]})
    spec = hardware(name, weights=data["weights"])
    return Line(graph, spec, schema_for(spec), ArraySamples({graph.inputs[0].name: x}))


def walk(
    made: Line,
    options: LayerOptions = LayerOptions(),  # noqa: B008  (frozen)
    *,
    memory_mb: int = 256,
    seed: int = 0,
    bits: int = 8,
) -> Recovery:
    strategy = made.strategy(bits)
    return recover(
        made.problem,
        strategy,
        made.samples,
        options,
        effort=Effort(rows=2048, memory_mb=memory_mb, seed=seed),
    )


def kl(made: Line, overrides: Overrides, bits: int = 8) -> float:
    plan = made.planner.plan(made.strategy(bits), overrides)
    realized = made.realize(plan, "integer")
    (name,) = made.graph.output_names
    return kl_divergence(made.outputs()[name], made.outputs(realized.model)[name])


def same(a: Overrides, b: Overrides) -> bool:
    return (
        list(a.weights) == list(b.weights)
        and list(a.biases) == list(b.biases)
        and all(np.array_equal(a.weights[t].values, b.weights[t].values) for t in a.weights)
        and all(np.array_equal(a.weights[t].scale, b.weights[t].scale) for t in a.weights)
        and all(np.array_equal(a.biases[n], b.biases[n]) for n in a.biases)
    )


@pytest.mark.sliced(24)
@pytest.mark.parametrize(("name", "bits"), [("vta", 8), ("ort_cpu", 4), ("hago_sample", 8)])
def test_it_helps_and_repeats(name: str, bits: int) -> None:
    made = digits(name, bits)
    found = walk(made, bits=bits)
    assert kl(made, found.overrides, bits) < 0.5 * kl(made, NO_OVERRIDES, bits)
    assert same(found.overrides, walk(made, bits=bits).overrides)
    assert not same(found.overrides, walk(made, bits=bits, seed=1).overrides)
    assert same(found.overrides, walk(made, bits=bits, memory_mb=0).overrides)  # everything on disk
    assert [entry["node"] for entry in found.layers] == [k.node for k in made.topology.kernels if k.weight is not None]
    assert all(entry["error_recovered"] >= 0 and entry["uncertainty"] > 0 for entry in found.layers)


@pytest.mark.sliced(96)
@pytest.mark.parametrize("hw", ["vta", "ort_cpu", "hago_sample"])
@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n == "wide_sums")) for n in CASES])
def test_every_net_is_walked_and_realized(name: str, hw: str) -> None:
    if hw == "hago_sample" and name in NOTHING_TO_DO:
        pytest.skip("hago_sample runs every node of it in float")
    graph = graph_of(name)
    made = line(graph, hw, samples=normal_samples(graph, 24))
    bits = 5
    found = walk(made, bits=bits)
    plan = made.planner.plan(made.strategy(bits), found.overrides)
    assert set(found.overrides.weights) == {k.weight for k in made.topology.kernels if k.weight is not None}
    for tensor, weight in found.overrides.weights.items():
        before = made.plan(bits).weights[tensor]
        assert (weight.values.dtype, weight.values.shape) == (before.values.dtype, before.values.shape)
        assert (weight.scale.shape, weight.axis, weight.bits) == (before.scale.shape, before.axis, before.bits)
        assert np.abs(weight.values.astype(int)).max() < 1 << (weight.bits - 1)
    backend = "qdq" if hw == "ort_cpu" else "integer"
    assert made.agree(plan, backend).differing == 0


@pytest.mark.parametrize("size", [1e-12, 1e-30, 1e-42])
@pytest.mark.parametrize("per_channel", [True, False])
def test_a_scale_follows_what_the_bias_takes_up(size: float, per_channel: bool) -> None:
    """Training leaves channels of all but zero weights behind. Where rows are too few to regress them, their bias
    alone takes up a shortcut's error, which no scale of such weights holds."""
    net = Net(seed=3)
    start = net.node("Relu", net.conv(net.input(None, 3, 1, 1), 3, 4, 1, 1))
    values = net.rng.standard_normal((4, 4, 1, 1)).astype(np.float32)
    values[slice(2, 3) if per_channel else slice(4)] *= np.float32(size)
    closing = net.node("Conv", start, net.constant(values, "w"), kernel_shape=[1, 1], name="closing")
    net.output(net.node("Add", closing, start, output="sum"))
    data = hardware_data("ort_cpu")
    data["weights"] |= {"bits": 4, "granularity": ["per_channel" if per_channel else "per_tensor"]}
    made = line(net, hardware("ort_cpu", weights=data["weights"]))
    made = line(made.graph, made.spec, samples=normal_samples(made.graph, 6))
    found = walk(made, bits=4)
    kernel = made.planner.plan(made.strategy(4), found.overrides).kernels["closing"]
    wanted = found.overrides.biases["closing"][2]
    assert abs(wanted) > 1e-4
    assert kernel.bias[2] * float(np.broadcast_to(kernel.acc_scale, (4,))[2]) == pytest.approx(wanted, rel=1e-3)
    assert made.agree(made.planner.plan(made.strategy(4), found.overrides), "qdq").differing == 0


@pytest.fixture
def moments_seen(monkeypatch: pytest.MonkeyPatch) -> list[Moments]:
    """What layers are solved from, in the order of the walk."""
    seen: list[Moments] = []
    plain = WeightLayer.solved

    def solved(layer: WeightLayer, before: WeightTensor, moments: Moments, *rest: Any, **named: Any) -> Any:
        seen.append(moments)
        return plain(layer, before, moments, *rest, **named)

    monkeypatch.setattr(WeightLayer, "solved", solved)
    return seen


def says(found: Moments, wanted: Array, stored: Array) -> None:
    """The moments are those of rows of the wanted output `[n, O]` and of the quantized input `[n, K]`."""
    assert found.output is not None and found.rows == len(stored)
    np.testing.assert_allclose(found.output.mean[0], wanted.mean(axis=0), atol=1e-5)
    cross = (wanted - wanted.mean(axis=0)).T @ (stored - stored.mean(axis=0)) / len(stored)
    np.testing.assert_allclose(found.output.cross[0], cross, atol=1e-5)


def rows_of(array: Array) -> Array:
    """`[N, C, H, W]` -> `[N·H·W, C]` float64."""
    return np.moveaxis(array, 1, -1).reshape(-1, array.shape[1]).astype(np.float64)


def coarse(rows: Array, q: Quantizer) -> Array:
    codes = np.clip(np.rint(rows / float(q.scale)) + q.zero_point, q.qmin, q.qmax)
    return (codes - q.zero_point) * float(q.scale)


@pytest.mark.sliced(6)
@pytest.mark.parametrize("hw", ["vta", "ort_cpu", "hago_sample"])
@pytest.mark.parametrize(
    ("options", "bits", "asked"),
    [
        (LayerOptions(), 4, 1),
        (LayerOptions(), 8, 0),
        (LayerOptions(propagate=False), 4, 0),
        (LayerOptions(shortcuts=False), 4, 0),
    ],
)
@pytest.mark.parametrize("sum_of", [("Add", True, 1), ("Sub", True, -1), ("Sub", False, -1)])
def test_a_layer_answers_for_the_error_of_what_it_is_added_to(
    hw: str,
    options: LayerOptions,
    bits: int,
    asked: int,
    sum_of: tuple[str, bool, int],
    moments_seen: list[Moments],
) -> None:
    """conv(x) + x, conv(x) - x and x - conv(x) on a coarse x: the moments of the wanted output, from the rows
    themselves in float64. Only where weights have few bits, and unless it is not wanted."""
    op, first, sign = sum_of
    net = Net()
    x = net.input(None, 4, 6, 6)
    result = net.conv(x, 4, 4, name="conv")
    net.output(net.node(op, *((result, x) if first else (x, result))))
    ops = hardware_data(hw)["ops"]
    made = line(net, hardware(hw, ops=ops | {op: ops["Add"]}), samples=normal_samples(load(net), 24))
    walk(made, options, bits=bits)
    (batch,) = made.samples.batches(24)
    rows = rows_of(batch.inputs[x])
    stored = coarse(rows, made.plan(bits).quantizers[x])
    weight = made.graph.constant(made.graph.by_name["conv"].inputs[1]).reshape(4, 4).astype(np.float64)
    (found,) = moments_seen
    says(found, rows @ weight.T + asked * sign * (rows - stored), stored)


@pytest.mark.parametrize("producer", ["conv", "matmul"])
def test_a_table_that_serves_all_samples_is_no_shortcut(producer: str) -> None:
    """layer(x) + table[:, :T] with T read from the data: a computed tensor, of the shape that one sample's result has,
    and of one sample only."""
    net = Net(3)
    x, values, axis = (
        (net.input(None, 4, None, 6), (24, 4, 6, 6), 2)
        if producer == "conv"
        else (net.input(None, None, 4), (24, 6, 4), 1)
    )
    ends = (net.constant(np.array([end])) for end in (axis, axis + 1))
    length = net.node("Slice", net.node("Shape", x), *ends)
    whole = net.floats(1, *(8 if at == axis else n for at, n in enumerate(values) if at))
    table = net.node("Slice", whole, net.constant(np.array([0])), length, net.constant(np.array([axis])), name="table")

    def layer(data: str, name: str) -> str:
        if producer == "conv":
            return net.conv(data, 4, 4, name=name)
        return net.node("MatMul", data, net.floats(4, 4), name=name)

    result = layer(net.node("Relu", layer(x, "first")), "second")
    net.output(net.node("Relu", net.node("Add", result, table, name="place")))
    proto = net.proto()
    proto.graph.input[0].type.tensor_type.shape.dim[axis].dim_param = "T"
    samples = ArraySamples({x: np.random.default_rng(4).standard_normal(values).astype(np.float32)})
    made = line(load(proto, lambda _: samples), "int4_weights", samples=samples)
    assert "table" in made.graph.by_name
    found = walk(made, bits=4)
    assert [entry["node"] for entry in found.layers] == ["first", "second"]
    assert made.agree(made.planner.plan(made.strategy(4), found.overrides), "qdq").differing == 0


def test_a_shortcut_in_float_has_an_error_too(moments_seen: list[Moments]) -> None:
    """conv(tanh(z)) + z with z = sigmoid(conv(x)) in float, on a device that adds real numbers, so z has no scale: its
    error is what the recovered first layer makes of it, by onnxruntime."""
    net = Net()
    z = net.node("Sigmoid", net.conv(net.input(None, 4, 6, 6), 4, 4, name="first"), name="z")
    t = net.node("Tanh", z, name="t")
    net.output(net.node("Add", net.conv(t, 4, 4, name="second"), z))
    real_only = [{"in": ["float32"], "out": ["float32"]}]
    ops = hardware_data("ort_cpu")["ops"] | dict.fromkeys(("Add", "Sigmoid", "Tanh"), real_only)
    made = line(net, hardware("ort_cpu", ops=ops), samples=normal_samples(load(net), 24))
    found = walk(made, bits=4)
    plan = made.planner.plan(made.strategy(4), found.overrides)
    graphs = (made.graph.model, made.realize(plan, "qdq").model)
    real, quantized = (made.outputs(expose(model, [z, t])) for model in graphs)
    weight = made.graph.constant(made.graph.by_name["second"].inputs[1]).reshape(4, 4).astype(np.float64)
    lost = rows_of(real[z]) - rows_of(quantized[z])
    assert z not in plan.quantizers and np.abs(lost).max() > 0.01
    says(moments_seen[1], rows_of(real[t]) @ weight.T + lost, coarse(rows_of(quantized[t]), plan.quantizers[t]))


def test_an_accumulator_with_two_readers_is_solved_once() -> None:
    net = Net()
    x = net.input(None, 4, 6, 6)
    shared = net.conv(x, 4, 4, name="shared")
    net.output(net.node("Concat", net.node("Add", shared, x), net.node("Add", shared, shared), axis=1))
    for hw in ("hago_sample", "vta"):
        made = line(net, hw)
        assert [entry["node"] for entry in walk(made).layers] == ["shared"]


@pytest.mark.parametrize("hw", ["vta", "ort_cpu", "hago_sample"])
def test_layers_without_a_bias_are_given_one(hw: str) -> None:
    """Where the op takes one: a convolution does, MatMul does not. Behind a Relu there is a mean to make up for."""
    net = Net()
    first = net.node("Relu", net.conv(net.input(None, 3, 7, 7), 3, 4, 3, 3, name="first"))
    inner = net.conv(first, 4, 4, 3, 3, bias=False, name="conv")
    net.output(net.node("MatMul", net.node("Relu", inner), net.floats(3, 4), name="dense"))
    made = line(net, hw)
    found = walk(made, bits=4)
    assert list(found.overrides.biases) == ["first", "conv"] and found.overrides.biases["conv"].any()
    plan = made.planner.plan(made.strategy(4), found.overrides)
    assert np.any(plan.kernels["conv"].bias)  # type: ignore[union-attr]
    assert made.agree(plan, "qdq" if hw == "ort_cpu" else "integer").differing == 0


def test_a_fixed_batch() -> None:
    net = Net()
    net.output(net.conv(net.node("Relu", net.conv(net.input(None, 3, 5, 5), 3, 4, 3, 3)), 4, 2))
    net.fix_batch(3)
    made = line(net, "ort_cpu")
    assert len(walk(made).layers) == 2


def test_a_device_that_cannot_shift_further_keeps_its_plain_weights() -> None:
    """The plain plan uses the device's longest shift; smaller weight scales would need a longer one."""
    net = Net()
    weight = net.rng.uniform(-0.9, 0.9, (4, 16, 1, 1)).astype(np.float32)
    weight[0, 0] = 1.01  # just beyond a power of two: half the scale clips it a little and serves all the others
    net.output(net.node("Conv", net.input(None, 16, 5, 5), net.constant(weight), name="conv"))
    made = line(net, "vta")
    (kernel,) = made.plan().kernels.values()
    spec = hardware("vta", requantize={"kind": "shift", "max_shift": kernel.output.shift})  # type: ignore[union-attr]
    tight = Line(made.graph, spec, made.schema, made.samples)
    with pytest.raises(HardwareError, match="right shift"):  # that is what this test is about
        walk(tight, LayerOptions(propagate=False))
    climbed = stages.recover(
        tight.problem,
        stages.SearchedStrategy(tight.strategy()),
        tight.samples,
        stages.Holdout(tight.samples),
        settings=stages.RecoverySettings(RecoverOptions(("gptq",)), 256),
    )
    (step,) = climbed.steps
    assert not step["kept"] and step["kl_after"] is None and "right shift" in step["reason"]
    assert climbed.overrides is NO_OVERRIDES


@pytest.mark.parametrize("merged", [False, True])
def test_a_batch_along_another_axis(merged: bool) -> None:
    """Queries and keys of all heads in one tensor, turned over so that the batch is its second axis; or heads and batch
    as one axis."""
    net = Net(9)

    def shaped(x: str, *sizes: int) -> str:
        return net.node("Reshape", x, net.constant(np.asarray(sizes, np.int64)))

    x = net.node("MatMul", net.input(None, 5, 6), net.floats(6, 16, scale=0.4), name="both")
    if merged:
        x = net.node("Transpose", shaped(x, -1, 5, 2, 8), perm=[0, 2, 1, 3])
        x = net.node("MatMul", shaped(x, -1, 5, 8), net.floats(8, 4, scale=0.4), name="head")
        x = shaped(x, -1, 2 * 5 * 4)
        net.output(net.node("MatMul", x, net.floats(40, 3, scale=0.4), name="last"))
    else:
        x = net.node("Transpose", shaped(x, 0, 5, 2, 2, 4), perm=[2, 0, 3, 1, 4])
        parts = [net.node("Gather", x, net.constant(np.int64(n)), axis=0) for n in (0, 1)]
        scores = net.node("MatMul", parts[0], net.node("Transpose", parts[1], perm=[0, 1, 3, 2]))
        y = net.node("MatMul", net.node("Softmax", scores, axis=-1), parts[1])
        y = shaped(net.node("Transpose", y, perm=[0, 2, 1, 3]), 0, 5, 8)
        net.output(net.node("MatMul", y, net.floats(8, 3, scale=0.4), name="last"))
    made = line(net)
    found = walk(made)
    assert [entry["node"] for entry in found.layers] == ["both", *["head"] * merged, "last"]
    assert made.agree(made.planner.plan(made.strategy(), found.overrides), "qdq").differing == 0
