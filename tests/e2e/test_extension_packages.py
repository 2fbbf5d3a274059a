"""A plug-in package with ops, a pattern and a form, from its entry points to the certificate."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.e2e.program import Program, read
from tests.extend.example import FOLDER, net


@pytest.fixture
def package(program: Program) -> Path:
    """The example package as pip installs it."""
    site = program.cwd / "site"
    info = site / "example_npu-0.1.dist-info"
    info.mkdir(parents=True)
    (site / "example_npu").symlink_to(FOLDER / "example_npu")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: example-npu\nVersion: 0.1\n")
    groups = (FOLDER / "pyproject.toml").read_text().split("[project.entry-points.")[1:]
    sections = [text.replace('"quantpipe', "[quantpipe", 1).replace('"]', "]", 1).replace('"', "") for text in groups]
    (info / "entry_points.txt").write_text("\n".join(sections))
    program.env["PYTHONPATH"] = str(site)
    onnx.save(net(), program.cwd / "net.onnx")
    images = np.random.default_rng(0).standard_normal((120, 3, 8, 8)).astype(np.float32)
    np.savez(program.cwd / "data.npz", images=images)
    return site


GIVEN = ("hardware=example_npu", "model.path=net.onnx", "dataset=npz", "dataset.path=data.npz")
SEARCH = ("search=greedy", "search.max_evaluations=12", "annotate.choices=[bits]", "objective.cost=bits")
WORKERS = ("executor.start_seconds=0", "executor.workers=2")


def test_a_package_on_the_command_line(program: Program, package: Path) -> None:
    """Searched in processes of their own, which install the package too; then the certificate is checked."""
    process = program.start("plugins=[example_npu]", "realize=qdq", *GIVEN, *SEARCH, *WORKERS)
    _, err = process.communicate(timeout=200)
    assert process.returncode == 0, err
    report = read(program.cwd / "run" / "evaluate" / "report.json")
    assert report["agreement"]["differing"] == 0
    assert report["model"]["float_nodes"] == 0
    kernels = read(program.cwd / "run" / "realize" / "plan.json")["kernels"]
    assert {k["package"] for k in kernels.values() if k["kind"] == "device"} == {"example_npu"}
    model = onnx.load(program.cwd / "run" / "realize" / "model.onnx")
    assert {f.name for f in model.functions} == {"GateInteger", "ConvHardSwishInteger", "SquashTable"}
    verified = program.bare("command=verify", f"hydra.run.dir={program.cwd / 'run'}")
    assert verified.code == 0 and "every claim of the certificate holds" in verified.out, verified.out


def test_a_package_that_nobody_named(program: Program, package: Path) -> None:
    process = program.start("realize=qdq", *GIVEN)
    _, err = process.communicate(timeout=100)
    assert process.returncode == 2
    assert "ops.example.npu.Gate is no op with a rule" in err and "plugins=[PACKAGE]" in err
