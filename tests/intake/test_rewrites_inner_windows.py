"""Averages whose pads count, times the share of each window inside the map: one average that counts no pads."""

from __future__ import annotations

import numpy as np
import pytest

from tests.intake.test_rewrites import checked, ops
from tests.ops.line import Net


def share(rows: int, columns: int, pads: tuple[int, int, int, int]) -> np.ndarray:
    """What windows of 3 x 2, two rows apart, have of elements over what lies inside the map, by counting."""
    inside = np.pad(np.ones((rows, columns)), ((pads[0], pads[2]), (pads[1], pads[3])))
    made = [[inside[i : i + 3, j : j + 2].sum() for j in range(inside.shape[1] - 1)]
            for i in range(0, inside.shape[0] - 2, 2)]  # fmt: skip
    return (6 / np.asarray(made))[None, None].astype(np.float32)


def net(pads: tuple[int, int, int, int], *, padded: bool, factor: float = 1.0, fill: float = 0.0) -> Net:
    made = Net(seed=3)
    x = made.conv(made.input(None, 3, 7, 6), 3, 4, 3, 3, pads=[1, 1, 1, 1])
    how = {"kernel_shape": [3, 2], "strides": [2, 1]}
    if padded:
        around = made.constant(np.asarray([0, 0, *pads[:2], 0, 0, *pads[2:]], np.int64))
        x = made.node("Pad", x, around, made.constant(np.float32(fill)))
        x = made.node("AveragePool", x, **how)
    else:
        x = made.node("AveragePool", x, pads=list(pads), count_include_pad=1, **how)
    shares = share(7, 6, pads)
    shares[0, 0, 0, 0] *= factor
    made.output(made.node("Mul", made.constant(shares), x))
    return made


@pytest.mark.parametrize("pads", [(1, 1, 1, 1), (2, 0, 1, 1), (0, 1, 0, 0)])
@pytest.mark.parametrize("padded", [True, False])
def test_the_share_of_the_map_is_no_op_of_its_own(pads: tuple[int, int, int, int], padded: bool) -> None:
    graph = checked(net(pads, padded=padded))
    assert set(ops(graph)) == {"Conv", "AveragePool"}
    assert graph.nodes[1].attr("pads") == list(pads) and not graph.nodes[1].attr("count_include_pad", 0)


@pytest.mark.parametrize("padded", [True, False])
def test_other_factors_stay(padded: bool) -> None:
    assert "Mul" in ops(checked(net((1, 1, 1, 1), padded=padded, factor=1.001)))


def test_pads_of_another_number_stay() -> None:
    assert "Mul" in ops(checked(net((1, 1, 1, 1), padded=True, fill=0.5)))
