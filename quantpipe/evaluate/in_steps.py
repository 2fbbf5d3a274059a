"""Whether a decoder that steps with its cache computes the integers of one run over the same tokens (a prefill).

The realized model runs the first samples of a sequence one after the other, each with the cache of the one before. Then
it runs once over all of them, with the cache that the sequence begins with. Every row of every output must be equal:
logits, and the caches after the last step. A difference inside a layer shows in the caches of the layers after it.
Samples of several tokens are compared a second time, in steps of one token, as a program generates text.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from enum import Enum, auto
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantpipe.data.recurrent_state import Run, SampleStep, StatefulSamples
from quantpipe.data.subset import underlying
from quantpipe.errors import ModelError
from quantpipe.graph.execute import Session
from quantpipe.types import Samples, StepsPart, StepsRow

log = logging.getLogger(__name__)

Array = NDArray[Any]
STEPS = 8
TOKENS = 48
"""The most steps of one token."""


class _Along(Enum):
    """What the second axis of an input counts, over all steps."""

    CACHE = auto()
    SEQUENCE = auto()
    NEW = auto()
    ALL = auto()


def steps_and_prefill(session: Session, samples: Samples, most: int = STEPS) -> StepsPart | None:
    """Return how the first steps of a sequence differ from one run over the same tokens.

    None where samples carry no state, one that does not grow from step to step (it is no cache), or where the model
    takes one step at a time.
    """
    carried = underlying(samples)
    if not isinstance(carried, StatefulSamples):
        return None
    steps = list(islice(carried.first_sequence(session.run), most))
    if len(steps) < 2 or not _grows(steps, carried.state):
        return None
    found = _compared(session, steps, carried.state)
    if found is None:
        return None
    single = single_steps(steps, carried, session.run)
    if single is not None and (part := _compared(session, single, carried.state)) is not None:
        found["one_token"] = part
    return found


def single_steps(
    steps: Sequence[SampleStep], carried: StatefulSamples, run: Run, most: int = TOKENS
) -> list[SampleStep] | None:
    """Run the first tokens of steps one by one, each with the cache of the one before, and return these steps.

    None where each step is one token already, or where an input cannot be cut into tokens.
    """
    state, sizes = carried.state, [sizes_of(step, carried.state) for step in steps]
    kinds = _kinds(steps, state)
    if kinds is None or all(new <= 1 for _, new in sizes):
        return None
    cache = {name: steps[0].feeds[name] for name in state.values()}
    found: list[SampleStep] = []
    for step, (before, new) in zip(steps, sizes, strict=True):
        for place in range(new):
            if len(found) == most:
                return found
            feeds = {name: _token(array, kinds[name], before, place) for name, array in step.feeds.items()} | cache
            try:
                outputs = run(feeds)
            except ModelError as error:  # its axis of tokens is fixed
                log.info("no steps of one token are compared: %s", error)
                return None
            found.append(SampleStep(feeds, outputs))
            cache = carried.carried_on(outputs, len(found) - 1)
    return found


def _token(array: Array, kind: _Along, before: int, place: int) -> Array:
    """Return what an input holds for one token of a step."""
    if kind is _Along.NEW:
        return array[:, place : place + 1]
    return array[:, : before + place + 1] if kind is _Along.ALL and array.ndim > 1 else array


def _compared(session: Session, steps: Sequence[SampleStep], state: Mapping[str, str]) -> StepsPart | None:
    """Return how steps differ from one run over their tokens; None where the model takes no such run."""
    feeds = joined_feeds(steps, state)
    if feeds is None:
        return None
    try:
        whole = session.run(feeds)
    except ModelError as error:  # its axis of tokens is fixed
        log.info("steps are not compared with one run over the same tokens: %s", error)
        return None
    rows = [
        row
        for name in steps[0].outputs
        if (row := _difference(name, [np.asarray(s.outputs[name]) for s in steps], np.asarray(whole[name]))) is not None
    ]
    return {"steps": len(steps), "differing": sum(row["differing"] for row in rows), "outputs": rows}


def steps_warning(part: StepsPart | None) -> str | None:
    """Return the sentence about steps that give something else than the prefill."""
    inside = None if part is None else part.get("kernels")
    found = part
    kind = ""
    if part is not None and not part["differing"]:
        found, kind = part.get("one_token"), " of one token"
    if found is None or not found["differing"]:
        return None
    rows = [row for row in found["outputs"] if row["differing"]]
    named = ", ".join(f"{r['output']} ({r['differing']:,} of {r['elements']:,}, by {r['largest']:.3g})" for r in rows)
    if inside is not None and inside["by_samples"]:
        named += f". {', '.join(inside['by_samples'])}: the scale follows from all rows of a run"
    elif inside is not None and inside["differing"]:
        named += f"; the first kernel that differs is {inside['differing'][0]}"
    return (
        f"{found['steps']} steps{kind} with the cache differ from one run over the same tokens: {named}. "
        "If each sample is one token, no mask has a range: give samples of several tokens (dataset.cut). "
        "Sums in float depend on the number of rows; "
        "other differences come from positions, masks or scales that depend on it"
    )


def _grows(steps: Sequence[SampleStep], state: Mapping[str, str]) -> bool:
    """Return whether an output that is carried is larger than the input that it came from."""
    first = steps[0]
    return any(np.size(first.outputs[output]) > np.size(first.feeds[name]) for output, name in state.items())


def joined_feeds(steps: Sequence[SampleStep], state: Mapping[str, str]) -> dict[str, Array] | None:
    """Return the inputs of one run over all steps: their rows one after the other, and the first cache.

    Of a mask over the whole cache it is the last step's, and of what belongs to the whole sequence the first step's.
    None where an input is neither.
    """
    kinds = _kinds(steps, state)
    if kinds is None:
        return None
    found = {}
    for name, kind in kinds.items():
        if kind is _Along.NEW:
            found[name] = np.concatenate([step.feeds[name] for step in steps], axis=1)
        else:
            found[name] = steps[-1 if kind is _Along.ALL else 0].feeds[name]
    return found


def _kinds(steps: Sequence[SampleStep], state: Mapping[str, str]) -> dict[str, _Along] | None:
    """Return what the second axis of each input counts; nothing where an input's axis fits no count."""
    carried, sizes = set(state.values()), [sizes_of(step, state) for step in steps]
    found = {}
    for name, first in steps[0].feeds.items():
        arrays = [step.feeds[name] for step in steps]
        rows = [array.shape[1] if array.ndim > 1 else 0 for array in arrays]
        if name in carried:
            found[name] = _Along.CACHE
        elif _are_of_the_sequence(arrays):
            found[name] = _Along.SEQUENCE
        elif rows == [new for _, new in sizes]:
            found[name] = _Along.NEW
        elif first.ndim < 2 or rows == [before + new for before, new in sizes]:
            found[name] = _Along.ALL
        else:
            return None
    return found


