"""Choices of a range: what is offered on which device, what each option gives, and what is left out as equal."""

from __future__ import annotations

import numpy as np
import pytest

from quantpipe.annotate.choices import AUTO, bits_key
from quantpipe.annotate.conditions import AnnotateOptions
from quantpipe.annotate.limits import ChoiceLimits
from quantpipe.annotate.range_choices import FACTORS, WHOLE, range_key
from quantpipe.annotate.variants import Topologies
from quantpipe.calibrate.estimators import MSE, MaxRange
from quantpipe.calibrate.measure import measure
from quantpipe.calibrate.offered_ranges import RangeOffer, distinct
from quantpipe.calibrate.threshold_table import ThresholdTable
from quantpipe.types import ChoiceSpace
from quantpipe.types.choice_key import ChoiceKind
from tests.ops.line import Line, Net, line

POWERS = ("estimated", "halved", "doubled", "whole")
STEPS = ("estimated", "narrower", "wider", "whole")


def net() -> Net:
    made = Net()
    x = made.input(None, 3, 6, 6)
    made.output(made.node("Relu", made.conv(made.node("Relu", made.conv(x, 3, 4, 3, 3)), 4, 2, 1, 1)))
    return made


def offered(found: Line, **options: object) -> tuple[Topologies, ChoiceSpace]:
    annotate = AnnotateOptions(choices=(AUTO,), **options)  # type: ignore[arg-type]
    variants = Topologies(found.graph, found.spec, found.schema, annotate)
    ranges = RangeOffer(annotate.choices, found.schema, MSE()).options(variants.reference)
    return variants, variants.space(None, ranges)


def table_of(found: Line, variants: Topologies, estimator: MSE | MaxRange | None = None) -> ThresholdTable:
    profile = measure(found.graph, variants.measured, found.samples, 64)
    return ThresholdTable(
        found.graph, variants.base, found.schema, profile, estimator=estimator or MSE(), weight_method="mse"
    )  # fmt: skip


@pytest.mark.parametrize(
    ("device", "tensors"),
    [("vta", POWERS), ("fpga_shift", POWERS), ("ort_cpu", STEPS), ("tflite_int8", STEPS), ("snpe", STEPS)],
)
def test_every_group_and_weight_of_every_device_has_a_choice(device: str, tensors: tuple[str, ...]) -> None:
    variants, space = offered(line(net(), device))
    found = {c.key: c for c in space if c.kind == ChoiceKind.RANGE}
    sites = (*variants.reference.groups, *variants.reference.weights)
    assert set(found) == {range_key(site.key) for site in sites if site.fixed is None}
    assert {found[range_key(g.key)].options for g in variants.reference.groups} == {tensors}
    assert all(len(found[range_key(w.key)].options) == 3 for w in variants.reference.weights)
    assert all(choice.free and not choice.graded for choice in found.values())


def test_what_somebody_decides_already_is_not_offered() -> None:
    _, space = offered(line(net(), "vta"), constraints={"relu1_out": {"kind": "calibrated", "min": 0, "max": 3}})
    assert range_key("relu1_out") not in {c.key for c in space}
    found = line(net(), "vta")
    weights = RangeOffer((AUTO,), found.schema, MSE(), stepped=True).options(found.topology)
    assert set(weights) == {w.key for w in found.topology.weights}
    assert RangeOffer(("bits",), found.schema, MSE()).options(found.topology) == {}


@pytest.mark.parametrize("device", ["vta", "tflite_int8"])
def test_each_option_changes_its_own_range_and_nothing_else(device: str) -> None:
    found = line(net(), device)
    variants, space = offered(found)
    table, widest = table_of(found, variants), table_of(found, variants, MaxRange())
    start = space.decode(space.start)
    before, whole = table.strategy(start), widest.strategy(start)
    for choice in space:
        for option in choice.options[1:] if choice.kind == ChoiceKind.RANGE else ():
            after, name = table.strategy({**start, choice.key: option}), choice.subject
            factor = FACTORS.get(str(option))
            for key, own in before.ranges.items():
                if key != name:
                    wanted = own.threshold
                else:
                    wanted = whole.ranges[key].threshold if factor is None else own.threshold * factor
                assert after.ranges[key].threshold == pytest.approx(wanted)
            for key, thresholds in before.weights.items():
                if key != name:
                    np.testing.assert_array_equal(after.weights[key], thresholds)
                elif factor is not None:
                    np.testing.assert_allclose(after.weights[key], thresholds * factor)
                else:
                    values = np.abs(found.graph.constant(key)).reshape(len(np.atleast_1d(thresholds)), -1)
                    np.testing.assert_allclose(np.atleast_1d(after.weights[key]), values.max(axis=1), rtol=1e-6)
            assert after.bits == before.bits


def test_options_of_the_same_scale_are_left_out_where_bits_are_settled() -> None:
    found = line(net(), "vta")
    variants, space = offered(found)
    table = table_of(found, variants)
    narrowed = distinct(space, variants.reference, table, found.schema)
    start = space.decode(space.start)
    for before, after in zip(space, narrowed, strict=True):
        if before.kind != ChoiceKind.RANGE or before.subject not in table.strategy(start).ranges:
            continue
        scales = {
            float(np.exp2(np.ceil(np.log2(table.strategy({**start, before.key: o}).ranges[before.subject].threshold))))
            for o in before.options
        }
        assert len(after.options) == len(scales) and after.options[0] == before.options[0]
    assert narrowed.size < space.size
    searched = space.with_options([type(c)(c.key, c.kind, (8, 4), c.edges) for c in space if c.kind == ChoiceKind.BITS])
    assert distinct(searched, variants.reference, table, found.schema) == searched


def test_a_pattern_for_bits_passes_choices_of_ranges_over() -> None:
    _, space = offered(line(net(), "mixed_npu"))
    key = bits_key("x")
    found = ChoiceLimits(fix={"*:x": 8}).narrowed(space)
    assert found.decode(found.start)[key] == 8 and found.decode(found.start)[range_key("x")] == "estimated"
    assert len(next(c for c in found if c.key == range_key("x")).options) > 1


def test_a_whole_range_and_no_other_can_be_fixed() -> None:
    _, space = offered(line(net(), "vta"))
    found = ChoiceLimits(fix={range_key("x"): WHOLE}).narrowed(space)
    assert found.decode(found.start)[range_key("x")] == WHOLE
