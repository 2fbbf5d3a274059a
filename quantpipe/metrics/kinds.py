"""Decide by what each output of a model is compared, where the user does not say.

Class scores are compared by their divergence, other floats by squared error, integers by how many differ. An output
holds class scores where the graph shows it (`oprules.scores`), or where labels are given and it has a value per class.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from quantpipe.errors import ConfigError, nearest
from quantpipe.graph.view import Graph
from quantpipe.metrics.answers import Answers, answers_of
from quantpipe.metrics.losses import LossKind, OutputLoss
from quantpipe.metrics.reference import Compared
from quantpipe.metrics.sample_figures import CountedAnswers
from quantpipe.oprules.parts import parts_of
from quantpipe.oprules.scores import is_scores

_WHERE = "objective.outputs"

Weights = Mapping[str, float] | Sequence[tuple[str, float]]
"""By the names of outputs."""


def kind_of(graph: Graph, output: str, labelled: bool) -> LossKind:
    """Return by which loss an output is compared.

    `labelled`: there are labels, and they are about this output.
    """
    if not graph.dtypes.get(output, "float32").startswith(("float", "double", "bfloat")):
        return LossKind.DIFFERING
    classes = labelled and len(graph.shapes.get(output, ())) == 2
    return LossKind.KL if classes or is_scores(graph, output) else LossKind.MSE


def automatic(
    graph: Graph, main: str, *, alone: bool, labelled: bool, states: frozenset[str] = frozenset(), weights: Weights = ()
) -> tuple[OutputLoss, ...]:
    """Return the losses of `objective=auto`.

    `alone`: compare `main` alone instead of every output with a row per sample. `states` are outputs that a streaming
    model carries; they are not compared. `weights` (output -> weight) take precedence over the rest. Raises ConfigError
    for a name that is no output, and if no output is left.
    """
    names = [o.name for o in graph.outputs]
    given = dict(weights)
    for name in given:
        if name not in names:
            raise ConfigError(
                f"has {name!r}, and the model has no such output{nearest(name, names)}; legal are {', '.join(names)}",
                stage="search",
                where=_WHERE,
            )
    counting = {main} if alone else {n for n in names if n not in states and (n == main or _per_sample(graph, n))}
    found = []
    for name in names:
        weight = float(given.get(name, 1.0 if name in counting else 0.0))
        if weight > 0:
            kind = kind_of(graph, name, labelled and name == main)
            found.append(OutputLoss(name, kind, weight, parts_of(graph, name) if kind is LossKind.MSE else ()))
    if not found:
        raise ConfigError(
            f"leaves no output that counts; legal is a weight above 0 for one of {', '.join(names)}",
            stage="search",
            where=_WHERE,
        )
    return tuple(found)


def watched_outputs(graph: Graph, compared: Compared, main: str, *, labelled: bool) -> dict[str, CountedAnswers]:
    """Return the answers to count in each output that holds answers; `main`: the one of the labels."""
    kinds = {loss.output: loss.kind for loss in compared.losses}
    found = {}
    for output in graph.outputs:
        kind = kinds.get(output.name) or kind_of(graph, output.name, labelled and output.name == main)
        answers = answers_of(graph, output.name, kind)
        if answers is None and labelled and output.name == main and len(graph.shapes.get(main, ())) == 2:
            answers = Answers(1)
        if answers is not None:
            found[output.name] = CountedAnswers(answers, divergence=kind is LossKind.KL)
    return found


def _per_sample(graph: Graph, output: str) -> bool:
    """Return whether a node makes it with the samples on its first axis, as far as the run on one of them shows."""
    return output in graph.producers and graph.shapes.get(output, ())[:1] == (graph.fixed_batch or 1,)
