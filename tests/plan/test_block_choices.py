"""Sizes of blocks and recovered integers as decisions of a search, for weights that floats are multiplied by."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import quantpipe
from quantpipe.annotate.block_choices import block_choices
from quantpipe.annotate.conditions import AnnotateOptions
from quantpipe.annotate.variants import Topologies
from quantpipe.errors import ConfigError
from quantpipe.hardware.cost import stored_bytes
from quantpipe.recover import LayerOptions, Variants, float_moments
from quantpipe.types import Structure
from tests.ops.line import Line, Net, hardware, hardware_data, line
from tests.plan.test_weight_only import device, net

KINDS = AnnotateOptions(choices=("bits", "block"))


def topologies(made: Line, sizes: tuple[int, ...] = (16, 64, 128)) -> Topologies:
    data = hardware_data("ort_matmul_nbits")
    spec = hardware("ort_matmul_nbits", weights=data["weights"] | {"block": {"size": 32, "given_sizes": list(sizes)}})
    return Topologies(made.graph, spec, made.schema, KINDS)


def test_sizes_that_give_other_blocks_are_offered_the_default_first() -> None:
    made = line(net(), device())
    found = {choice.subject: choice.options for choice in block_choices(topologies(made).reference, made.graph)}
    depth = {site.tensor: made.graph.shapes[site.tensor][1 - site.channel_axis] for site in made.topology.weights}
    assert sorted(depth.values()) == [33, 40, 70]
    expected = {33: (32, 16, 64), 40: (32, 16, 64), 70: (32, 16, 64, 128)}
    assert found == {tensor: expected[count] for tensor, count in depth.items()}


def test_nothing_is_offered_unless_asked_for_or_without_another_size() -> None:
    made = line(net(), device())
    assert not block_choices(made.topology, made.graph), "the device has one size"
    assert not Topologies(made.graph, made.spec, made.schema, AnnotateOptions()).choices
    assert {choice.kind for choice in topologies(made).choices} == {"block"}


def test_weights_of_nodes_in_float_are_not_counted_as_floats() -> None:
    made = line(net(), device())
    found, bits = topologies(made).base, made.strategy(4).bits
    values = sum(np.prod(made.graph.shapes[site.tensor]) for site in found.weights)
    assert found.float_weights == ()
    assert values / 2 < stored_bytes(found, made.graph, made.spec, bits) < values


@pytest.mark.parametrize("size", [16, 64, 128])
def test_a_decided_size_is_planned_stored_and_counted(size: int) -> None:
    made = line(net(), device(block=size))
    offered = topologies(line(net(), device()), (8, 16, 64, 128))
    structure = Structure(tuple((f"block:{site.tensor}", str(size)) for site in made.topology.weights[:1]))
    found = offered.at(structure)
    first = made.topology.weights[0].tensor
    own = made.planner.on(found).plan(made.strategy(4))
    np.testing.assert_array_equal(own.weights[first].scale, made.plan(4).weights[first].scale)
    assert own.weights[first].block is not None and own.weights[first].block.size == size
    bits = made.strategy(4).bits
    whole, changed = (stored_bytes(t, made.graph, made.spec, bits) for t in (offered.base, found))
    assert (changed > whole) == (size < 32)


@pytest.mark.parametrize("option", ["48", "8", "many"])
def test_a_size_that_the_device_has_not_is_refused(option: str) -> None:
    made = line(net(), device())
    tensor = made.topology.weights[0].tensor
    with pytest.raises(ConfigError, match=rf"block:.* is {option}; legal are 32, 16, 64"):
        topologies(made).at(Structure(((f"block:{tensor}", option),)))


def test_recovered_integers_lose_less_at_every_size() -> None:
    made = line(net(), device())
    moments = float_moments(made.graph, made.topology, made.samples, 2048, memory_mb=64, seed=0)
    assert set(moments) == {site.tensor for site in made.topology.weights}
    options = LayerOptions(propagate=False, correct_bias=False)
    recovered = Variants(made.graph, made.topology, made.schema, made.planner, moments=moments, options=options)
    offered, strategy = topologies(made), made.strategy(4)
    tensor = made.topology.weights[0].tensor
    for size in (16, 32, 64):
        structure = Structure(((f"block:{tensor}", str(size)),) if size != 32 else ())
        found = recovered.on(offered.at(structure)).overrides(strategy).weights[tensor]
        nearest = made.planner.on(offered.at(structure)).plan(strategy).weights[tensor]
        assert found.block is not None and found.block.size == size
        hessian, real = moments[tensor].about_zero.hessian[0], made.graph.constant(tensor).astype(np.float64)
        axis = made.topology.weight_of[tensor].channel_axis
        assert _error(found, real, hessian, axis) < _error(nearest, real, hessian, axis)


def _error(weight: Any, real: Any, hessian: Any, axis: int) -> float:
    from quantpipe.plan.weight_blocks import real_weight

    apart = np.moveaxis(real_weight(weight, axis) - real, axis, 0)
    return float(np.einsum("ok,kj,oj->", apart, hessian, apart))


def mixed() -> Net:
    """Layers of which the last one decides: its inputs are few and its weights are wide."""
    made = Net(seed=4)
    x = made.input(None, 64)
    inner = made.node("Tanh", made.dense(x, 64, 48, trans=0, bias=False))
    made.output(made.dense(inner, 48, 12, trans=0, bias=False))
    return made


def test_bits_and_blocks_under_a_limit_of_bytes(tmp_path: Path) -> None:
    onnx.save(mixed().proto(), tmp_path / "m.onnx")
    samples = np.random.default_rng(1).standard_normal((80, 64)).astype(np.float32)
    given = {"samples": {"calibrate": 16, "search": 16, "evaluate": 16}}
    limit = (64 * 48 + 48 * 12) * 0.75
    data = hardware_data("ort_matmul_nbits")
    found = quantpipe.quantize(
        tmp_path / "m.onnx",
        samples,
        data | {"weights": data["weights"] | {"bits": 8}},
        dataset=given,
        recover="none",
        annotate={"choices": ["auto", "block"]},
        search={"option": "knapsack", "weights": "recovered"},
        objective={"form": "best_value_within_cost", "cost": "stored_bytes", "cost_limit": limit},
    )
    report = found.report
    assert report["agreement"]["differing"] == 0
    assert report["cost"]["stored_bytes"] <= limit, report["cost"]
    file = onnx.load(found.folder / "realize" / "model.onnx")
    nodes = [node for node in file.graph.node if node.op_type == "MatMulNBits"]
    read = onnx.helper.get_node_attr_value
    assert len(nodes) == 2 and {read(node, "bits") for node in nodes} <= {4, 8}
    assert {read(node, "block_size") for node in nodes} <= {16, 32, 64}
