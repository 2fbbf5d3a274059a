"""Every conf/threshold file builds a working estimator; calibration itself needs none of the heavy packages."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import hydra.utils
import numpy as np
import pytest
from calibrate_samples import samples, stats_of
from omegaconf import OmegaConf

from quantpipe.calibrate import estimators, weight_ranges
from quantpipe.types import TensorSchema
from website.configuration import keys

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "conf" / "threshold").glob("*.yaml"))


def test_every_estimator_has_a_file() -> None:
    targets = {OmegaConf.load(f).activations._target_.rpartition(".")[2] for f in FILES}
    assert targets >= {name for name in estimators.__all__ if name[0].isupper()} - {"Estimator"}


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.stem)
def test_the_file_builds_an_estimator(file: Path) -> None:
    conf = OmegaConf.load(file)
    estimator = hydra.utils.instantiate(conf.activations)
    assert 0 < estimator(stats_of(samples("normal")), 8, TensorSchema()).threshold < 10
    assert len(weight_ranges(np.eye(3), 0, 8, TensorSchema(), method=conf.weights.method)) == 3
    assert all(key.comment for key in keys(file, ("threshold",))), "its own, or the default option's"


def test_calibration_imports_no_heavy_package() -> None:
    code = (
        "import sys, quantpipe.calibrate, quantpipe.calibrate.estimators, quantpipe.intmath\n"
        "print([m for m in ('onnx', 'onnxruntime', 'hydra', 'omegaconf', 'mlflow', 'sklearn') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
