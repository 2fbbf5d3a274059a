"""The onnx package's own backend test models, each taken from the file to the report: through, refused, or crashed.

    python benchmarks/backend_models.py FOLDER --measure [--set node] [--shard 0/2] [--seconds 160]   # goes on
    python benchmarks/backend_models.py FOLDER > benchmarks/results/backend_models.md      # the table

A case needs an input of real numbers with an axis; the first such input is drawn from the test's own values, and every
other input is fixed to the test's own value. The models of single ops are set between two MatMuls, so that there is
something to quantize on either side of what an op has no integers for.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
import traceback
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper
from onnx.backend.test.case.node import collect_testcases
from onnx.backend.test.loader import load_model_tests

import quantpipe

Array = np.ndarray[Any, Any]
SETS = ("node", "simple", "pytorch-converted", "pytorch-operator")
"""Left out: `real`, whose models are addresses, and `light`, networks whose weights are all alike."""
COPIES = 32
DEVICE = "ort_cpu"


@dataclass(frozen=True)
class Case:
    """A model, and the values of its inputs in the test, by name."""

    kind: str
    name: str
    model: onnx.ModelProto
    inputs: dict[str, Array]

    @property
    def drawn(self) -> str | None:
        """Return the first input of real numbers that has an axis."""
        return next((k for k, v in self.inputs.items() if v.dtype == np.float32 and v.ndim), None)


def array(value: Any) -> Array | None:
    """Return a test's value as an array; None for sequences, optional values and what NumPy does not hold."""
    if isinstance(value, onnx.TensorProto):
        return numpy_helper.to_array(value)
    return np.asarray(value) if isinstance(value, np.ndarray | np.generic) else None


def stored(folder: Path, names: list[str]) -> dict[str, Array]:
    """Return the inputs of a case on disk."""
    found = {}
    for number, name in enumerate(names):
        path = folder / "test_data_set_0" / f"input_{number}.pb"
        if path.is_file():
            found[name] = numpy_helper.to_array(onnx.load_tensor(str(path)))
    return found


def cases(kind: str) -> Iterator[Case]:
    """Yield the cases of a set in a fixed order."""
    if kind == "node":
        for made in sorted(collect_testcases(), key=lambda case: case.name):
            names = [value.name for value in made.model.graph.input]
            values = {k: array(v) for k, v in zip(names, made.data_sets[0][0], strict=False)}
            yield Case(kind, made.name, made.model, {k: v for k, v in values.items() if v is not None})
        return
    for test in sorted(load_model_tests(kind=kind), key=lambda case: case.name):
        folder = Path(test.model_dir)
        model = onnx.load(folder / "model.onnx")
        weights = {tensor.name for tensor in model.graph.initializer}
        names = [value.name for value in model.graph.input if value.name not in weights]
        yield Case(kind, test.name, model, stored(folder, names))


def between_products(case: Case) -> onnx.ModelProto:
    """Return the model with a MatMul in front of the input that is drawn and one behind each output of real numbers."""
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    graph, name = model.graph, case.drawn
    size = case.inputs[name].shape[-1] if name else 0
    if not size or case.inputs[name or ""].ndim < 2 or not any(o.domain == "" for o in model.opset_import):
        return model
    rng = np.random.default_rng(0)
    for node in graph.node:
        for place, read in enumerate(node.input):
            if read == name:
                node.input[place] = "before"
    near = np.eye(size) + 0.05 * rng.standard_normal((size, size))
    graph.initializer.append(numpy_helper.from_array(near.astype(np.float32), "before_weight"))
    graph.node.insert(0, helper.make_node("MatMul", [name, "before_weight"], ["before"], name="first"))
    for number, value in enumerate(graph.output):
        kind = value.type.tensor_type
        last = kind.shape.dim[-1].dim_value if len(kind.shape.dim) > 1 else 0
        if kind.elem_type == TensorProto.FLOAT and last:
            weight = rng.standard_normal((last, last)) / np.sqrt(last)
            graph.initializer.append(numpy_helper.from_array(weight.astype(np.float32), f"behind{number}_weight"))
            names = [value.name, f"behind{number}_weight"]
            graph.node.append(helper.make_node("MatMul", names, [f"behind{number}"], name=f"last{number}"))
            value.name = f"behind{number}"
    return model


def row(case: Case) -> dict[str, Any]:
    """Return how a case ended."""
    name = case.drawn
    if name is None:
        return {"result": "no real input"}
    rng = np.random.default_rng(1)
    own = case.inputs[name]
    samples = {name: np.concatenate([own * rng.uniform(0.5, 1.0, own.shape).astype(np.float32) for _ in range(COPIES)])}
    fixed = {k: v.tolist() for k, v in case.inputs.items() if k != name}
    beside = {"baseline": "none", "explain": "none", "latency_runs": 1}
    options = {"recover": "none", "precision": "none", "executor": "serial", "dataset": {"force_few": True}}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = between_products(case) if case.kind == "node" else case.model
            result = quantpipe.quantize(model, samples, DEVICE, fixed=fixed, evaluate=beside, **options)
    except quantpipe.errors.QuantpipeError as error:
        return {"result": "refused", "text": str(error)}
    except Exception as error:
        return {"result": "crashed", "text": "".join(traceback.format_exception(error))[-1500:]}
    agreement, nodes = result.report["agreement"], result.report["metrics"]["realized"]
    found = {"result": "through", "differing": agreement["differing"], "elements": agreement["elements"]}
    return found | {"figures": {k: nodes.get(k) for k in ("sqnr_db", "cosine")}}


