"""The parts of an error, its channels, and what no integers hold, against NumPy alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from quantpipe.explain.error_attribution import Causes
from quantpipe.metrics.reference import Compared
from tests.ops.line import Line, Net, hardware, line


def made(spec: str = "ort_cpu") -> Line:
    """Two pointwise convolutions with a Relu between, pooled."""
    net = Net()
    x = net.node("Relu", net.conv(net.input(None, 3, 6, 6), 3, 4, 1, 1))
    y = net.node("Add", x, net.conv(x, 4, 4, 1, 1))
    net.output(net.dense(net.node("Flatten", net.node("GlobalAveragePool", y)), 4, 5))
    return line(net, hardware(spec))


def rows(of: Line, bits: int = 8, per_channel: tuple[str, ...] = ()) -> list[Any]:
    causes = Causes(of.graph, of.topology, of.plan(bits), of.samples, compared=Compared(), per_channel=per_channel)
    return list(causes.rows(9, lambda done, total, note: None))


def test_the_parts_of_a_convolution() -> None:
    of = made()
    plan, kernel = of.plan(5), of.topology.kernels[0]
    name = of.graph.inputs[0].name
    x = next(iter(of.samples.batches(99))).inputs[name]
    own, weight, out = plan.quantizers[name], plan.weights[str(kernel.weight)], plan.quantizers[kernel.output]
    step, size = np.float64(own.scale), np.float64(out.scale)
    held = np.clip(np.rint(x / np.float32(own.scale)), own.low, own.high) * step
    real = [of.graph.constant(str(one)).astype(np.float64) for one in (kernel.weight, kernel.bias)]
    numbers: Any = plan.kernels[kernel.node]
    along = (-1, 1, 1, 1)
    integers = [
        weight.centred().astype(np.float64) * np.asarray(weight.scale, np.float64).reshape(along),
        np.asarray(numbers.bias) * np.asarray(numbers.acc_scale, np.float64),
    ]

    def conv(data: Any, w: Any, b: Any) -> Any:
        return np.maximum(np.einsum("nchw,oc->nohw", data, w[:, :, 0, 0]) + b[None, :, None, None], 0)

    steps = [conv(x, *real), conv(held, *real), conv(held, integers[0], real[1]), conv(held, *integers)]
    clipped = np.clip(steps[-1], out.low * size, out.high * size)
    steps += [clipped, np.rint(clipped / size) * size]
    signal = float((steps[0] ** 2).sum())
    names = ("inherited", "weight", "bias", "clipping", "rounding")
    expected = {n: float(((a - b) ** 2).sum()) / signal for n, a, b in zip(names, steps, steps[1:], strict=False)}
    split = next(r for r in rows(of, 5) if r["tensor"] == kernel.output)["split"]
    for part, value in expected.items():
        assert split[part] == pytest.approx(value, rel=1e-3, abs=1e-9), part
    assert split["weight"] > 1e-4 and split["rounding"] > 1e-5
    assert split["overflow"] == 0
    assert split["rescale"] < 1e-6  # a float multiplier rounds as real numbers do


def test_sums_that_overflow_are_told_from_rounding() -> None:
    net = Net()
    x = net.node("Relu", net.conv(net.input(None, 3, 6, 6), 3, 16, 3, 3))
    positive = net.constant(np.abs(net.rng.normal(size=(8, 16, 3, 3))).astype(np.float32))
    net.output(net.conv(net.node("Relu", net.node("Conv", x, positive)), 8, 4, 1, 1))
    found = [r for r in rows(line(net, "hago_int16_acc")) if r["overflow"]]
    assert found, "int16 sums of 144 products overflow"
    worst = max(found, key=lambda r: r["overflow"])
    assert worst["split"]["overflow"] > max(worst["split"][part] for part in ("weight", "bias", "rescale"))


def test_kernels_that_read_computed_shapes_have_no_parts() -> None:
    net = Net()
    x = net.conv(net.input(None, 3, 6, 6), 3, 4, 1, 1)
    shape = net.node(
        "Concat", net.node("Slice", net.node("Shape", x), *_ends(net, 0, 1)), net.constant([4, 36]), axis=0
    )
    flat = net.node("Reshape", net.node("Relu", x), shape)
    net.output(net.dense(net.node("Flatten", net.node("Relu", flat)), 144, 5))
    found = rows(line(net))
    assert any(r["split"] for r in found) and all(r["alone"] >= 0 for r in found)


def _ends(net: Net, first: int, last: int) -> tuple[str, str]:
    return net.constant([first]), net.constant([last])


def test_channels() -> None:
    of = made()
    tensor, weight = of.topology.kernels[0].output, str(of.topology.kernels[0].weight)
    by_name = {r["tensor"]: r for r in rows(of, 6, per_channel=(tensor, weight))}
    assert {name for name, r in by_name.items() if r["channels"]} == {tensor, weight}
    channels = by_name[tensor]["channels"]
    assert [c["channel"] for c in channels] == [0, 1, 2, 3]
    assert min(c["min"] for c in channels) == by_name[tensor]["before"]["min"]
    known = [c["sqnr_db"] for c in channels if c["sqnr_db"] is not None]
    assert min(known) < by_name[tensor]["accumulated"] < max(known)
    own, real = of.plan(6).weights[weight], of.graph.constant(weight).astype(np.float64)
    integers = own.centred() * np.asarray(own.scale, np.float64).reshape(-1, 1, 1, 1)
    expected = 10 * np.log10((real**2).sum((1, 2, 3)) / ((real - integers) ** 2).sum((1, 2, 3)))
    np.testing.assert_allclose([c["sqnr_db"] for c in by_name[weight]["channels"]], expected, rtol=1e-4)


def test_what_is_handed_on_as_accumulator_or_in_float_has_a_row() -> None:
    net = Net()
    x = net.conv(net.input(None, 3, 6, 6), 3, 4, 1, 1)
    net.output(net.node("Sin", net.node("Add", x, net.conv(x, 4, 4, 1, 1))))
    kinds = {r["kind"]: r for r in rows(line(net, "vta"))}
    raw, real = kinds["raw"], kinds["float"]
    assert raw["alone"] == 0 and raw["accumulated"] > 20
    assert raw["after"]["max"] == pytest.approx(raw["before"]["max"], rel=0.1)
    assert real["accumulated"] > 3 and abs(real["after"]["max"]) <= 1
