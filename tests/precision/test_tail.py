"""The decode tail is found by structure, and moves as one."""

from __future__ import annotations

import numpy as np
import pytest

from quantpipe.annotate.conditions import AnnotateOptions
from quantpipe.annotate.tail import tail_of
from quantpipe.annotate.variants import Topologies
from quantpipe.errors import ConfigError
from quantpipe.scoring.precision import Selection
from tests.ops.line import Net, hardware, load, schema_for
from tests.precision.test_selection import PARTS, Model, nodes, selection


def detector(distribution: bool = True) -> Net:
    """A backbone, and a head as exporters of detectors write it: distances by their distribution, anchors, scores."""
    net = Net()
    x = net.node("Relu", net.conv(net.input(None, 3, 8, 8), 3, 8, 3, 3, name="back"))
    flat = net.constant(np.int64([0, 0, -1]))
    sides = net.node("Reshape", net.conv(x, 8, 16, name="sides"), flat, name="sides_flat")
    if distribution:
        four = net.node("Reshape", sides, net.constant(np.int64([0, 4, 4, 36])), name="four")
        chances = net.node(
            "Softmax", net.node("Transpose", four, perm=[0, 2, 1, 3], name="turned"), axis=1, name="chances"
        )
        mean = net.constant(np.arange(4, dtype=np.float32).reshape(1, 4, 1, 1))
        sides = net.node("Conv", chances, mean, kernel_shape=[1, 1], name="expected")
        sides = net.node("Reshape", sides, net.constant(np.int64([0, 4, 36])), name="distances")
    boxes = net.node("Add", sides, net.floats(1, 1, 36, scale=100.0), name="moved")
    boxes = net.node("Mul", boxes, net.constant(np.float32(8)), name="boxes")
    scores = net.node("Reshape", net.conv(x, 8, 5, name="classes"), flat, name="classes_flat")
    net.output(net.node("Concat", boxes, net.node("Sigmoid", scores, name="scores"), axis=1, name="joined"))
    return net


def test_everything_behind_the_last_layers_is_the_tail() -> None:
    graph = load(detector())
    tail = tail_of(graph)
    assert {"chances", "expected", "moved", "boxes", "scores", "joined"} <= tail, "an expectation is no layer"
    assert not tail & {"back", "sides", "classes", "relu"}


def test_a_product_with_weights_that_reads_no_distribution_is_a_layer() -> None:
    net = Net()
    x = net.conv(net.input(None, 3, 4, 4), 3, 4, name="first")
    net.output(net.node("Sigmoid", net.conv(net.node("Relu", x, name="between"), 4, 2, name="last"), name="end"))
    assert tail_of(load(net)) == {"end"}


def tailed(model: Model, **changes: object) -> Selection:
    return selection(model, tail=frozenset(PARTS[0].nodes), **changes)


def test_the_tail_goes_into_float_as_one_where_that_mends_the_loss() -> None:
    model = Model(nodes({"a": 0.06, "b": 0.0, "c": 0.0, "d": 0.0}, *PARTS))
    found = tailed(model)
    found.run()
    assert found.moved == set(PARTS[0].nodes) and len(model.asked) == 2, "below the loss that all else takes"
    assert "float:tail" in found.taken.what


def test_a_tail_that_loses_nothing_stays_in_integers() -> None:
    for harm in ({"a": 0.0, "b": 0.06, "c": 0.0, "d": 0.0}, {"a": 0.01, "b": 0.0, "c": 0.0, "d": 0.0}):
        found = tailed(Model(nodes(harm, *PARTS)))
        found.run()
        assert not found.moved


def test_a_search_has_one_choice_for_the_tail_and_the_user_may_decide_it() -> None:
    graph = load(detector())
    spec = hardware("ort_cpu")

    def topologies(**options: object) -> Topologies:
        return Topologies(graph, spec, schema_for(spec), AnnotateOptions(choices=("float",), **options))

    variants = topologies()
    keys = {choice.key for choice in variants.choices}
    assert "float:tail" in keys and "float:sides" in keys and not keys & {f"float:{name}" for name in variants.tail}
    assert {"expected", "distances", "scores"} <= variants.tail and "classes" not in variants.tail
    structure = variants.structure_of({"float:tail": "float", "float:sides": "integer"})
    assert {key for key, _ in structure.decided} == {f"float:{name}" for name in variants.tail}
    assert not variants.structure_of({"float:tail": "integer"})
    chosen = variants.at(structure)
    assert set(variants.tail) <= set(chosen.float_nodes) and "classes" not in chosen.float_nodes
    always = topologies(float_tail="always")
    assert not always.tail and "float:tail" not in {choice.key for choice in always.choices}
    assert always.base.float_nodes["joined"].text == "kept in float by annotate.float_tail"
    never = topologies(float_tail="never")
    assert {choice.key for choice in never.choices} == keys - {"float:tail"} and not variants.tail & set(
        never.may_float
    )
    with pytest.raises(ConfigError, match="always and never"):
        AnnotateOptions(float_tail="sometimes")