def measure(folder: Path, kinds: list[str], seconds: float, shard: tuple[int, int]) -> None:
    """Append a line to FOLDER/rows.jsonl for each case of a shard that has none, until the time is up."""
    folder.mkdir(parents=True, exist_ok=True)
    log, end = folder / "rows.jsonl", time.monotonic() + seconds
    done = {(r["set"], r["name"]) for r in map(json.loads, log.read_text("utf-8").splitlines())} if log.exists() else ()
    for kind in kinds:
        for number, case in enumerate(cases(kind)):
            if (kind, case.name) in done or number % shard[1] != shard[0]:
                continue
            if time.monotonic() > end:
                return
            opset = next((o.version for o in case.model.opset_import if o.domain == ""), None)
            found = {"set": kind, "name": case.name, "opset": opset, **row(case)}
            with log.open("a", encoding="utf-8") as lines:
                lines.write(json.dumps(found) + "\n")
    print("all measured", file=sys.stderr)


def reason(text: str) -> str:
    """Return a refusal without its names, paths and numbers, so that equal ones count together."""
    text = text.rsplit("so there is nothing to search; ", 1)[-1]
    text = re.sub(r"/\S+?\.onnx", "FILE", text)
    text = re.sub(r"(?<!\w)/(?:[\w.+-]+/)+", "…/", text)
    text = re.sub(r"'[^']*'", "'…'", text)
    return re.sub(r"\d+", "n", text)[:160].replace("|", "/")


def cells(counts: Counter[str], results: tuple[str, ...]) -> str:
    """Return the counts of a row."""
    return " | ".join(str(counts[result]) for result in results)


def text(folder: Path) -> str:
    """Return the tables."""
    rows = [json.loads(line) for line in (folder / "rows.jsonl").read_text("utf-8").splitlines()]
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for found in rows:
        counts[found["set"]][found["result"]] += 1
    totals = {kind: sum(1 for _ in cases(kind)) for kind in SETS}
    counts |= {kind: Counter() for kind in SETS if kind not in counts}
    results = ("through", "refused", "crashed", "no real input")
    through = [r for r in rows if r["result"] == "through"]
    lines = [
        "# The onnx package's backend models\n",
        f"`python benchmarks/backend_models.py FOLDER`; onnx {onnx.__version__}, onnxruntime {ort.__version__}, device",
        f"{DEVICE}. Each model from the file to the report; models of single ops stand between two MatMuls.\n",
        "| set | models | not measured | " + " | ".join(results) + " |",
        "|---|---|---|" + "---|" * len(results),
        *(f"| {k} | {totals[k]} | {totals[k] - sum(c.values())} | {cells(c, results)} |" for k, c in counts.items()),
        f"\n{sum(r['differing'] for r in through)} of {sum(r['elements'] for r in through):,} integers differ between",
        "simulated and realized models.\n",
        "## Opsets\n",
        "| opset | through | refused |",
        "|---|---|---|",
    ]
    opsets: dict[int, Counter[str]] = defaultdict(Counter)
    for found in rows:
        opsets[found["opset"] or 0][found["result"]] += 1
    lines += [f"| {o or 'none'} | {c['through']} | {c['refused']} |" for o, c in sorted(opsets.items())]
    groups: dict[tuple[str, str], list[str]] = defaultdict(list)
    for found in rows:
        if found["result"] in ("refused", "crashed"):
            said = found["text"].strip().splitlines()[-1] if found["result"] == "crashed" else found["text"]
            groups[found["result"], reason(said)].append(found["name"])
    lines += ["\n## Why not\n", "| models | result | first of them | reason |", "|---|---|---|---|"]
    ordered = sorted(groups.items(), key=lambda item: (item[0][0], -len(item[1]), item[1]))
    lines += [f"| {len(names)} | {result} | {names[0]} | {why} |" for (result, why), names in ordered]
    return "\n".join(lines)


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--measure", action="store_true")
    parser.add_argument("--set", action="append", choices=SETS)
    parser.add_argument("--shard", default="0/1", help="K/N: every N-th case from the K-th, beside other processes")
    parser.add_argument("--seconds", type=float, default=float("inf"))
    given = parser.parse_args()
    if given.measure:
        first, count = map(int, given.shard.split("/"))
        measure(given.folder, given.set or list(SETS), given.seconds, (first, count))
    else:
        print(text(given.folder))


if __name__ == "__main__":
    main()
