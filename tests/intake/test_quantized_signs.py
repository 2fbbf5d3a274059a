"""Constants with negative scales, as NNCF and onnxruntime write them: the same numbers by positive ones."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import numpy_helper

from quantpipe.errors import ModelError
from quantpipe.intake.quantized import restore
from quantpipe.intake.quantized.grids import dequantized
from quantpipe.intake.quantized.signs import upright
from quantpipe.types import DType, ImportedGrid
from tests.intake.quantized_files import CONV, CONV_SCALE, packed, qdq
from tests.intake.test_quantized import changed, proto, run, samples

NODE = ir.Node("", "DequantizeLinear", inputs=[], name="weight")
KINDS = (DType.INT4, DType.UINT4, DType.INT8, DType.UINT8)


@given(st.sampled_from(KINDS), st.integers(0, 2**32 - 1), st.sampled_from(["one", "channels"]))
@settings(deadline=None, max_examples=40)
def test_the_real_numbers_stay(kind: DType, seed: int, how: str) -> None:
    """To the bit, whatever the type, the zero point and the granularity; the scales are positive then."""
    rng = np.random.default_rng(seed)
    values = rng.integers(kind.qmin, kind.qmax + 1, (6, 5)).astype(kind.numpy)
    shape = {"one": (), "channels": (5,)}[how]
    scale = (rng.uniform(0.01, 2.0, shape) * rng.choice([-1, 1], shape)).astype(np.float32)
    zero = rng.integers(kind.qmin, kind.qmax + 1, shape).astype(np.int64)
    grid = ImportedGrid(np.asarray(scale), np.asarray(zero), kind, kind.qmin, kind.qmax, {"channels": 1}.get(how))
    wanted = dequantized(NODE, values, grid)
    integers, made = upright(NODE, values, grid)
    assert np.all(made.scale > 0) and made.low <= integers.min() and integers.max() <= made.high
    assert np.array_equal(dequantized(NODE, integers, made), wanted)
    assert upright(NODE, integers, made)[1] is made


def test_a_weight_of_which_some_channels_have_negative_scales() -> None:
    """-128 becomes +128, of 9 bits; where no channel has it, the type stays."""
    signs = np.asarray([1, -1, 1, -1], np.float32)
    for least, kind in ((-127, DType.INT8), (-128, DType.INT16)):
        weight = CONV.copy()
        weight[1, 0, 0, 0] = least
        file = changed(qdq, conv_scale=CONV_SCALE * signs, conv_q=weight)
        made = restore(ir.from_proto(file))
        (conv,) = [w for w in made.weights if w.values.ndim == 4]
        assert np.array_equal(conv.values, weight * signs.astype(np.int64)[:, None, None, None])
        assert np.array_equal(conv.grid.scale, CONV_SCALE) and conv.grid.dtype is kind
        x = samples()
        noise = np.abs(run(file, x) - run(proto(made.model), x)).max()
        assert noise < 0.5, noise


def test_scales_with_axes_of_length_one_are_those_of_channels() -> None:
    """NNCF writes `[C, 1, 1]` for compressed weights of convolutions, which onnxruntime refuses to run."""
    made = restore(ir.from_proto(changed(qdq, conv_scale=CONV_SCALE.reshape(4, 1, 1))))
    (conv,) = [w for w in made.weights if w.values.ndim == 4]
    assert np.array_equal(conv.grid.scale, CONV_SCALE) and np.array_equal(conv.values, CONV)


def test_packed_weights_have_negative_scales() -> None:
    file = packed(block=128)
    scales = next(t for t in file.graph.initializer if t.name == "scales")
    turned = numpy_helper.to_array(scales) * np.asarray([-1, 1, -1], np.float32)
    scales.CopyFrom(numpy_helper.from_array(turned, "scales"))
    made = restore(ir.from_proto(file))
    (weight,) = made.weights
    assert np.array_equal(weight.grid.scale, np.abs(turned)) and weight.grid.bits <= 5
    assert np.allclose(run(file, samples()), run(proto(made.model), samples()), atol=1e-4)


def test_what_cannot_be_mirrored_is_refused() -> None:
    grid = ImportedGrid(np.asarray(-0.1, np.float32), np.asarray(0), DType.INT16, -32768, 32767)
    with pytest.raises(ModelError, match=r"its scale is negative, and the integers .* reach from -5 to 32768"):
        upright(NODE, np.asarray([-32768, 5], np.int16), grid)
