"""Kernels repeated in NumPy give what the simulated model gives, op by op, device by device."""

from __future__ import annotations

import numpy as np
import pytest

from quantpipe.conform.network import Network, name_of
from quantpipe.conform.numpy_kernels import RepeatedKernel
from quantpipe.types import Device, Program
from tests.ops.cases import CASES
from tests.ops.line import Line
from tests.ops.test_every_op import NOTHING_TO_DO, line_of

OLD = {"reduce_max", "reduce_min"}
"""Cases whose axes are attributes. 16-bit tensors need an opset that takes them as inputs; the program converts such a
model when it reads it, and these cases are read as they are."""
SPECS = ("ort_cpu", "vta", "tflite_int8", "cmsis_nn", "hago_sample", "hago_int16_acc", "npu_w8a16")


def repeated(made: Line, **planned: int) -> tuple[int, list[str]]:
    """How many kernels were repeated on golden operands, and those that give something else."""
    count, wrong = 0, []
    for plan in (made.plan((8, 7, 6, 5, 4), seed=1), made.ties((8, 8, 6, 4), seed=2)):
        net = Network(made.graph, made.topology, plan)
        golden = net.golden(dict(next(iter(made.samples.batches(made.graph.fixed_batch or 3))).inputs))
        for kernel in made.topology.kernels:
            site, output = RepeatedKernel.of(net, kernel), name_of(kernel.output, kernel.form)
            if isinstance(site.numbers, Program | Device) or output not in golden:
                continue
            found = site.result(golden)
            if found is None:
                continue
            count += 1
            if not np.array_equal(found, golden[output]):
                wrong.append(f"{kernel.node} ({kernel.op})")
    return count, wrong


@pytest.mark.sliced(200)
@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("name", CASES)
def test_a_kernel_gives_what_the_simulated_model_gives(name: str, spec: str) -> None:
    if spec.startswith("hago") and name in NOTHING_TO_DO:
        pytest.skip("this device runs every node of it in float")
    if spec == "npu_w8a16" and name in OLD:
        pytest.skip("the case is of an opset without 16-bit tensors")
    count, wrong = repeated(line_of(name, spec, "auto"))
    assert not wrong
    assert count or name in NOTHING_TO_DO or name.startswith("reduce")
