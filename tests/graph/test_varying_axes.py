"""Free axes of one input that change in different samples: each is seen, however early another one was."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from quantpipe.oprules import rule_of
from quantpipe.pipeline import inputs
from quantpipe.types import Batch
from tests.ops.line import ArraySamples, Net, load


class PicturesOfSizes(ArraySamples):
    """One picture per batch, of the sizes `[H, W]` 4x5, 6x5 and 4x9."""

    def batches(self, size: int) -> Iterator[Batch]:
        for height, width in ((4, 5), (6, 5), (4, 9)):
            yield Batch({"x": np.ones((1, 8, height, width), np.float32)}, None, np.arange(1))


def test_each_free_axis_is_seen() -> None:
    net = Net(seed=2)
    net.output(net.node("ReduceMean", net.input(None, 8, None, None), axes=[3], keepdims=1))
    pictures = PicturesOfSizes({"x": np.ones((3, 1), np.float32)})
    graph = inputs._see_varying(load(net, lambda raw: pictures), pictures)
    assert graph.open_axes["x"] == {2, 3}
    mean = graph.nodes[-1]
    rule = rule_of(mean)
    assert rule is not None
    assert "no bound" in str(rule.refuse(mean, graph))