def sizes_of(step: SampleStep, state: Mapping[str, str]) -> tuple[int, int]:
    """Return how many tokens a step finds in its cache, and how many it adds."""
    for output, name in state.items():
        before, after = np.shape(step.feeds[name]), np.shape(step.outputs[output])
        if len(before) == len(after):
            for old, new in zip(before, after, strict=True):
                if new > old:
                    return old, new - old
    return 0, 0


def _are_of_the_sequence(arrays: Sequence[Array]) -> bool:
    """Return whether an input has the same float maps in each step."""
    first = arrays[0]
    real = first.ndim > 2 and np.issubdtype(first.dtype, np.floating)
    return real and all(np.array_equal(first, other) for other in arrays[1:])


def _difference(name: str, arrays: Sequence[Array], whole: Array) -> StepsRow | None:
    """Return the difference of an output: rows of all steps, or what the last step gives; None if neither fits."""
    last, rows = arrays[-1], None
    if last.shape == whole.shape:
        rows = last
    elif whole.ndim > 1:
        joined = np.concatenate(arrays, axis=1) if _fit(arrays) else None
        rows = joined if joined is not None and joined.shape == whole.shape else None
    if rows is None:
        return None
    apart = rows != whole
    largest = float(np.max(np.abs(rows[apart].astype(float) - whole[apart].astype(float)), initial=0.0))
    return {"output": name, "elements": whole.size, "differing": int(apart.sum()), "largest": largest}


def _fit(arrays: Sequence[Array]) -> bool:
    """Return whether arrays differ in the second axis alone."""
    return len({(a.shape[:1], a.shape[2:]) for a in arrays}) == 1
