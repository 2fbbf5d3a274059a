"""The kernel equalities of docs/numerics.md: onnxruntime's integer kernels against the float32 formulas that simulate
them.

Random operands, free and power-of-two scales (many ties), any zero points. Written in NumPy, apart from the package,
so that
the formulas are checked and not the code that uses them.

    python benchmarks/kernels.py > benchmarks/results/kernels.md
"""

from __future__ import annotations

import platform
from collections import Counter
from typing import Any

import numpy as np
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

F, D = np.float32, np.float64
ROUNDS = 300
Array = np.ndarray[Any, Any]


def run(
    op: str, domain: str, inputs: dict[str, Array], constants: dict[str, Any], *, order: list[str], dtype: Any
) -> Array:
    """One node on its own."""
    kind = TensorProto.UINT8 if dtype == np.uint8 else TensorProto.INT8
    node = helper.make_node(op, order, ["y"], domain=domain)
    graph = helper.make_graph(
        [node],
        "kernel",
        [helper.make_tensor_value_info(k, kind, v.shape) for k, v in inputs.items()],
        [helper.make_tensor_value_info("y", kind, None)],
        [numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    options = ort.SessionOptions()
    options.log_severity_level = 3
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, inputs)[0])


def fma(x: Any, y: Any, z: Any) -> Array:
    """One rounding for product and sum."""
    return np.asarray(np.asarray(x, D) * D(y) + np.asarray(z, D)).astype(F)


def saturated(real: Array, dtype: Any) -> Array:
    limits = np.iinfo(dtype)
    return np.asarray(np.clip(np.rint(real), limits.min, limits.max).astype(dtype))


def draw(rng: np.random.Generator, turn: int) -> tuple[Any, list[Any], Array]:
    """(dtype, three scales, three zero points); every third turn has powers of two."""
    dtype = (np.uint8, np.int8)[turn % 2]
    limits = np.iinfo(dtype)
    free = rng.uniform(0.01, 0.1, 3) if turn % 3 else 2.0 ** rng.integers(-7, -3, 3)
    return dtype, [F(s) for s in free], rng.integers(limits.min, limits.max + 1, 3)


def elementwise(rng: np.random.Generator, op: str) -> Counter[str]:
    """Formula -> differing elements; `elements` counts all."""
    found: Counter[str] = Counter()
    for turn in range(ROUNDS):
        dtype, (s_a, s_b, s_y), (z_a, z_b, z_y) = draw(rng, turn)
        if op == "QLinearMul":
            s_y = F(s_y * F(20))
        limits, size = np.iinfo(dtype), int(rng.integers(1000, 60000))
        a, b = (rng.integers(limits.min, limits.max + 1, (1, size)).astype(dtype) for _ in range(2))
        constants = {"sa": s_a, "za": dtype(z_a), "sb": s_b, "zb": dtype(z_b), "sy": s_y, "zy": dtype(z_y)}
        y = run(
            op,
            "com.microsoft",
            {"a": a, "b": b},
            constants,
            order=["a", "sa", "za", "b", "sb", "zb", "sy", "zy"],
            dtype=dtype,
        )
        real = (a.astype(F), b.astype(F))
        forms = additions if op == "QLinearAdd" else products
        for name, value in forms(*real, (s_a, s_b, s_y), (int(z_a), int(z_b), int(z_y))).items():
            found[name] += int((saturated(value, dtype) != y).sum())
        found["elements"] += size
    return found


def additions(a: Array, b: Array, scales: tuple[F, F, F], zeros: tuple[int, int, int]) -> dict[str, Array]:
    (s_a, s_b, s_y), (z_a, z_b, z_y) = scales, zeros
    r_a, r_b = F(s_a / s_y), F(s_b / s_y)
    fused = F(z_y) - F(fma(z_a, r_a, F(r_b * F(z_b))))
    plain = F(z_y) - F(F(r_a * F(z_a)) + F(r_b * F(z_b)))
    textbook = ((a - F(z_a)) * s_a + (b - F(z_b)) * s_b) / s_y
    return {
        "fma(q_a, r_a, fma(q_b, r_b, offset))": fma(a, r_a, fma(b, r_b, fused)),
        "q_a·r_a + (q_b·r_b + offset), no FMA": a * r_a + (b * r_b + plain),
        "dequantize, add, divide, round, then + z_y": np.rint(textbook) + z_y,
    }


def products(a: Array, b: Array, scales: tuple[F, F, F], zeros: tuple[int, int, int]) -> dict[str, Array]:
    (s_a, s_b, s_y), (z_a, z_b, z_y) = scales, zeros
    product, m = (a - F(z_a)) * (b - F(z_b)), F(F(s_a * s_b) / s_y)
    return {"f32(P·m) + z_y, then round": product * m + F(z_y), "round, then + z_y": np.rint(product * m) + z_y}


def main() -> None:
    print("# Kernel equalities\n")
    print(f"onnxruntime {ort.__version__}, {platform.machine()}, {ROUNDS} models per kernel, seed 1.\n")
    print("| kernel | formula | elements | differing |\n|---|---|---|---|")
    for op in ("QLinearAdd", "QLinearMul"):
        found = elementwise(np.random.default_rng(1), op)
        elements = found.pop("elements")
        for name in list(found):
            print(f"| {op} | {name} | {elements:,} | {found[name]:,} |")


if __name__ == "__main__":
    main()
