"""The inputs of every stage: the cleaned model and the three splits that fit it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from quantpipe.data.few import few_notes, refuse_few
from quantpipe.data.holdout import with_holdout
from quantpipe.data.noise import with_noise
from quantpipe.data.recurrent_state import carry
from quantpipe.data.splits import Splits
from quantpipe.data.subset import First
from quantpipe.errors import BatchError, ConfigError, DataError, ModelError, QuantpipeError, nearest
from quantpipe.evaluate.calibration_checks import calibration_doubts
from quantpipe.evaluate.preprocessing_checks import doubts
from quantpipe.graph.execute import Session
from quantpipe.graph.normalize import with_varying
from quantpipe.graph.view import Graph
from quantpipe.hardware.legality import reachable
from quantpipe.intake.load import RawModel, clean_graph, read_graph
from quantpipe.intake.rewrites.batch_norms import BatchNorm, batch_norms, has_folded_bias
from quantpipe.lowering import opset_for
from quantpipe.metrics.reference import Compared
from quantpipe.oprules.chosen import selected_outputs
from quantpipe.pipeline.compared import compared_by
from quantpipe.pipeline.sample_axis import with_sample_axis
from quantpipe.pipeline.settings import Settings
from quantpipe.recover import with_edge_copies, with_split_channels
from quantpipe.types import Samples
from quantpipe.types.run_files import SourceRecord, SplitRecord

log = logging.getLogger(__name__)

CHECK_SAMPLES = 4

FREED = (
    "the model declares a batch of {}, of which there are too few samples; its batch is made free, also in the result"
)
ONE_AT_A_TIME = (
    "the model declares a free batch, but runs on one sample at a time only (a state for one, say): so it is run here"
)


@dataclass(frozen=True, eq=False)
class Inputs:
    """Hold the inputs of every stage."""

    graph: Graph
    calibrate: Samples
    search: Samples
    evaluate: Samples
    output: str
    """The model's output that metrics are about."""
    aside: Samples | None = None
    """Samples that no candidate of the search sees, where there are such."""
    doubts: tuple[str, ...] = ()
    """What speaks against the samples altogether: to be said before anything else."""
    notes: tuple[str, ...] = ()
    """What else is to be known of the samples."""
    compared: Compared = Compared()  # noqa: RUF009  (frozen)
    """What of the model is compared with the float model, and by which losses."""
    train: Samples | None = None
    """Samples to train on, where they are others than those of calibration."""
    norms: Mapping[str, BatchNorm] = field(default_factory=dict)
    """Result of a convolution -> its BatchNormalization in the model as given, where training asks for them."""

    @property
    def training(self) -> Samples:
        """Return the samples to train on."""
        return self.calibrate if self.train is None else self.train

    @property
    def judge(self) -> Samples:
        """Return the samples that judge the steps of recovery."""
        return self.search if self.aside is None else self.aside

    def data_record(self) -> dict[str, SplitRecord]:
        """Return which samples serve which split."""
        roles = {"calibrate": self.calibrate, "search": self.search, "judge": self.aside, "train": self.train}
        roles["evaluate"] = self.evaluate
        return {role: record_of(samples) for role, samples in roles.items() if samples is not None}


def load(settings: Settings) -> Inputs:
    """Read the model and the data, check that they fit, clean the model on real samples."""
    given = (settings.model, settings.resident_mb, settings.fixed, settings.keep)
    try:
        return _loaded(settings, read_graph(*given, random=settings.random))
    except BatchError as error:
        try:
            return _loaded(settings, read_graph(*given, random=settings.random, free_batch=True))
        except (ModelError, BatchError):  # what it computes depends on its batch
            raise error from None


