"""What `import quantpipe` costs and offers, and that the examples in docstrings are true."""

from __future__ import annotations

import doctest
import importlib
import inspect
import json
import subprocess
import sys
from pathlib import Path

import pytest

import quantpipe
from quantpipe import api

PROBE = """
import sys, json
before = set(sys.modules)
import quantpipe
print(json.dumps([sorted(set(sys.modules) - before), sorted(quantpipe.__all__), dir(quantpipe)]))
"""
HEAVY = ("numpy", "onnx", "onnxruntime", "hydra", "omegaconf", "mlflow", "scipy", "sklearn", "rich", "quantpipe.api")


def test_import_alone_loads_nothing() -> None:
    done = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, check=True)
    loaded, offered, listed = json.loads(done.stdout)
    assert not {name for name in loaded if name.startswith(HEAVY)}
    assert set(offered) <= set(listed)
    assert "quantize" in offered


def test_functions_stay_functions_when_the_packages_of_their_names_are_loaded() -> None:
    import quantpipe.check
    import quantpipe.explain
    from quantpipe.check import Fit
    from quantpipe.check.lint import Findings

    assert inspect.isfunction(quantpipe.check) and inspect.isfunction(quantpipe.explain)
    assert issubclass(quantpipe.CheckResult, Fit) and issubclass(quantpipe.LintResult, Findings)
    with pytest.raises(AttributeError, match="has no attribute 'quantise'"):
        quantpipe.quantise  # noqa: B018


def test_every_public_name_is_explained() -> None:
    for name in sorted({*quantpipe.__all__, *api.__all__} - {"__version__"}):
        thing = getattr(api, name)
        assert inspect.getdoc(thing), name
        if inspect.isfunction(thing) and len(inspect.signature(thing).parameters) > 1:
            assert all(part in (thing.__doc__ or "") for part in ("Args:", "Returns:", "Raises:")), name
    assert (Path(quantpipe.__file__).parent / "py.typed").is_file()


@pytest.mark.program
@pytest.mark.parametrize("name", ["pipeline", *(pytest.param(n, marks=pytest.mark.grid) for n in ("look", "device"))])
def test_examples_in_docstrings(name: str) -> None:
    found = doctest.testmod(importlib.import_module(f"quantpipe.api.{name}"))
    assert found.attempted > 3
    assert found.failed == 0
