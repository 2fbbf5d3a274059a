"""A choice of the whole range gives the range that calibration saw, and nothing else."""

from __future__ import annotations

import pytest

from quantpipe.annotate.conditions import AnnotateOptions
from quantpipe.annotate.range_choices import ESTIMATED, WHOLE, range_choice, range_key
from quantpipe.annotate.variants import Topologies
from quantpipe.calibrate.estimators import MSE, MaxRange
from quantpipe.calibrate.measure import measure
from quantpipe.calibrate.threshold_table import ThresholdTable
from quantpipe.types import ChoiceSpace
from tests.ops.line import Net, line


def net() -> Net:
    made = Net()
    x = made.input(None, 3, 6, 6)
    made.output(made.node("Relu", made.conv(made.node("LeakyRelu", made.conv(x, 3, 4, 3, 3)), 4, 2, 1, 1)))
    return made


@pytest.mark.parametrize("floatable", [False, True])
def test_the_range_is_that_of_max_range_for_the_group_that_is_chosen(floatable: bool) -> None:
    made = line(net(), "ort_cpu")
    given = (made.graph, made.spec, made.schema, AnnotateOptions())
    variants = Topologies(*given, floatable=Topologies(*given).may_float if floatable else ())
    profile = measure(made.graph, variants.measured, made.samples, 64)

    def table(estimator: MSE | MaxRange) -> ThresholdTable:
        return ThresholdTable(
            made.graph, variants.base, made.schema, profile,
            estimator=estimator, weight_method="mse", variants=variants if floatable else None,
        )  # fmt: skip

    groups = [group for group in variants.reference.groups if group.fixed is None]
    space = ChoiceSpace((*variants.space(), *(range_choice(group) for group in groups)))
    start = space.decode(space.start)
    estimated, widest = (
        table(MSE()).strategy(start),
        table(MaxRange()).strategy(variants.space().decode(variants.space().start)),
    )
    assert {start[range_key(g.key)] for g in groups} == {ESTIMATED}
    for chosen in groups:
        found = table(MSE()).strategy({**start, range_key(chosen.key): WHOLE})
        for group in groups:
            wanted = widest if group.key == chosen.key else estimated
            assert found.ranges[group.key] == wanted.ranges[group.key]
        assert found.structure == estimated.structure and found.bits == estimated.bits
