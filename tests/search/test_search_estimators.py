"""Ranges by other estimators, forms of additions, and kinds that a device has nothing of."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import quantpipe
from quantpipe.calibrate.estimators import Percentile
from quantpipe.errors import ConfigError
from tests.api.nets import QUICK, images, small_net
from tests.ops.line import Net

GIVEN: dict[str, Any] = {"precision": "none", "recover": "none", "executor": "serial", "evaluate": QUICK}


def test_a_search_may_take_ranges_by_other_estimators() -> None:
    given = {**GIVEN, "annotate": {"choices": ["estimators"]}, "threshold": "max_range", "search": "uniform"}
    with quantpipe.Pipeline(small_net(), images(), "ort_cpu", **given) as run:
        space, groups = run.annotate().space, run.annotate().topology.groups
        before, stored = dict(run.search().strategy.ranges), run.calibrate()
    found = {}
    for option in ("percentile", "output_error"):
        fix = {choice.key: option for choice in space if option in choice.options}
        with quantpipe.Pipeline(small_net(), images(), "ort_cpu", choices={"fix": fix}, **given) as run:
            found[option] = dict(run.search().strategy.ranges)
            schema = run.settings.schema.activations
    free = {c.subject for c in space if "percentile" in c.options}
    assert stored is not None and free
    for group in (g for g in groups if g.key in free and len(g.sources) == 1):
        assert found["percentile"][group.key] == Percentile()(stored.tensors[group.sources[0]], 8, schema)
    assert found["percentile"] != before
    # At 8 bits the layers of this net may have nothing to gain, so its ranges may be the estimated ones.
    assert found["output_error"].keys() == before.keys() and found["output_error"] != found["percentile"]


def test_output_error_cannot_be_beside_itself() -> None:
    given = {**GIVEN, "annotate": {"choices": ["estimators"]}, "threshold": "output_error"}
    with (
        pytest.raises(ConfigError, match="has estimators, and threshold=OutputError decides layer by layer already"),
        quantpipe.Pipeline(small_net(), images(), "ort_cpu", **given) as run,
    ):
        run.annotate()


def residual() -> Any:
    net = Net(seed=1)
    x = net.input(None, 3, 8, 8)
    a = net.node("Relu", net.conv(x, 3, 3, 1, 1, name="a"))
    net.output(net.node("Add", net.conv(a, 3, 3, 1, 1, name="b"), a, name="sum"))
    return net.proto()


@pytest.mark.program
def test_auto_offers_the_forms_of_additions_in_integers() -> None:
    x = np.random.default_rng(0).standard_normal((64, 3, 8, 8)).astype(np.float32)
    for device, options in (("mixed_npu", [("both", "residual_only")]), ("ort_cpu", [])):
        with quantpipe.Pipeline(residual(), x, device, search="greedy", **GIVEN) as run:
            assert [c.options for c in run.annotate().space if c.key == "add:sum"] == options
            assert run.evaluate()["agreement"]["differing"] == 0
    recovered = {"option": "greedy", "weights": "recovered"}
    with quantpipe.Pipeline(residual(), x, "mixed_npu", search=recovered, **GIVEN) as run:
        assert not [c for c in run.annotate().space if c.key == "add:sum"]


def test_kinds_that_a_device_has_nothing_of_are_named() -> None:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        kinds = ["auto", "add", "granularity", "rescale"]
        given = {**GIVEN, "annotate": {"choices": kinds}, "search": {"option": "greedy", "max_evaluations": 2}}
        with quantpipe.Pipeline(small_net(), images(), "vta", **given) as run:
            run.search()
    texts = " ".join(str(w.message) for w in said)
    for kind, why in (("add", "its additions have one form"), ("rescale", "brings no stored integers to another")):
        assert f"annotate.choices has {kind}, and vta leaves nothing to choose there: " in texts and why in texts
