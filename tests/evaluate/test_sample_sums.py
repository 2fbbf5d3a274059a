"""Losses of parts of the samples from sums of each sample equal losses measured on these samples."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from quantpipe.metrics.jackknife import losses_of, standard_error
from quantpipe.metrics.losses import LossKind, OutputLoss, joint_loss
from quantpipe.metrics.reference import Reference
from quantpipe.metrics.sample_sums import part_loss

KINDS = {"kl": ("scores", LossKind.KL), "mse": ("boxes", LossKind.MSE), "differing": ("classes", LossKind.DIFFERING)}
Outputs = dict[str, NDArray[Any]]


def _outputs(seed: int, samples: int, rows: int = 1) -> tuple[Outputs, Outputs]:
    rng = np.random.default_rng(seed)
    own: Outputs = {
        "scores": rng.normal(0, 3, (samples * rows, 7)).astype(np.float32),
        "boxes": rng.normal(1e5, 2, (samples, 3, 4)).astype(np.float32),
        "classes": rng.integers(0, 3, (samples, 5)),
    }
    other = {name: (values + rng.normal(0, 0.3, values.shape)).astype(values.dtype) for name, values in own.items()}
    return own, other | {"classes": rng.integers(0, 3, (samples, 5))}


def _rows(outputs: Outputs, kept: NDArray[np.bool_]) -> Outputs:
    return {name: values[np.repeat(kept, len(values) // len(kept))] for name, values in outputs.items()}


@given(st.integers(0, 10**6), st.integers(2, 9), st.integers(1, 3), st.sets(st.sampled_from(sorted(KINDS)), min_size=1))
def test_a_part_loses_what_is_measured_on_it(seed: int, samples: int, rows: int, kinds: set[str]) -> None:
    own, other = _outputs(seed, samples, rows)
    losses = [OutputLoss(*KINDS[kind], weight=1.0 + number) for number, kind in enumerate(sorted(kinds))]
    of_part = part_loss(losses, own, other, samples)
    assert of_part is not None
    kept = np.random.default_rng(seed + 1).random(samples) < 0.6
    kept[seed % samples] = True
    measured, _ = joint_loss(losses, _rows(own, kept), _rows(other, kept))
    assert of_part(kept) == pytest.approx(measured, rel=1e-9, abs=1e-12)


def test_a_part_without_variance_is_measured() -> None:
    own = np.repeat(np.array([[1.0], [1.0], [5.0]], dtype=np.float32), 4, axis=1)
    losses, kept = (OutputLoss("a", LossKind.MSE),), np.array([True, True, False])
    of_part = part_loss(losses, {"a": own}, {"a": own + np.float32(0.5)}, 3)
    assert of_part is not None and of_part(kept) is None
    loss_of = losses_of("auto", Reference(own, None, output="a", losses=losses), own + np.float32(0.5))
    assert loss_of(kept) == pytest.approx(2 * 0.25)


@pytest.mark.parametrize("fault", ["infinite", "another shape", "several shapes"])
def test_sums_are_not_used_where_they_do_not_give_the_loss(fault: str) -> None:
    own, other = (outputs["boxes"] for outputs in _outputs(0, 4))
    if fault == "infinite":
        other[0, 0, 0] = np.inf
    others: dict[str, Any] = {"another shape": other[:, :2], "several shapes": tuple(other)}
    wrong = others.get(fault, other)
    assert part_loss([OutputLoss("a", LossKind.MSE)], {"a": own}, {"a": wrong}, 4) is None


def test_outputs_are_read_once_for_a_standard_error(monkeypatch: pytest.MonkeyPatch) -> None:
    own, other = _outputs(3, 30)
    losses = (OutputLoss("boxes", LossKind.MSE), OutputLoss("classes", LossKind.DIFFERING))
    reference = Reference(own["boxes"], None, output="boxes", losses=losses, others={"classes": own["classes"]})
    loss_of = losses_of("auto", reference, {name: other[name] for name in ("boxes", "classes")})

    def on_rows(kept: NDArray[np.bool_] | None) -> float:
        assert kept is not None
        return joint_loss(losses, _rows(own, kept), _rows(other, kept))[0]

    measured = standard_error(on_rows, 30)
    monkeypatch.setattr("quantpipe.metrics.jackknife.metric_of", None)  # measures the outputs of a part
    assert standard_error(loss_of, 30) == pytest.approx(measured, rel=1e-9)
