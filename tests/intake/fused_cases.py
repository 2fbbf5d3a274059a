"""One node of a fused op as a model, and the cases of attentions with a cache and of rotary positions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Array = np.ndarray[Any, Any]
MS = "com.microsoft"
B, S, T, D, H = 3, 5, 7, 8, 2
"""Samples, queries, keys with a past, features, heads."""


def values(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed + sum(shape)).standard_normal(shape).astype(np.float32)


@dataclass
class Case:
    """One node, the inputs that samples give, and its constants, by port."""

    op: str
    feeds: dict[int, Array]
    held: dict[int, Array] = field(default_factory=dict)
    attributes: dict[str, Any] = field(default_factory=dict)
    outputs: int = 1
    domain: str = MS
    opset: int = 17
    runs: bool = True
    """Whether onnxruntime has a kernel for processors."""
    skip: tuple[int, ...] = ()
    """Outputs that nobody asks for."""
    by_reference: bool = False
    """Whether onnx's reference is compared, not onnxruntime."""


def model(case: Case) -> onnx.ModelProto:
    names = [f"i{port}" if port in case.feeds or port in case.held else "" for port in range(12)]
    while not names[-1]:
        names.pop()
    outs = ["" if number in case.skip else f"o{number}" for number in range(case.outputs)]
    node = helper.make_node(case.op, names, outs, name="fused", domain=case.domain, **case.attributes)
    ports = [
        helper.make_tensor_value_info(
            f"i{p}", helper.np_dtype_to_tensor_dtype(a.dtype), [f"n{p}", *a.shape[1:]] if p == 0 else list(a.shape)
        )
        for p, a in case.feeds.items()
    ]
    kinds = {o: TensorProto.INT32 if case.op.startswith("Embed") and o == "o1" else TensorProto.FLOAT for o in outs}
    results = [helper.make_tensor_value_info(o, kinds[o], None) for o in outs if o]
    held = [numpy_helper.from_array(a, f"i{p}") for p, a in case.held.items()]
    graph = helper.make_graph([node], "net", ports, results, held)
    domains = [helper.make_opsetid("", case.opset), helper.make_opsetid(MS, 1)]
    return helper.make_model(graph, opset_imports=domains, ir_version=8 if case.opset < 23 else 10)


STEP, KV, SIZE, WIDE = 4, 2, 6, 32
"""Heads of Q where two of them share each of K and V, these, the size of a head, and one that onnxruntime rotates."""


def attention_inputs(past: int = 0, *, axes: int = 3, queries: int = S, value: int = SIZE) -> dict[int, Array]:
    """Return Q, K, V and the past of ONNX's Attention, by port."""
    sizes = [(STEP, SIZE), (KV, SIZE), (KV, value)]
    if axes == 4:
        feeds = {p: values(B, heads, queries, size, seed=p) for p, (heads, size) in enumerate(sizes)}
    else:
        feeds = {p: values(B, queries, heads * size, seed=p) for p, (heads, size) in enumerate(sizes)}
    if past:
        feeds |= {4: values(B, KV, past, SIZE, seed=4), 5: values(B, KV, past, value, seed=5)}
    return feeds


def grouped_inputs(past: int = 0, queries: int = S, samples: int = B) -> dict[int, Array]:
    """Return Q, K, V, the past, and the lengths of GroupQueryAttention, by port."""
    whole = past + queries
    feeds = {p: values(samples, queries, heads * WIDE, seed=p) for p, heads in enumerate((STEP, KV, KV))}
    feeds |= {p: values(samples, KV, past, WIDE, seed=p) for p in (3, 4)}
    return feeds | {5: np.full(samples, whole - 1, np.int32), 6: np.asarray(whole, np.int32)}


def turning(pairs: int) -> tuple[Array, Array]:
    """Return the cosines and the sines of 16 positions."""
    turns = np.arange(16)[:, None] * 10.0 ** -np.arange(pairs)
    return np.cos(turns).astype(np.float32), np.sin(turns).astype(np.float32)


