"""Constants that the clean-up adds get names that no tensor of the model has."""

from __future__ import annotations

import numpy as np
import pytest

from tests.intake.test_rewrites import checked, ops
from tests.ops.line import Net


@pytest.mark.parametrize("ending", ["weight", "bias"])
def test_a_folded_constant_leaves_a_name_in_use_to_its_tensor(ending: str) -> None:
    """Exporters name results so: conv, and conv_bias after its sum."""
    net = Net(seed=15)
    x = net.node("Conv", net.input(None, 4, 5, 5), net.floats(4, 4, 3, 3), net.floats(4), output="conv")
    x = net.node("Mul", x, net.constant(np.asarray([1.5], np.float32)), output=f"conv_{ending}")
    net.output(net.node("Relu", x))
    assert ops(checked(net)) == {"Conv": 1, "Relu": 1}
