"""The float model's outputs and labels over a split: computed once, compared with many times."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import compress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantpipe.errors import ConfigError, DataError
from quantpipe.graph.execute import Session, joined, lifted, run_batches
from quantpipe.metrics.average_precision import Detections, mean_average_precision
from quantpipe.metrics.detections import DetectionLayout, matches
from quantpipe.metrics.losses import LossKind, OutputLoss, joint_loss, only_kl
from quantpipe.metrics.outputs import all_finite, cosine_similarity, kl_divergence, relative_mse, top1
from quantpipe.metrics.soft_kl import Softness, softness_of
from quantpipe.types import SOFT_KL, Outputs, Samples, groups_of

ValueOf = Callable[[Any, Any, NDArray[np.int64] | None], float]
"""A user's objective: (the float model's outputs, the candidate's outputs, labels or None) -> float, greater is
better. Both outputs are those of one output, or mappings of all of them by name (`Compared.named`)."""

WORST = "worst"
"""Among metrics, the value over the worst samples (`objective.over`)."""

Found = Outputs | Mapping[str, Outputs]
"""What a model gave over some samples: its one output that is compared, or several by name."""


@dataclass(frozen=True, eq=False)
class Compared:
    """State what of a model is compared with the float model.

    `output`: the one that metrics are about (None: the first). `losses`: by which losses the model is judged in
    addition. `value_of` is an objective of the user's; `named`: it gets every output of the model. `detections`: the
    layout of boxes and scores, where the model is a detector. `metric` and `over` are the objective's.
    `selected`: see `Graph.selected`.
    """

    output: str | None = None
    losses: tuple[OutputLoss, ...] = ()
    value_of: ValueOf | None = None
    named: bool = False
    detections: DetectionLayout | None = None
    metric: str = "auto"
    over: str = "mean"
    selected: frozenset[str] = frozenset()

    def judged(self, samples: Samples) -> JudgedOver | None:
        """Return which of the samples judge a candidate (`objective.over`); None for the mean of all.

        Raises ConfigError where the samples have no groups.
        """
        if self.over == "mean":
            return None
        if self.over == "worst_decile":
            return JudgedOver(self.metric, len(samples))
        groups = groups_of(samples)
        if groups is None:
            raise ConfigError(
                f"is {self.over}, and the samples have no groups; give dataset.groups, or objective.over=worst_decile",
                stage="search",
                where="objective.over",
            )
        return JudgedOver(self.metric, len(samples), groups)

    def names(self, outputs: Sequence[str]) -> tuple[str, ...]:
        """Return the outputs that are needed, of those that a model has: the one of the metrics first."""
        found = () if self.detections is None else self.detections.outputs
        wanted = (*(loss.output for loss in self.losses), *found, *(outputs if self.named else ()))
        return tuple(dict.fromkeys((self.output or outputs[0], *wanted)))


@dataclass(frozen=True, eq=False)
class JudgedOver:
    """Say which samples judge a candidate instead of all: the worst tenth, or the worst group.

    `metric`: auto, kl, mse or accuracy. `groups` `[N]` is the group of each sample, None for the worst tenth.
    """

    metric: str
    samples: int
    groups: NDArray[np.str_] | None = field(default=None, repr=False)

    def value(self, reference: Reference, outputs: Found) -> float:
        """Return the mean value of the worst samples: minus a loss, or an accuracy."""
        values = self._values(reference, outputs)
        if self.groups is None:
            return float(np.mean(np.sort(values)[: max(1, self.samples // 10)]))
        return min(float(np.mean(values[self.groups == name])) for name in np.unique(self.groups))

    def _values(self, reference: Reference, outputs: Found) -> NDArray[np.float64]:
        """Return the value of each sample, `[N]`."""
        main = reference.main(outputs)
        if self.metric == "accuracy":
            if reference.labels is None or isinstance(main, tuple) or main.ndim != 2:
                return np.full(self.samples, np.nan)
            return np.asarray(main.argmax(axis=1) == reference.labels, dtype=np.float64)
        kinds = {"kl": LossKind.KL, "mse": LossKind.MSE}
        if self.metric in kinds or not reference.losses:
            losses: Sequence[OutputLoss] = [OutputLoss(reference.output, kinds.get(self.metric, LossKind.KL))]
            factor = losses[0].factor
        else:
            losses, factor = reference.losses, 1.0
        own, every = reference.every(reference.found), reference.every(outputs)
        each = [loss.each(own[loss.output], every[loss.output], self.samples) for loss in losses]
        return np.asarray(-np.max(each, axis=0) / factor)


@dataclass(frozen=True, eq=False)
class Reference:
    """Hold what the float model gives, to compare others with it.

    It is one output `[N, ...]` (N arrays where shapes differ), the labels `[N]`, if any, the user's own objective, and
    the output's name (empty: there is no model to ask). `others`: further outputs that are compared, by name; `losses`,
    `named`, `detections`: as in `Compared`. `over`: the samples that judge candidates, None for the mean of all.
    `selected`: see `Graph.selected`.
    """

    outputs: Outputs = field(repr=False)
    labels: NDArray[np.int64] | None = field(repr=False)
    value_of: ValueOf | None = None
    output: str = ""
    losses: tuple[OutputLoss, ...] = ()
    others: Mapping[str, Outputs] = field(default_factory=dict, repr=False)
    named: bool = False
    detections: DetectionLayout | None = None
    over: JudgedOver | None = None
    selected: frozenset[str] = frozenset()
    softness: Softness | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Return the outputs that are compared, the one that metrics are about first."""
        return (self.output, *self.others)

    @property
    def found(self) -> Found:
        """Return the float model's own outputs, as a candidate's come."""
        return {self.output: self.outputs, **self.others} if self.others else self.outputs

    @property
    def own_value(self) -> float | None:
        """Return the user's objective of the float model itself."""
        return None if self.value_of is None else user_value(self, self.found)

    @cached_property
    def objects(self) -> tuple[Detections, ...]:
        """Return the float model's sure detections in each sample; nothing where it is no detector."""
        if self.detections is None:
            return ()
        return self.detections.objects(self.detections.found(self.every(self.found)))

    def main(self, found: Found) -> Outputs:
        """Return the output that metrics are about."""
        return found[self.output] if isinstance(found, Mapping) else found

    def every(self, found: Found) -> Mapping[str, Outputs]:
        """Return all that were compared, by name."""
        return found if isinstance(found, Mapping) else {self.output: found}

    def softened(self, metric: str) -> Reference:
        """Return the reference by which a search compares candidates: KL at a temperature where the metric is KL."""
        alone = is_kl(metric, self) and self.over is None
        return replace(self, softness=softness_of(self.outputs)) if alone else self

    def rows(self, kept: NDArray[np.bool_]) -> Reference:
        """Return the reference of the samples `kept`, `[N]` bool."""
        labels = None if self.labels is None else self.labels[kept]
        others = {name: rows_of(outputs, kept) for name, outputs in self.others.items()}
        return replace(self, outputs=rows_of(self.outputs, kept), labels=labels, others=others, over=None)


