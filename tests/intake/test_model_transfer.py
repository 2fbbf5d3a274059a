"""Models on their way between processes: weights in temporary files arrive, whoever collects garbage when."""

import gc
import pickle

import numpy as np
import onnx_ir as ir
import pytest

from quantpipe.graph.external_weights import file_array, place_of
from quantpipe.intake.model_transfer import Packed, pack, unpack
from tests.ops.line import Net


def packed() -> tuple[Packed, ir.Model]:
    """Return a model with one weight in a temporary file, packed, and the model it started from."""
    net = Net(seed=3)
    net.output(net.node("Conv", net.input(None, 64, 4, 4), net.floats(300, 64, 1, 1), name="conv"))
    proto = net.proto()
    known, model = ir.from_proto(proto), ir.from_proto(proto)
    (value,) = model.graph.initializers.values()
    array = file_array((300, 64, 1, 1), np.float32)
    array[...] = 7
    value.const_value = ir.tensor(array, name=value.name)
    return pack(model, known), known


@pytest.mark.parametrize("travels", [False, True])
def test_a_weight_in_a_temporary_file_arrives_after_a_collection(travels: bool) -> None:
    held, known = packed()
    gc.collect()
    model = unpack(pickle.loads(pickle.dumps(held)) if travels else held, known)
    (value,) = model.graph.initializers.values()
    assert value.const_value is not None
    assert np.all(value.const_value.numpy() == 7)
    place = place_of(value.const_value)
    assert place is not None and place.path.exists()


def test_the_file_vanishes_with_its_last_model() -> None:
    held, known = packed()
    model = unpack(held, known)
    del held
    gc.collect()
    (value,) = model.graph.initializers.values()
    assert value.const_value is not None
    place = place_of(value.const_value)
    assert place is not None and place.path.exists()
    del model, value
    gc.collect()
    assert not place.path.exists()
