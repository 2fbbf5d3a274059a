"""What functions cost in onnxruntime: the float op, the op between conversions, and what realized models hold.

One op on 64 x 128 values behind an Identity that is stored, one thread, the median of many runs. All columns but
the first have conversions at the ends: `with conversions` is QuantizeLinear and DequantizeLinear in front of
the float op and behind it; `qdq` and `integer` are what these forms write. The `integer` form is what devices with
kernels of their own are checked by; its cost here is none of theirs.

    python benchmarks/functions.py > benchmarks/results/functions.md     # needs no model
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

import quantpipe
from quantpipe.app import compose

Array = np.ndarray[Any, Any]
SHAPE = (64, 128)
ROUNDS = 300
OPS: Mapping[str, tuple[dict[str, Any], int, str]] = {
    "Sigmoid": ({}, 17, "table"),
    "HardSwish": ({}, 17, "table"),
    "Gelu": ({}, 20, "table"),
    "Exp": ({}, 17, "table"),
    "Softmax": ({"axis": -1}, 17, "table"),
    "LayerNormalization": ({"axis": -1}, 17, "integer_sqrt"),
    "ReduceMean": ({"axes": [-1]}, 17, "sum"),
    "Div": ({}, 17, "division"),
}


def model_of(op: str) -> onnx.ModelProto:
    """One op on an input, on two where it takes two, behind an Identity."""
    attributes, opset, _ = OPS[op]
    inputs = ["x", "w"] if op == "LayerNormalization" else ["x", "x2"] if op == "Div" else ["x"]
    ports = [n for n in inputs if n != "w"]
    nodes = [helper.make_node("Identity", [p], [f"{p}_in"], name=f"in_{p}") for p in ports]
    read = [f"{n}_in" if n in ports else n for n in inputs]
    nodes.append(helper.make_node(op, read, ["y"], name="function", **attributes))
    held = [numpy_helper.from_array(np.ones(SHAPE[1], np.float32), "w")] if "w" in inputs else []
    graph = helper.make_graph(
        nodes,
        op,
        [helper.make_tensor_value_info(p, TensorProto.FLOAT, ["N", *SHAPE]) for p in ports],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        held,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


def between(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same with its operands and its result rounded to uint8 and back, in float nodes of the runtime's own."""
    found = onnx.ModelProto()
    found.CopyFrom(model)
    nodes = list(found.graph.node)
    del found.graph.node[:]
    found.graph.initializer.extend(
        [numpy_helper.from_array(np.float32(0.05), "s"), numpy_helper.from_array(np.uint8(128), "z")]
    )
    for node in nodes[:-1]:
        found.graph.node.extend(converted(node.input[0], node.output[0]))
    last = nodes[-1]
    last.output[0] = "inner"
    found.graph.node.append(last)
    found.graph.node.extend(converted("inner", "y"))
    return found


def converted(source: str, target: str) -> list[onnx.NodeProto]:
    """Quantize and dequantize."""
    return [
        helper.make_node("QuantizeLinear", [source, "s", "z"], [f"{target}_q"]),
        helper.make_node("DequantizeLinear", [f"{target}_q", "s", "z"], [target]),
    ]


def microseconds(model: bytes, feeds: Mapping[str, Array]) -> float:
    """The median of many runs of one sample, one thread."""
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    took = []
    for number in range(ROUNDS + 20):
        start = time.perf_counter()
        session.run(None, dict(feeds))
        took += [time.perf_counter() - start] if number >= 20 else []
    return statistics.median(took) * 1e6


def realized(op: str, model: onnx.ModelProto, samples: Mapping[str, Array], form: str) -> tuple[bytes, list[str]]:
    """What a form of a device like ort_cpu holds for the op, and what the report says of its cost."""
    data = dict(compose.option("hardware", "ort_cpu"))
    kind = OPS[op][2]
    own = {"in": ["uint8"], "out": ["uint8"]}
    data["ops"] = {**data["ops"], op: [own if kind == "sum" else {**own, "function": kind}], "Identity": [own]}
    found = quantpipe.quantize(
        model, samples, data, realize=form, recover="none", precision="none", evaluate={"latency_runs": 1}
    )
    if found.report["agreement"]["differing"]:
        raise SystemExit(f"{op}: simulated and realized integers differ")
    said = [row["node"] for row in found.report["without_kernel"]]
    return found.model_path.read_bytes(), said


def main() -> None:
    """Print the table."""
    rng = np.random.default_rng(0)
    print("# Functions in onnxruntime\n")
    print(
        f"`python benchmarks/functions.py`, onnxruntime {ort.__version__}, one thread, 64 x 128 values, microseconds.\n"
    )
    print("| op | formed by | float op | with conversions | qdq | integer | the report says so of qdq | of integer |")
    print("|---|---|---|---|---|---|---|---|")
    for op, (_, _, kind) in OPS.items():
        model = model_of(op)
        ports = [i.name for i in model.graph.input]
        drawn = {p: rng.normal(3 if p == "x2" else 0, 0.8, (64, *SHAPE)).astype(np.float32) for p in ports}
        drawn = {p: np.maximum(v, 0.5) if p == "x2" else v for p, v in drawn.items()}
        one = {p: v[:1] for p, v in drawn.items()}
        made = {form: realized(op, model, drawn, form) for form in ("qdq", "integer")}
        times = [model.SerializeToString(), between(model).SerializeToString(), made["qdq"][0], made["integer"][0]]
        cells = " | ".join(f"{microseconds(data, one):.0f}" for data in times)
        said = " | ".join("yes" if "function" in made[form][1] else "no" for form in made)
        print(f"| {op} | {kind} | {cells} | {said} |", flush=True)


if __name__ == "__main__":
    main()
