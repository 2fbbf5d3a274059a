"""Float weights of a simulated graph are made where they are read, and equal by their integers."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from quantpipe.graph.execute import Session
from quantpipe.graph.external_weights import place_of
from quantpipe.graph.normalize import expose
from quantpipe.simulate import float_weights
from quantpipe.simulate.float_weights import BoundWeights, FloatWeight
from quantpipe.simulate.simulator import bind
from quantpipe.types import DType, WeightTensor
from tests.ops.line import line, normal_samples
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


@pytest.mark.parametrize("device", ["vta", "ort_cpu", "tensorrt", "npu_w8a16"])
def test_many_weights_are_fed_and_change_no_integer(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = line(blocks(), device)
    plan = made.plan()
    found = []
    for least in (float_weights.MANY, 0):
        monkeypatch.setattr(float_weights, "MANY", least)
        simulation = made.simulate(plan)
        model = expose(bind(simulation.rendered.model, simulation.weights), [*simulation.rendered.integers.values()])
        session = Session(model)
        found.append(session.run({**next(normal_samples(made.graph).batches(4)).inputs, **simulation.scalars}))
        floats = [n for n in simulation.weights if n.removesuffix(".q") in plan.weights]
        fed = [n for n in simulation.scalars if n.rpartition(".")[0] in plan.weights]
        assert bool(floats) == bool(least)
        assert all(simulation.scalars[n] is plan.weights[n.rpartition(".")[0]].values for n in fed if "int" in n)
        assert bool(fed) != bool(least)
        casts = [n for n in simulation.rendered.model.graph if n.op_type == "Cast" and (n.name or "").endswith(".q")]
        assert all(n.inputs[0] is not None and n.inputs[0].producer() is not None for n in casts), "after its data"
        assert bool(casts) != bool(least)
    assert found[0].keys() == found[1].keys()
    for name, array in found[0].items():
        np.testing.assert_array_equal(array, found[1][name], err_msg=name)
