"""A strategy of one device on another: its numbers where they fit, and a list of what did not."""

from __future__ import annotations

from typing import Any

import pytest

from quantpipe.annotate.conditions import AnnotateOptions
from quantpipe.annotate.variants import Topologies
from quantpipe.errors import ArtifactError
from quantpipe.pipeline.carry_strategy import carried, is_foreign
from quantpipe.pipeline.strategy_file import read_strategy, strategy_payload
from quantpipe.plan import Problem
from quantpipe.types import Strategy
from tests.ops.line import Line, line
from tests.ops.test_every_op import graph_of

CASE = "conv_chain"


def payload(made: Line, **bits: int) -> dict[str, Any]:
    strategy = made.strategy(8)
    strategy = Strategy({**strategy.bits, **bits}, strategy.ranges, strategy.weights)
    results: Any = {"search": {}, "rectified": []}
    found = strategy_payload("hash", made.spec, made.schema, made.topology, strategy=strategy, results=results)
    return dict(found)


def on(device: str, given: dict[str, Any]) -> tuple[Line, Strategy, list[str]]:
    there = line(graph_of(CASE), device)
    variants = Topologies(there.graph, there.spec, there.schema, AnnotateOptions())
    found, notes = carried(given, "file", there.spec, schema=there.schema, variants=variants)
    strategy = read_strategy(found, "file", "hash", there.spec, schema=there.schema, variants=variants)
    return there, strategy, notes


def test_numbers_that_fit_are_the_same() -> None:
    """tensorrt has another schema: the same ranges and bits, from which its own scales follow."""
    made = line(graph_of(CASE))
    given = payload(made)
    there, strategy, notes = on("tensorrt", given)
    assert is_foreign(given, there.spec, there.schema) and not is_foreign(given, made.spec, made.schema)
    kept = made.strategy(8)
    for group in there.topology.groups:
        there_is = next((g for g in made.topology.groups if set(g.tensors) & set(group.tensors)), None)
        assert there_is is not None
        assert strategy.ranges[group.key] == kept.ranges[there_is.key]
    for site in there.topology.weights:
        assert strategy.bits[site.tensor] == 8 and (strategy.weights[site.tensor] == kept.weights[site.tensor]).all()
    assert not [n for n in notes if "scale" in n or "bits" in n]
    assert Problem(there.graph, there.topology, there.spec, there.schema).plan(strategy).kernels


def test_what_does_not_fit_is_listed() -> None:
    """vta has one scale for a weight; 6 bits of a tensor stay 6."""
    made = line(graph_of(CASE))
    there, strategy, notes = on("vta", payload(made, relu1_out=6))
    assert strategy.bits["relu1_out"] == 6
    one = [n for n in notes if "has one scale in place of" in n]
    assert len(one) == len(there.topology.weights)
    largest = made.strategy(8).weights["c1"].max()
    assert strategy.weights["c1"] == largest
    assert (
        there.agree(Problem(there.graph, there.topology, there.spec, there.schema).plan(strategy), "integer").differing
        == 0
    )


def test_more_bits_than_a_device_has_are_listed() -> None:
    made = line(graph_of(CASE), "mixed_npu")
    given = payload(made, relu1_out=12, c1=16)
    _, strategy, notes = on("ort_cpu", given)
    assert strategy.bits["relu1_out"] == 8 and strategy.bits["c1"] == 8
    assert "relu1_out has 8 bits in place of 12" in notes and "c1 has 8 bits in place of 16" in notes


def test_a_tensor_that_the_file_does_not_know_is_refused() -> None:
    given = payload(line(graph_of(CASE)))
    del given["strategy"]["thresholds"]["relu1_out"]
    with pytest.raises(ArtifactError, match=r"it has no entry for relu1_out, which vta holds in integers; legal is"):
        on("vta", given)
