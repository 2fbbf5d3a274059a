"""A strategy file edited by hand: whatever does not fit is named, and nothing that means something else is taken."""

from __future__ import annotations

import json
from copy import deepcopy
from typing import Any

import numpy as np
import pytest

from quantpipe.annotate.conditions import AnnotateOptions
from quantpipe.annotate.variants import Topologies
from quantpipe.check.sample import made_up
from quantpipe.errors import ArtifactError
from quantpipe.intake.load import load_graph
from quantpipe.pipeline.strategy_file import read_strategy, results_of, strategy_payload
from quantpipe.types import Range, Strategy
from tests.e2e.models import DIGITS
from tests.ops.line import hardware, schema_for

SPEC = hardware("ort_cpu")
SCHEMA = schema_for(SPEC)
BAD_VALUES: tuple[Any, ...] = (
    None, True, "x", [], {}, [[1]], -1, 1e300, float("nan"), float("inf"), {"low": 1, "high": -1},
    {"low": 1, "high": 2}, {"low": -2, "high": -1}, {"low": 0}, {"low": -1, "high": True},
    {"low": -1, "high": 1, "x": 0},
)  # fmt: skip
BAD_BITS = (None, True, "8", 8.0, [8], {}, 1, 0, -8, 99, 10**400)


@pytest.fixture(scope="module")
def made() -> tuple[Topologies, dict[str, Any]]:
    graph = load_graph(DIGITS, lambda raw: made_up(raw.inputs, {}))
    variants = Topologies(graph, SPEC, SCHEMA, AnnotateOptions())
    topology = variants.base
    bits = {t: g.max_bits for g in topology.groups for t in g.tensors} | {w.tensor: 8 for w in topology.weights}
    weights = {
        w.tensor: np.ones(() if w.axis is None else graph.shapes[w.tensor][w.axis], np.float64)
        for w in topology.weights
    }
    strategy = Strategy(bits, {g.key: Range(-1.0, 2.0) for g in topology.groups}, weights)
    return variants, json.loads(
        json.dumps(strategy_payload("m", SPEC, SCHEMA, topology, strategy=strategy, results={}))
    )


def read(variants: Topologies, payload: Any) -> Strategy:
    return read_strategy(payload, "here", "m", SPEC, schema=SCHEMA, variants=variants)


def test_the_file_as_written_is_taken(made: tuple[Topologies, dict[str, Any]]) -> None:
    variants, payload = made
    assert read(variants, payload).ranges == {g.key: Range(-1.0, 2.0) for g in variants.base.groups}


def test_every_wrong_value_in_every_place_is_refused(made: tuple[Topologies, dict[str, Any]]) -> None:
    variants, payload = made
    site, group = variants.base.weights[0], variants.base.groups[0]
    assert site.axis is not None
    channels = variants.graph.shapes[site.tensor][site.axis]
    cases: list[tuple[tuple[str, ...], Any]] = [((), value) for value in (None, [], "x", {}, 3)]
    sections = [("topology",), ("topology", "node_conds"), ("bits",), ("thresholds",), ("structure",)]
    cases += [(path, value) for path in sections for value in (None, [], "x", 3, True)]
    cases += [(("bits", edge), value) for edge in (group.edges[0], site.edges[0]) for value in BAD_BITS]
    cases += [(("thresholds", group.key), value) for value in BAD_VALUES]
    cases += [(("thresholds", site.tensor), value) for value in (*BAD_VALUES, 1.0, [1.0] * (channels + 1))]
    cases += [(("thresholds", site.tensor), [1.0] * (channels - 1) + [value]) for value in BAD_VALUES]
    cases += [((section, "other"), 8) for section in ("bits", "thresholds")]
    cases += [(("structure", "float:nothing"), "float"), (("structure", "x"), "y")]
    for path, value in cases:
        changed = deepcopy(payload)
        place: Any = changed
        for part in ("strategy", *path)[:-1]:
            place = place[part]
        place[("strategy", *path)[-1]] = value
        with pytest.raises(ArtifactError) as error:
            read(variants, changed)
        assert len(str(error.value)) < 1000 and "\n" not in str(error.value), (path, value)


def test_results_of_other_types() -> None:
    for results in (3, [], "x", {"search": 3}, {"rectified": {}}, {"recover": []}):
        with pytest.raises(ArtifactError, match="its results are damaged"):
            results_of({"results": results}, "here")
    assert results_of({}, "here") == ({}, [], {})