def rows_of(outputs: Outputs, kept: NDArray[np.bool_]) -> Outputs:
    """Return the outputs of the samples `kept`, `[N]` bool.

    Outputs are `[N·rows, ...]` or N arrays. A sample has several rows if the first axis is another one, such as time in
    a recurrent net that runs on one sample at once.
    """
    if isinstance(outputs, tuple):
        return tuple(compress(outputs, kept))
    each, rest = divmod(len(outputs), max(len(kept), 1))
    return outputs[np.repeat(kept, each)] if each > 1 and not rest else outputs[kept]


def outputs_of(
    session: Session,
    samples: Samples,
    size: int,
    extra: Mapping[str, NDArray[Any]] | None = None,
    *,
    names: Sequence[str] = (),
    selected: Collection[str] = (),
) -> Found:
    """Return the outputs of these names (none: the first) over all samples; a mapping if there are several.

    Each is `[N, ...]`, or N arrays where shapes differ. `size` is samples per batch; `extra` feeds are the same for
    each batch. `selected`: see `Graph.selected`.
    """
    wanted = list(names) or [session.outputs[0]]
    found = [lifted(one, selected) for one in run_batches(session, samples, size, wanted, extra=extra)]
    several = {name: joined([out[name] for out in found]) for name in wanted}
    return several if len(wanted) > 1 else several[wanted[0]]


