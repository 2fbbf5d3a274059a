"""The numbers of folded BatchNormalizations: with them the clean graph's weights follow from those of the file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from onnx import helper, numpy_helper

from quantpipe.api.model import model_file
from quantpipe.graph.view import Graph
from quantpipe.intake.load import RawModel, clean_graph, read_graph
from quantpipe.intake.rewrites.batch_norms import BatchNorm, batch_norms
from tests.graph.outside_nets import saved
from tests.ops.line import Net, normal_samples
from tests.zoo import requires_zoo, zoo

DIGITS = Path(__file__).parents[2] / "quantpipe" / "assets" / "digits.onnx"


def norm(net: Net, x: str, channels: int, **attributes: object) -> str:
    variance = net.constant(np.abs(net.rng.standard_normal(channels)).astype(np.float32) + 0.5)
    return net.node("BatchNormalization", x, *(net.floats(channels) for _ in range(3)), variance, **attributes)


def every_form(net: Net) -> None:
    """A plain and a depthwise convolution, two transposed ones; with and without bias; one that is an output."""
    x = net.conv(net.input(None, 4, 6, 6), 4, 6, 3, 3, bias=False)
    x = norm(net, x, 6, epsilon=1e-2)
    x = norm(net, net.conv(net.node("Relu", x), 6, 6, 3, 3, group=6), 6)
    x = net.node("ConvTranspose", net.node("Relu", x), net.floats(6, 4, 2, 2), net.floats(8), group=2, strides=[2, 2])
    x = net.node("ConvTranspose", net.node("Relu", norm(net, x, 8)), net.floats(8, 5, 2, 2))
    net.output(norm(net, x, 5))


def shared_weight(net: Net) -> None:
    x, weight = net.input(None, 4, 6, 6), net.floats(4, 4, 1, 1)
    for _ in range(2):
        x = net.node("Relu", norm(net, net.node("Conv", x, weight, net.floats(4)), 4))
    net.output(x)


def read(net: Net | Path, folder: Path) -> tuple[RawModel, Graph, dict[str, BatchNorm]]:
    raw = read_graph(net if isinstance(net, Path) else model_file(net.proto(), folder))
    feeds = next(iter(normal_samples(raw.graph).batches(2))).inputs
    return raw, clean_graph(raw, feeds, isolate=False), batch_norms(raw.graph.model)


def by_channel(graph: Graph, result: str, weight: np.ndarray) -> np.ndarray:
    """The factors of a result's channels in the weight's own shape, as axes to multiply by; the weight in float64."""
    node = graph.producers[result]
    if node.op == "Conv":
        return weight.astype(np.float64).reshape(len(weight), -1).T  # [elements, channels]
    parts = np.split(weight.astype(np.float64), node.attr("group", 1))
    return np.concatenate([np.moveaxis(p, 1, -1).reshape(-1, p.shape[1]) for p in parts], axis=1)


def assert_follows(raw: Graph, clean: Graph, norms: dict[str, BatchNorm]) -> None:
    for result, numbers in norms.items():
        before, after = raw.producers[raw.producers[result].inputs[0]], clean.producers[result]
        assert before.op == after.op, result
        weights = [by_channel(clean, result, g.constant(n.inputs[1])) for g, n in ((raw, before), (clean, after))]
        np.testing.assert_allclose(weights[1], weights[0] * numbers.factor, rtol=1e-5, atol=1e-8)
        np.testing.assert_allclose(clean.constant(after.inputs[2]), numbers.folded_bias, rtol=1e-4, atol=1e-5)
        bias = raw.constant(before.inputs[2]) if len(before.inputs) > 2 else np.zeros_like(numbers.gamma)
        np.testing.assert_array_equal(numbers.bias, bias)


@pytest.mark.parametrize(("build", "count"), [(every_form, 4), (shared_weight, 2)])
def test_clean_weights_are_the_files_times_the_factor(build: Callable[[Net], None], count: int, tmp_path: Path) -> None:
    net = Net(seed=3)
    build(net)
    raw, clean, norms = read(net, tmp_path)
    assert len(norms) == count
    assert_follows(raw.graph, clean, norms)


@pytest.mark.sliced(4)
@requires_zoo
@pytest.mark.parametrize(("name", "count"), [("cifar10_resnet20_bn", 19), ("imagenet_efficientnet_lite0_bn", 49)])
def test_the_zoos_models(name: str, count: int, tmp_path: Path) -> None:
    raw, clean, norms = read(zoo(f"models/{name}.onnx"), tmp_path)
    assert len(norms) == count
    assert_follows(raw.graph, clean, norms)


def test_the_numbers_are_those_of_the_file(tmp_path: Path) -> None:
    raw, clean, norms = read(DIGITS, tmp_path)
    assert len(norms) == sum(node.op == "BatchNormalization" for node in raw.graph.nodes) == 9
    assert_follows(raw.graph, clean, norms)
    for result, numbers in norms.items():
        node = raw.graph.producers[result]
        given = [raw.graph.constant(tensor) for tensor in node.inputs[1:]]
        for array, value in zip(given, (numbers.gamma, numbers.beta, numbers.mean, numbers.variance), strict=True):
            np.testing.assert_array_equal(array, value)
        assert numbers.epsilon == pytest.approx(node.attr("epsilon", 1e-5))


def test_constants_that_nodes_make_count(tmp_path: Path) -> None:
    net = Net(seed=5)
    made = [net.node("Constant", value=numpy_helper.from_array(np.float32([n, 2, 3, 4]))) for n in range(1, 6)]
    weight = net.node("Constant", value=numpy_helper.from_array(np.ones((4, 2, 1, 1), np.float32)))
    x = net.node("Conv", net.input(None, 2, 5, 5), weight, made[0])
    net.output(net.node("BatchNormalization", x, *made[1:]))
    _, clean, norms = read(net, tmp_path)
    ((result, numbers),) = norms.items()
    found = (numbers.bias, numbers.gamma, numbers.beta, numbers.mean, numbers.variance)
    assert [list(array) for array in found] == [[n, 2, 3, 4] for n in range(1, 6)]
    np.testing.assert_allclose(clean.constant(clean.producers[result].inputs[2]), numbers.folded_bias, rtol=1e-6)


@pytest.mark.parametrize("changes", [{}, {"training_mode": 1}, {"more": ["m", "v"]}], ids=str)
def test_statistics_of_a_batch_do_not_count(changes: dict[str, Any]) -> None:
    net = Net(seed=6)
    x = norm(net, net.conv(net.input(None, 4, 6, 6), 4, 4, 1, 1), 4)
    net.output(x)
    proto = net.proto()
    node = next(n for n in proto.graph.node if n.op_type == "BatchNormalization")
    node.output.extend(changes.get("more", ()))
    node.attribute.extend(helper.make_attribute(k, v) for k, v in changes.items() if k != "more")
    assert list(batch_norms(ir.from_proto(proto))) == ([] if changes else [x])


def test_a_transposed_convolution_whose_weight_stays_in_its_file_is_not_folded(tmp_path: Path) -> None:
    net = Net(seed=7)
    x = norm(net, net.conv(net.input(None, 64, 4, 4), 64, 300, 1, 1), 300)
    x = net.node("ConvTranspose", net.node("Relu", x), net.floats(300, 64, 1, 1), name="up")
    last = norm(net, x, 64)
    net.output(last)
    raw = read_graph(saved(net, tmp_path), resident_mb=0)
    norms = batch_norms(raw.graph.model)
    clean = clean_graph(raw, next(iter(normal_samples(raw.graph).batches(2))).inputs, isolate=False)
    assert clean.producers[last].op == "Conv" and len(norms) == 1  # a convolution of its own does the normalization
    assert_follows(raw.graph, clean, norms)


def test_a_normalization_after_a_pool_leaves_the_other_rewrites_alone(tmp_path: Path, caplog: Any) -> None:
    net = Net(seed=8)
    x = net.node("MaxPool", net.conv(net.input(None, 3, 8, 8), 3, 4, 3, 3), kernel_shape=[2, 2])
    net.output(net.conv(net.node("Relu", norm(net, x, 4)), 4, 4, 1, 1))
    _, clean, norms = read(net, tmp_path)
    assert not norms and "was skipped" not in caplog.text
    assert "BatchNormalization" not in {node.op for node in clean.nodes}


def test_a_wrong_number_is_found(tmp_path: Path) -> None:
    raw, clean, norms = read(DIGITS, tmp_path)
    result, numbers = next(iter(norms.items()))
    wrong = BatchNorm(numbers.gamma, numbers.beta, numbers.mean, numbers.variance, 0.1, numbers.bias)
    with pytest.raises(AssertionError):
        assert_follows(raw.graph, clean, {result: wrong})


def _read_twice(net: Net) -> None:
    x = net.conv(net.input(None, 4, 6, 6), 4, 4, 1, 1)
    net.output(net.node("Add", norm(net, x, 4), net.node("Relu", x)))


def _an_output(net: Net) -> None:
    x = net.conv(net.input(None, 4, 6, 6), 4, 4, 1, 1)
    net.output(norm(net, x, 4), x)


def _after_gemm(net: Net) -> None:
    net.output(norm(net, net.dense(net.input(None, 4), 4, 3), 3))


def _after_relu(net: Net) -> None:
    net.output(norm(net, net.node("Relu", net.conv(net.input(None, 4, 6, 6), 4, 4, 1, 1)), 4))


def _computed_scale(net: Net) -> None:
    x = net.conv(net.input(None, 4, 6, 6), 4, 4, 1, 1)
    scale = net.node("ReduceMean", net.input(None, 4, 6, 6, name="other"), axes=[0, 2, 3], keepdims=0)
    numbers = [net.floats(4), net.floats(4), net.constant(np.ones(4, np.float32))]
    net.output(net.node("BatchNormalization", x, scale, *numbers))


def _computed_weight(net: Net) -> None:
    weight = net.node("Reshape", net.input(None, 1, name="other"), net.constant(np.int64([4, 1, 1, 1])))
    net.output(norm(net, net.node("Conv", net.input(None, 1, 6, 6), weight), 4))


@pytest.mark.parametrize(
    "build", [_read_twice, _an_output, _after_gemm, _after_relu, _computed_scale, _computed_weight]
)
def test_what_the_clean_up_does_not_fold_has_no_numbers(build: Callable[[Net], None], tmp_path: Path) -> None:
    net = Net(seed=4)
    build(net)
    raw = read_graph(model_file(net.proto(), tmp_path))
    assert any(node.op == "BatchNormalization" for node in raw.graph.nodes)
    assert not batch_norms(raw.graph.model)
