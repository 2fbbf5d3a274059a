"""Recurrent layers alone, with every input that ONNX gives them, and samples for them."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
STEPS, BATCH, INPUT, SIZE = 4, 5, 3, 4
Array = np.ndarray[Any, Any]


def layer(
    op: str,
    *,
    steps: int | None = STEPS,
    direction: str = "forward",
    given: tuple[str, ...] = ("B",),
    seed: int = 0,
    **attributes: Any,
) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """A model of one layer, and feeds. `given`: of B, lengths, hidden, cell, P those that it has."""
    rng = np.random.default_rng(seed)
    ways, rows = 2 if direction == "bidirectional" else 1, GATES[op] * SIZE
    constants = {"W": rng.standard_normal((ways, rows, INPUT)), "R": rng.standard_normal((ways, rows, SIZE)) / 2}
    constants |= {"B": rng.standard_normal((ways, 2 * rows)) / 2} if "B" in given else {}
    constants |= {"P": rng.standard_normal((ways, 3 * SIZE)) / 2} if "P" in given else {}
    length = steps or STEPS
    feeds: dict[str, Array] = {"X": rng.standard_normal((length, BATCH, INPUT)).astype(np.float32)}
    ports = [helper.make_tensor_value_info("X", TensorProto.FLOAT, [steps or "T", "N", INPUT])]
    if "lengths" in given:
        ports.append(helper.make_tensor_value_info("lengths", TensorProto.INT32, ["N"]))
        feeds["lengths"] = np.asarray([length, 1, length - 1, 2, length], np.int32)
    for name in ("hidden", "cell"):
        if name in given:
            ports.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, [ways, "N", SIZE]))
            feeds[name] = rng.standard_normal((ways, BATCH, SIZE)).astype(np.float32)
    names = ["X", "W", "R", *(n if n in given else "" for n in ("B", "lengths", "hidden"))]
    outputs = ["Y", "Y_h"]
    if op == "LSTM":
        names += [n if n in given else "" for n in ("cell", "P")]
        outputs.append("Y_c")
    node = helper.make_node(op, names, outputs, name="layer", hidden_size=SIZE, direction=direction, **attributes)
    graph = helper.make_graph(
        [node],
        "recurrent",
        ports,
        [helper.make_tensor_value_info(o, TensorProto.FLOAT, None) for o in outputs],
        [numpy_helper.from_array(v.astype(np.float32), k) for k, v in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), feeds


def classifier(op: str, steps: int | None = 4, *, direction: str = "forward", **attributes: Any) -> onnx.ModelProto:
    """Frames `[N, T, 6]` through a layer of 8, and its last state through a dense layer."""
    rng = np.random.default_rng(3)
    ways, size, rows = 2 if direction == "bidirectional" else 1, 8, GATES[op] * 8
    constants: dict[str, Array] = {
        "W": rng.standard_normal((ways, rows, 6)) / 2,
        "R": rng.standard_normal((ways, rows, size)) / 3,
        "B": rng.standard_normal((ways, 2 * rows)) / 3,
        "w": rng.standard_normal((5, ways * size)) / 2,
        "b": rng.standard_normal(5),
    }
    node = helper.make_node
    nodes = [
        node("Transpose", ["x"], ["frames"], name="time_first", perm=[1, 0, 2]),
        node(
            op,
            ["frames", "W", "R", "B"],
            ["", "last"],
            name="layer",
            hidden_size=size,
            direction=direction,
            **attributes,
        ),
        node("Transpose", ["last"], ["samples"], name="samples_first", perm=[1, 0, 2]),
        node("Reshape", ["samples", "shape"], ["flat"], name="flat"),
        node("Gemm", ["flat", "w", "b"], ["scores"], name="fc", transB=1),
    ]
    held = [numpy_helper.from_array(v.astype(np.float32), k) for k, v in constants.items()]
    graph = helper.make_graph(
        nodes,
        "classifier",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", steps or "T", 6])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["N", 5])],
        [*held, numpy_helper.from_array(np.asarray([-1, ways * size], np.int64), "shape")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def with_states(op: str) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """Samples of several lengths, each with first states of its own, through a layer; its last states."""
    rng, size, node, value = np.random.default_rng(4), 8, helper.make_node, helper.make_tensor_value_info
    states = ["hidden", "cell"] if op == "LSTM" else ["hidden"]
    constants = {"W": rng.standard_normal((1, GATES[op] * size, 6)) / 2,
                 "R": rng.standard_normal((1, GATES[op] * size, size)) / 3}  # fmt: skip
    first = [node("Transpose", [s], [f"{s}_first"], name=f"{s}_first", perm=[1, 0, 2]) for s in states]
    last = [node("Transpose", [f"{s}_last"], [f"last_{s}"], name=f"{s}_last", perm=[1, 0, 2]) for s in states]
    nodes = [
        node("Transpose", ["x"], ["frames"], name="time_first", perm=[1, 0, 2]),
        *first,
        node(op, ["frames", "W", "R", "", "lengths", *(f"{s}_first" for s in states)],
             ["", *(f"{s}_last" for s in states)], name="layer", hidden_size=size),
        *last,
    ]  # fmt: skip
    graph = helper.make_graph(
        nodes,
        "states",
        [value("x", TensorProto.FLOAT, ["N", "T", 6]), value("lengths", TensorProto.INT32, ["N"])]
        + [value(s, TensorProto.FLOAT, ["N", 1, size]) for s in states],
        [value(f"last_{s}", TensorProto.FLOAT, ["N", 1, size]) for s in states],
        [numpy_helper.from_array(v.astype(np.float32), k) for k, v in constants.items()],
    )
    feeds: dict[str, Array] = {"x": rng.standard_normal((24, 5, 6)).astype(np.float32)}
    feeds["lengths"] = rng.integers(1, 6, 24).astype(np.int32)
    feeds |= {s: (rng.standard_normal((24, 1, size)) / 2).astype(np.float32) for s in states}
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), feeds


def scans(*, named: bool, axes: bool, count: int = 1) -> onnx.ModelProto:
    """Loops as others write them: samples first, two products of a state; nodes of bodies without names, or alike."""
    rng, node, value = np.random.default_rng(0), helper.make_node, helper.make_tensor_value_info
    nodes = [node("Shape", ["x"], ["samples"], start=0, end=1, name="samples"),
             node("Concat", ["samples", "size"], ["shape"], axis=0, name="shape"),
             node("ConstantOfShape", ["shape"], ["zeros"], name="zeros")]  # fmt: skip
    constants: dict[str, Array] = {"size": np.asarray([SIZE])}
    for number in range(count):
        inner = [("MatMul", ["before", f"R{number}"], "first"), ("Add", ["at", "first"], "sum"),
                 ("Tanh", ["sum"], "half"), ("MatMul", ["before", f"S{number}"], "second"),
                 ("Add", ["half", "second"], "more"), ("Tanh", ["more"], "after"),
                 ("Identity", ["after"], "row")]  # fmt: skip
        held = [node(op, read, [made], **({"name": made} if named else {})) for op, read, made in inner]
        ports = [value(name, TensorProto.FLOAT, ["N", SIZE]) for name in ("before", "at", "after", "row")]
        body = helper.make_graph(held, "body", ports[:2], ports[2:])
        more = {"scan_output_axes": [1]} if axes else {}
        nodes += [node("MatMul", ["x", f"W{number}"], [f"gates{number}"], name=f"in{number}"),
                  node("Scan", ["zeros", f"gates{number}"], [f"last{number}", f"all{number}"], name=f"scan{number}",
                       body=body, num_scan_inputs=1, scan_input_axes=[1], **more),
                  node("MatMul", [f"last{number}", f"w{number}"], [f"scores{number}"],
                       name=f"out{number}")]  # fmt: skip
        shapes = {"W": (INPUT, SIZE), "R": (SIZE, SIZE), "S": (SIZE, SIZE), "w": (SIZE, 5)}
        constants |= {f"{k}{number}": (rng.standard_normal(v) / 2).astype(np.float32) for k, v in shapes.items()}
    graph = helper.make_graph(
        nodes,
        "scans",
        [value("x", TensorProto.FLOAT, ["N", "T", INPUT])],
        [value(f"scores{n}", TensorProto.FLOAT, ["N", 5]) for n in range(count)],
        [numpy_helper.from_array(v, k) for k, v in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def two_states(second: str) -> onnx.ModelProto:
    """A loop whose body multiplies one state and hands on another: `after`, the same, or `too`, as it was given."""
    rng, node, value = np.random.default_rng(0), helper.make_node, helper.make_tensor_value_info
    body = [
        node("MatMul", ["before", "R"], ["product"], name="product"),
        node("Add", ["product", "at"], ["sum"], name="sum"),
        node("Tanh", ["sum"], ["after"], name="tanh"),
        node("Add", ["after", "too"], ["row"], name="row"),
        node("Identity", ["after"], ["again"], name="again"),
        node("Identity", [second], ["second"], name="second"),
        node("Identity", ["after"], ["shown"], name="shown"),
    ]
    given, made = ("before", "too", "at"), ("again", "second", "shown", "row")
    ports = [[value(name, TensorProto.FLOAT, ["N", SIZE]) for name in names] for names in (given, made)]
    nodes = [
        node("Shape", ["x"], ["samples"], start=0, end=1, name="samples"),
        node("Concat", ["samples", "size"], ["shape"], axis=0, name="shape"),
        node("ConstantOfShape", ["shape"], ["zeros"], name="zeros"),
        node("MatMul", ["x", "W"], ["gates"], name="in"),
        node(
            "Scan",
            ["zeros", "zeros", "gates"],
            ["last", "other", "all", "rows"],
            name="scan",
            body=helper.make_graph(body, "body", *ports),
            num_scan_inputs=1,
            scan_input_axes=[1],
        ),
        node("MatMul", ["other", "w"], ["scores"], name="out"),
        node("MatMul", ["rows", "w"], ["more"], name="also"),
    ]
    held: dict[str, Array] = {"R": rng.standard_normal((SIZE, SIZE)) / 2, "W": rng.standard_normal((INPUT, SIZE))}
    held |= {"w": rng.standard_normal((SIZE, 5))}
    constants = [numpy_helper.from_array(v.astype(np.float32), k) for k, v in held.items()]
    graph = helper.make_graph(
        nodes,
        "two states",
        [value("x", TensorProto.FLOAT, ["N", "T", INPUT])],
        [value("scores", TensorProto.FLOAT, ["N", 5]), value("more", TensorProto.FLOAT, None)],
        [*constants, numpy_helper.from_array(np.int64([SIZE]), "size")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