def reference_of(session: Session, samples: Samples, size: int, compared: Compared = Compared()) -> Reference:
    """Run the float model on the samples, `size` per batch, to compare others with it.

    Raises DataError when an output that needs finite numbers has others.
    """
    names = compared.names(session.outputs)
    parts: list[Mapping[str, NDArray[Any]]] = []
    known = []
    count = 0
    for batch in samples.batches(size):
        parts.append(lifted(session.run(batch.inputs, list(names)), compared.selected))
        known.append(batch.labels)
        count += len(batch.indices)
    labels = [part for part in known if part is not None]
    outputs = {name: joined([part[name] for part in parts]) for name in names}
    found = checked_reference(outputs, np.concatenate(labels) if labels else None, compared, samples=count)
    return replace(found, over=compared.judged(samples))


def checked_reference(
    outputs: Mapping[str, Outputs], labels: NDArray[np.int64] | None, compared: Compared, *, samples: int
) -> Reference:
    """Return the reference from the float model's outputs; metrics are about the first of them.

    Non-finite elements are left out of outputs that are compared by squared error alone. Raises DataError where an
    output has no rows per sample, or holds non-finite values elsewhere.
    """
    main, *more = outputs
    exact = {main, *(loss.output for loss in compared.losses if loss.kind is LossKind.KL)}
    for name, found in outputs.items():
        if len(found) % samples or (name != main and len(found) != len(outputs[main])):
            remedy = "legal is a model that gives each sample rows of its own, as many for every sample"
            remedy = remedy if name == main else f"objective.outputs={{{name}: 0}} leaves it out"
            raise DataError(
                f"the model's output {name} has no row per sample ({len(found)} rows for {samples} samples), so it "
                f"cannot be compared sample by sample; {remedy}",
                stage="evaluate",
            )
        if name in exact and not all_finite(found):
            sample = next(number for number, row in enumerate(found) if not np.all(np.isfinite(row)))
            remedy = f" in {name}; objective.outputs={{{name}: 0}} leaves it out" if name != main else ""
            raise DataError(f"the float model's own output is not finite for sample {sample}{remedy}", stage="evaluate")
    others = {name: outputs[name] for name in more}
    layout = None if compared.detections is None else compared.detections.resolved(outputs)
    reference = Reference(
        outputs[main], labels, compared.value_of, main, compared.losses, others, compared.named, layout
    )
    return replace(reference, selected=compared.selected)


def first_samples(reference: Reference, count: int, total: int) -> Reference:
    """Return the reference of the first `count` samples of its split of `total`."""
    return reference if count >= total else reference.rows(np.arange(total) < count)


def output_metrics(reference: Reference, outputs: Found) -> dict[str, float]:
    """Return the metrics of a model's outputs (from `outputs_of`) by name.

    `kl`, `mse` and, with labels, `top1` are about the metrics' output. `loss` is added where it differs from that
    output's KL, and `loss.NAME` of each output where there are several. `cosine` is added for outputs that are judged
    by squared error, `callable` for a user's function, and `detections` for that objective.
    """
    main = reference.main(outputs)
    found = {"kl": kl_divergence(reference.outputs, main), "mse": relative_mse(reference.outputs, main)}
    found |= _losses(reference, outputs)
    if reference.softness is not None:
        found[SOFT_KL] = compared_loss(reference, outputs)
    if reference.value_of is not None:
        found["callable"] = user_value(reference, outputs)
    if reference.detections is not None and reference.detections.decides:
        found["detections"] = agreement_of(reference, outputs)
    if reference.over is not None:
        found[WORST] = reference.over.value(reference, outputs)
    accuracy = top1(main, reference.labels)
    return found if accuracy is None else found | {"top1": accuracy}


