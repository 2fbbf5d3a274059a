"""Parts of a graph as models of their own: what the runtime wants to know of their ports."""

from __future__ import annotations

import numpy as np
import pytest

from quantpipe.graph.execute import Session
from quantpipe.graph.extract import part_of
from tests.ops.line import Net, load


@pytest.mark.parametrize("empty", [True, False])
def test_sizes_of_a_resize_that_are_computed_may_come_from_outside(empty: bool) -> None:
    """As exporters write it for pictures of any size; what is not given is empty, or an empty constant."""
    net = Net()
    x = net.input(None, 3, 8, 8)
    small = net.conv(x, 3, 4, 3, 3, strides=[2, 2], pads=[1, 1, 1, 1], name="small")
    ends = [net.node("Slice", net.node("Shape", t), *(net.constant(np.int64([v])) for v in cut))
            for t, cut in ((small, (0, 2)), (x, (2, 4)))]  # fmt: skip
    sizes = net.node("Concat", *ends, axis=0, name="sizes")
    none = net.constant(np.zeros(0, np.float32)) if empty else ""
    large = net.node("Resize", small, none, none, sizes, mode="nearest", nearest_mode="floor",
                     coordinate_transformation_mode="asymmetric", name="large")  # fmt: skip
    net.output(net.conv(large, 4, 2, 3, 3))
    graph = load(net)
    node = next(n for n in graph.nodes if n.op == "Resize")
    given = [node.inputs[0], node.inputs[-1]]
    if graph.is_constant(given[1]):
        pytest.fail("the sizes are folded: this net has to compute them")
    part = part_of(graph, given, node.outputs)
    values = np.arange(2 * 4 * 4 * 4, dtype=np.float32).reshape(2, 4, 4, 4)
    (found,) = Session(part.model).run({given[0]: values, given[1]: np.int64([2, 4, 8, 8])}).values()
    assert np.array_equal(found, values.repeat(2, 2).repeat(2, 3))