GROUPS = {"q_num_heads": STEP, "kv_num_heads": KV}
GQA = {"num_heads": STEP, "kv_num_heads": KV}
COS, SIN = turning(4)
TABLES_OF_WIDE = dict(zip((7, 8), turning(WIDE // 2), strict=True))
ROWS = np.tile(np.arange(S), (B, 1)) + np.arange(B)[:, None]
SEEN = np.random.default_rng(1).random((B, 1, S, S + 3)) < 0.7
SEEN[..., 0] = True


def new(feeds: dict[int, Array], outputs: int = 3, held: dict[int, Array] | None = None, **attributes: Any) -> Case:
    """Return a case of ONNX's Attention with grouped heads in opset 24."""
    groups = GROUPS if feeds[0].ndim == 3 else {}
    return Case("Attention", feeds, held or {}, groups | attributes, outputs, domain="", opset=24)


def grouped(feeds: dict[int, Array], held: dict[int, Array] | None = None, **attributes: Any) -> Case:
    """Return a case of GroupQueryAttention, with its present."""
    return Case("GroupQueryAttention", feeds, held or {}, GQA | attributes, outputs=3)


def rotated(feeds: dict[int, Array], held: dict[int, Array], domain: str = "", **attributes: Any) -> Case:
    """Return a case of RotaryEmbedding."""
    return Case("RotaryEmbedding", feeds, held, attributes, domain=domain, opset=17 if domain else 23)


TURNED = {0: values(B, KV, S, D), 1: COS[ROWS], 2: SIN[ROWS]}
LENGTHS = np.array([5, 8, 6])
DECODERS = {
    "new": new(attention_inputs(), 1),
    "new, four axes": new(attention_inputs(axes=4), 1),
    "new, four axes, past, other values": new(attention_inputs(3, axes=4, value=5), is_causal=1),
    "new, opset 23": Case("Attention", attention_inputs(3), {}, GROUPS | {"is_causal": 1}, 3, domain="", opset=23),
    "new, causal with past": new(attention_inputs(3), is_causal=1),
    "new, one step": new(attention_inputs(6, queries=1), is_causal=1),
    "new, empty past": new(attention_inputs() | {4: values(B, KV, 0, SIZE), 5: values(B, KV, 0, SIZE)}, is_causal=1),
    "new, no past but present": new(attention_inputs(), is_causal=1),
    "new, softcap and scale": new(attention_inputs(3), softcap=0.5, scale=0.3, is_causal=1),
    "new, mask of truth values": new(attention_inputs(3) | {3: SEEN}),
    "new, causal and mask of truth values": new(attention_inputs(3) | {3: SEEN[:, 0][:, None]}, is_causal=1),
    "new, mask of two axes": new(attention_inputs(3), held={3: SEEN[0, 0]}),
    "new, mask of numbers": new(attention_inputs(3) | {3: values(B, STEP, S, S + 3)}, is_causal=1),
    "new, mask with infinity": new(
        attention_inputs(3), held={3: np.tile(np.float32([0, 0, 0, -np.inf, 0, 0, 0, 1]), (S, 1))}
    ),
    "new, softmax in float32": new(attention_inputs(3), softmax_precision=1),
    "new, products": new(attention_inputs(3), 4, softcap=2.0, qk_matmul_output_mode=0),
    "new, capped products": new(attention_inputs(3), 4, softcap=2.0, qk_matmul_output_mode=1),
    "new, weights": new(attention_inputs(3), 4, qk_matmul_output_mode=3, is_causal=1),
    "new, lengths": new(attention_inputs(axes=4, queries=8) | {6: LENGTHS}, 1),
    "new, lengths, causal": new(
        attention_inputs(axes=4, queries=8) | {0: values(B, STEP, 2, SIZE), 6: LENGTHS}, 1, is_causal=1
    ),
    "new, lengths and a short mask": new(
        attention_inputs(axes=4, queries=8) | {0: values(B, STEP, 2, SIZE), 3: SEEN[:, :, :2], 6: LENGTHS}, 1
    ),
    "new, window": Case(
        "Attention",
        attention_inputs(3),
        {},
        GROUPS | {"is_causal": 1, "left_window_size": 2},
        3,
        domain="",
        opset=25,
        by_reference=True,
    ),
    "new, window on both sides": Case(
        "Attention",
        attention_inputs(3),
        {},
        GROUPS | {"left_window_size": 1, "right_window_size": 2},
        3,
        domain="",
        opset=25,
        by_reference=True,
    ),
    "groups": grouped(grouped_inputs()),
    "groups, past": grouped(grouped_inputs(4, 1)),
    "groups, longer past": grouped(grouped_inputs(4, 3, samples=1)),
    "groups, one matrix": grouped(
        {0: values(B, S, (STEP + 2 * KV) * WIDE)} | {p: a for p, a in grouped_inputs().items() if p > 2}
    ),
    "groups, rotary": grouped(grouped_inputs(4, 1), TABLES_OF_WIDE, do_rotary=1),
    "groups, rotary of neighbours": grouped(grouped_inputs(), TABLES_OF_WIDE, do_rotary=1, rotary_interleaved=1),
    "groups, rotary of a part": grouped(grouped_inputs(4, 1), dict(zip((7, 8), turning(8), strict=True)), do_rotary=1),
    "groups, given places": grouped(grouped_inputs(4, 1) | {9: np.int64([[4], [5], [3]])}, TABLES_OF_WIDE, do_rotary=1),
    "groups, softcap and scale": grouped(grouped_inputs(4, 1), softcap=0.5, scale=0.3),
    "groups, window": grouped(grouped_inputs(), local_window_size=2),
    "groups, window with past": grouped(grouped_inputs(6, 1), local_window_size=3),
    "groups, smooth": grouped(grouped_inputs(4, 1), smooth_softmax=1),
    "groups, sink": grouped(grouped_inputs(4, 1), {11: values(STEP)}),
    "groups, bias of scores": grouped(grouped_inputs(4, 1) | {10: values(1, STEP, 1, 5)}),
    "groups, both directions": grouped(grouped_inputs(), causal=0),
    "rotary, table": rotated({0: values(B, KV, S, D), 3: ROWS}, {1: COS, 2: SIN}),
    "rotary, three axes": rotated({0: values(B, S, KV * D), 3: ROWS}, {1: COS, 2: SIN}, num_heads=KV),
    "rotary, angles of rows": rotated(TURNED, {}),
    "rotary, angles of rows, neighbours": rotated(TURNED, {}, interleaved=1),
    "rotary, neighbours": rotated({0: values(B, KV, S, D), 3: ROWS}, {1: COS, 2: SIN}, interleaved=1),
    "rotary, part": rotated({0: values(B, KV, S, 12), 3: ROWS}, {1: COS, 2: SIN}, rotary_embedding_dim=8),
    "rotary of onnxruntime": rotated({0: values(B, S, KV * D), 1: ROWS}, {2: COS, 3: SIN}, MS),
    "rotary of onnxruntime, first place": rotated({0: values(B, S, KV * D), 1: np.int64([4])}, {2: COS, 3: SIN}, MS),
    "rotary of onnxruntime, four axes": rotated({0: values(B, KV, S, D), 1: ROWS}, {2: COS, 3: SIN}, MS, interleaved=1),
    "rotary of onnxruntime, part": rotated(
        {0: values(B, S, KV * 12), 1: ROWS}, {2: COS, 3: SIN}, MS, rotary_embedding_dim=8, num_heads=KV
    ),
}
