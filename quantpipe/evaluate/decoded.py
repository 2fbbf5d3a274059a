"""What a quantized decoder writes next to the float model: perplexity, greedy tokens, and continuations of prompts.

A model is a decoder if it takes a cache that grows, and its main output scores every entry of a table for each token of
an input. A continuation takes the token with the largest score again and again, each time in one run over all tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantpipe.data.cache_inputs import is_cache
from quantpipe.errors import ModelError
from quantpipe.graph.execute import Session
from quantpipe.graph.view import Graph
from quantpipe.metrics.next_tokens import first_difference, next_tokens
from quantpipe.oprules import rule_of
from quantpipe.oprules.work import multiply_accumulates
from quantpipe.types import ContinuationRow, NextTokensPart, Outputs, Samples

PROMPTS = 4
"""Samples that are continued."""
CONTINUED = 32
"""Tokens of a continuation; a prompt is the first half of a sample."""
BYTES = 256
"""A vocabulary up to this size holds characters by their codes, so tokens are shown as text."""
WORK = 3 * 10**11
"""Multiply-accumulates of all continuations; one prompt is continued in any case."""


Array = NDArray[Any]
Feeds = Mapping[str, Array]


def token_input(graph: Graph, output: str) -> str | None:
    """Return the input of tokens of a decoder whose next token an output scores; None for other models."""
    scored = graph.shapes.get(output, ())
    if len(scored) != 3 or not any(is_cache(port) for port in graph.inputs):
        return None
    for port in graph.inputs:
        for reader, _ in graph.consumers.get(port.name, ()):
            rule = rule_of(reader)
            table = rule.table(reader, graph) if rule is not None else None
            if table is not None and graph.shapes[table][0] == scored[2] and len(graph.shapes[port.name]) == 2:
                return port.name
    return None


def decoded(
    graph: Graph,
    samples: Samples,
    reference: Outputs,
    found: Outputs,
    *,
    output: str,
    own: Sequence[Array],
    session: Session,
) -> NextTokensPart | None:
    """Return how the realized model predicts tokens; None where the model is no decoder.

    `reference`, `found`: scores of the float and the realized model for the samples. `own`: what the
    float model continues with (`continued`). `session`: of the realized model.
    """
    name = token_input(graph, output)
    if name is None:
        return None
    tokens = [row for batch in samples.batches(graph.batch_size) for row in np.asarray(batch.inputs[name])]
    figures = next_tokens(tokens, reference, found)
    if figures is None:
        return None
    rows = list(_rows(graph, samples, own, continued(graph, samples, session, output=output), name=name, output=output))
    return {
        "samples": figures.samples,
        "tokens": figures.tokens,
        "perplexity": {"float": figures.perplexity[0], "realized": figures.perplexity[1]},
        "difference": figures.difference,
        "standard_error": figures.standard_error,
        "agreement": figures.agreement,
        "continuations": rows,
    }


def continued(graph: Graph, samples: Samples, session: Session, *, output: str) -> list[Array]:
    """Return the tokens with which a model continues the first samples; up to the first that cannot be continued."""
    name, found = token_input(graph, output), list[Array]()
    if name is None or graph.fixed_batch is not None:
        return []
    work = sum(multiply_accumulates(node, graph) for node in graph.nodes) * CONTINUED * 2  # by both models
    for batch in islice(samples.batches(1), max(1, min(PROMPTS, WORK // max(work, 1)))):
        try:
            tokens = _continuation(session, batch.inputs, _prompt(batch.inputs[name]), name=name, output=output)
        except ModelError:  # positions end, or an axis of tokens is fixed
            return found
        if tokens is None:
            return found
        found.append(tokens)
    return found


def _prompt(tokens: Array) -> Array:
    return np.asarray(tokens)[0, : max(tokens.shape[1] // 2, 1)]


def _rows(
    graph: Graph, samples: Samples, own: Sequence[Array], found: Sequence[Array], *, name: str, output: str
) -> Iterator[ContinuationRow]:
    """Yield the continuations of both models."""
    for batch, one, other in zip(samples.batches(1), own, found, strict=False):
        words = (_prompt(batch.inputs[name]), one, other)
        text, real, made = (_shown(part, graph.shapes[output][2]) for part in words)
        equal = first_difference(one, other)
        yield {"prompt": text, "float": real, "realized": made, "tokens": len(one), "equal": equal}


def _continuation(session: Session, feeds: Feeds, prompt: Array, *, name: str, output: str) -> Array | None:
    """Return the tokens that a model takes after a prompt."""
    tokens = prompt
    for _ in range(CONTINUED):
        given = _extended(feeds, name, tokens)
        if given is None:
            return None
        scores = session.run(given, [output])[output]
        tokens = np.append(tokens, np.argmax(np.asarray(scores)[0, -1]))
    return tokens[len(prompt) :]


def _extended(feeds: Feeds, name: str, tokens: Array) -> dict[str, Array] | None:
    """Return the inputs for other tokens: places count on, masks repeat their last element, and caches stay.

    None where another input has an element per token.
    """
    length, found = feeds[name].shape[1], {}
    for key, array in feeds.items():
        if key == name:
            found[key] = tokens[None].astype(array.dtype)
        elif array.ndim == 2 and array.shape[1] == length and array.dtype.kind == "i" and length > 1:
            step = array[0, 1] - array[0, 0]
            if not np.array_equal(np.diff(array[0]), np.full(length - 1, step)):
                return None
            found[key] = (array[0, 0] + step * np.arange(len(tokens), dtype=array.dtype))[None].astype(array.dtype)
        elif length in array.shape[1:] and array.size:
            return None
        else:
            found[key] = array
    return found


def _shown(tokens: Sequence[int] | Array, vocabulary: int) -> str:
    """Return tokens as text where they are codes of characters, else as numbers."""
    if vocabulary <= BYTES:
        return bytes(int(token) for token in tokens).decode("latin-1")
    return " ".join(str(int(token)) for token in tokens)
