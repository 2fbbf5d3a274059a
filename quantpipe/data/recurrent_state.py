"""State that a streaming model carries from sample to sample: its outputs fed back to its inputs within a sequence.

The states that go with each sample come from the float model, computed once for a split and kept on disk. So every
stage sees complete and equal inputs. Calibration gets real states, candidates of a search are compared sample by
sample, and the simulated and the realized model get the same feeds. The behaviour of a model on its own states is
measured by `free_run`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantpipe.data.cache_inputs import empty_cache, is_cache
from quantpipe.data.grown_masks import GrownMasks
from quantpipe.data.input_checks import shape_text
from quantpipe.data.sample_store import SampleStore
from quantpipe.data.samples import SourceSamples
from quantpipe.data.splits import Splits
from quantpipe.errors import ConfigError, DataError, ModelError, nearest
from quantpipe.types import Batch, TensorInfo
from quantpipe.types.run_files import SourceRecord


@dataclass(frozen=True, eq=False)
class SampleStep:
    """Hold what a model read for one sample, states included, and what it gave."""

    feeds: Mapping[str, NDArray[Any]]
    outputs: Mapping[str, NDArray[Any]]


Run = Callable[[Mapping[str, NDArray[Any]]], Mapping[str, NDArray[Any]]]
"""A model: feeds to outputs, by name."""


class StatefulSamples:
    """The samples of a split with the state inputs filled in. Implements `types.Samples`.

    `state` maps outputs to inputs. A sequence begins with zeros, an empty cache, or what the data hold under the
    input's name. A mask of a sample's tokens alone gets a column for each token of the cache in front.
    Where states cannot be stacked on axis 0 (their batch axis stands elsewhere, or is fixed), batches have one sample.
    """

    def __init__(
        self, samples: SourceSamples, state: Mapping[str, str], inputs: Sequence[TensorInfo], run: Run
    ) -> None:
        self._samples, self._state, self._run = samples, dict(state), run
        self._ports = {i.name: i for i in inputs if i.name in self._state.values()}
        caches = [port for port in self._ports.values() if is_cache(port)]
        self._cache = caches[0] if caches else None
        self._masks = GrownMasks(inputs if caches else (), self._ports)
        self._stackable = all(i.shape and i.shape[0] is None for i in inputs)
        self._states: SampleStore | None = None

    @property
    def digest(self) -> str:
        """Return the digest of the samples.

        The states follow from them and from the model, which every artifact names as well.
        """
        return f"{self._samples.digest}+{','.join(f'{o}>{i}' for o, i in self._state.items())}"

    @property
    def state(self) -> Mapping[str, str]:
        """Return the inputs that carry state, by output."""
        return self._state

    @property
    def labelled(self) -> bool:
        """Return whether the samples have labels."""
        return self._samples.labelled

    @property
    def groups(self) -> NDArray[np.str_] | None:
        """See `SourceSamples.groups`."""
        return self._samples.groups

    def name(self, position: int) -> str:
        """See `SourceSamples.name`."""
        return self._samples.name(position)

    @property
    def record(self) -> SourceRecord:
        """See `SourceSamples.record`."""
        return {**self._samples.record, "state": self._state, "sequences": int(self._samples.starts.sum())}

    def __len__(self) -> int:
        return len(self._samples)

    def batches(self, size: int) -> Iterator[Batch]:
        """See `types.Samples`. The first call runs the float model over the split."""
        states = self._states
        if states is None:
            states = self._states = self._follow()
        done = 0
        for batch in self._samples.batches(size if self._stackable else 1):
            known = [states.read(done + i) for i in range(len(batch))]
            for begin, end in _equal(known):
                carried = {name: np.concatenate([s[name] for s in known[begin:end]]) for name in known[begin]}
                fed = {name: a if len(batch) == 1 else a[begin:end] for name, a in batch.inputs.items()}
                labels = None if batch.labels is None else batch.labels[begin:end]
                yield Batch({**fed, **carried}, labels, batch.indices[begin:end])
            done += len(batch)

    def free_run(self, run: Run) -> Iterator[Mapping[str, NDArray[Any]]]:
        """Yield the outputs of another model that carries its own states, sample by sample.

        It must have the same inputs and outputs.
        """
        for step in self._steps(run):
            yield step.outputs

    def first_sequence(self, run: Run) -> Iterator[SampleStep]:
        """Yield the steps of the first sequence of another model that carries its own states."""
        for number, step in enumerate(self._steps(run)):
            if number and self._samples.starts[number]:
                return
            yield step

    def carried_on(self, outputs: Mapping[str, NDArray[Any]], number: int) -> dict[str, NDArray[Any]]:
        """Return the states after a step, by input, of its outputs; `number` is the step's, for messages."""
        return {
            name: self._ports[name].rounded(self._next(outputs, output, number)) for output, name in self._state.items()
        }

    def _follow(self) -> SampleStore:
        """Return the states that go into each sample."""
        spool = SampleStore()
        for step in self._steps(self._run):
            spool.append({name: step.feeds[name] for name in (*self._ports, *self._masks.names)})
        return spool

    def _steps(self, run: Run) -> Iterator[SampleStep]:
        """Yield sample by sample what the model reads and gives."""
        starts = self._samples.starts
        state: dict[str, NDArray[Any]] = {}
        for number, batch in enumerate(self._samples.batches(1)):
            if starts[number]:
                state = {name: self._first(port, batch) for name, port in self._ports.items()}
                masks: dict[str, NDArray[Any]] = {}
            feeds = {**batch.inputs, **state}
            if self._cache is not None:
                cached = state[self._cache.name].shape[self._cache.shape.index(None, 1)]
                masks = self._masks.of(feeds, cached, masks)
                feeds |= masks
            outputs = self._outputs(run, feeds, number)
            yield SampleStep(feeds, outputs)
            state = self.carried_on(outputs, number)

    def _outputs(self, run: Run, feeds: Mapping[str, NDArray[Any]], number: int) -> Mapping[str, NDArray[Any]]:
        """Return what a model gives for a sample and its state.

        Raises DataError that has the sizes of a sample that contradicts its cache.
        """
        try:
            return run(feeds)
        except ModelError as error:
            if not any(is_cache(port) for port in self._ports.values()):
                raise
            raise DataError(
                f"sample {number} cannot be run with its cache: {error}. {_sizes_of(feeds, self._ports)}. Legal are a "
                "mask with a column for each token of cache and sample, and positions within the tables of the model.",
                stage="data",
            ) from error

    def _first(self, port: TensorInfo, batch: Batch) -> NDArray[Any]:
        given = batch.inputs.get(port.name)
        if given is not None:
            return given
        if is_cache(port):
            return empty_cache(port, 1)
        free = [axis for axis, n in enumerate(port.shape) if n is None]
        if len(free) > 1 or not port.shape:
            raise DataError(
                f"model input {port.name!r} takes {shape_text(port.shape)}, so the state that a sequence begins with "
                "has no known shape; give first values in the data, under the name of the input.",
                stage="data",
            )
        return np.zeros([1 if n is None else n for n in port.shape], dtype=port.dtype)  # the free one is the batch

    def _next(self, outputs: Mapping[str, NDArray[Any]], output: str, number: int) -> NDArray[Any]:
        if output not in outputs:
            raise ConfigError(
                f"carries {output!r}, which is no output of the model{nearest(output, outputs)}; its outputs are "
                f"{', '.join(outputs)}.",
                where="dataset.state",
            )
        port, value = self._ports[self._state[output]], outputs[output]
        fits = len(port.shape) == value.ndim and all(
            w in (None, n) for w, n in zip(port.shape, value.shape, strict=True)
        )
        if not fits or value.dtype.name != port.dtype:
            raise ConfigError(
                f"feeds {output!r} ({shape_text(value.shape)} {value.dtype.name}) into {port.name!r}, which takes "
                f"{shape_text(port.shape)} {port.dtype}.",
                where="dataset.state",
            )
        if value.dtype.kind == "f" and not np.all(np.isfinite(value)):
            raise DataError(
                f"the state {output!r} of the float model is not finite after sample {number} of the split.",
                stage="data",
            )
        return value