def _losses(reference: Reference, outputs: Found) -> dict[str, float]:
    if _has_kl_alone(reference):
        return {}
    own, every = reference.every(reference.found), reference.every(outputs)
    loss, each = joint_loss(reference.losses, own, every)
    several = len(each) > 1
    found = {"loss": loss} | ({f"loss.{name}": value for name, value in each.items()} if several else {})
    for one in reference.losses:
        cosine = cosine_similarity(own[one.output], every[one.output]) if one.kind is LossKind.MSE else None
        if cosine is not None:
            found[f"cosine.{one.output}" if several else "cosine"] = cosine
    return found


def loss_of(reference: Reference, outputs: Found) -> float:
    """Return the joint loss of the reference's outputs, or the KL of its one output if it has no losses."""
    if not reference.losses:
        return kl_divergence(reference.outputs, reference.main(outputs))
    return joint_loss(reference.losses, reference.every(reference.found), reference.every(outputs))[0]


def compared_loss(reference: Reference, outputs: Found) -> float:
    """Return the loss that orders candidates: `loss_of`, or KL at a temperature for a softened reference."""
    if reference.softness is None:
        return loss_of(reference, outputs)
    return float(np.mean(reference.softness.divergences(reference.outputs, reference.main(outputs))))


def is_kl(metric: str, reference: Reference) -> bool:
    """Return whether a metric is the KL divergence of the one output, whatever it is called."""
    parts = any(loss.parts for loss in reference.losses)  # the worst of them decides then
    return metric == "kl" or (metric == "auto" and _has_kl_alone(reference) and not parts)


def _has_kl_alone(reference: Reference) -> bool:
    return not reference.losses or only_kl(reference.losses) == reference.output


def metric_of(metric: str, reference: Reference, outputs: Found) -> float:
    """Return the objective's value (larger is better); only the metric that it needs is computed."""
    if metric == "auto":
        return -loss_of(reference, outputs)
    if metric == "callable":
        return user_value(reference, outputs)
    if metric == "detections":
        return agreement_of(reference, outputs)
    if metric == "accuracy":
        accuracy = top1(reference.main(outputs), reference.labels)
        return float("nan") if accuracy is None else accuracy
    measure = {"kl": kl_divergence, "mse": relative_mse}[metric]
    return -measure(reference.outputs, reference.main(outputs))


def objective_value(metric: str, metrics: Mapping[str, float]) -> float:
    """Return the value that a search maximizes.

    It is top1, -kl, -mse, -loss (NaN for accuracy without labels), the agreement of detections, or what the user's
    function gives. With `objective.over` it is the value over the worst samples.
    """
    if WORST in metrics:
        return metrics[WORST]
    if metric in ("callable", "detections"):
        return metrics[metric]
    if metric == "auto":
        return -metrics["loss"]
    return metrics.get("top1", float("nan")) if metric == "accuracy" else -metrics[metric]


def agreement_of(reference: Reference, outputs: Found) -> float:
    """Return the average precision of a model's detections against the float model's sure ones, 0 to 1.

    It is NaN where the float model is sure of nothing.
    """
    if reference.detections is None:
        return float("nan")
    found = mean_average_precision(matches(reference.objects, reference.detections.found(reference.every(outputs))))
    return float("nan") if found is None else found


def user_value(reference: Reference, outputs: Found) -> float:
    """Return the value of the user's objective (larger is better).

    Raises ConfigError when the function fails or returns no number. NaN is a number: the worst one.
    """
    if reference.value_of is None:
        raise ConfigError("is not set", stage="search", where="objective.target")
    name = getattr(reference.value_of, "__qualname__", repr(reference.value_of))
    own: Found = reference.every(reference.found) if reference.named else reference.outputs
    theirs: Found = reference.every(outputs) if reference.named else reference.main(outputs)
    try:
        return float(reference.value_of(own, theirs, reference.labels))
    except Exception as error:
        raise ConfigError(
            f"{name}(reference_outputs, outputs, labels) must give a number, and ended with "
            f"{type(error).__name__}: {' '.join(str(error).split())[:200]}",
            stage="search",
            where="objective.target",
        ) from error
