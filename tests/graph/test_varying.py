"""Shapes that follow the sample: which tensors do, and what must not rely on them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from quantpipe.graph.extract import part_of
from quantpipe.graph.normalize import with_varying
from quantpipe.intake.load import load_graph
from quantpipe.oprules import rule_of
from tests.e2e.data_models import sound_classifier


def test_tensors_that_follow_the_sample(tmp_path: Path) -> None:
    sound_classifier(tmp_path / "m.onnx")
    feeds = [{"wave": np.ones((2, 1, length), np.float32)} for length in (60, 60, 80)]
    graph = load_graph(tmp_path / "m.onnx", lambda raw: feeds[0])
    pool = next(node for node in graph.nodes if node.outputs == ("p",))
    rule = rule_of(pool)
    assert rule is not None and rule.refuse(pool, graph) is None
    assert with_varying(graph, feeds[1]).varying == frozenset()
    varying = with_varying(graph, feeds[2])
    assert varying.varying == {"wave", "c1", "r1", "c2", "r2"}
    assert varying.is_open("wave", -1) and varying.is_open("c1", 2)
    assert not varying.is_open("c1", 1) and not varying.is_open("p", 2)
    assert "another number of elements" in str(rule.refuse(pool, varying))
    part = part_of(varying, ["r1"], ["p"])
    assert [i.shape for i in part.inputs] == [(None, None, None)]
    assert [i.shape for i in part_of(graph, ["r1"], ["p"]).inputs] == [(None, None, None)]
