"""Steps with a cache against one run over the same tokens, on a decoder whose every number is exact."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from quantpipe.data import NpzDataset
from quantpipe.data.recurrent_state import SampleStep, StatefulSamples, carry
from quantpipe.data.subset import First
from quantpipe.evaluate.in_steps import FIXED, SHIFTED, joined_feeds, steps_and_prefill, steps_warning
from quantpipe.graph.execute import Session
from quantpipe.types import StepsPart, TensorInfo

WORDS, WIDTH, LENGTH = 16, 4, 12
STATE = {"present.key": "past.key", "present.value": "past.value"}
SCALE = np.float32(0.5)


def decoder(
    *,
    past_scale: float = 0.5,
    shift: bool = False,
    tokens: str | int = "S",
    alone: bool = False,
    length: int = 0,
    ring: bool = False,
) -> onnx.ModelProto:
    """Return an attention without a Softmax: integers times each other, and a cache in int8 of one scale.

    `past_scale` quantizes the cache that comes in; `shift` counts the positions of steps one too high; `tokens` is the
    size of the axis of tokens; `alone` doubles the result of a run over one token. With a `length` the cache has so
    many places, of which a run writes those of its tokens; with `ring` it forgets its oldest ones instead.
    """
    rng = np.random.default_rng(0)
    held = {n: (rng.integers(-8, 8, (WORDS, WIDTH)) * SCALE).astype(np.float32) for n in ("q", "key", "value")}
    held |= {"half": SCALE, "past": np.float32(past_scale), "nothing": np.int8(0), "none": np.float32(0)}
    held |= {"zero": np.int64(0), "one": np.int64(1), "last": np.int64([2]), "two": np.int64(2)}
    put = helper.make_node
    nodes = [put("Gather", ["q", "input_ids"], ["query"])]
    for name in ("key", "value"):
        nodes += [
            put("Gather", [name, "input_ids"], [f"{name}.row"]),
            put("QuantizeLinear", [f"{name}.row", "half", "nothing"], [f"{name}.new"]),
            put("QuantizeLinear", [f"past.{name}", "past", "nothing"], [f"{name}.old"]),
            *_stored(name, length and not ring),
            put("DequantizeLinear", [f"{name}.all", "half", "nothing"], [f"present.{name}"]),
        ]
        if ring:
            held |= {"minus": np.int64([-length]), "far": np.int64([1 << 30]), "places": np.int64([1])}
            nodes[-1].input[0] = f"{name}.last"
            nodes.insert(-1, put("Slice", [f"{name}.all", "minus", "far", "places"], [f"{name}.last"]))
    places = "position_ids"
    if shift and length:
        nodes += [
            put("Shape", ["input_ids"], ["ids.size"]),
            put("Gather", ["ids.size", "one"], ["ids.tokens"]),
            put("Equal", ["ids.tokens", "one"], ["is.single"]),
            put("Cast", ["is.single"], ["added"], to=TensorProto.INT64),
            put("Sub", ["position_ids", "added"], ["places.own"]),
        ]
        places = "places.own"
    elif shift:
        nodes += [
            put("Shape", ["past.key"], ["past.axes"]),
            put("Gather", ["past.axes", "one"], ["before"]),
            put("Min", ["before", "one"], ["added"]),
            put("Sub", ["position_ids", "added"], ["places"]),
        ]
        places = "places"
    nodes += [
        put("Transpose", ["present.key"], ["turned"], perm=[0, 2, 1]),
        put("MatMul", ["query", "turned"], ["scores"]),
        put("Shape", ["present.key"], ["axes"]),
        put("Gather", ["axes", "one"], ["keys"]),
        put("Range", ["zero", "keys", "one"], ["numbers"]),
        put("Unsqueeze", [places, "last"], ["own"]),
        put("Greater", ["numbers", "own"], ["after"]),
        put("Where", ["after", "none", "scores"], ["seen"]),
        put("MatMul", ["seen", "present.value"], ["y.own" if alone else "y"]),
    ]
    if alone:
        nodes += [
            put("Shape", ["input_ids"], ["ids.axes"]),
            put("Gather", ["ids.axes", "one"], ["ids.count"]),
            put("Equal", ["ids.count", "one"], ["single"]),
            put("Add", ["y.own", "y.own"], ["y.twice"]),
            put("Where", ["single", "y.twice", "y.own"], ["y"]),
        ]
    ids = [helper.make_tensor_value_info(n, TensorProto.INT64, ["N", tokens]) for n in ("input_ids", "position_ids")]
    caches = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["N", length or "P", WIDTH]) for n in STATE.values()]
    outs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in ("y", *STATE)]
    constants = [numpy_helper.from_array(np.asarray(array), name) for name, array in held.items()]
    graph = helper.make_graph(nodes, "exact", [*ids, *caches], outs, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _stored(name: str, fixed: bool) -> list[onnx.NodeProto]:
    """Return nodes that put new rows into a cache: behind the others, or at their places."""
    put, old, new, every = helper.make_node, f"{name}.old", f"{name}.new", f"{name}.all"
    if not fixed:
        return [put("Concat", [old, new], [every], axis=1)]
    return [
        put("Unsqueeze", ["position_ids", "last"], [f"{name}.place"]),
        put("Shape", [new], [f"{name}.shape"]),
        put("Expand", [f"{name}.place", f"{name}.shape"], [f"{name}.places"]),
        put("ScatterElements", [old, f"{name}.places", new], [every], axis=1),
    ]


@pytest.fixture
def found(tmp_path: Any) -> Any:
    """Return the comparison of a model, with its states carried by a mapping."""
    rng = np.random.default_rng(1)
    tokens, places = rng.integers(0, WORDS, (6, LENGTH)), np.tile(np.arange(LENGTH), (6, 1))
    inputs = [TensorInfo(n, (None, None), "int64") for n in ("input_ids", "position_ids")]
    inputs += [TensorInfo(n, (None, None, WIDTH), "float32") for n in STATE.values()]

    def compare(
        model: onnx.ModelProto, state: dict[str, str], piece: int = 1, *, length: int | None = None
    ) -> StepsPart | None:
        arrays = {"input_ids": tokens.reshape(-1, piece), "position_ids": places.reshape(-1, piece)}
        ports = [
            t if t.name not in STATE.values() else TensorInfo(t.name, (None, length, WIDTH), "float32") for t in inputs
        ]
        np.savez(tmp_path / "d.npz", **arrays, turn=np.repeat(np.arange(6), LENGTH // piece))
        session = Session(ir.from_proto(model))
        data = NpzDataset(path=str(tmp_path / "d.npz"), state=state, keys={"sequence": "turn"})
        splits = carry(data.splits(ports, None, 0), ports, session.run)
        assert isinstance(splits.evaluate, StatefulSamples)
        found = steps_and_prefill(session, splits.evaluate, caches=True)
        assert steps_and_prefill(session, First(First(splits.evaluate, 11), 10), caches=True) == found, (
            "also of a part of a part"
        )
        return found

    return compare


def test_steps_of_an_exact_decoder_are_its_prefill(found: Any) -> None:
    part = found(decoder(), STATE)
    assert part["steps"] == 8 and part["differing"] == 0 and steps_warning(part) is None
    sizes = {row["output"]: row["elements"] for row in part["outputs"]}
    assert sizes == dict.fromkeys(("y", *STATE), 8 * WIDTH)


def test_samples_of_several_tokens_are_compared_token_by_token_too(found: Any) -> None:
    part = found(decoder(), STATE, 4)
    assert part["steps"] == 3 and part["one_token"]["steps"] == LENGTH and part["one_token"]["differing"] == 0
    part = found(decoder(alone=True), STATE, 4)
    rows = {row["output"]: row["differing"] for row in part["one_token"]["outputs"]}
    assert part["differing"] == 0 and rows["y"] > 0 and rows["present.key"] == 0
    warning = steps_warning(part)
    assert warning is not None and warning.startswith(f"{LENGTH} steps of one token with the cache differ")
    assert "one_token" not in found(decoder(alone=True), STATE), "its samples are steps of one token"


def test_a_decoder_of_single_tokens_has_no_prefill(found: Any) -> None:
    assert found(decoder(tokens=1), STATE) == {"steps": 0, "differing": 0, "outputs": [], "reason": FIXED}


@pytest.mark.parametrize("piece", [1, 4])
def test_steps_with_a_cache_of_fixed_length_are_its_prefill(found: Any, piece: int) -> None:
    part = found(decoder(length=20), STATE, piece, length=20)
    assert part["steps"] == (8 if piece == 1 else 3) and part["differing"] == 0
    sizes = {row["output"]: row["elements"] for row in part["outputs"]}
    assert sizes == {"y": WIDTH * (8 if piece == 1 else 12)} | dict.fromkeys(STATE, 20 * WIDTH)
    assert piece == 1 or (part["one_token"]["steps"] == LENGTH and part["one_token"]["differing"] == 0)


def test_a_ring_that_is_shifted_has_no_prefill(found: Any) -> None:
    assert found(decoder(length=5, ring=True), STATE, length=5)["reason"] == SHIFTED


SWAPPED = {"present.key": "past.value", "present.value": "past.key"}


@pytest.mark.parametrize(
    ("model", "state", "output"),
    [
        ({"shift": True}, STATE, "y"),
        ({"past_scale": 0.25}, STATE, "present.key"),
        ({}, SWAPPED, "present.value"),
    ],
    ids=["position off by one", "scale of the cache changed", "K and V swapped"],
)
@pytest.mark.parametrize("length", [None, 20])
def test_planted_faults_are_found(
    model: dict[str, Any], state: dict[str, str], output: str, length: int | None, found: Any
) -> None:
    part = found(decoder(**model, length=length or 0), state, length=length)
    assert {row["output"]: row["differing"] for row in part["outputs"]}[output] > 0
    warning = steps_warning(part)
    assert warning is not None and warning.startswith("8 steps with the cache differ") and output in warning


def test_a_state_that_does_not_grow_is_no_cache(tmp_path: Any) -> None:
    node = helper.make_node("Add", ["x", "h"], ["g"])
    ports = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["N", 3]) for n in "xhg"]
    graph = helper.make_graph([node], "sum", ports[:2], ports[2:])
    session = Session(
        ir.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))
    )
    np.savez(tmp_path / "d.npz", x=np.ones((60, 3), np.float32))
    inputs = [TensorInfo(n, (None, 3), "float32") for n in "xh"]
    data = NpzDataset(path=str(tmp_path / "d.npz"), state={"g": "h"}, state_reset=5, duplicates="allow")
    splits = carry(data.splits(inputs, None, 0), inputs, session.run)
    assert steps_and_prefill(session, splits.evaluate) is None


def test_inputs_of_one_run_differ_by_their_sizes() -> None:
    """Pieces of four tokens and two: ids are joined, a mask is the last one, an encoder's result is taken once."""
    encoded = np.ones((1, 3, 2), np.float32)

    def step(before: int, new: int, **more: Any) -> SampleStep:
        feeds = {
            "ids": np.arange(before, before + new)[None],
            "mask": np.ones((1, before + new), np.int64),
            "encoded": encoded,
            "past.key": np.zeros((1, before, WIDTH)),
        }
        return SampleStep({**feeds, **more}, {"present.key": np.zeros((1, before + new, WIDTH))})

    steps, state = [step(0, 4), step(4, 2)], {"present.key": "past.key"}
    feeds = joined_feeds(steps, state)
    assert feeds is not None
    assert feeds["ids"].tolist() == [[0, 1, 2, 3, 4, 5]] and feeds["mask"].shape == (1, 6)
    assert feeds["encoded"] is encoded and feeds["past.key"].shape == (1, 0, WIDTH)
    assert joined_feeds([step(0, 4, other=np.ones((1, 7))), step(4, 2, other=np.ones((1, 9)))], state) is None
