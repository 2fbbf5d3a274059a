"""One file, the same integers on every processor: realized models on emulated ones, against the plan's own integers.

Every tensor that a model stores is compared, and its outputs as the file is, in a default session.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import quantpipe
from quantpipe.graph.execute import Session, pairs_saturate
from quantpipe.graph.io import model_proto
from quantpipe.graph.normalize import expose
from quantpipe.simulate.simulator import bind
from tests.golden import nets
from tests.ops.line import Line, hardware, line
from tests.processors import emulated, hidden
from tests.recurrent.nets import classifier
from tests.recurrent.test_loops import made_on

pytestmark = pytest.mark.processors

FORMS = ("qdq", "qoperator", "integer")
NETS = ("residual", "mobile", "dense", "recurrent", "digits", "loop", "cell")
PLANTED = "saturating"
SLICE = (
    "tests/recurrent/test_loops.py",
    "tests/realize/test_exact_kernels.py",
    "tests/evaluate/test_agreement.py",
    "tests/simulate/test_pairs.py",
    "tests/check/test_host.py",
    "tests/graph/test_pairs.py",
)


def made(net: str, isa: str = "any") -> Line:
    """A net on ort_cpu, with samples."""
    if net == "loop":
        return made_on("ort_cpu", "LSTM", "bidirectional")
    if net == "cell":
        model = classifier("LSTM", direction="bidirectional")
        return line(model, hardware("ort_cpu", isa=isa), dynamic=("layer",))
    model = onnx.load(quantpipe.example_model()) if net == "digits" else getattr(nets, net)()
    return line(model, hardware("ort_cpu", isa=isa))


def write(folder: Path, case: str, made: Line, form: str) -> None:
    """A realized model twice, as the file is and with all stored tensors as outputs, and what each has to give."""
    plan = made.plan(8)
    realized = made.realize(plan, form)
    (inputs,) = (batch.inputs for batch in made.samples.batches(len(made.samples)))
    simulation = made.simulate(plan)
    held = {t: n for t, n in realized.integers.items() if t in simulation.rendered.integers and t in plan.quantizers}
    names = [simulation.rendered.integers[t] for t in held]
    own = Session(expose(bind(simulation.rendered.model, simulation.weights), names))
    values = own.run({**inputs, **simulation.scalars})
    expected = {}
    for tensor, name in held.items():
        q = plan.quantizers[tensor]
        expected[name] = (values[simulation.rendered.integers[tensor]] + q.zero_point).astype(q.dtype.numpy)
    plain = Session(realized.model).run(inputs)
    shown = expose(realized.model, list(held.values()))
    for name, model, wanted in ((case, realized.model, plain), (f"{case}, integers", shown, expected | plain)):
        onnx.save(model_proto(model), folder / f"{name}.onnx")
        np.savez(folder / f"{name}.inputs.npz", **inputs)
        np.savez(folder / f"{name}.expected.npz", **wanted)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cases")
    for net in NETS:
        for form in FORMS:
            write(path, f"{net} {form}", made(net), form)
    write(path, PLANTED, made("residual", "vnni"), "qdq")
    return path


@pytest.fixture(scope="module", params=(*emulated.KINDS, *hidden.KINDS))
def counts(request: pytest.FixtureRequest, folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    kind = request.param
    done = run(kind, str(Path(__file__).with_name("count.py")), str(folder))
    assert done.returncode == 0, done.stderr[-2000:]
    yield kind, json.loads(done.stdout)


def run(kind: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python on another processor; the test is skipped where this machine cannot."""
    if (reason := hidden.lacking() if kind in hidden.KINDS else emulated.lacking(kind)) is not None:
        pytest.skip(reason)
    if kind in emulated.KINDS:
        return emulated.run(kind, *arguments)
    command = [sys.executable, *arguments]
    return subprocess.run(command, env=hidden.environment(kind), capture_output=True, text=True, check=False)


def test_no_element_differs(counts: tuple[str, dict[str, Any]]) -> None:
    kind, found = counts
    cases = {name: c for name, c in found.items() if not name.startswith(PLANTED)}
    assert len(cases) == 2 * len(NETS) * len(FORMS) and all(c["elements"] > 0 for c in cases.values())
    assert {name: c for name, c in cases.items() if c["differing"]} == {}, kind


def test_pairs_that_saturate_are_found_without_vnni(counts: tuple[str, dict[str, Any]]) -> None:
    kind, found = counts
    differing = [c["differing"] for name, c in found.items() if name.startswith(PLANTED)]
    assert all(differing) == (kind != "arm64") and any(differing) == (kind != "arm64")


@pytest.mark.timeout(1800)  # emulated code is 10 to 30 times slower
@pytest.mark.skipif(pairs_saturate(), reason="this machine is of that kind itself")
def test_a_slice_of_the_tests_passes_without_vnni() -> None:
    """On the processor itself where it can hide instruction sets, else emulated."""
    kind = "haswell" if hidden.lacking() else "avx512"
    done = run(kind, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", *SLICE)
    assert done.returncode == 0, done.stdout[-4000:]
