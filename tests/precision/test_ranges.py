"""What ranges alone say, on small graphs whose statistics are those of real samples."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from quantpipe.annotate.conditions import AnnotateOptions
from quantpipe.annotate.variants import Topologies
from quantpipe.calibrate.measure import measure
from quantpipe.scoring.precision import FindingKind, findings_of
from quantpipe.scoring.precision.ranges import depends_on_values
from tests.ops.line import ArraySamples, Net, line, load

RNG = np.random.default_rng(3)
SCORES = RNG.standard_normal((16, 8)).astype(np.float32)
HALF = np.where(RNG.random((16, 8)) < 0.5, 1.0, 0.0).astype(np.float32)


def said(net: Net, device: str = "ort_cpu", **inputs: NDArray[Any]) -> dict[str, tuple[FindingKind, str]]:
    """Node -> what the ranges of its operands say first, and of which tensor."""
    samples = ArraySamples(inputs)
    made = line(load(net, lambda graph: samples), device, samples=samples)
    given = (made.graph, made.spec, made.schema, AnnotateOptions())
    variants = Topologies(*given, floatable=Topologies(*given).may_float)
    profile = measure(made.graph, variants.measured, samples, 1024)
    found = findings_of(made.graph, variants.base, profile, frozenset((*variants.may_float, *variants.may_host)))
    return {finding.node: (finding.kind, finding.tensor) for finding in reversed(found)}


def masked(low: float, op: str = "Add") -> Net:
    """Scores of a dense layer, to which (1 - keep) · low is added, in front of another layer."""
    net = Net()
    x, keep = net.input(None, 8), net.input(None, 8, name="keep")
    scores = net.node("Mul", net.dense(x, 8, 8, name="scores"), net.constant(np.float32(0.35)), name="scaled")
    away = net.node("Mul", keep, net.constant(np.float32(-low)), name="away")
    mask = net.node("Add", away, net.constant(np.float32(low)), name="mask", output="mask_out")
    applied = net.node(op, scores, mask, name="apply")
    # With the Softmax alone the sum would be real, as all that reads it is.
    beside = net.dense(net.node("Relu", applied), 8, 4)
    net.output(net.dense(net.node("Softmax", applied, axis=-1), 8, 4, name="last"), beside)
    return net


@pytest.mark.parametrize("low", [-3.4e38, -1e9, -1e5, -1e4, -1e3])
def test_a_mask_is_found_by_what_it_is_added_to(low: float) -> None:
    assert said(masked(low), x=SCORES, keep=HALF)["apply"] == (FindingKind.MASK, "mask_out")


@pytest.mark.parametrize("low", [-3.4e38, -1e4])
def test_what_computes_a_mask_is_found_with_it(low: float) -> None:
    """It must be exactly 0 where it hides nothing: an x stored as 0.992 makes (1 - x) · -3.4e38 hide everything."""
    found = said(masked(low), "fpga_shift", x=SCORES, keep=HALF)
    assert {node for node, (kind, _) in found.items() if kind is FindingKind.MASK} >= {"away", "mask", "apply"}
    assert {"scores", "scaled", "last"}.isdisjoint(found)


def test_a_mask_that_weights_compute_stays_with_its_layers() -> None:
    """Its layers would all run in float."""
    net = Net()
    x, keep = net.input(None, 8), net.input(None, 8, name="keep")
    away = net.node("Mul", net.dense(keep, 8, 8, name="learned"), net.constant(np.float32(-1e9)), name="away")
    scores = net.dense(x, 8, 8, name="scores")
    net.output(net.dense(net.node("Add", scores, net.node("Relu", away), name="apply"), 8, 4))
    found = said(net, "fpga_shift", x=SCORES, keep=HALF)
    assert found["apply"][0] is FindingKind.MASK and {"learned", "away"}.isdisjoint(found)


def test_a_bias_of_the_usual_size_is_no_mask() -> None:
    assert "apply" not in said(masked(-100.0), x=SCORES, keep=HALF)


def test_large_numbers_that_are_nowhere_near_zero_are_no_mask() -> None:
    net = Net()
    x, y = net.input(None, 8), net.input(None, 8, name="y")
    net.output(net.dense(net.node("Add", net.dense(x, 8, 8), y, name="sum"), 8, 4))
    far = (1e6 + 1e5 * RNG.standard_normal((16, 8))).astype(np.float32)
    assert "sum" not in said(net, x=SCORES, y=far)
    holes = np.where(HALF > 0, far, 0).astype(np.float32)
    assert said(net, x=SCORES, y=holes)["sum"] == (FindingKind.MASK, "y")


def test_values_of_every_size_are_no_mask() -> None:
    """They are 0 at some places, but more than one other value: a scale for all of them is what they need."""
    net = Net()
    x, y = net.input(None, 8), net.input(None, 8, name="y")
    net.output(net.dense(net.node("Add", net.dense(x, 8, 8), y, name="sum"), 8, 4))
    assert "sum" not in said(net, x=SCORES, y=(1e3 * np.maximum(RNG.standard_normal((16, 8)), 0)).astype(np.float32))


@pytest.mark.parametrize("low", [-1e9, -1e4])
def test_a_constant_mask_is_found(low: float) -> None:
    net = Net()
    x = net.input(None, 8)
    triangle = net.constant(np.float32([0, 0, 0, 0, low, low, low, low]), "triangle")
    net.output(net.dense(net.node("Add", net.dense(x, 8, 8), triangle, name="causal"), 8, 4))
    assert said(net, x=SCORES)["causal"] == (FindingKind.MASK, "triangle")


def test_a_tensor_that_never_varied_is_found_where_it_depends_on_an_input() -> None:
    found = said(masked(-1e5), x=SCORES, keep=np.ones((16, 8), np.float32))
    assert found["apply"] == (FindingKind.CONSTANT, "mask_out"), "a mask of samples that were never padded"
    assert not said(masked(-100.0), x=SCORES, keep=HALF)


def test_parts_of_a_concat_that_lie_far_apart_are_found() -> None:
    def joined(scale: float) -> dict[str, tuple[FindingKind, str]]:
        net = Net()
        x, y = net.input(None, 8), net.input(None, 8, name="y")
        both = net.node(
            "Concat", net.dense(x, 8, 8, name="small"), net.dense(y, 8, 8, name="large"), name="join", axis=1
        )
        net.output(net.dense(both, 16, 4))
        return said(net, x=SCORES, y=np.float32(scale) * SCORES)

    assert joined(1000.0)["join"] == (FindingKind.APART, "small_out")
    assert "join" not in joined(10.0)


def test_what_depends_on_a_shape_depends_on_no_value() -> None:
    net = Net()
    x = net.input(None, 8)
    shape = net.node("Shape", x, output="shape")
    size = net.node("Cast", shape, to=1, output="size")
    net.output(net.node("Add", x, net.node("ReduceSum", size, keepdims=0), name="sum", output="y"))
    graph = load(net)
    if "size" in graph.producers:  # a batch that is free keeps the shape in the graph
        assert not depends_on_values(graph, "size")
    assert depends_on_values(graph, "y")


def spread(large: float) -> Net:
    """Two layers with a tensor of 16 channels between them, of which one is `large` times as large as the others."""
    net = Net(seed=5)
    x = net.node("Relu", net.dense(net.input(None, 8), 8, 16, bias=False, name="first"))
    grown = net.node("Mul", x, net.constant(np.where(np.arange(16) == 3, large, 1.0).astype(np.float32)))
    net.output(net.dense(grown, 16, 4, name="second"))
    return net


def test_outliers_are_named_by_the_tensor_that_has_them() -> None:
    found = said(spread(1000.0), x=SCORES)
    assert found["second"][0] is FindingKind.OUTLIERS
    assert not any(kind is FindingKind.OUTLIERS for kind, _ in said(spread(8.0), x=SCORES).values())
