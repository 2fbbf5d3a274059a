"""What `pip install .` puts into place: the package with its configuration and experiments."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.e2e.program import ROOT


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("hatchling") is None, reason="hatchling is not installed")
def test_the_wheel_holds_conf_and_experiments(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        str(tmp_path),
        str(ROOT),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("quantpipe_onnx-*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    for folder in ("conf", "experiments"):
        files = [p.relative_to(ROOT) for p in (ROOT / folder).rglob("*.yaml")]
        assert files
        assert {f"quantpipe/{p.as_posix()}" for p in files} <= names
    names_of_models = ("digits", "digits_vit", "digits_vit_masked", "tiny_decoder")
    shipped = {f"quantpipe/assets/{name}.onnx" for name in names_of_models}
    assert {*shipped, "quantpipe/report/report.html.j2", "quantpipe/py.typed"} <= names
    assert not any(name.startswith(("tests/", "conf/")) for name in names)
    unpacked = tmp_path / "unpacked"
    zipfile.ZipFile(wheel).extractall(unpacked)
    # From the wheel alone: its own conf is found, beside which there is no checkout.
    run = [sys.executable, "-c", "from quantpipe.app import main; main()", "tracking=none", "stages=[calibrate]"]
    done = subprocess.run(run, cwd=unpacked, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    code = "import quantpipe; print(quantpipe.__file__, quantpipe.check(quantpipe.example_model(), 'vta').verdict)"
    done = subprocess.run([sys.executable, "-c", code], cwd=unpacked, capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == [str(unpacked / "quantpipe" / "__init__.py"), "fits"], done.stderr
