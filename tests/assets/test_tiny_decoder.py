"""The embedded decoder: it is what its script says, predicts as well as it said, and steps as it prefills."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from embedded_models.train_tiny_decoder import OPSET, PASSAGE, SIZE, build, parts, to_onnx, topics_of_python
from quantpipe import assets
from quantpipe.data.sources.ascii_text import ascii_ids, ascii_tokens

FOLDER = Path(assets.__file__).parent
MODEL, TEXT = FOLDER / "tiny_decoder.onnx", FOLDER / "tiny_decoder.txt"
LOSS = 1.239
"""Nats per character of the shipped passages, as recorded when it was trained."""


def session() -> ort.InferenceSession:
    return ort.InferenceSession(str(MODEL), providers=["CPUExecutionProvider"])


def feeds(ids: np.ndarray, past: dict[str, np.ndarray] | None = None) -> dict[str, np.ndarray]:
    names = [f"past_key_values.{layer}.{kind}" for layer in range(SIZE.layers) for kind in ("key", "value")]
    past = past or dict.fromkeys(names, np.zeros((len(ids), SIZE.heads, 0, SIZE.head), np.float32))
    begin = next(iter(past.values())).shape[2]
    places = np.tile(np.arange(begin, begin + ids.shape[1]), (len(ids), 1))
    return {"input_ids": ids, "position_ids": places, **past}


def passages() -> list[str]:
    return TEXT.read_text(encoding="ascii").splitlines()


def test_the_loss_is_as_recorded() -> None:
    texts = passages()
    assert len(texts) == 149 and {len(text) for text in texts} == {PASSAGE}
    ids = np.stack([ascii_ids(text) for text in texts])
    (logits,) = session().run(["logits"], feeds(ids[:, :-1]))
    wide = logits.astype(np.float64)
    shifted = wide - wide.max(-1, keepdims=True)
    chosen = np.take_along_axis(shifted, ids[:, 1:, None], -1)[..., 0]
    assert abs(float((np.log(np.exp(shifted).sum(-1)) - chosen).mean()) - LOSS) < 0.002


def test_the_file_is_what_its_script_says() -> None:
    model = onnx.load(MODEL)
    found = Counter(node.op_type for node in model.graph.node)
    names = [i.name for i in model.graph.initializer]
    assert MODEL.stat().st_size < 1_000_000
    assert (model.producer_name, model.opset_import[0].version) == ("pytorch", OPSET)
    assert found["MatMul"] == 9 * SIZE.layers + 1 and found["Softmax"] == SIZE.layers
    assert names.count("table.weight") == 1 and "lm_head.weight" not in names, "the table is stored once"
    assert "blocks.1.attention.value.weight" in names
    readers = sorted(node.op_type for node in model.graph.node if "table.weight" in node.input)
    assert readers == ["Gather", "Transpose"]


def test_steps_with_the_cache_are_the_prefill() -> None:
    running, ids = session(), ascii_ids(passages()[0])[None, :24]
    (whole,) = running.run(["logits"], feeds(ids))
    names, past = [o.name for o in running.get_outputs()], None
    for place in range(ids.shape[1]):
        logits, *present = running.run(names, feeds(ids[:, place : place + 1], past))
        past = {
            name.replace("present", "past_key_values"): array for name, array in zip(names[1:], present, strict=True)
        }
        np.testing.assert_allclose(logits[:, 0], whole[:, place], atol=1e-4)


def test_the_script_exports_the_same_structure() -> None:
    torch = pytest.importorskip("torch", reason="needs the extra `train`")
    net = build().eval()
    for parameter in net.parameters():  # those that are equal, as at first, would be written once
        torch.nn.init.normal_(parameter)
    exported, shipped = to_onnx(net), onnx.load(MODEL)
    assert [n.op_type for n in exported.graph.node] == [n.op_type for n in shipped.graph.node]
    assert {i.name: list(i.dims) for i in exported.graph.initializer} == {
        i.name: list(i.dims) for i in shipped.graph.initializer
    }


def test_passages_are_not_in_the_text_for_training() -> None:
    tokens, unseen = parts(topics_of_python())
    text = "".join(map(chr, tokens.tolist())).replace("\n", " ")
    assert len(unseen) > 100 and {len(passage) for passage in unseen} == {PASSAGE}
    assert not any(passage[:64] in text for passage in unseen)


def test_a_character_is_a_token() -> None:
    found = ascii_tokens("ab \N{EURO SIGN}")
    assert found["input_ids"].tolist() == [97, 98, 32, 63] and found["position_ids"].tolist() == [0, 1, 2, 3]
