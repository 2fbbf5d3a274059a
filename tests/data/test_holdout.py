"""Samples set aside to judge: none is shared, sequences stay whole, states and whole batches go on as before."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

from quantpipe.annotate.conditions import AnnotateOptions
from quantpipe.data import CallableDataset, Splits
from quantpipe.data.holdout import with_holdout
from quantpipe.data.recurrent_state import carry
from quantpipe.data.subset import First
from quantpipe.metrics.detection_outputs import DetectionOptions
from quantpipe.pipeline.inputs import load
from quantpipe.train.train_options import NO_TRAINING
from quantpipe.types import NO_CELLS, Keep, Samples, Schema, TensorInfo, TensorSchema
from tests.ops.line import hardware

INPUTS = [TensorInfo("x", (None, 2), "float32")]
ALL = {"calibrate": None, "search": None, "evaluate": None}


def splits(lengths: list[int], seed: int = 0, **options: Any) -> Splits:
    """Rows that count upwards, in sequences of these lengths."""

    def target() -> Any:
        turn = np.repeat(np.arange(len(lengths)), lengths)
        return [{"x": np.full(2, i, np.float32), "turn": t} for i, t in enumerate(turn)]

    options = {"sequence": "turn", "samples": ALL, **options}
    inputs = options.pop("inputs", INPUTS)
    return CallableDataset(target=target, **options).splits(inputs, None, seed)


def rows(samples: Samples | None) -> list[int]:
    assert samples is not None
    return [int(row[0]) for batch in samples.batches(3) for row in batch.inputs["x"]]


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.integers(1, 4), min_size=12, max_size=30),
    st.floats(0.05, 0.95),
    st.integers(0, 5),
    st.booleans(),
)
def test_the_search_samples_are_divided(lengths: list[int], share: float, seed: int, shuffle: bool) -> None:
    before = splits(lengths, seed, shuffle=shuffle)
    found = with_holdout(before, share, seed)
    if found.aside is None:
        assert len({*np.repeat(np.arange(len(lengths)), lengths)[rows(before.search)]}) == 1
        return
    search, judge = rows(found.search), rows(found.aside)
    assert search and judge
    whole = rows(before.search)
    assert sorted(search + judge) == sorted(whole) and set(search).isdisjoint(judge)
    assert [r for r in whole if r in search] == search, "the order stays"
    turn = np.repeat(np.arange(len(lengths)), lengths)
    assert set(turn[search]).isdisjoint(turn[judge]), "a sequence is on one side"
    assert (rows(found.calibrate), rows(found.evaluate)) == (rows(before.calibrate), rows(before.evaluate))
    again = with_holdout(before, share, seed)
    assert rows(again.aside) == judge
    assert again.aside is not None and again.aside.digest == found.aside.digest != found.search.digest
    assert list(found.roles) == ["calibrate", "search", "evaluate", "judge"]


def test_the_share_is_kept_and_the_seed_decides() -> None:
    before = splits([1] * 160)
    found = [with_holdout(before, 0.25, seed) for seed in (0, 0, 1)]
    assert [len(f.aside or ()) for f in found] == [10, 10, 10]
    assert rows(found[0].aside) == rows(found[1].aside) != rows(found[2].aside)
    # Over the whole split, not a piece of it: data are often sorted by class.
    half = len(before.search) // 2
    first = [r for r in rows(found[0].aside) if r in rows(before.search)[:half]]
    assert 0 < len(first) < 10


@pytest.mark.parametrize(("share", "batch"), [(0.0, 1), (0.5, 21)])
def test_nothing_is_set_aside_where_nothing_can_be(share: float, batch: int) -> None:
    """No share; or less than one of the model's own batches on one side."""
    before = splits([1] * 160)
    assert len(before.search) == 40
    assert with_holdout(before, share, 0, batch) is before
    assert with_holdout(splits([4] * 10), 0.5, 0, 3).aside is not None
    foreign = replace(before, search=First(before.search, 30))
    assert with_holdout(foreign, 0.5, 0) is foreign


def streaming() -> onnx.ModelProto:
    """y = x W + h, h_next = y; the state stands first, and its first axis is not that of the samples."""
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["xw"]),
            helper.make_node("ReduceMean", ["h"], ["mean"], axes=[0, 1], keepdims=0),
            helper.make_node("Add", ["xw", "mean"], ["y"]),
            helper.make_node("Add", ["h", "mean"], ["h_next"]),
        ],
        "streaming",
        [value("h", 1, [2, 1, 3]), value("x", 1, ["n", 2])],
        [value("y", 1, ["n", 3]), value("h_next", 1, [2, 1, 3])],
        [onnx.numpy_helper.from_array(np.arange(6, dtype=np.float32).reshape(2, 3), "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def test_a_run_keeps_states_and_judges(tmp_path: Any) -> None:
    """What a run starts from: the judges get states as the others do, and a state's first axis is no batch."""
    onnx.save(streaming(), tmp_path / "m.onnx")
    lengths = [3, 2, 4, 3, 2, 4, 3, 3, 2, 4, 3, 3]

    class Dataset:
        def splits(self, inputs: Any, classes: Any, seed: int) -> Splits:
            return splits(lengths, seed, inputs=inputs, state={"h_next": "h"})

    settings = SimpleNamespace(
        train=NO_TRAINING,
        model=tmp_path / "m.onnx",
        dataset=Dataset(),
        seed=0,
        holdout=0.5,
        evaluate=SimpleNamespace(output=None),
        detections=DetectionOptions(),
        objective={"metric": "auto"},
        value_of=None,
        resident_mb=0,
        random=None,
        fixed={},
        isolate=True,
        keep=Keep.ALL,
        cells=NO_CELLS,
        spec=hardware("ort_cpu"),
        annotate=AnnotateOptions(),
        schema=Schema("plain", TensorSchema(), TensorSchema()),
    )
    inputs = load(cast(Any, settings))
    assert inputs.aside is inputs.judge is not inputs.search
    for samples in (inputs.search, inputs.judge):
        assert all(batch.inputs["h"].shape == (2, 1, 3) for batch in samples.batches(4))
    assert list(inputs.data_record()) == ["calibrate", "search", "judge", "evaluate"]
    assert inputs.graph.states == {"h"}
    assert inputs.graph.fixed_batch is None


def test_states_are_followed_through_every_list() -> None:
    ports = [*INPUTS, TensorInfo("h", (None, 2), "float32")]
    made = with_holdout(splits([3] * 16, inputs=ports, state={"h_next": "h"}), 0.5, 0)
    carried = carry(made, ports, lambda feeds: {"h_next": feeds["h"] + feeds["x"]})
    assert carried.state == made.state
    assert "judge" in carried.roles
    for samples in carried.roles.values():
        for batch in samples.batches(1):
            row, state = batch.inputs["x"][0, 0], batch.inputs["h"][0, 0]
            place = int(row) % 3
            assert state == sum(row - back for back in range(1, place + 1))
