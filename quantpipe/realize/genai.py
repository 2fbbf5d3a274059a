"""Write genai_config.json, by which onnxruntime-genai runs a realized decoder.

The user's own, next to the model, is carried on with what differs in the realized file. Without one it is made from the
graph, for decoders whose inputs and outputs have the names of the layout.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

from quantpipe.errors import ModelError
from quantpipe.graph.length_limits import LengthLimit
from quantpipe.graph.view import Graph
from quantpipe.oprules.facts import LONGEST_SUM
from quantpipe.types import TensorInfo

CONFIG = "genai_config.json"
TOKENS, NEW, SCORES = "input_ids", ("attention_mask", "position_ids"), "logits"
CACHE = re.compile(r"(?P<before>\D*)(?P<layer>\d+)(?P<after>\D*(?:key|value))")
HEADS = ("num_heads", "q_num_heads")
"""Attributes of fused attentions."""


def read_config(model: Path) -> dict[str, Any] | None:
    """Return the user's configuration of a model file; None if it does not exist, or is about another file.

    Raises ModelError for a file that is no configuration.
    """
    path = model.with_name(CONFIG)
    if not path.is_file():
        return None
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        decoder = found["model"].get("decoder", {})
        return dict(found) if decoder.get("filename") == model.name else None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(
            f"it is no configuration of onnxruntime-genai ({type(error).__name__}: {error}); legal is a JSON object "
            "with `model.decoder`, and no such file next to the model",
            where=str(path),
        ) from error


def genai_config(
    graph: Graph,
    file: str,
    options: Mapping[str, str],
    *,
    given: Mapping[str, Any] | None,
    limits: Sequence[LengthLimit] = (),
) -> bytes | None:
    """Return the configuration of a realized file with its session options; None for what genai does not run."""
    found = copy.deepcopy(dict(given)) if given is not None else _made(graph, limits)
    if found is None:
        return None
    decoder = found["model"]["decoder"]
    decoder["filename"] = file
    decoder["session_options"] = {**decoder.get("session_options", {}), **options}
    if any(_grows(port) for port in graph.inputs):
        found.setdefault("search", {})["past_present_share_buffer"] = False
    return (json.dumps(found, indent=2) + "\n").encode()


def _grows(port: TensorInfo) -> bool:
    """Return whether an input is a cache whose positions are free."""
    return CACHE.fullmatch(port.name) is not None and len(port.shape) == 4 and port.shape[2] is None


def _made(graph: Graph, limits: Sequence[LengthLimit]) -> dict[str, Any] | None:
    """Return a configuration of what the graph shows; None where its ports have other names than the layout."""
    names = {port.name: port for port in graph.inputs}
    inputs, outputs = _patterns(list(names)), _patterns([port.name for port in graph.outputs])
    others = {name for name in names if not CACHE.fullmatch(name)} - {TOKENS, *NEW}
    if TOKENS not in names or SCORES not in graph.output_names or others or not inputs or len(inputs) != len(outputs):
        return None
    cache = graph.shapes[_first(inputs["key"])]
    vocabulary, tokens = graph.shapes[SCORES][-1], prod(graph.shapes[TOKENS])
    decoder = {
        "head_size": cache[3],
        "num_key_value_heads": cache[1],
        "num_hidden_layers": sum(1 for name in names if CACHE.fullmatch(name)) // 2,
        "inputs": {
            **{name: name for name in (TOKENS, *NEW) if name in names},
            **{f"past_{kind}_names": name for kind, name in inputs.items()},
        },
        "outputs": {SCORES: SCORES, **{f"present_{kind}_names": name for kind, name in outputs.items()}},
    }
    if heads := _query_heads(graph, tokens):
        decoder["num_attention_heads"] = heads
    if width := _width(graph, vocabulary):
        decoder["hidden_size"] = width
    model = {"type": "llama", "vocab_size": vocabulary, "context_length": _longest(graph, limits), "decoder": decoder}
    return {"model": model, "search": {"do_sample": False}}


def _patterns(names: Sequence[str]) -> dict[str, str]:
    """Return kind of a cache -> the pattern of its names, whose %d is the layer; nothing where they have several."""
    found: dict[str, set[str]] = {"key": set(), "value": set()}
    for name in names:
        if match := CACHE.fullmatch(name):
            kind = "key" if name.endswith("key") else "value"
            found[kind].add(f"{match['before']}%d{match['after']}")
    return {kind: one.pop() for kind, one in found.items()} if all(len(one) == 1 for one in found.values()) else {}


def _first(pattern: str) -> str:
    return pattern.replace("%d", "0")


def _query_heads(graph: Graph, tokens: int) -> int | None:
    """Return the heads of the queries: of a fused attention, or by the rows of a Softmax for each token."""
    for node in graph.nodes:
        named = [int(node.attr(name, 0)) for name in HEADS if node.attr(name, 0)]
        if named:
            return named[0]
        if node.op == "Softmax":
            return prod(graph.shapes[node.inputs[0]][:-1]) // tokens
    return None


def _tables(graph: Graph) -> list[tuple[int, ...]]:
    """Return the shapes of the constant tables of floats whose rows are looked up."""
    gathers = (n for n in graph.nodes if n.op == "Gather" and not n.attr("axis", 0) and graph.is_constant(n.inputs[0]))
    shapes = [(n, graph.shapes[n.inputs[0]]) for n in gathers if graph.dtypes[n.inputs[0]] == "float32"]
    return [shape for n, shape in shapes if len(shape) == 2 and not graph.is_constant(n.inputs[1])]


def _width(graph: Graph, vocabulary: int) -> int | None:
    """Return the features of a token, by the table of its vocabulary."""
    return next((shape[1] for shape in _tables(graph) if shape[0] == vocabulary), None)


def _longest(graph: Graph, limits: Sequence[LengthLimit]) -> int:
    """Return how many positions a decoder has: its tables of positions have rows for them, and sums hold them."""
    seen, vocabulary = graph.shapes[TOKENS][-1], graph.shapes[SCORES][-1]
    rows = [shape[0] for shape in _tables(graph) if shape[0] != vocabulary and shape[0] > seen]
    return min([LONGEST_SUM, *rows, *(limit.most for limit in limits)])
