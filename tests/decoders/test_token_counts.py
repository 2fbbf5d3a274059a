"""Static caches that a run of several tokens writes into, at places that come without an axis for samples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

import quantpipe
from quantpipe.data import CallableDataset
from quantpipe.errors import DataError
from quantpipe.evaluate.in_steps import FIXED

PLACES, WIDTH, WORDS, PIECE = 12, 8, 16, 4
PASTS = {"past_key_values.0.key": "present.0.key", "past_key_values.0.value": "present.0.value"}


def decoder(tokens: int | str) -> onnx.ModelProto:
    """One sample of so many tokens; `cache_position` has the places of the tokens in the caches, and no other axis."""
    rng = np.random.default_rng(0)
    held: dict[str, Any] = {n: rng.standard_normal((WIDTH, WIDTH)).astype(np.float32) / 3 for n in ("q", "k", "v")}
    held |= {
        "table": rng.standard_normal((WORDS, WIDTH)).astype(np.float32),
        "head": np.float32(rng.normal(size=(8, 16))),
    }
    held |= {
        "last": np.int64([1]),
        "first": np.int64([0]),
        "row": np.arange(PLACES)[None],
        "flat": np.int64([-1, WIDTH]),
    }
    held |= {"far": np.float32(-1e4), "none": np.float32(0)}
    nodes = [helper.make_node("Gather", ["table", "input_ids"], ["x"], name="x")]

    def put(op: str, inputs: str, output: str, **attributes: Any) -> None:
        nodes.append(helper.make_node(op, inputs.split(), [output], name=output.replace(".", "_"), **attributes))

    put("Unsqueeze", "cache_position last", "places")
    for kind, (past, present) in zip(("k", "v"), PASTS.items(), strict=True):
        put("MatMul", f"x {kind}", f"{kind}_new")
        put("Reshape", f"{kind}_new flat", f"{kind}_rows")
        put("Reshape", f"{past} flat", f"{kind}_past")
        put("ScatterND", f"{kind}_past places {kind}_rows", f"{kind}_all")
        put("Unsqueeze", f"{kind}_all first", present)
    put("MatMul", "x q", "queries")
    put("Transpose", "present.0.key", "turned", perm=[0, 2, 1])
    put("MatMul", "queries turned", "scores")
    put("LessOrEqual", "row places", "seen")
    put("Where", "seen none far", "mask")
    put("Add", "scores mask", "masked")
    put("Softmax", "masked", "share", axis=-1)
    put("MatMul", "share present.0.value", "mixed")
    put("MatMul", "mixed head", "logits")
    given = [helper.make_tensor_value_info("input_ids", TensorProto.INT64, [1, tokens])]
    given += [helper.make_tensor_value_info("cache_position", TensorProto.INT64, [tokens])]
    given += [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, PLACES, WIDTH]) for n in PASTS]
    made = [helper.make_tensor_value_info("logits", TensorProto.FLOAT, [1, tokens, WORDS])]
    made += [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, PLACES, WIDTH]) for n in PASTS.values()]
    constants = [numpy_helper.from_array(np.asarray(array), name) for name, array in held.items()]
    graph = helper.make_graph(nodes, "decoder", given, made, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def samples(tokens: np.ndarray) -> Any:
    """Pieces of texts [N, PLACES]."""
    data = [
        {"input_ids": row[a : a + PIECE], "cache_position": np.arange(a, a + PIECE), "turn": number}
        for number, row in enumerate(tokens)
        for a in range(0, PLACES, PIECE)
    ]
    splits = {"calibrate": None, "search": None, "evaluate": None}
    state = {present: past for past, present in PASTS.items()}
    return CallableDataset(target=lambda: data, sequence="turn", state=state, samples=splits, duplicates="allow")


def stepped(data: bytes, row: np.ndarray) -> list[np.ndarray]:
    """The logits of the pieces of one text in plain onnxruntime, with the caches passed on as they come."""
    session = ort.InferenceSession(data)
    types = {"tensor(float)": np.float32, "tensor(int8)": np.int8, "tensor(uint8)": np.uint8, "tensor(int16)": np.int16}
    kinds = {p.name: types.get(p.type, np.int64) for p in session.get_inputs()}
    named = {p.name: p.shape for p in session.get_inputs()}
    assert len(named["cache_position"]) == 1
    caches = {n: np.zeros((1, PLACES, WIDTH), kinds[n]) for n in PASTS}
    found = []
    for a in range(0, PLACES, PIECE):
        feeds = {"input_ids": row[None, a : a + PIECE], "cache_position": np.arange(a, a + PIECE), **caches}
        results = dict(zip([o.name for o in session.get_outputs()], session.run(None, feeds), strict=True))
        caches = {past: results[present] for past, present in PASTS.items()}
        found.append(results["logits"])
    return found


@pytest.mark.parametrize("tokens", [PIECE, "S"])
@pytest.mark.parametrize("device", ["ort_cpu", "npu_w8a16"])
def test_several_tokens_a_run(tokens: int | str, device: str, tmp_path: Path) -> None:
    texts = np.random.default_rng(1).integers(0, WORDS, (24, PLACES))
    proto = decoder(tokens)
    made = quantpipe.quantize(proto, samples(texts), device, folder=tmp_path, recover="none", effort="quick")
    assert made.report["agreement"]["differing"] == 0
    assert made.report["outputs"][0]["sqnr_db"] > 25
    steps = made.report["steps"]
    if tokens == PIECE:
        assert steps["reason"] == FIXED
    else:  # a softmax of 16 bits gives masked places exp(-10), so what they hold later counts
        assert steps["kernels"]["differing"] == ([] if device == "ort_cpu" else ["mixed"])
        assert (steps["differing"] == 0) == (device == "ort_cpu")
    real = np.concatenate(stepped(proto.SerializeToString(), texts[0]))
    if device == "ort_cpu":  # its caches stay float here or start at a zero point of 0
        own = np.concatenate(stepped(made.model_path.read_bytes(), texts[0]))
        assert 10 * np.log10(np.sum(real**2) / np.sum((real - own) ** 2)) > 20


def test_places_of_another_length_than_the_tokens_are_bad_input() -> None:
    texts = np.random.default_rng(1).integers(0, WORDS, (24, PLACES))
    data = samples(texts)
    rows = [{**one, "cache_position": np.arange(PIECE - 1)} for one in data.target()]
    bad = CallableDataset(
        target=lambda: rows, sequence="turn", state=data.state, samples=data.samples, duplicates="allow"
    )
    with pytest.raises(DataError, match="cache_position"):
        quantpipe.quantize(decoder(PIECE), bad, "ort_cpu", recover="none")
