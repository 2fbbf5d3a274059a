"""Nets with weights above 64 KiB, as one file and with their weights in a data file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx

from quantpipe.graph.view import Graph
from quantpipe.intake.load import load_graph
from tests.ops.line import Net, normal_samples


def dense_net() -> Net:
    """Every way to write a dense layer: MatMul, MatMul and Add, Gemm both ways round; an Erf that stays in float with
    a float MatMul behind it."""
    net = Net(seed=31)
    x = net.node("Relu", net.dense(net.input(None, 64), 64, 400, name="gemm_t"))
    x = net.node("Relu", net.dense(x, 400, 384, trans=0, name="gemm"))
    x = net.node("MatMul", x, net.floats(384, 256, scale=0.06), name="matmul")
    x = net.node("Add", x, net.floats(256, scale=0.3), name="bias")
    x = net.node("MatMul", net.node("Erf", x, name="erf"), net.floats(256, 200, scale=0.07), name="plain")
    net.output(net.dense(net.node("Relu", x), 200, 96, name="last"))
    return net


def conv_net(norms: bool = True) -> Net:
    """Convolutions with weights above and below the limit, plain and grouped, with and without BatchNormalization."""
    net = Net(seed=32)
    x = net.input(None, 3, 9, 9)
    for number, (into, out, group) in enumerate([(3, 96, 1), (96, 96, 1), (96, 288, 3), (288, 64, 1)]):
        x = net.conv(x, into, out, 3, 3, group=group, bias=number != 2, name=f"conv{number}", pads=[1, 1, 1, 1])
        if norms:
            values = [net.floats(out) for _ in range(3)]
            variance = net.constant(np.abs(net.rng.standard_normal(out)).astype(np.float32) + 0.5)
            x = net.node("BatchNormalization", x, *values, variance, name=f"norm{number}", epsilon=1e-3)
        x = net.node("Relu", x, name=f"relu{number}")
    x = net.node("Flatten", net.node("GlobalAveragePool", x))
    net.output(net.dense(x, 64, 10, name="head"))
    return net


def saved(net: Net, folder: Path) -> Path:
    """The net with all its constants in `net.data`."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "net.onnx"
    onnx.save(net.proto(), path, save_as_external_data=True, location="net.data", size_threshold=0)
    return path


def read(path: Path, resident_mb: int, feeds: Callable[[Graph], dict[str, np.ndarray]] | None = None) -> Graph:
    return load_graph(path, feeds or (lambda raw: next(iter(normal_samples(raw).batches(4))).inputs), resident_mb)
