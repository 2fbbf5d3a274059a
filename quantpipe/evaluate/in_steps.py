"""Whether a decoder that steps with its cache computes the integers of one run over the same tokens (a prefill).

The realized model runs the first samples of a sequence one after the other, each with the cache of the one before. Then
it runs once over all of them, with the cache that the sequence begins with. Every row of every output must be equal:
logits, and the caches after the last step. A difference inside a layer shows in the caches of the layers after it.
Samples of several tokens are compared a second time, in steps of one token, as a program generates text.

A cache grows, or has a fixed length and each step writes the next places of it. A ring that is shifted has no run over
all tokens: it would forget what earlier tokens read.
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
SHIFTED = "steps do not write one place of the cache after the other, so no run over all tokens has the same cache"
UNFIT = "an input fits neither the tokens of a step nor its cache"
FIXED = "the file takes no run over the tokens of several steps"


class _Along(Enum):
    """What the second axis of an input counts, over all steps."""

    CACHE = auto()
    SEQUENCE = auto()
    NEW = auto()
    ALL = auto()


def steps_and_prefill(
    session: Session, samples: Samples, most: int = STEPS, *, caches: bool = False
) -> StepsPart | None:
    """Return how the first steps of a sequence differ from one run over the same tokens, or why they are not compared.

    None where samples carry no state, or one that no step adds to (it is no cache). `caches`: whether an attention
    reads the states in any case.
    """
    carried = underlying(samples)
    if not isinstance(carried, StatefulSamples):
        return None
    every = list(islice(carried.first_sequence(session.run), most))
    steps = added_to(every, carried.state)
    if len(steps) < 2:
        return _not_compared(SHIFTED) if caches and len(every) > 1 else None
    found = _compared(session, steps, carried.state)
    if "reason" in found:
        return found
    single = single_steps(steps, carried, session.run)
    if single is not None and "reason" not in (part := _compared(session, single, carried.state)):
        found["one_token"] = part
    return found


def _not_compared(reason: str) -> StepsPart:
    return {"steps": 0, "differing": 0, "outputs": [], "reason": reason}


def single_steps(
    steps: Sequence[SampleStep], carried: StatefulSamples, run: Run, most: int = TOKENS
) -> list[SampleStep] | None:
    """Run the first tokens of steps one by one, each with the cache of the one before, and return these steps.

    None where each step is one token already, or where an input cannot be cut into tokens.
    """
    state, sizes = carried.state, sizes_of(steps, carried.state)
    fixed = places_of(steps[0], state) > 0
    kinds = _kinds(steps, state)
    if kinds is None or all(new <= 1 for _, new in sizes):
        return None
    cache = {name: steps[0].feeds[name] for name in state.values()}
    found: list[SampleStep] = []
    for step, (before, new) in zip(steps, sizes, strict=True):
        for place in range(new):
            if len(found) == most:
                return found
            feeds = {name: _token(a, kinds[name], before, place, fixed=fixed) for name, a in step.feeds.items()} | cache
            try:
                outputs = run(feeds)
            except ModelError as error:  # its axis of tokens is fixed
                log.info("no steps of one token are compared: %s", error)
                return None
            found.append(SampleStep(feeds, outputs))
            cache = carried.carried_on(outputs, len(found) - 1)
    return found


def _token(array: Array, kind: _Along, before: int, place: int, *, fixed: bool) -> Array:
    """Return what an input holds for one token of a step; a mask of a `fixed` length hides later places by 0."""
    seen = before + place + 1
    if kind is _Along.NEW:
        return np.take(array, [place], axis=_axis_of_tokens(array))
    if kind is not _Along.ALL or array.ndim < 2:
        return array
    if not fixed:
        return array[:, :seen]
    if np.issubdtype(array.dtype, np.floating):
        return array
    return np.concatenate([array[..., :seen], np.zeros_like(array[..., seen:])], axis=-1)


def _axis_of_tokens(array: Array) -> int:
    """Return the axis of new tokens: rows of a mask `[N, 1, T, L]`, the second axis of `[N, T]` and `[N, T, C]`."""
    return min(1, array.ndim - 1) if array.ndim < 4 else array.ndim - 2


def _compared(session: Session, steps: Sequence[SampleStep], state: Mapping[str, str]) -> StepsPart:
    """Return how steps differ from one run over their tokens, or why the model takes no such run."""
    feeds = joined_feeds(steps, state)
    if feeds is None:
        return _not_compared(UNFIT)
    try:
        whole = session.run(feeds)
    except ModelError as error:  # its axis of tokens is fixed
        log.info("steps are not compared with one run over the same tokens: %s", error)
        return _not_compared(FIXED)
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
        if inside["counts_hidden"]:
            shares = ", ".join(inside["counts_hidden"])
            named += f". {shares}: this form of the device gives hidden places of the cache a share, written or not"
    return (
        f"{found['steps']} steps{kind} with the cache differ from one run over the same tokens: {named}. "
        "If each sample is one token, no mask has a range: give samples of several tokens (dataset.cut). "
        "Sums in float depend on the number of rows; "
        "other differences come from positions, masks or scales that depend on it"
    )


def added_to(steps: Sequence[SampleStep], state: Mapping[str, str]) -> list[SampleStep]:
    """Return the first steps, as far as each adds tokens to the cache after the tokens of the step before."""
    sizes = sizes_of(steps, state)
    return list(steps[: len(sizes)]) if sizes and sizes[0][1] else []


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
            parts = [step.feeds[name] for step in steps]
            found[name] = np.concatenate(parts, axis=_axis_of_tokens(parts[0]))
        else:
            found[name] = steps[-1 if kind is _Along.ALL else 0].feeds[name]
    return found


def _kinds(steps: Sequence[SampleStep], state: Mapping[str, str]) -> dict[str, _Along] | None:
    """Return what the second axis of each input counts; nothing where an input's axis fits no count."""
    carried, sizes = set(state.values()), sizes_of(steps, state)
    fixed, found = places_of(steps[0], state) > 0, {}
    for name, first in steps[0].feeds.items():
        arrays = [step.feeds[name] for step in steps]
        # Without an axis of samples, places of a cache of fixed length are listed, but lengths of another are counted.
        rows = [_count(array) if array.ndim > (not fixed) else 0 for array in arrays]
        if name in carried:
            found[name] = _Along.CACHE
        elif _are_of_the_sequence(arrays):
            found[name] = _Along.SEQUENCE
        elif rows == [new for _, new in sizes] and _fit(arrays, _axis_of_tokens(first)):
            found[name] = _Along.NEW
        elif (fixed and len({array.shape for array in arrays}) == 1) or (
            first.ndim < 2 or rows == [before + new for before, new in sizes]
        ):
            found[name] = _Along.ALL
        else:
            return None
    return found


