"""Ranges of functions on a device with forms of 8 and 16 bits: each stored type has its own."""

from __future__ import annotations

import pytest

from quantpipe.annotate.choices import bits_key, bits_of
from quantpipe.types import DType
from tests.ops.line import Line, Net, hardware, load, normal_samples, schema_for

NARROW = {"Softmax": (1 / 256, 0), "Sigmoid": (1 / 256, 0), "Tanh": (1 / 128, 128)}
WIDE = {"Softmax": (1 / 65536, 0), "Sigmoid": (1 / 65536, 0), "Tanh": (1 / 32768, 32768)}
"""The scales and zero points that QNN asks of Sigmoid and Tanh of 16 bits."""


def function(op: str) -> Line:
    net = Net(name=op)
    value = net.node(op, net.dense(net.input(None, 8), 8, 8, name="before"), name="function")
    net.output(net.dense(value, 8, 4, name="after"))
    graph, spec = load(net), hardware("qnn_htp")
    return Line(graph, spec, schema_for(spec), normal_samples(graph))


@pytest.mark.parametrize("op", WIDE)
def test_a_result_has_all_bits_of_its_type(op: str) -> None:
    line = function(op)
    for bits, dtype, grids in ((16, DType.UINT16, WIDE), (8, DType.UINT8, NARROW)):
        plan = line.plan(bits)
        found = plan.quantizers["function_out"]
        assert (found.dtype, found.bits) == (dtype, bits)
        assert (float(found.scale), found.zero_point) == grids[op]
        assert line.agree(plan, "integer").differing == 0


@pytest.mark.parametrize("op", WIDE)
@pytest.mark.parametrize("other", [8, 12, 16])
def test_the_type_decides_the_bits(op: str, other: int) -> None:
    """Fewer bits in a type of 16 would be another scale than the device asks for."""
    line = function(op)
    bits = {bits_key(g.key): 16 for g in line.topology.groups} | {bits_key(w.tensor): 8 for w in line.topology.weights}
    assert bits_of(line.topology, bits | {bits_key("function_out"): other})["function_out"] == 16
    narrow = dict.fromkeys(bits, 8)
    assert bits_of(line.topology, narrow)["function_out"] == 8


def test_a_device_of_eight_bits_has_one_range() -> None:
    spec = hardware("qnn_htp", activations={"symmetric": False, "bits": 8, "narrow": False})
    line = function("Softmax")
    group = Line(line.graph, spec, line.schema, line.samples).topology.group_of["function_out"]
    assert (group.dtype, group.max_bits, group.min_bits, group.narrower) == (DType.UINT8, 8, 8, ())