def _loaded(settings: Settings, raw: RawModel) -> Inputs:
    splits = _splits(settings, raw)
    states = frozenset(splits.state.values())
    given = replace(raw.graph, states=states)
    size = _fixed_batch(given)
    feeds = _first_batch(splits.calibrate, size)

    def clean(some: Mapping[str, Any]) -> Graph:
        return clean_graph(
            raw,
            some,
            least_opset=opset_for(settings.spec),
            isolate=settings.isolate,
            declared=reachable(settings.spec),
            cells=settings.cells,
        )

    try:
        graph = clean(feeds)
    except ModelError as error:
        one = {name: values[:1] for name, values in feeds.items()}
        alone = _cleaned(clean, one) if size is None and error.stage == "run" else None
        if alone is None:
            raise
        graph, feeds = replace(alone, alone=True, notes=(*alone.notes, ONE_AT_A_TIME)), one
    graph = replace(graph, states=states, selected=selected_outputs(graph))
    output = chosen_output(settings.evaluate.output, graph)
    graph = with_sample_axis(graph, feeds, output)
    size = 1 if graph.alone else size
    if raw.freed:
        graph = replace(graph, notes=(*graph.notes, FREED.format(raw.freed)))
    if wanted := settings.annotate.split_channels:
        graph = with_split_channels(graph, settings.spec, settings.schema, wanted)
    graph = with_edge_copies(graph, settings.spec, settings.schema, settings.annotate)
    for samples in splits.roles.values():
        graph = _see_varying(graph, samples)
    # Only now: the model as it was given has been run apart, under limits, so that it ends and ends nothing.
    found = doubts(given, splits.search, chosen_output(settings.evaluate.output, given), size)
    if found.wrong and splits.doubts == "stop":
        raise DataError(
            f"{found.said[0]}. The run stops here, since no later result would mean anything; dataset.doubts=go_on "
            "continues",
            stage="data",
        )
    speaking = (*calibration_doubts(splits.calibrate, splits.evaluate, size), *found.said)
    parts = (splits.calibrate, splits.search, splits.evaluate, output, splits.aside)
    compared = compared_by(settings, graph, output, labelled=splits.search.labelled, states=splits.state)
    norms = batch_norms(raw.graph.model) if settings.train.fold else {}
    norms = {name: norm for name, norm in norms.items() if has_folded_bias(graph, name, norm)}
    notes = (*splits.notes, *few_notes(splits.roles))
    return Inputs(graph, *parts, speaking, notes, compared, splits.train, norms)


def _cleaned(clean: Callable[[Mapping[str, Any]], Graph], feeds: Mapping[str, Any]) -> Graph | None:
    """Return the clean model, None where it does not run on these samples."""
    try:
        return clean(feeds)
    except ModelError:
        return None


def _splits(settings: Settings, read: RawModel) -> Splits:
    """Return the samples of every role, as the model takes them."""
    raw = read.graph
    shape = next(o.shape for o in raw.outputs if o.name == chosen_output(settings.evaluate.output, raw))
    classes = shape[-1] if len(shape) == 2 else None
    splits = _with_random_numbers(settings, read, classes)
    size = _fixed_batch(replace(raw, states=frozenset(splits.state.values())))
    splits = with_holdout(splits, settings.holdout, settings.seed, size or 1)
    if splits.state:
        if size not in (None, 1):
            raise DataError(
                f"the model takes batches of exactly {size} samples, and dataset.state goes from sample to sample; "
                "give a model whose batch axis is free or 1",
                stage="data",
            )
        splits = carry(splits, raw.inputs, Session(raw.model, where=raw.source).run)
    splits = _whole_batches(splits, size or 1)
    refuse_few(splits.roles, splits.force_few)
    return splits


