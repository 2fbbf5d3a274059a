"""Memory that runs have left in the shared arena goes back to the system."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import sys
import numpy as np
import pytest
import onnx_ir as ir
from quantpipe.graph.execute import Session, release_memory

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4 // 1024

shape = ir.Shape([None, 1 << 20])
x = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=shape)
nodes = [ir.Node("", "Exp", [x], name="a")]
for name in "bcd":
    nodes.append(ir.Node("", "Add", [nodes[-1].outputs[0], nodes[0].outputs[0]], name=name))
y = nodes[-1].outputs[0]
y.name, y.type, y.shape = "y", x.type, shape
model = ir.Model(ir.Graph([x], [y], nodes=nodes, opset_imports={"": 17}, name="g"), ir_version=8)
session = Session(model, threads=1)
session.run({"x": np.zeros((1, 1 << 20), np.float32)})  # the arena never gives back its first region
release_memory()
before = resident()
session.run({"x": np.zeros((32, 1 << 20), np.float32)})
ran = resident()
release_memory()
after = resident()
again = session.run({"x": np.zeros((1, 1 << 20), np.float32)})["y"]
assert (again == 4).all()
print(before, ran, after)
"""


@pytest.mark.grid
def test_what_a_run_left_is_given_back() -> None:
    if sys.platform != "linux":
        return
    done = subprocess.run([sys.executable, "-c", PROGRAM], check=True, stdout=subprocess.PIPE, text=True)
    before, ran, after = map(int, done.stdout.split())
    assert ran > before + 100  # 128 MiB a tensor
    assert after < before + 30
