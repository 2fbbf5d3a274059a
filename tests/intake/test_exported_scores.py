"""Attentions as exporters write them: what guards a Softmax of rows that are masked as a whole."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from quantpipe.graph.execute import Session
from quantpipe.intake.rewrites.exported_scores import unguarded_softmax
from tests.ops.line import Net


def test_without_its_guard_no_masked_row_is_nan() -> None:
    net = Net(seed=1)
    scores, kept = net.input(None, 3, 4, name="scores"), net.input(None, 3, 4, name="kept")
    cond = net.node("Cast", kept, to=9)
    mask = net.node("Where", cond, net.constant(np.float32(0)), net.constant(np.float32(-np.inf)), name="mask")
    share = net.node("Softmax", net.node("Add", scores, mask), name="share")
    empty = net.node("IsNaN", share, name="empty")
    net.output(net.node("Where", empty, net.constant(np.float32(0)), share, name="guard"))
    model = ir.from_proto(net.proto())
    feeds = {"scores": np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32),
             "kept": np.ones((2, 3, 4), np.float32)}  # fmt: skip
    feeds["kept"][:, :, 2] = 0
    before = Session(model).run(feeds)
    for node in list(model.graph):
        unguarded_softmax(model.graph, node)
    assert "guard" not in {node.name for node in model.graph}
    for one, other in zip(Session(model).run(feeds).values(), before.values(), strict=True):
        np.testing.assert_array_equal(one, other)
    feeds["kept"][0, 1] = 0
    (found,) = Session(model).run(feeds).values()
    np.testing.assert_allclose(found.sum(-1), 1, rtol=1e-6)
