"""The search package stands alone, and its configuration files say what its code says."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import yaml

import quantpipe.search
from quantpipe.search import Budget, FloatFigures, Objective, ObjectiveOptions

PACKAGE = Path(quantpipe.search.__file__).parent
CONF = Path(__file__).parents[2] / "conf"
OUTSIDE = ("numpy", "scipy", "optuna", "sklearn", "threadpoolctl")
ALLOWED = ("quantpipe.types", "quantpipe.errors", "quantpipe.option_checks", "quantpipe.search")


def imported(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names.add(node.module or "")
    return names


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda p: p.name)
def test_imports_only_what_a_search_may_know(path: Path) -> None:
    for name in imported(path):
        root = name.split(".")[0]
        if root == "quantpipe":
            assert name in ALLOWED or name.startswith(tuple(a + "." for a in ALLOWED)), name
        else:
            assert root in OUTSIDE or root in sys.stdlib_module_names, name


def test_importing_it_loads_nothing_of_onnx_mlflow_or_hydra() -> None:
    code = (
        "import sys, quantpipe.search; "
        "loaded = {m.split('.')[0] for m in sys.modules}; "
        "bad = loaded & {'onnx', 'onnx_ir', 'onnxruntime', 'mlflow', 'hydra', 'omegaconf'}; "
        "bad |= loaded & {'scipy', 'optuna', 'sklearn'}; "
        "sys.exit(str(bad) if bad else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=CONF.parent)


def load(path: Path) -> dict[str, Any]:
    content = yaml.safe_load(path.read_text())
    assert isinstance(content, dict)
    return content


@pytest.mark.parametrize("name", sorted(path.stem for path in (CONF / "search").glob("*.yaml")))
def test_search_files_hold_the_defaults_of_the_code(name: str) -> None:
    content = load(CONF / "search" / f"{name}.yaml")
    assert set(content) == {"algorithm", "max_evaluations", "max_seconds", "target", "start"}
    options = dict(content["algorithm"])
    module, _, cls = options.pop("_target_").rpartition(".")
    algorithm = getattr(importlib.import_module(module), cls)(**options)
    assert asdict(algorithm) == options, "every option is in the file"
    assert algorithm == type(algorithm)(), "with the default of the code"
    limits = {key: content[key] for key in ("max_evaluations", "max_seconds", "target")}
    Budget(**limits)


@pytest.mark.parametrize("name", ["accuracy", "kl", "mse"])
def test_objective_files_make_objectives(name: str) -> None:
    content = load(CONF / "objective" / f"{name}.yaml")
    assert content["cost"] == "auto", "which only the hardware can make a cost of"
    content["cost"] = "cycles"
    objective = Objective.of(ObjectiveOptions(**content), FloatFigures(accuracy=0.9))
    assert objective.metric == name
    assert objective.tolerance > 0
    within = {**content, "form": "best_value_within_cost", "cost_limit": 0.6}
    assert Objective.of(
        ObjectiveOptions(**within), FloatFigures(accuracy=0.9, start_cost=10.0)
    ).cost_limit == pytest.approx(6.0)
