"""Which kernels of a decoder compute the integers of one run when it steps with its cache, and which do not.

Every stored tensor of the realized model is an output. Rows of a step are compared with the same rows of the run over
all tokens, and keys with the keys that the step had. Nodes whose numbers depend on the samples of a run are named, and
those that count places of a cache which later steps write.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import islice

import numpy as np

from quantpipe.arrays import Array
from quantpipe.data.recurrent_state import StatefulSamples
from quantpipe.data.subset import underlying
from quantpipe.errors import ModelError
from quantpipe.evaluate.in_steps import STEPS, added_to, joined_feeds, places_of, single_steps, sizes_of
from quantpipe.evaluate.inside_models import EvaluatedModel
from quantpipe.graph.execute import Session
from quantpipe.graph.normalize import expose
from quantpipe.graph.op_tables import DYNAMIC
from quantpipe.graph.stored_ports import stored_ports
from quantpipe.graph.view import Graph
from quantpipe.oprules.rows import NEVER_ZERO
from quantpipe.types import Form, KernelStepsPart, Program, QuantPlan, Samples, Topology

SHOWN = 8


def kernels_in_steps(model: EvaluatedModel, samples: Samples, *, most: int = STEPS) -> KernelStepsPart | None:
    """Return how many kernels give the same integers in steps and in one run over the same tokens, and which do not.

    None where the samples carry no cache, or the model takes no run over all tokens.
    """
    graph, topology, realized = model.graph, model.topology, model.realized
    carried = underlying(samples)
    if not isinstance(carried, StatefulSamples):
        return None
    ports = {name for port in stored_ports(realized.model) for name in (port.input, port.output)}
    fresh = _of_tokens(graph, carried.state.values())
    stored = {
        k.output: k.node
        for k in topology.kernels
        if k.form is Form.QUANTIZED and k.output in realized.integers and k.output in fresh
    }
    names = {t: realized.integers[t] for t in stored if realized.integers[t] not in ports}
    session = Session(expose(realized.model, list(dict.fromkeys(names.values()))), where="realized model, in steps")
    steps = added_to(list(islice(carried.first_sequence(session.run), most)), carried.state)
    if len(steps) > 1:  # steps of one token are the strictest
        steps = single_steps(steps, carried, session.run) or steps
    feeds = joined_feeds(steps, carried.state) if len(steps) > 1 else None
    if feeds is None:
        return None
    try:
        whole = session.run(feeds)
    except ModelError:  # its axis of tokens is fixed
        return None
    sizes = sizes_of(steps, carried.state)
    places = places_of(steps[0], carried.state)
    equal, differing, unmatched = 0, [], 0
    for tensor, node in stored.items():
        name = names.get(tensor, tensor)
        made = [np.asarray(step.outputs[name]) for step in steps]
        rows = [_rows(whole[name], array, sizes, place) for place, array in enumerate(made)]
        same = [_equal(row, step, sum(size), places) for row, step, size in zip(rows, made, sizes, strict=True)]
        if None in same:
            unmatched += 1
        elif all(same):
            equal += 1
        else:
            differing.append(node)
    return {
        "equal": equal,
        "differing": differing[:SHOWN],
        "unmatched": unmatched,
        "by_samples": [n.name for n in graph.nodes if n.op_type in DYNAMIC],
        "counts_hidden": _counting_hidden(topology, model.plan) if places else [],
    }


def _counting_hidden(topology: Topology, plan: QuantPlan) -> list[str]:
    """Return the kernels that give elements a share which a mask hides."""
    return [
        k.node
        for k in topology.kernels
        if isinstance(made := plan.kernels[k.node], Program)
        and (made.kind, k.op, topology.group_of[k.operands[0].tensor].dtype.bits) in NEVER_ZERO
    ]


def _rows(whole: Array, step: Array, sizes: Sequence[tuple[int, int]], place: int) -> Array | None:
    """Return the part of a run over all tokens that a step computes; None where the axes show none."""
    (before, new), begin = sizes[place], sizes[0][0]
    total = sum(added for _, added in sizes)
    if whole.ndim != step.ndim:
        return None
    parts = []
    for size, own in zip(whole.shape, step.shape, strict=True):
        if size == own:
            parts.append(slice(None))
        elif size == total and own == new:
            parts.append(slice(before - begin, before - begin + new))
        elif size == begin + total and own == before + new:
            parts.append(slice(before + new))
        else:
            return None
    return whole[tuple(parts)]


def _of_tokens(graph: Graph, caches: Collection[str]) -> set[str]:
    """Return the tensors that follow from more than caches: a run over all tokens reads another past."""
    found = {i.name for i in graph.inputs} - set(caches)
    for node in graph.nodes:
        if not found.isdisjoint(node.inputs):
            found.update(node.outputs)
    return found


def _equal(row: Array | None, step: Array, end: int, places: int) -> bool | None:
    """Return whether arrays are equal; None if it is not known which parts of them belong together.

    Along a cache of so many `places`, they are compared up to the one that the step has reached: caches and scores by
    head. Of arrays with fewer axes, an axis of that size may have features.
    """
    if row is None:
        return None
    if np.array_equal(row, step):
        return True
    seen = tuple(slice(end if places and size == places else None) for size in step.shape)
    if not np.array_equal(row[seen], step[seen]):
        return False
    return True if step.ndim > 3 else None
