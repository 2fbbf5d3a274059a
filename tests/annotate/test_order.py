"""The topology does not depend on the order in which a file lists its nodes."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from quantpipe.annotate.choices import choice_space
from tests.ops.cases import CASES
from tests.ops.line import Net, line, load


def shuffled(model: onnx.ModelProto, rng: np.random.Generator) -> onnx.ModelProto:
    """A random execution order of the same nodes."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    waiting = list(model.graph.node)
    made = {i.name for i in model.graph.input} | {i.name for i in model.graph.initializer} | {""}
    del copy.graph.node[:]
    while waiting:
        ready = [n for n in waiting if set(n.input) <= made]
        node = ready[rng.integers(len(ready))]
        waiting.remove(node)
        made |= set(node.output)
        copy.graph.node.append(node)
    return copy


@pytest.mark.sliced(24)
@pytest.mark.parametrize("spec", ["ort_cpu", "vta", "hago_sample"])
@pytest.mark.parametrize("case", ["concat_three", "concat_twice", "residual_projection", "two_inputs", "split_three",
                                  "attention", "tied_weights", "intermediate_output"])  # fmt: skip
def test_any_order_gives_the_same_groups_and_names(case: str, spec: str) -> None:
    net = Net(seed=len(case))
    CASES[case](net)
    proto = net.proto()
    first = line(load(proto), spec)
    rng = np.random.default_rng(3)
    for _ in range(4):
        other = line(load(shuffled(proto, rng)), spec)
        assert other.topology == first.topology
        assert list(other.topology.node_conds) == list(first.topology.node_conds)
        if first.topology.kernels:
            assert choice_space(other.topology, other.options) == choice_space(first.topology, first.options)
