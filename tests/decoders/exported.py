"""An attention with a cache as torch's exporters write it: ops alone, and no fused op.

The factor of the scores is divided between queries and keys, heads of K and V are repeated, and the shares are searched
for numbers that a Softmax of an empty row would give.
"""

from __future__ import annotations

import numpy as np

from tests.ops.line import Net

HEADS, KV, SIZE, WIDTH, PLACES = 4, 2, 8, 16, 6
KINDS = ("key", "value")


def attention(how: str = "Concat", *, rotary: bool = False, tokens: int | None = 1) -> Net:
    """Return a net of one attention, whose cache takes new positions by an op: by Concat it grows.

    `rotary`: whether queries and keys are turned by the angles of their positions. `tokens` of a run, or None for any.
    """
    static = how != "Concat"
    net = Net(name=how, opset=24 if how == "TensorScatter" else 17)
    x = net.input(None, tokens, WIDTH)
    pasts = {kind: net.input(None, KV, PLACES if static else None, SIZE, name=f"past.{kind}") for kind in KINDS}
    place = net.input(None, tokens, name="place") if static or rotary else ""
    sines = _sines(net, place) if rotary else None
    query = _heads(net, x, HEADS, "query", sines)
    presents, repeated = {}, {}
    for kind in KINDS:
        new = _heads(net, x, KV, kind, sines if kind == "key" else None)
        presents[kind] = JOINS[how](net, pasts[kind], new, place, kind)
        repeated[kind] = _repeated(net, presents[kind], kind)
    half = net.constant(np.float32(SIZE**-0.25), "half")
    keys = net.node("Transpose", repeated["key"], name="turned", perm=[0, 1, 3, 2])
    scaled = [net.node("Mul", value, half, name=f"{name}_scaled") for name, value in (("q", query), ("k", keys))]
    scores = net.node("MatMul", *scaled, name="scores")
    if static:
        scores = net.node("Add", scores, _mask(net, place), name="masked")
    share = net.node("Softmax", scores, name="share", axis=-1)
    empty = net.node("IsNaN", share, name="empty")
    safe = net.node("Where", empty, net.constant(np.float32(0.0)), share, name="safe")
    mixed = net.node("MatMul", safe, repeated["value"], name="mixed")
    rows = net.node("Transpose", mixed, name="rows", perm=[0, 2, 1, 3])
    flat = net.node("Reshape", rows, net.constant(np.int64([0, 0, HEADS * SIZE])), name="flat")
    net.output(net.node("MatMul", flat, net.floats(HEADS * SIZE, WIDTH, scale=0.3), name="out"), *presents.values())
    if static:
        net.fix_batch(1)
    return net


def _sines(net: Net, place: str) -> tuple[str, str]:
    """Cos and Sin of positions times frequencies, as rotary embeddings are exported."""
    counted = net.node("Cast", net.node("Cast", place, name="counted", to=7), name="count", to=1)
    column = net.node("Reshape", counted, net.constant(np.int64([-1, 1, 1])), name="column")
    speeds = net.constant(np.float32(0.5 ** np.arange(SIZE // 2)), "speeds")
    row = net.node("Mul", column, speeds, name="angles")
    twice = net.node("Concat", row, row, name="twice", axis=-1)
    both = [net.node(op, twice, name=op.lower()) for op in ("Cos", "Sin")]
    first, second = (net.node("Unsqueeze", v, net.constant(np.int64([1])), name=f"{v}_of_heads") for v in both)
    return first, second


def _turned(net: Net, value: str, sines: tuple[str, str], name: str) -> str:
    cut = [net.constant(np.int64([n])) for n in (0, SIZE // 2, SIZE, 3)]
    low, high = (net.node("Slice", value, *cut[i : i + 2], cut[3], name=f"{name}_half{i}") for i in range(2))
    other = net.node("Concat", net.node("Neg", high, name=f"{name}_neg"), low, name=f"{name}_other", axis=-1)
    parts = [net.node("Mul", v, sine, name=f"{v}_part") for v, sine in zip((value, other), sines, strict=True)]
    return net.node("Add", *parts, name=f"{name}_turned")


def _heads(net: Net, x: str, heads: int, name: str, sines: tuple[str, str] | None = None) -> str:
    made = net.node("MatMul", x, net.floats(WIDTH, heads * SIZE, scale=0.4), name=f"{name}_of")
    apart = net.node("Reshape", made, net.constant(np.int64([0, 0, heads, SIZE])), name=f"{name}_apart")
    found = net.node("Transpose", apart, name=f"{name}_heads", perm=[0, 2, 1, 3])
    return found if sines is None else _turned(net, found, sines, name)


def _grown(net: Net, past: str, new: str, place: str, kind: str) -> str:
    return net.node("Concat", past, new, name=f"{kind}_joined", axis=2, output=f"present.{kind}")


def _written(net: Net, past: str, new: str, place: str, kind: str) -> str:
    """As index_copy along the axis of positions is exported."""
    if kind == "key":
        whole = net.node("Cast", place, name="whole", to=7)
        net.node("Reshape", whole, net.constant(np.int64([-1, 1])), name="rows_at", output="places")
    turned = [net.node("Transpose", value, name=f"{value}_turned", perm=[2, 1, 0, 3]) for value in (past, new)]
    made = net.node("ScatterND", turned[0], "places", turned[1], name=f"{kind}_written", reduction="none")
    return net.node("Transpose", made, name=f"{kind}_back", perm=[2, 1, 0, 3], output=f"present.{kind}")


def _placed(net: Net, past: str, new: str, place: str, kind: str) -> str:
    """As Attention-24 with a cache outside is exported."""
    if kind == "key":
        whole = net.node("Cast", place, name="whole", to=7)
        net.node("Reshape", whole, net.constant(np.int64([-1])), name="rows_at", output="places")
    return net.node("TensorScatter", past, new, "places", name=f"{kind}_written", axis=2, output=f"present.{kind}")


JOINS = {"Concat": _grown, "ScatterND": _written, "TensorScatter": _placed}


def _repeated(net: Net, value: str, kind: str) -> str:
    groups = HEADS // KV
    axis = net.node("Unsqueeze", value, net.constant(np.int64([2])), name=f"{kind}_axis")
    wide = net.node("Expand", axis, net.constant(np.int64([1, 1, groups, 1, 1])), name=f"{kind}_wide")
    return net.node("Reshape", wide, net.constant(np.int64([0, HEADS, -1, SIZE])), name=f"{kind}_repeated")


def _mask(net: Net, place: str) -> str:
    keys = net.constant(np.arange(PLACES)[None, None, None], "keys")
    whole = net.node("Cast", place, name="whole_place", to=7)
    own = net.node("Reshape", whole, net.constant(np.int64([1, 1, -1, 1])), name="own")
    seen = net.node("LessOrEqual", keys, own, name="seen")
    return net.node("Where", seen, net.constant(np.float32(0.0)), net.constant(np.float32(-np.inf)), name="mask")
