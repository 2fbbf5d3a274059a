"""The functions of docs/howto/decoders.md run files token by token, as they are printed there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

from quantpipe import assets
from quantpipe.graph.execute import Session
from tests.decoders import nets
from tests.decoders.lines import decoder, line
from tests.ops.line import hardware

PAGE = Path(__file__).resolve().parents[2] / "docs" / "howto" / "decoders.md"


def printed() -> dict[str, Any]:
    names: dict[str, Any] = {}
    for block in PAGE.read_text(encoding="utf-8").split("```python\n")[1:]:
        exec(block.split("```")[0], names)
    return names


def test_the_printed_functions_run_integer_caches(tmp_path: Path) -> None:
    here = line(decoder(nets.standard(), tmp_path), hardware("npu_w8a16"), tmp_path)
    model = ir.to_proto(here.realize(here.plan(16), "integer").model)
    onnx.save(model, tmp_path / "m.onnx")
    path, names, tokens = str(tmp_path / "m.onnx"), printed(), nets.text(1, 8)[0].tolist()
    assert {a.dtype for a in names["empty"](onnxruntime.InferenceSession(path)).values()} == {np.dtype("int8")}
    assert names["differing"](path, tokens) == 0
    assert len(names["generate"](path, tokens, 4)) == 12
    limits = [{"axes": [["past_key_values.0.key", 2], ["input_ids", 1]], "most": 10}]
    model.metadata_props.add(key="quantpipe.lengths", value=json.dumps(limits))
    onnx.save(model, tmp_path / "m.onnx")
    assert len(names["generate"](path, tokens, 3)) == 11
    with pytest.raises(ValueError, match="11 positions; integer sums hold 10"):
        names["generate"](path, tokens, 4)
    for node in model.graph.node:  # a planted fault: values of the first layer are read one token late
        node.input[:] = ["late" if n == "past_key_values.0.value" else n for n in node.input]
    rolled = [
        onnx.helper.make_node("Slice", ["past_key_values.0.value", "begin", "end", "axis"], ["rest"], name="f1"),
        onnx.helper.make_node("Slice", ["past_key_values.0.value", "none", "begin", "axis"], ["first"], name="f2"),
        onnx.helper.make_node("Concat", ["rest", "first"], ["late"], name="f3", axis=2),
    ]
    numbers = {"begin": 1, "end": 1 << 30, "axis": 2, "none": 0}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(np.int64([n]), name) for name, n in numbers.items())
    for node in reversed(rolled):
        model.graph.node.insert(0, node)
    onnx.save(model, tmp_path / "m.onnx")
    assert names["differing"](path, tokens) > 0


def test_the_printed_text_is_what_the_embedded_decoder_writes() -> None:
    path, text = Path(assets.__file__).parent / "tiny_decoder.onnx", PAGE.read_text(encoding="utf-8")
    assert printed()["written"](str(path), "The value of ", 60) in text.split("```text\n")[1].split("```")[0]


@pytest.mark.parametrize("style", ["standard", "runtime"])
def test_the_printed_function_generates(style: str, tmp_path: Path) -> None:
    names = printed()
    onnx.save(getattr(nets, style)(), tmp_path / "m.onnx")
    tokens = nets.text(1, 4)[0].tolist()
    found = names["generate"](str(tmp_path / "m.onnx"), tokens, 6)
    assert found[:4] == tokens and len(found) == 10
    proto = nets.standard()
    every = nets.feeds(np.array([found[:-1]]))
    logits = Session(ir.from_proto(proto)).run({v.name: every[v.name] for v in proto.graph.input})["logits"]
    assert logits[0, 3:].argmax(-1).tolist() == found[4:]
