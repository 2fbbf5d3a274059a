"""The function of docs/howto/decoders.md runs a file token by token, as it is printed there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from quantpipe.graph.execute import Session
from tests.decoders import nets

PAGE = Path(__file__).resolve().parents[2] / "docs" / "howto" / "decoders.md"


@pytest.mark.parametrize("style", ["standard", "runtime"])
def test_the_printed_function_generates(style: str, tmp_path: Path) -> None:
    names: dict[str, Any] = {}
    exec(PAGE.read_text(encoding="utf-8").split("```python\n")[1].split("```")[0], names)
    onnx.save(getattr(nets, style)(), tmp_path / "m.onnx")
    tokens = nets.text(1, 4)[0].tolist()
    found = names["generate"](str(tmp_path / "m.onnx"), tokens, 6)
    assert found[:4] == tokens and len(found) == 10
    proto = nets.standard()
    every = nets.feeds(np.array([found[:-1]]))
    logits = Session(ir.from_proto(proto)).run({v.name: every[v.name] for v in proto.graph.input})["logits"]
    assert logits[0, 3:].argmax(-1).tolist() == found[4:]
