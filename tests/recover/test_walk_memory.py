"""What a walk of calibrators takes in memory, measured in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import json, resource, threading
from pathlib import Path

import numpy as np

from quantpipe.calibrate.decided import DecidedEstimator
from quantpipe.calibrate.estimators import MaxRange
from quantpipe.calibrate.measure import measure
from quantpipe.calibrate.threshold_table import ThresholdTable
from quantpipe.graph.execute import release_memory
from quantpipe.recover.layer_units import Choosing
from quantpipe.recover.layer_views import calibrate_layers
from tests.ops.line import ArraySamples, Net, line

BRANCHES = 12
net = Net(seed=0)
x = net.input(None, 4, 64, 64)
net.output(net.node("Concat", *(net.conv(x, 4, 8, 1, 1) for _ in range(BRANCHES)), axis=1))
shape = (32, 4, 64, 64)
made = line(net, samples=ArraySamples({"x": np.random.default_rng(1).standard_normal(shape, dtype=np.float32)}))
profile = measure(made.graph, made.topology.measured, made.samples, 1024)


def resident() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / (1 << 20)


def looking(layer):
    for views in layer.batches():
        pass


def growth(memory_mb):
    estimator = DecidedEstimator(MaxRange())
    table = ThresholdTable(
        made.graph, made.topology, made.schema, profile, estimator=estimator, weight_method="max_range"
    )
    strategy = made.strategy(8)
    release_memory()
    before, ended, most = resident(), threading.Event(), []

    def watch():
        while not ended.wait(0.002):
            most.append(resident())

    watching = threading.Thread(target=watch)
    watching.start()
    calibrate_layers(made.problem, table, strategy, made.samples, choosing=Choosing(looking), memory_mb=memory_mb)
    ended.set()
    watching.join()
    return max(most) - before


growth(8)  # what the first sessions take once
print(json.dumps({"held": growth(8), "let go": growth(4096)}))
"""


@pytest.mark.program
@pytest.mark.skipif(not Path("/proc/self/statm").is_file(), reason="resident memory is read from /proc")
def test_tensors_between_layers_stay_within_the_bound() -> None:
    """24 MiB of the float model's tensors live at once, with as many of the quantized one; without a bound they stay.

    Twelve branches of 32 x 8 x 64 x 64 float32 values, 4 MiB each and in both models, wait for the Concat behind them.
    """
    made = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=300, check=False)
    assert made.returncode == 0, made.stderr
    found = json.loads(made.stdout.splitlines()[-1])
    assert found["held"] < 40 and found["let go"] > 80, found
