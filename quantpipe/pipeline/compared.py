"""Choose the compared outputs of a run's model and their losses, from the objective, the outputs and the labels."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from quantpipe.graph.view import Graph
from quantpipe.metrics.detection_outputs import layout_by
from quantpipe.metrics.kinds import automatic, kind_of
from quantpipe.metrics.losses import LossKind, OutputLoss
from quantpipe.metrics.reference import Compared
from quantpipe.pipeline.settings import Settings
from quantpipe.search import Metric

_FORCED = {Metric.KL: LossKind.KL, Metric.ACCURACY: LossKind.KL, Metric.MSE: LossKind.MSE}
"""What a metric says of its output: only class scores have an accuracy."""


def compared_by(
    settings: Settings, graph: Graph, output: str, *, labelled: bool, states: Iterable[str] = ()
) -> Compared:
    """Return the compared outputs of the model, and their losses.

    A metric of one output has the loss of that kind. `auto` has the losses of all outputs, unless the user has named
    one. A user's function has the losses of its outputs; recovery does not use the function itself. A detector's
    detections are compared too; `states` are outputs that a streaming model carries.

    Raises ConfigError that names an unknown output, and where the objective needs detections but no layout is found.
    """
    decides = Metric(settings.objective["metric"]) is Metric.DETECTIONS
    carried = frozenset(states)
    detections = layout_by(settings.detections, graph, decides=decides, states=carried)
    found = _by_outputs(settings, graph, output, labelled=labelled, states=carried)
    objective = settings.objective
    found = replace(found, metric=str(objective["metric"]), over=objective.get("over", "mean"))
    return replace(found, detections=detections, selected=graph.selected)


def _by_outputs(settings: Settings, graph: Graph, output: str, *, labelled: bool, states: Iterable[str]) -> Compared:
    objective = settings.objective
    metric, whole = Metric(objective["metric"]), bool(objective.get("all_outputs", False))
    if metric in _FORCED:
        return Compared(output, (OutputLoss(output, _FORCED[metric]),), settings.value_of)
    if metric is Metric.CALLABLE and not whole:
        return Compared(output, (OutputLoss(output, kind_of(graph, output, labelled)),), settings.value_of)
    losses = automatic(
        graph,
        output,
        alone=settings.evaluate.output is not None and not whole,
        labelled=labelled,
        states=frozenset(states),
        weights=objective.get("outputs") or {},
    )
    return Compared(output, losses, settings.value_of, whole)
