"""ConvInteger as Conv of whole numbers: the same numbers, whatever the types, zero points and attributes."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from quantpipe.graph.execute import Kernels, Session
from quantpipe.intake.rewrites.whole_numbers import whole_number_convolutions

TYPES = {np.dtype(np.uint8): TensorProto.UINT8, np.dtype(np.int8): TensorProto.INT8}
Array = np.ndarray[Any, Any]


def convolution(
    data: np.dtype[Any], weight: Array, zeros: tuple[int, int] | None, *, group: int, **attributes: Any
) -> ir.Model:
    inputs, held = ["x", "w"], [numpy_helper.from_array(weight, "w")]
    if zeros is not None:
        for name, value, dtype in zip(("zx", "zw"), zeros, (data, weight.dtype), strict=True):
            inputs.append(name)
            held.append(numpy_helper.from_array(np.asarray(value, dtype), name))
    node = helper.make_node("ConvInteger", inputs, ["y"], name="conv", group=group, **attributes)
    graph = helper.make_graph(
        [node],
        "convolution",
        [helper.make_tensor_value_info("x", TYPES[np.dtype(data)], [None] * 4)],
        [helper.make_tensor_value_info("y", TensorProto.INT32, [None] * 4)],
        held,
    )
    return ir.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))


@given(
    seed=st.integers(0, 2**32 - 1),
    signed=st.tuples(st.booleans(), st.booleans()),
    kernel=st.sampled_from([1, 3, 5]),
    stride=st.sampled_from([1, 2]),
    pad=st.integers(0, 2),
    zeros=st.booleans(),
    channels=st.tuples(st.sampled_from([1, 2]), st.sampled_from([1, 3])),
)
def test_the_same_numbers(
    seed: int, signed: tuple[bool, bool], kernel: int, stride: int, pad: int, zeros: bool, channels: tuple[int, int]
) -> None:
    """Beside ONNX's definition in int64, with data and weights at the ends of their types."""
    multiplier, group = channels
    rng, types = np.random.default_rng(seed), [np.dtype(np.int8 if s else np.uint8) for s in signed]
    ends = [np.iinfo(t) for t in types]
    x = rng.integers(ends[0].min, ends[0].max, (2, 3, 7, 6), endpoint=True).astype(types[0])
    x[:, 0] = ends[0].max
    weight = rng.integers(ends[1].min, ends[1].max, (3 * multiplier, 3 // group, kernel, kernel), endpoint=True)
    zero = (int(rng.integers(ends[0].min, ends[0].max)), int(rng.integers(ends[1].min, ends[1].max)))
    model = convolution(types[0], weight.astype(types[1]), zero if zeros else None, group=group, strides=[stride] * 2,
                      pads=[pad] * 4, kernel_shape=[kernel] * 2)  # fmt: skip
    quick = whole_number_convolutions(model)
    assert [n.op_type for n in model.graph] == ["ConvInteger"] and "Conv" in [n.op_type for n in quick.graph]
    found = Session(quick).run({"x": x})["y"]
    of_x, of_w = zero if zeros else (0, 0)
    padded = np.pad(x.astype(np.int64) - of_x, ((0, 0), (0, 0), (pad, pad), (pad, pad)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (kernel, kernel), (2, 3))[:, :, ::stride, ::stride]
    by_group = windows.reshape(2, group, 3 // group, *windows.shape[2:])
    centred = (weight - of_w).reshape(group, 3 * multiplier // group, *weight.shape[1:])
    wanted = np.einsum("ngchwij,gmcij->ngmhw", by_group, centred)
    assert found.dtype == np.int32
    assert np.array_equal(found, wanted.reshape(found.shape))


def test_what_is_not_exact_stays() -> None:
    large = np.full((2, 1, 20, 20), 255, np.uint8)  # 400 products of 255 by up to 510
    dense = np.full((2, 130, 2, 1), 255, np.uint8)
    for weight, group in ((large, 2), (dense, 1)):
        model = convolution(np.dtype(np.uint8), weight, (3, 1), group=group)
        assert whole_number_convolutions(model) is model


@pytest.mark.parametrize("which", ["zx", "zw"])
def test_a_zero_point_that_is_computed_stays(which: str) -> None:
    model = convolution(np.dtype(np.uint8), np.ones((2, 1, 3, 3), np.uint8), (3, 1), group=2)
    proto = ir.to_proto(model)
    (held,) = (t for t in proto.graph.initializer if t.name == which)
    proto.graph.initializer.remove(held)
    proto.graph.input.append(helper.make_tensor_value_info(which, TensorProto.UINT8, []))
    other = ir.from_proto(onnx.ModelProto.FromString(proto.SerializeToString()))
    assert whole_number_convolutions(other) is other
    feeds = {"x": np.ones((1, 2, 4, 4), np.uint8), which: np.asarray(3, np.uint8)}
    assert Session(other, kernels=Kernels.AS_WRITTEN).run(feeds)["y"].shape == (1, 2, 2, 2)


def test_names_of_others_are_left_to_them() -> None:
    """Forms call what is behind a convolution after it, zero points too; a session takes no name twice."""
    model = convolution(np.dtype(np.uint8), np.ones((2, 1, 3, 3), np.uint8), (3, 1), group=2)
    proto = ir.to_proto(model)
    proto.graph.output[0].name = "conv/int32"
    for name in ("zero", "weights", "whole", "centred", "sums", "int32"):
        read = proto.graph.node[-1].output[0]
        proto.graph.node.append(helper.make_node("Identity", [read], [f"conv/{name}"], name=f"conv/{name}"))
    quick = whole_number_convolutions(ir.from_proto(proto))
    x = np.random.default_rng(0).integers(0, 255, (1, 2, 5, 5)).astype(np.uint8)
    wanted = Session(model).run({"x": x})["y"]
    assert np.array_equal(Session(quick).run({"x": x})["conv/int32"], wanted)
