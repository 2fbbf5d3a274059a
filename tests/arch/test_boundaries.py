"""The rules of the architecture that a reader could break without noticing."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import onnx

from quantpipe.oprules import OP_RULES

ROOT = Path(__file__).resolve().parents[2] / "quantpipe"
FILES = sorted(ROOT.rglob("*.py"))
NAMES = [str(p.relative_to(ROOT)) for p in FILES]

OP_TABLES = (
    "oprules/",
    "conform/recipes.py",
    "graph/op_tables.py",
    "intake/tflite/",
    "intake/quantized/quantized_ops.py",
    "intake/rewrites/",
    "lowering/",
    "plan/formulas.py",
    "plan/programs/function_programs.py",
    "realize/",
    "train/torch_ops.py",
    "verify/",
)
"""Where code may depend on an op's name: the joined tables, rewrites, how devices form functions, and the checker of
certificates, which shares nothing with any of them."""

WRITERS = {"op", "_op", "new_node", "_new", "Node", "make_node"}
"""Calls that write a node: an op's name as their argument decides nothing."""

OUTSIDE = {
    "onnxruntime": (
        "graph/execute.py",
        "graph/layer_times.py",
        "graph/runtime_quantization.py",
        "graph/symbolic_axes.py",
    ),
    "mlflow": ("tracking/",),
    "hydra": ("app",),
    "optuna": ("search/",),
    "torch": ("train/",),
}
"""One place for each outside thing."""

PLAIN_WORDS = {"Constant", "If", "Max", "Mean", "Min", "Not", "Or", "Range", "Scan", "Shape", "Size", "Sum", "Where"}
OP_NAMES = (set(OP_RULES) | {s.name for s in onnx.defs.get_all_schemas() if s.domain == ""}) - PLAIN_WORDS


@cache
def parsed(name: str) -> ast.Module:
    return ast.parse((ROOT / name).read_text(encoding="utf-8"))


def op_strings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """String constants that are op types, documentation aside."""
    docs = {
        id(n.body[0].value)
        for n in ast.walk(tree)
        if isinstance(n, ast.Module | ast.ClassDef | ast.FunctionDef) and n.body and isinstance(n.body[0], ast.Expr)
    }
    written = {
        id(argument)
        for call in ast.walk(tree)
        if isinstance(call, ast.Call)
        and (call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")) in WRITERS
        for argument in call.args[:3]
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and id(node) not in docs | written and isinstance(node.value, str):
            yield from [(node.lineno, node.value)] if node.value in OP_NAMES else []


def imported(tree: ast.Module) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {a.name.split(".")[0] for a in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.split(".")[0])
    return found


def test_op_types_stand_in_the_tables_only() -> None:
    names = [n for n in NAMES if not n.startswith(OP_TABLES)]
    found = [f"{name}:{line}: {op!r}" for name in names for line, op in op_strings(parsed(name))]
    assert not found, "per-op knowledge outside OP_RULES, hardware files and lowerings: " + "; ".join(found)


def test_outside_libraries_have_one_place() -> None:
    for name in NAMES:
        used = imported(parsed(name))
        for library, places in OUTSIDE.items():
            assert library not in used or name.startswith(places), f"{name} imports {library}; only {places} may"


def test_types_and_search_know_nothing_of_onnx() -> None:
    for name in NAMES:
        if name.startswith(("types/", "search/", "errors.py", "intmath.py", "artifacts/")):
            assert not imported(parsed(name)) & {"onnx", "onnx_ir", "onnxslim", "onnxruntime"}, name


def test_no_module_imports_for_types_alone() -> None:
    """Such imports hide a circle; the package's face has them for the names that it loads when they are first read."""
    hidden = [
        name
        for name in NAMES
        if any(isinstance(n, ast.Name) and n.id == "TYPE_CHECKING" for n in ast.walk(parsed(name)))
    ]
    assert hidden == ["__init__.py"]


def test_files_stay_small() -> None:
    folders = [ROOT, *(ROOT.parent / name for name in ("tests", "benchmarks", "embedded_models", "website"))]
    lines = {p: p.read_text(encoding="utf-8").count("\n") for folder in folders for p in folder.rglob("*.py")}
    long = {str(path.relative_to(ROOT.parent)): count for path, count in lines.items() if count > 400}
    assert not long, f"too long, each hides a second idea: {long}"


def test_rounding_stands_in_intmath() -> None:
    """NumPy's rounding functions are called there alone; the error report measures rounding and may use it, and the
    checker of certificates has arithmetic of its own."""
    for name in {n for n in NAMES if not n.startswith("verify/")} - {"intmath.py", "evaluate/layers.py"}:
        calls = {
            n.func.attr
            for n in ast.walk(parsed(name))
            if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute) and isinstance(n.func.value, ast.Name)
            and n.func.value.id == "np"
        }  # fmt: skip
        assert not calls & {"rint", "round", "around", "fix"}, name


def test_every_module_says_what_it_is_for() -> None:
    silent = [name for name in NAMES if not ast.get_docstring(parsed(name))]
    assert not silent, f"without a first paragraph: {silent}"


def test_no_stray_output() -> None:
    for name in NAMES:
        calls = [n for n in ast.walk(parsed(name)) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)]
        assert not [c for c in calls if c.func.id == "print"], f"{name} prints"


def test_the_tests_of_op_strings_would_notice_one() -> None:
    tree = ast.parse('"""Conv"""\nif node.op == "Conv":\n    pass\n')
    assert list(op_strings(tree)) == [(2, "Conv")]
    written = ast.parse('builder.op("Mul", x, name="Add")\nkinds = {"Relu": 1}\nis_op(node, "Gemm")\n')
    assert sorted(op_strings(written)) == [(1, "Add"), (2, "Relu"), (3, "Gemm")], (
        "only the op that is written is left out"
    )


def test_exceptions_are_needed() -> None:
    for table in OP_TABLES:
        assert any(list(op_strings(parsed(name))) for name in NAMES if name.startswith(table)), f"{table} names no op"