def sizes_of(steps: Sequence[SampleStep], state: Mapping[str, str]) -> list[tuple[int, int]]:
    """Return how many tokens each step finds in its cache, and how many it adds.

    In a cache of fixed length the first step shows it by what it writes, as faults may change all places later. Steps
    that begin again at the first place are left out, and all of a ring that is shifted.
    """
    if not steps or not (length := places_of(steps[0], state)):
        return [_grown(step, state) for step in steps]
    end, new, _ = max((_written(*pair) for pair in _caches(steps[0], state)), key=lambda one: one[1])
    tokens = [name for name, array in steps[0].feeds.items() if name not in state.values() and _count(array) == new]
    found: list[tuple[int, int]] = []
    for step in steps if tokens else ():
        new = _count(step.feeds[tokens[0]])
        if end + new > length:
            break
        found.append((end, new))
        end += new
    return found


def places_of(step: SampleStep, state: Mapping[str, str]) -> int:
    """Return the length of a cache of fixed length; 0 where a cache grows."""
    pairs = _caches(step, state)
    return max(_written(*pair)[2] for pair in pairs) if all(old.shape == new.shape for old, new in pairs) else 0


def _caches(step: SampleStep, state: Mapping[str, str]) -> list[tuple[Array, Array]]:
    """Return each cache before and after a step."""
    return [(np.asarray(step.feeds[name]), np.asarray(step.outputs[output])) for output, name in state.items()]


def _count(array: Array) -> int:
    """Return the size of the axis that new tokens would have."""
    return int(array.shape[_axis_of_tokens(array)]) if array.ndim else 0


def _grown(step: SampleStep, state: Mapping[str, str]) -> tuple[int, int]:
    """Return how many tokens a step finds in a cache that grows, and how many it adds."""
    for pair in _caches(step, state):
        before, after = (array.shape for array in pair)
        if len(before) == len(after):
            for old, new in zip(before, after, strict=True):
                if new > old:
                    return old, new - old
    return 0, 0


def _written(old: Array, new: Array) -> tuple[int, int, int]:
    """Return the first place of a cache of fixed length that a step has written, how many it has, and its length."""
    found = [(1.0, 0, 0, 0)]
    if old.shape == new.shape and old.ndim > 2:
        apart = old != new
        for axis in range(1, old.ndim):
            places = np.flatnonzero(apart.any(axis=tuple(a for a in range(old.ndim) if a != axis)))
            count, length = len(places), old.shape[axis]
            if 0 < count < length and places[-1] - places[0] + 1 == count:
                found.append((count / length, int(places[0]), count, length))
    return min(found)[1:]


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
        for axis in (1, _axis_of_tokens(whole)):
            joined = np.concatenate(arrays, axis=axis) if _fit(arrays, axis) else None
            rows = joined if rows is None and joined is not None and joined.shape == whole.shape else rows
    if rows is None:
        return None
    apart = rows != whole
    largest = float(np.max(np.abs(rows[apart].astype(float) - whole[apart].astype(float)), initial=0.0))
    return {"output": name, "elements": whole.size, "differing": int(apart.sum()), "largest": largest}


def _fit(arrays: Sequence[Array], axis: int) -> bool:
    """Return whether arrays differ in one axis alone."""
    return len({(a.shape[:axis], a.shape[axis + 1 :]) for a in arrays}) == 1
