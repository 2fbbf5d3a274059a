"""Float weights of a simulated graph are made where they are read, and equal by their integers."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from quantpipe.graph.external_weights import place_of
from quantpipe.simulate.float_weights import BoundWeights, FloatWeight
from quantpipe.simulate.simulator import bind
from quantpipe.types import DType, WeightTensor
from tests.ops.line import line
from tests.recover.test_recover_channels import blocks


def weight(value: int = 3) -> WeightTensor:
    return WeightTensor("w", np.full((2, 2), value, np.int8), np.float32(0.5), None, DType.INT8, 8)


def test_floats_are_made_anew_by_every_reader() -> None:
    weights, held = BoundWeights(), weight()
    weights.put("w.q", FloatWeight(held))
    assert weights["w.q"].dtype == np.float32 and weights["w.q"] is not weights["w.q"]
    np.testing.assert_array_equal(weights["w.q"], held.values)
    tensor = weights.tensor("w.q")
    assert isinstance(tensor, ir.LazyTensor) and place_of(tensor) is None and tensor.nbytes == 16
    np.testing.assert_array_equal(tensor.numpy(), held.values)


def test_a_value_is_known_by_its_weight_or_by_its_numbers() -> None:
    weights, held = BoundWeights(), weight()
    weights.put("w.q", FloatWeight(held))
    weights.put("bias", np.arange(3.0))
    assert weights.equals("w.q", FloatWeight(held)) and not weights.equals("w.q", FloatWeight(weight(4)))
    assert weights.equals("bias", np.arange(3.0)) and not weights.equals("bias", np.arange(3.0, dtype=np.float32))
    assert not weights.equals("bias", FloatWeight(held)) and not weights.equals("none", np.arange(3.0))


def test_a_bound_model_holds_no_floats_of_integer_weights() -> None:
    made = line(blocks(), "vta")
    simulation = made.simulate(made.plan())
    model = bind(simulation.rendered.model, simulation.weights)
    lazy = {n for n, v in model.graph.initializers.items() if isinstance(v.const_value, ir.LazyTensor)}
    assert lazy == {f"{t}.q" for t in made.plan().weights} & set(simulation.weights) and lazy
