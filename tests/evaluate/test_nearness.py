"""Every output's distance from the float model, against plain NumPy; where an output is lost, on a planted table."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from quantpipe.evaluate.lossy import Losses, loss_warnings
from quantpipe.evaluate.nearness import Nearness, below, is_accurate, nearness_of
from quantpipe.metrics.outputs import cosine_similarity, relative_mse, sqnr_db
from tests.ops.line import Net, line


def test_batch_by_batch_is_what_the_metrics_say_of_all() -> None:
    rng = np.random.default_rng(0)
    r = rng.standard_normal((23, 4, 3)).astype(np.float32)
    o = (r + 0.1 * rng.standard_normal(r.shape)).astype(np.float32)
    sums = Nearness()
    for start in range(0, 23, 5):
        sums.add(r[start : start + 5], o[start : start + 5], 5)
    row = sums.entry("y")
    assert row["sqnr_db"] == pytest.approx(sqnr_db(r, o)) and row["mse"] == pytest.approx(relative_mse(r, o))
    flat = [(a.ravel().astype(float), b.ravel().astype(float)) for a, b in zip(r, o, strict=True)]
    cosine = np.mean([a @ b / np.linalg.norm(a) / np.linalg.norm(b) for a, b in flat])
    assert row["cosine"] == pytest.approx(cosine) == pytest.approx(cosine_similarity(r, o))
    assert nearness_of("y", tuple(r), tuple(o))["cosine"] == pytest.approx(cosine)


def test_cosine_of_zeros_opposites_and_ragged_outputs() -> None:
    zeros, ones = np.zeros((2, 3)), np.ones((2, 3))
    assert cosine_similarity(zeros, zeros) == 1.0 and cosine_similarity(zeros, ones) == 0.0
    assert cosine_similarity(ones, -ones) == -1.0 and cosine_similarity(ones, 7 * ones) == pytest.approx(1.0)
    assert cosine_similarity(ones, ones * np.nan) is None
    ragged = (np.ones((2, 3)), np.ones((5, 3)))
    assert cosine_similarity(ragged, (-ragged[0], ragged[1])) == pytest.approx(0.0)


def test_what_no_decibel_fits() -> None:
    whole = nearness_of("index", np.array([[1], [2], [3], [4]]), np.array([[1], [2], [3], [5]]))
    assert whole["equal"] == 0.75 and whole["sqnr_db"] is None
    other = nearness_of("boxes", np.ones((2, 3)), np.ones((2, 4)))
    assert other["other_shape"] == 2 and other["sqnr_db"] is None
    masked = nearness_of("masked", np.array([[1.0, -np.inf]]), np.array([[0.5, -np.inf]]))
    assert masked["sqnr_db"] == pytest.approx(20 * math.log10(2))
    broken = nearness_of("broken", np.ones((1, 2)), np.array([[1.0, np.nan]]))
    assert broken["sqnr_db"] == -math.inf and broken["cosine"] == 0.0
    rows = [whole, masked, broken]
    assert [lost.output for lost in below(rows, 10)] == ["broken", "masked"] and below(rows, None) == []


def entry(tensor: str, sqnr: float | None, rounding: float = 0.0, saturation: float = 0.0) -> dict[str, Any]:
    return {"tensor": tensor, "sqnr_db": sqnr, "rounding": rounding, "saturation": saturation, "bits": 8}


def losses(weight_bits: int = 8, **table: dict[str, Any]) -> Losses:
    """x -> first -> lift, clamp -> last -> y, and beside -> behind, which y knows nothing of; on hardware that can take
    fewer bits."""
    net = Net()
    x = net.input(None, 6)
    a = net.dense(x, 6, 6, name="first")
    b = net.node("Relu", net.node("Add", a, net.constant(np.float32([2e3] * 6)), name="lift"), name="clamp")
    net.output(net.dense(b, 6, 3, name="last"), net.dense(net.dense(x, 6, 6, name="beside"), 6, 3, name="behind"))
    made = line(net, "vta")
    bits = {name: weight.bits for name, weight in made.plan(weight_bits).weights.items()}
    return Losses(made.graph, made.topology, bits, [entry(name, **found) for name, found in table.items()])


def test_the_tensor_whose_own_integers_lose_is_named_and_its_nodes_are_kept_in_float() -> None:
    found = losses(
        first_out={"sqnr": 30.0, "rounding": 1e-3},
        clamp_out={"sqnr": 4.0, "rounding": 0.1, "saturation": 0.3},
        beside_out={"sqnr": 1.0, "rounding": 0.8},
    )
    (worst,) = found.of("last_out", 3.9)
    assert (worst.tensor, worst.own, worst.saturates) == ("clamp_out", True, True)
    said = found.remedies([worst])
    assert said == ["annotate.float_ops=[Add]", "annotate.float_nodes=[lift,last]", "threshold=max_range"]


def test_a_kernel_that_loses_more_than_its_own_integers_names_what_it_reads() -> None:
    """As behind a mask of -1e38, whose own SQNR is splendid and whose integers hold nothing else."""
    found = losses(first_out={"sqnr": 80.0, "rounding": 1e-8}, clamp_out={"sqnr": 0.5, "rounding": 1e-4})
    (worst,) = found.of("last_out", 0.4)
    assert not worst.own and str(worst) == "clamp_out (0.5 dB there, computed from the integers of first_out)"
    assert found.remedies([worst])[1] == "annotate.float_nodes=[lift,first]"


def test_moves_round_nothing_and_what_computed_their_values_is_named() -> None:
    """As in front of an ArgMin: the rounding is that of the layers behind the move, back to their weights."""
    net = Net()
    a = net.node("LeakyRelu", net.dense(net.input(None, 6), 6, 6, name="first"), name="leaky", alpha=0.1)
    moved = net.node("Unsqueeze", a, net.constant(np.array([1])), name="move")
    chosen = net.node("ArgMin", net.node("Abs", moved, name="abs"), axis=2, keepdims=0, name="choice")
    picked = net.node("Gather", net.floats(6, 4), chosen, name="pick", axis=0)
    net.output(net.node("MatMul", picked, net.floats(4, 3), name="last"))
    made = line(net, "ort_cpu")
    table = [entry("move_out", 45.0, 1e-5), entry("pick_out", 5.0, 1e-5)]
    found = Losses(made.graph, made.topology, {}, table)
    worst, *others = found.of("last_out", 4.0)
    assert (worst.tensor, worst.of) == ("pick_out", ("move_out",))
    wanted = ["annotate.float_ops=[LeakyRelu]", "annotate.float_nodes=[leaky,first]"]
    assert found.remedies([worst]) == wanted
    assert others and found.remedies([worst, *others]) == wanted, "all in float is no remedy"


def test_a_loss_behind_the_last_stored_tensor_is_the_outputs_own() -> None:
    found = losses(first_out={"sqnr": 40.0, "rounding": 1e-4}, clamp_out={"sqnr": None, "rounding": 0.0})
    assert found.of("last_out", 2.0)[0].tensor == "last_out"
    for broken in (-math.inf, -200.0):  # more noise than signal is not lost twice
        assert found.of("last_out", broken)[0].gain == pytest.approx(1.0)


def test_weights_of_few_bits_are_to_blame_themselves() -> None:
    """A kernel with weights that loses: nothing in front of it is named, and bits come first."""
    table = {"first_out": {"sqnr": 30.0, "rounding": 1e-4}, "clamp_out": {"sqnr": 29.0, "rounding": 1e-4}}
    (worst, *_) = losses(**table).of("last_out", 9.0)
    assert (worst.tensor, worst.of) == ("last_out", ())
    assert losses(**table).remedies([worst]) == ["annotate.float_nodes=[last]"]
    few = losses(4, **table)
    assert few.remedies([worst]) == ["annotate.min_bits=8", "annotate.float_nodes=[last]"]


def test_the_sentence_names_output_figure_tensor_and_remedy() -> None:
    found = losses(clamp_out={"sqnr": 4.0, "rounding": 0.4})
    rows = [{"output": "last_out", "sqnr_db": 3.9}, {"output": "behind_out", "sqnr_db": 30.0}]
    plan = line(found.graph, "vta").plan()
    (text,) = loss_warnings(found.graph, found.topology, plan, rows=rows, layers=found.layers, limit=10.0)
    for said in ("the output last_out", "only 3.9 dB", "lost at clamp_out (4.0 dB there)", "float_nodes=[lift,last]"):
        assert said in text
    assert not loss_warnings(found.graph, found.topology, plan, rows=rows, layers=found.layers, limit=None)


def test_scores_that_are_as_accurate_are_not_warned_of() -> None:
    rows = [{"output": "scores", "sqnr_db": 3.0}, {"output": "boxes", "sqnr_db": 4.0}]
    assert [lost.output for lost in below(rows, 15.0, "scores")] == ["boxes"]
    assert [lost.output for lost in below(rows, 15.0)] == ["scores", "boxes"]
    assert is_accurate(0.8, 0.79) and is_accurate(0.8, 0.9) and not is_accurate(0.8, 0.78)
    assert not is_accurate(None, None) and not is_accurate(0.8, None), "without labels nothing is known"


def test_rows_that_are_no_samples_are_not_counted_as_such() -> None:
    """29 boxes of 24 samples are of another number: at most all 24 samples differ, not 29."""
    row = nearness_of("boxes", np.ones((29, 7)), np.ones((31, 7)), samples=24)
    assert row["other_shape"] == 24
