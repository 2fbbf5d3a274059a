"""The notebooks in examples/ run cell by cell, hold no outputs, and show tables as HTML."""

from __future__ import annotations

import ast
import html
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import quantpipe
from tests.ops.line import Net

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))
NAMES = [path.stem for path in NOTEBOOKS]


def cells(path: Path) -> list[str]:
    """The code of a notebook's cells; a last expression is shown as a notebook shows it."""
    content = json.loads(path.read_text(encoding="utf-8"))
    return ["".join(cell["source"]) for cell in content["cells"] if cell["cell_type"] == "code"]


def as_script(parts: list[str]) -> str:
    """All cells as one program, whose last expressions go to `show`."""
    lines = [
        "def show(value):",
        "    made = getattr(value, '_repr_html_', None)",
        "    print(made() if made else value)",
    ]
    for part in parts:
        tree = ast.parse(part)
        last = tree.body[-1]
        if isinstance(last, ast.Expr):
            name, shown = ast.Name("show", ast.Load()), [last.value]
            tree.body[-1] = ast.Expr(ast.Call(name, shown, []))
        lines.append(ast.unparse(ast.fix_missing_locations(tree)))
    return "\n".join(lines)


def test_there_are_three() -> None:
    assert NAMES == ["classifier", "encoder", "own_device"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=NAMES)
def test_outputs_are_stripped(path: Path) -> None:
    content: Any = json.loads(path.read_text(encoding="utf-8"))
    assert content["nbformat"] == 4 and len({cell["id"] for cell in content["cells"]}) == len(content["cells"])
    for cell in content["cells"]:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == [] and cell["execution_count"] is None


@pytest.mark.program
@pytest.mark.parametrize("path", NOTEBOOKS, ids=NAMES)
def test_a_notebook_runs(path: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", as_script(cells(path))], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "<pre style=" in done.stdout and "Traceback" not in done.stderr


def test_checks_are_html_and_names_are_escaped() -> None:
    net = Net(seed=1)
    x = net.input(None, 3, 8, 8)
    net.output(net.node("Relu", net.conv(x, 3, 4, 3, 3)))
    proto = net.proto()
    for node in proto.graph.node:
        node.name = f"<script>{node.name}</script>"
    shown = quantpipe.check(proto, "vta", shapes={"x": [1, 3, 8, 8]})._repr_html_()
    assert shown.startswith("<pre") and "vta" in shown and "<script>" not in shown
    assert html.unescape(shown) != ""


@pytest.mark.program
def test_a_result_is_html() -> None:
    images = np.random.default_rng(0).random((150, 3, 8, 8), np.float32)
    net = Net(seed=1)
    x = net.input(None, 3, 8, 8)
    net.output(net.dense(net.node("Flatten", net.node("GlobalAveragePool", net.conv(x, 3, 4, 3, 3))), 4, 3))
    quick = {"agreement_samples": 4, "layer_samples": 4, "latency_runs": 1, "baseline": "none"}
    shown = quantpipe.quantize(net.proto(), images, evaluate=quick)._repr_html_()
    assert "SQNR to float" in shown and "elements differ" in shown and "<script" not in shown
