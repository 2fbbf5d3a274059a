"""Normalizations over the last axis, with the sums before them, and the embeddings before a transformer."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from quantpipe.intake.rewrites.fused.body import NORM_OPSET, FusedBody

SKIPPED_SUM = 3
"""The output that is the sum before the normalization."""


def skip_layer_norm(body: FusedBody) -> bool:
    """Write SkipLayerNormalization: LayerNormalization of input + skip + bias."""
    total = _total(body, 4)
    if total is None or body.reads(1) or body.reads(2):
        return False
    made = _layer_norm(body, total, (2, 3), float(body.attr("epsilon", 1e-12)))
    return _both(body, total, made)


def skip_simplified_layer_norm(body: FusedBody) -> bool:
    """Write SkipSimplifiedLayerNormalization: the same, divided by the root of the mean square alone."""
    total = _total(body, 3)
    if total is None or body.reads(1) or body.reads(2):
        return False
    return _both(body, total, _root_mean_square(body, total, body.input(2), float(body.attr("epsilon", 1e-12))))


def simplified_layer_norm(body: FusedBody) -> bool:
    """Write SimplifiedLayerNormalization over the last axis: x / √(mean(x²) + epsilon) · scale."""
    data = body.input(0)
    axis, axes = int(body.attr("axis", -1)), body.rank(data)
    if data is None or body.reads(1) or axis not in (-1, (axes or 0) - 1):
        return False
    body.replace(0, _root_mean_square(body, data, body.input(1), float(body.attr("epsilon", 1e-5))))
    return True


def early_layer_norm(body: FusedBody) -> bool:
    """Write LayerNormalization of a model whose opset has no such op yet; a newer model's is left as it is."""
    data = body.input(0)
    axis, axes = int(body.attr("axis", -1)), body.rank(data)
    if body.opset >= NORM_OPSET or data is None or body.reads(1) or body.reads(2) or axis not in (-1, (axes or 0) - 1):
        return False
    body.replace(0, _layer_norm(body, data, (1, 2), float(body.attr("epsilon", 1e-5))))
    return True


def embed_layer_norm(body: FusedBody) -> bool:
    """Write EmbedLayerNormalization: the normalized sum of the rows of a word, its position and its segment.

    The second output is the number of words that a mask keeps.
    """
    words, segments, mask, places = (body.input(port) for port in (0, 1, 7, 8))
    table, of_places, of_segments = (body.input(port) for port in (2, 3, 4))
    if words is None or table is None or of_places is None:
        return False
    total = body("Gather", table, words, axis=0)
    if places is None:
        rows = body("Shape", words)
        length = body("Gather", rows, body.number(1, np.int64), axis=0)
        places = body("Range", body.number(0, np.int64), length, body.number(1, np.int64))
    total = body("Add", total, body("Gather", of_places, places, axis=0))
    if segments is not None and of_segments is not None:
        total = body("Add", total, body("Gather", of_segments, segments, axis=0))
    if body.reads(1):
        body.replace(1, _words(body, words, mask))
    made = _layer_norm(body, total, (5, 6), float(body.attr("epsilon", 1e-12)))
    if body.reads(2):
        body.replace(2, total)
    body.replace(0, made)
    return True


def _words(body: FusedBody, words: ir.Value, mask: ir.Value | None) -> ir.Value:
    """Write the number of ones in each row of a mask, as int32; without a mask, zeros."""
    source = body("Mul", words, body.number(0, np.int32)) if mask is None else mask
    whole = body("Cast", source, to=int(ir.DataType.INT32))
    if body.opset < 13:
        return body("ReduceSum", whole, axes=[1], keepdims=0)
    return body("ReduceSum", whole, body.integers(1), keepdims=0)


def _total(body: FusedBody, bias_port: int) -> ir.Value | None:
    data, skip, bias = body.input(0), body.input(1), body.input(bias_port)
    if data is None or skip is None:
        return None
    total = body("Add", data, skip)
    return total if bias is None else body("Add", total, bias)


def _both(body: FusedBody, total: ir.Value, made: ir.Value) -> bool:
    if body.reads(SKIPPED_SUM):
        body.replace(SKIPPED_SUM, total)
    body.replace(0, made)
    return True


def _layer_norm(body: FusedBody, data: ir.Value, ports: tuple[int, int], epsilon: float) -> ir.Value:
    """Write a LayerNormalization over the last axis; in an older opset, the nodes that compute it."""
    scale, bias = (body.input(port) for port in ports)
    if body.opset >= NORM_OPSET:
        body.main = "LayerNormalization"
        inputs = [data, scale] if bias is None else [data, scale, bias]
        return body("LayerNormalization", *inputs, axis=-1, epsilon=epsilon)
    centred = body("Sub", data, body.mean(data))
    spread = body("Sqrt", body("Add", body.mean(body("Mul", centred, centred)), body.number(epsilon)))
    made = body("Mul", body("Div", centred, spread), scale)
    return made if bias is None else body("Add", made, bias)


def _root_mean_square(body: FusedBody, data: ir.Value, scale: ir.Value | None, epsilon: float) -> ir.Value:
    square = body("Add", body.mean(body("Mul", data, data)), body.number(epsilon))
    return body("Mul", body("Div", data, body("Sqrt", square)), scale)
