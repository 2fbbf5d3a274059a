"""The same net in every opset that onnx and onnxruntime take: the same ops run in integers, the same integers come out,
and the realized model agrees with the simulated one."""

from __future__ import annotations

from collections import Counter
from functools import cache

import numpy as np
import onnx
import pytest

from tests.ops.line import Line, line, load, with_products
from tests.opsets.nets import NETS

FIRST, BASE, LAST = 7, 17, onnx.defs.onnx_opset_version()
USUAL = (FIRST, 11, 13, 18, LAST)
"""Opsets of the default tier: the ends, and those after which most forms changed."""
OPSETS = [o if o in USUAL else pytest.param(o, marks=pytest.mark.grid) for o in range(FIRST, LAST + 1)]


@cache
def made(net: str, opset: int) -> Line:
    return line(load(NETS[net](opset)), with_products())


def kernels(net: str, opset: int) -> Counter[str]:
    return Counter(k.op for k in made(net, opset).topology.kernels)


@pytest.mark.sliced(12)
@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize("net", NETS)
def test_an_opset_is_a_way_to_write_it(net: str, opset: int) -> None:
    own = made(net, opset)
    assert not [note for note in own.graph.notes if "clean-up step" in note]
    assert kernels(net, opset) == kernels(net, BASE)
    plan = own.plan(8)
    assert own.agree(plan, "qdq").differing == 0
    (found,), (wanted,) = (made(net, o).outputs().values() for o in (opset, BASE))
    np.testing.assert_allclose(found, wanted, atol=1e-5)
    scales = [np.asarray(q.scale) for q in plan.quantizers.values()]
    base = [np.asarray(q.scale) for q in made(net, BASE).plan(8).quantizers.values()]
    np.testing.assert_allclose(np.sort(scales), np.sort(base), rtol=1e-4)


def test_the_nets_have_what_changes() -> None:
    """Counts against nets that lost what they are for."""
    assert kernels("maps", BASE)["Conv"] >= 2 and kernels("rows", BASE)["MatMul"] + kernels("rows", BASE)["Gemm"] >= 3
    assert sum(kernels("maps", BASE).values()) >= 15 and sum(kernels("rows", BASE).values()) >= 8
