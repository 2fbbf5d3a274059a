"""The size of a search space, of whatever size."""

from __future__ import annotations

from decimal import Decimal

import pytest

from quantpipe.types import Choice, ChoiceSpace


@pytest.mark.parametrize(("choices", "options"), [(1, 1), (23, 5), (440, 5), (441, 5), (5000, 9)])
def test_sizes_within_and_beyond_floating_point(choices: int, options: int) -> None:
    space = ChoiceSpace(tuple(Choice(f"bits:{i}", "bits", tuple(range(options))) for i in range(choices)))
    assert space.size == options**choices
    assert space.log10 == pytest.approx(float(choices * Decimal(options).log10()))
    assert (space.about is None) == (space.log10 > 308.25)  # the largest float is 10^308.2547
    assert space.about is None or space.about == float(options**choices)