def _with_random_numbers(settings: Settings, read: RawModel, classes: int | None) -> Splits:
    """Return the samples of every role; inputs of random numbers that the data do not have are drawn."""
    noise, inputs = read.noise, read.graph.inputs
    if noise.shapes is None:
        return settings.dataset.splits(inputs, classes, settings.seed)
    try:
        return settings.dataset.splits(inputs, classes, settings.seed)
    except QuantpipeError:  # without data of these names
        drawn = {port.name for port in noise.ports}
        splits = settings.dataset.splits([i for i in inputs if i.name not in drawn], classes, settings.seed)
    session = Session(noise.shapes, where=read.graph.source)

    def shapes(feeds: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
        found = session.run({name: feeds[name] for name in session.inputs}, list(noise.names.values()))
        return {port: found[output].shape for port, output in noise.names.items()}

    log.info("random numbers are drawn by the seed for the inputs %s", ", ".join(sorted(drawn)))
    return with_noise(splits, noise.ports, shapes, settings.seed)


def _first_batch(samples: Samples, size: int | None) -> Mapping[str, Any]:
    """Return a few samples to clean the model on, by input; `size`: the only batch that the model takes."""
    first = next(iter(samples.batches(size or CHECK_SAMPLES)), None)
    if first is None:
        raise DataError("there are no calibration samples", stage="data")
    if size is not None and len(first) < size:
        raise DataError(
            f"the model takes batches of exactly {size} samples, and samples of unequal shapes cannot share a batch. "
            "Give samples of one shape, or a model whose batch axis is free or 1",
            stage="data",
        )
    return first.inputs


def chosen_output(wanted: str | None, graph: Graph) -> str:
    """Return the name of the metrics' output: the wanted one, else the first.

    Raises ConfigError for a name that the model does not have.
    """
    names = [o.name for o in graph.outputs]
    if wanted is None:
        return names[0]
    if wanted not in names:
        raise ConfigError(
            f"is {wanted!r}, and the model has no such output{nearest(wanted, names)}; legal are {', '.join(names)}, "
            "or null for the first",
            where="evaluate.output",
        )
    return wanted


def _see_varying(graph: Graph, samples: Samples) -> Graph:
    """Return the graph with sample-dependent shapes marked; nothing is read if no input has another free axis.

    Raises DataError for a sample that the graph cannot run, though it runs others.
    """
    for batch in samples.batches(graph.batch_size) if _unseen_axes(graph) else ():
        if any(batch.inputs[name].shape[a] != graph.shapes[name][a] for name, a in _unseen_axes(graph)):
            try:
                graph = with_varying(graph, batch.inputs)
            except ModelError as error:
                sizes = ", ".join(f"{name!r} {list(array.shape)}" for name, array in batch.inputs.items())
                raise DataError(
                    f"sample {batch.indices[0]} cannot be run: {error}. Its inputs are {sizes}. Legal are samples "
                    "whose lengths fit each other: a decoder's mask has a column for each token of cache and sample",
                    stage="data",
                ) from error
            if not _unseen_axes(graph):
                break
    return graph


def _unseen_axes(graph: Graph) -> list[tuple[str, int]]:
    """Return (input, free axis other than the batch) whose size was the same for all samples so far."""
    return [
        (i.name, axis)
        for i in graph.inputs
        for axis, size in enumerate(i.shape)
        if axis and size is None and not graph.is_open(i.name, axis)
    ]


def _fixed_batch(graph: Graph) -> int | None:
    """Return the batch size that the model insists on; DataError where its inputs do not agree on one."""
    sizes = graph.first_axes
    if len(set(sizes.values())) > 1:
        text = ", ".join(f"{name!r} {size}" for name, size in sizes.items())
        raise DataError(
            f"the first axes of the model's inputs differ ({text}), and samples are stacked on the first axis",
            stage="data",
        )
    return graph.fixed_batch


def record_of(samples: Samples) -> SplitRecord:
    """Return the record of a split's samples, of any class."""
    if isinstance(samples, First):
        known = record_of(samples.samples)
        known |= {"samples": len(samples), "digest": samples.digest}
        if "indices" in known:
            known["indices"] = _head(known["indices"], len(samples))
        return known
    own: SourceRecord = getattr(samples, "record", SourceRecord())
    return {"samples": len(samples), "digest": samples.digest, **own}


def _head(ranges: Sequence[Sequence[int]], count: int) -> list[list[int]]:
    """Return the first `count` indices of some ranges `[first, last]`."""
    found = []
    for first, last in ranges:
        if count > 0:
            found.append([first, min(last, first + count - 1)])
        count -= last - first + 1
    return found


def _whole_batches(splits: Splits, size: int) -> Splits:
    """Return the splits without the last samples that would not fill a batch of the model's own, fixed size."""
    parts = splits.roles
    for role, samples in parts.items():
        count = len(samples) // size * size
        if count == 0:
            raise BatchError(
                f"the model takes batches of exactly {size} samples and {role} has {len(samples)}; give more samples, "
                "or a model whose batch axis is free",
                stage="data",
            )
        parts[role] = samples if count == len(samples) else First(samples, count)
    return splits.with_roles(parts)