def _sizes_of(feeds: Mapping[str, NDArray[Any]], ports: Mapping[str, TensorInfo]) -> str:
    """Return a sentence with the sizes of a sample and its caches, and the largest number of each integer input."""
    held = next(name for name, port in ports.items() if is_cache(port))
    said = [
        f"{name!r} {shape_text(array.shape)}{f' up to {array.max()}' if array.dtype.kind == 'i' and array.size else ''}"
        for name, array in feeds.items()
        if name not in ports
    ]
    return f"Its inputs are {', '.join(said)}, and the cache {held!r} is {shape_text(feeds[held].shape)}"


def _equal(states: Sequence[Mapping[str, NDArray[Any]]]) -> Iterator[tuple[int, int]]:
    """Yield borders of the longest runs of neighbours whose states have equal shapes: a cache grows with each."""
    shapes = [{name: array.shape for name, array in one.items()} for one in states]
    begin = 0
    for end in range(1, len(shapes) + 1):
        if end == len(shapes) or shapes[end] != shapes[begin]:
            yield begin, end
            begin = end


def carry(splits: Splits, inputs: Sequence[TensorInfo], run: Run) -> Splits:
    """Return the splits with states filled in, where the data set asks for it.

    `inputs` are all of the model's.
    """
    if not splits.state:
        return splits
    found: dict[str, Any] = {}
    for role, samples in splits.roles.items():
        if not isinstance(samples, SourceSamples):
            raise ConfigError(
                f"is not supported by this data set, whose samples are {type(samples).__name__}.", where="dataset.state"
            )
        found[role] = StatefulSamples(samples, splits.state, inputs, run)
    return splits.with_roles(found)
