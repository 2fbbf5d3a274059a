"""The Python examples of docs/python.md and the README run as they stand."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.api.nets import CLASSES, images, small_net

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.M | re.S)


def blocks(page: str) -> list[str]:
    return BLOCK.findall((ROOT / page).read_text(encoding="utf-8"))


def run(code: list[str], page: str) -> dict[str, Any]:
    """All blocks in one namespace, as the cells of a notebook."""
    namespace: dict[str, Any] = {"__name__": "example"}
    for number, block in enumerate(code):
        exec(compile(block, f"{page}, block {number + 1}", "exec", dont_inherit=True), namespace)
    return namespace


@pytest.mark.program
def test_the_page_about_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    code = blocks("docs/python.md")
    assert len(code) >= 10
    found = run(code, "docs/python.md")
    out = capsys.readouterr().out
    assert "did you mean 'greedy'" in out
    assert "search: 12 of 12" in out
    assert len(found["rows"]) == 4
    assert {p.name for p in tmp_path.iterdir()} == {"digits_int8", "vta_run"}


def test_the_readme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    onnx.save(small_net(), "model.onnx")
    np.save("images.npy", images())
    np.save("labels.npy", np.arange(48) % CLASSES)
    code = blocks("README.md")
    assert len(code) == 2
    found = run(code, "README.md")
    assert found["result"].report["agreement"]["differing"] == 0
    assert found["session"].get_inputs()[0].shape[1:] == [3, 8, 8]
    assert "top-1 accuracy" in capsys.readouterr().out
