"""Recovery keeps the type of weights that a plan stores in another one."""

from __future__ import annotations

import numpy as np
import pytest

from quantpipe.recover import STEPS, overrides_arrays, overrides_from_arrays
from quantpipe.recover.named_steps import Walk
from quantpipe.types import DType
from tests.ops.line import Net, hardware, hardware_data, line
from tests.recover.test_recover_steps import work_on


@pytest.mark.parametrize("step", ["bias", "gptq", "gptq_compensated"])
def test_weights_with_zero_points_stay_in_their_own_type(step: str) -> None:
    """The plan moves weights from int8 to uint8 where pairs would saturate; recovery must not take over that type."""
    net = Net(3)
    x = net.node("Relu", net.conv(net.input(None, 3, 8, 8), 3, 8, 3, 3, name="conv"), name="relu")
    net.output(net.dense(net.node("Flatten", net.node("GlobalAveragePool", x)), 8, 5, name="dense"))
    made = line(net, hardware("fbgemm", activations=hardware_data("fbgemm")["activations"] | {"bits": 8}))
    work = work_on(made)
    assert any(w.dtype is DType.UINT8 for w in made.plan().weights.values()), "otherwise nothing is tested"
    state = STEPS[step].run(work, work.start(), Walk(rows=64))
    assert all(w.dtype is DType.INT8 for w in state.overrides.weights.values())
    plan = made.planner.plan(work.strategy, state.overrides)
    assert made.agree(plan, "integer").differing == 0
    arrays = overrides_arrays(state.overrides)
    again = made.planner.plan(work.strategy, overrides_from_arrays(arrays, made.topology, "test"))
    for name, weight in plan.weights.items():
        np.testing.assert_array_equal(again.weights[name].values, weight.values)
        np.testing.assert_array_equal(again.weights[name].zero_point, weight.zero_point)
