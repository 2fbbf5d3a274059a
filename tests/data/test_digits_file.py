"""The embedded data: read from scikit-learn's file, and from scikit-learn where that is not found."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits

from quantpipe.data.sources import digits


def test_they_are_what_scikit_learn_loads() -> None:
    images, labels = digits.digits_arrays()
    wanted = load_digits()
    np.testing.assert_array_equal(images[..., 0], wanted.images)
    np.testing.assert_array_equal(labels, wanted.target)
    assert (images.dtype, labels.dtype) == (np.uint8, np.int64)


@pytest.mark.parametrize("found", [None, "elsewhere"])
def test_without_the_file_it_is_asked(found: str | None, monkeypatch: Any) -> None:
    spec = None if found is None else type("Spec", (), {"submodule_search_locations": [found]})()
    monkeypatch.setattr(digits, "find_spec", lambda name: spec)
    images, _ = digits.digits_arrays()
    np.testing.assert_array_equal(images[..., 0], load_digits().images)


def test_a_run_does_not_import_scikit_learn() -> None:
    code = (
        "import sys; from quantpipe.data.sources.digits import digits_arrays; digits_arrays(); "
        "sys.exit('sklearn' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
