"""State fed back from outputs to inputs: against a loop written by hand; sequences whole, resets, refusals."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quantpipe.data import CallableDataset, NpzDataset
from quantpipe.data.recurrent_state import StatefulSamples, carry
from quantpipe.errors import ConfigError, QuantpipeError
from quantpipe.types import TensorInfo

INPUTS = [TensorInfo("x", (None, 2), "float32"), TensorInfo("h", (None, 3), "float32")]
LAYERS_FIRST = [TensorInfo("x", (1, 2), "float32"), TensorInfo("h", (2, 1, 3), "float32")]
ALL = {"calibrate": None, "search": None, "evaluate": None}
MATRIX = np.array([[0.5, -1, 2], [1, 0.25, -0.5]], np.float32)


def model(feeds: Mapping[str, Any]) -> dict[str, Any]:
    """h_next = 0.9 h + x M; y = h_next."""
    h = np.float32(0.9) * feeds["h"] + feeds["x"] @ MATRIX
    return {"y": h, "h_next": h}


def rows(count: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((count, 2)).astype(np.float32)


def by_hand(x: np.ndarray, starts: list[int], first: np.ndarray | None = None) -> np.ndarray:
    """The state that goes into each row."""
    found = []
    h = np.zeros(3, np.float32)
    for i, row in enumerate(x):
        if i in starts:
            h = np.zeros(3, np.float32) if first is None else first[i]
        found.append(h)
        h = np.float32(0.9) * h + row @ MATRIX
    return np.array(found)


def states_of(samples: Any, size: int) -> dict[int, np.ndarray]:
    return {int(i): h for b in samples.batches(size) for i, h in zip(b.indices, b.inputs["h"], strict=True)}


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(1, 5), min_size=4, max_size=12), st.integers(1, 7), st.integers(0, 3), st.booleans())
def test_states_are_those_of_the_float_model(lengths: list[int], size: int, seed: int, shuffle: bool) -> None:
    """Whatever the lengths of the sequences, the batch size, the seed and the order."""
    x = rows(sum(lengths))
    turn = np.repeat(np.arange(len(lengths)), lengths)

    def target() -> Any:
        return [{"x": row, "turn": number} for row, number in zip(x, turn, strict=True)]

    dataset = CallableDataset(target=target, sequence="turn", state={"h_next": "h"}, samples=ALL, shuffle=shuffle)
    splits = carry(dataset.splits(INPUTS, None, seed), INPUTS, model)
    expected = by_hand(x, [int(i) for i in np.flatnonzero(np.diff(turn, prepend=-1))])
    found = {}
    for samples in (splits.calibrate, splits.search, splits.evaluate):
        for _ in range(2):
            found |= states_of(samples, size)
        for (_, state), out in zip(states_of(samples, 1).items(), samples.free_run(model), strict=True):
            np.testing.assert_array_equal(out["y"][0].shape, state.shape)
    assert sorted(found) == list(range(len(x)))
    for index, state in found.items():
        np.testing.assert_allclose(state, expected[index], rtol=1e-6, atol=1e-7)


def npz(path: Path, count: int = 24, **more: Any) -> str:
    np.savez(path, x=rows(count), **more)
    return str(path)


def carried(path: str, inputs: Any = INPUTS, run: Any = model, **config: Any) -> Any:
    dataset = NpzDataset(path=path, samples=ALL, **{"state": {"h_next": "h"}, **config})
    return carry(dataset.splits(inputs, None, 0), inputs, run)


def test_reset_every_so_many_samples(tmp_path: Path) -> None:
    splits = carried(npz(tmp_path / "d.npz"), state_reset=4)
    expected = by_hand(rows(24), list(range(0, 24, 4)))
    for samples in (splits.calibrate, splits.search, splits.evaluate):
        assert len(samples) % 4 == 0
        assert samples.record["sequences"] == len(samples) // 4
        for index, state in states_of(samples, 5).items():
            np.testing.assert_allclose(state, expected[index], rtol=1e-6, atol=1e-7)


def test_first_values_from_the_data(tmp_path: Path) -> None:
    first = np.random.default_rng(1).standard_normal((24, 3)).astype(np.float32)
    splits = carried(npz(tmp_path / "d.npz", h=first), state_reset=6)
    expected = by_hand(rows(24), [0, 6, 12, 18], first)
    for index, state in states_of(splits.evaluate, 8).items():
        np.testing.assert_allclose(state, expected[index], rtol=1e-6, atol=1e-7)


def test_one_sequence_per_source(tmp_path: Path) -> None:
    roles = {r: {"path": npz(tmp_path / f"{r}.npz", 8)} for r in ("calibrate", "search", "evaluate")}
    dataset = NpzDataset(**roles, state={"h_next": "h"}, state_reset="never", samples=ALL, duplicates="allow")
    splits = carry(dataset.splits(INPUTS, None, 0), INPUTS, model)
    np.testing.assert_allclose(list(states_of(splits.search, 3).values()), by_hand(rows(8), [0]), rtol=1e-6, atol=1e-7)
    with pytest.raises(
        QuantpipeError, match=r"1 sequence leaves none to calibrate .*dataset\.state_reset=6, in samples"
    ):
        carried(npz(tmp_path / "d.npz"), state_reset="never")


def test_states_whose_batch_axis_is_not_the_first(tmp_path: Path) -> None:
    def stacked(feeds: Mapping[str, Any]) -> dict[str, Any]:
        assert feeds["h"].shape == (2, 1, 3)
        return {"h_next": feeds["h"] + feeds["x"].sum()}

    splits = carried(npz(tmp_path / "d.npz"), LAYERS_FIRST, stacked, state_reset=4)
    batches = list(splits.evaluate.batches(8))
    assert [len(b) for b in batches] == [1] * 12
    assert all(b.inputs["h"].shape == (2, 1, 3) for b in batches)
    assert isinstance(splits.evaluate, StatefulSamples)


def test_digest_names_the_carried_state(tmp_path: Path) -> None:
    path = npz(tmp_path / "d.npz")
    one, two = (carried(path, state_reset=n).evaluate.digest for n in (4, 6))
    assert one != two and one.endswith("+h_next>h")


@pytest.mark.parametrize(
    ("config", "match"),
    [
        ({}, r"dataset\.state_reset: is auto, but .*d\.npz does not say where a sequence begins"),
        ({"state_reset": 0}, r"dataset\.state_reset: is 0"),
        ({"state_reset": "often"}, r"dataset\.state_reset: is 'often'"),
        ({"state_reset": 4, "state": {"h_next": "g"}}, r"'h_next' into 'g', which is no input.*its inputs are x, h"),
        ({"state_reset": 4, "state": {"h_next": "h", "y": "h"}}, r"two outputs into one input"),
        ({"state_reset": 4, "state": {"next": "h"}}, r"'next', which is no output.*h_next"),
        ({"keys": {"sequence": "x"}}, r"dataset\.keys\.sequence takes an integer for each sample, \[24\]"),
    ],
)
def test_refused(tmp_path: Path, config: dict[str, Any], match: str) -> None:
    with pytest.raises(QuantpipeError, match=match):
        list(carried(npz(tmp_path / "d.npz"), **config).calibrate.batches(4))


def test_a_state_of_another_shape(tmp_path: Path) -> None:
    wrong = carried(npz(tmp_path / "d.npz"), run=lambda feeds: {"h_next": feeds["x"]}, state_reset=4)
    with pytest.raises(ConfigError, match=r"'h_next' \(\[1, 2\] float32\) into 'h', which takes \[N, 3\] float32"):
        list(wrong.calibrate.batches(4))


def test_a_state_that_explodes(tmp_path: Path) -> None:
    wild = carried(npz(tmp_path / "d.npz"), run=lambda feeds: {"h_next": feeds["h"] + np.inf}, state_reset=4)
    with pytest.raises(QuantpipeError, match=r"state 'h_next' of the float model is not finite after sample 0"):
        list(wild.calibrate.batches(4))
