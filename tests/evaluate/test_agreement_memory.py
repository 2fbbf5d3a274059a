"""What a comparison of the two models takes in memory, measured in processes of their own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from quantpipe.calibrate.passes import run_size
from quantpipe.evaluate import agreement, compared_models
from quantpipe.evaluate.agreement import compare
from quantpipe.evaluate.compared_models import RealizedModel, SimulatedModel, Values
from tests.ops.line import Line
from tests.ops.test_every_op import line_of

PROGRAM = """
import json, resource, threading
from pathlib import Path

import numpy as np

from quantpipe.graph.execute import release_memory
from tests.ops.line import ArraySamples, Net, line


def resident() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / (1 << 20)


def islands():
    net = Net(seed=0)
    x = net.input(None, 4, 128, 128)
    for _ in range(6):
        x = net.node("Exp", net.node("Neg", net.node("Abs", net.conv(x, 4, 4, 1, 1))))
    net.output(x)
    return net, (16, 4, 128, 128)


net, shape = islands()
made = line(net, samples=ArraySamples({"x": np.random.default_rng(1).standard_normal(shape, dtype=np.float32)}))
plan = made.plan(8)
made.outputs()
release_memory()
before, ended, most = resident(), threading.Event(), []


def watch():
    while not ended.wait(0.002):
        most.append(resident())


watching = threading.Thread(target=watch)
watching.start()
differing = made.agree(plan, "qdq", everywhere=True).differing
ended.set()
watching.join()
print(json.dumps({"differing": differing, "growth": max(most) - before}))
"""


def growth() -> float:
    """MiB that a comparison adds."""
    made = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=600, check=False)
    assert made.returncode == 0, made.stderr
    found = json.loads(made.stdout.splitlines()[-1])
    assert found["differing"] == 0
    return float(found["growth"])


@pytest.mark.program
@pytest.mark.skipif(not Path("/proc/self/statm").is_file(), reason="resident memory is read from /proc")
def test_a_comparison_of_islands_holds_few_samples_at_once() -> None:
    """Measured: 133 MiB; 247 where only tensors of integers counted for the size of a run."""
    assert growth() < 190


def simulated(made: Line) -> SimulatedModel:
    plan = made.plan()
    return SimulatedModel(made.graph, made.topology, plan, made.simulate(plan), realized=made.realize(plan, "qdq"))


@pytest.mark.program
def test_what_enters_after_an_island_counts_for_the_size_of_a_run() -> None:
    model = simulated(line_of("erf_island", "ort_cpu", "auto"))
    (entry,) = model.watched.entries
    assert model.held.count(entry) == 2 and set(model.watched.integers) <= set(model.held)
    assert run_size(model.graph, model.held * 10**6) == 1


def test_accumulators_count_for_the_size_of_a_run() -> None:
    made = line_of("residual_block", "vta", "auto")
    plan = made.plan()
    realized = made.realize(plan, "integer")
    model = SimulatedModel(made.graph, made.topology, plan, made.simulate(plan), realized=realized)
    assert model.held.count("last_out") >= 1 and "last_out (accumulator)" in model.names


def test_sessions_of_large_models_are_open_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    made = line_of("erf_island", "ort_cpu", "auto")
    plan = made.plan()
    expected = made.agree(plan, "qdq", everywhere=True)
    sides: list[RealizedModel] = []

    class Counted(RealizedModel):
        def __init__(self, *arguments: object, **named: object) -> None:
            assert all(side.session is None or side.kind.decides for side in sides)
            assert len([side for side in sides if side.session is not None]) < 2
            super().__init__(*arguments, **named)  # type: ignore[arg-type]
            sides.append(self)

    monkeypatch.setattr(agreement, "APART", 0)
    monkeypatch.setattr(agreement, "RealizedModel", Counted)
    found = compare(
        made.graph, made.topology, plan, made.simulate(plan), realized=made.realize(plan, "qdq"), samples=made.samples
    )
    assert found == expected and len(sides) == len(found.sessions) > 2


def test_heavy_weights_as_written_are_given_back_and_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    made = line_of("erf_island", "ort_cpu", "auto")
    plan = made.plan()
    realized = made.realize(plan, "qdq")
    model = SimulatedModel(made.graph, made.topology, plan, made.simulate(plan), realized=realized)
    side = RealizedModel(agreement.session_kinds(realized.model)[0], model, realized)
    batch = next(iter(made.samples.batches(4)))

    def as_written() -> Values:
        model.start(batch.inputs)
        side.compare(side.run(batch.inputs), len(batch.indices))
        return dict(model.as_written())

    light = as_written()
    assert light and model._written is not None
    monkeypatch.setattr(compared_models, "HEAVY", 0)
    for _ in range(2):
        heavy = as_written()
        assert model._written is None
        assert heavy.keys() == light.keys() and all(np.array_equal(heavy[name], light[name]) for name in light)
