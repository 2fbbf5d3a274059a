"""What weights without saturating pairs cost (`hardware.isa=any`), next to exact sums and to 7-bit weights.

Each model of `corpus.py` is quantized for ort_cpu by default settings: with `isa=any` (the default), with `isa=vnni`,
and with 7-bit weights (`isa=vnni`, `weights.reduce_range=true`). SQNR is the lowest of all outputs on samples that none
of them saw, in a default session. Latency is the median of ratios to the float model of runs in turn.

`--emulate COMMAND` runs a Python program on an x86 processor without VNNI. The last columns count the output elements
that differ there, in a default session, from those of this machine.

    python benchmarks/every_processor.py [--models GLOB ...] [--emulate COMMAND]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import warnings
from fnmatch import fnmatch
from pathlib import Path
from statistics import mean

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402
from corpus import Absent, Case, Counts, cases  # noqa: E402
from machine import processor  # noqa: E402
from models import interleaved, outputs_of, sqnr  # noqa: E402
from rivals import session  # noqa: E402

import quantpipe  # noqa: E402

SETTINGS = {
    "any": {"isa": "any"},
    "vnni": {"isa": "vnni"},
    "7 bits": {"isa": "vnni", "weights": {"reduce_range": True}},
}
BATCH = 8
EMULATED = 8  # samples


def emulated(command: str, path: Path, case: Case, folder: Path) -> dict[str, np.ndarray]:
    """Outputs of a default session on the emulated processor."""
    feeds = {k: v[:EMULATED] for k, v in case.evaluate.items()}
    np.savez(folder / "feeds.npz", **feeds)
    code = (
        "import sys, numpy as np, onnxruntime as ort\n"
        "o = ort.SessionOptions(); o.log_severity_level = 3; o.intra_op_num_threads = 1\n"
        "s = ort.InferenceSession(sys.argv[1], o); f = dict(np.load(sys.argv[2])); n = len(next(iter(f.values())))\n"
        "r = [s.run(None, {k: v[i:i+1] for k, v in f.items()}) for i in range(n)]\n"
        "np.savez(sys.argv[3], **{o.name: np.concatenate([x[i] for x in r]) for i, o in enumerate(s.get_outputs())})\n"
    )
    target = folder / "emulated.npz"
    arguments = [*command.split(), "-c", code, str(path), str(folder / "feeds.npz"), str(target)]
    subprocess.run(arguments, check=True, stderr=subprocess.DEVNULL)
    return dict(np.load(target))


def measured(case: Case, folder: Path, emulate: str | None) -> dict[str, str | float]:
    """One row."""
    size = 1 if isinstance(session(case.model).get_inputs()[0].shape[0], int) else BATCH
    float_outputs = outputs_of(case.model, case, size)
    row: dict[str, str | float] = {}
    paths = {}
    for name, overrides in SETTINGS.items():
        target = folder / name.replace(" ", "_")
        device = {"like": "ort_cpu", "name": "tried", "description": "ort_cpu", "source": "this benchmark", **overrides}
        samples = quantpipe.SampleSets(case.calibrate, case.evaluate, case.search)
        options = {"baseline": "none", "latency_runs": 5}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            paths[name] = quantpipe.quantize(
                str(case.model), samples, device, folder=target, evaluate=options
            ).model_path
        found = outputs_of(paths[name], case, size)
        row[name] = min(sqnr(float_outputs[o], found[o]) for o in float_outputs)
        if case.labels is not None:
            first = next(iter(float_outputs))
            row[f"{name} top-1"] = int((found[first].argmax(-1).reshape(-1) == case.labels).sum())
        if emulate and name != "7 bits":
            one = outputs_of(paths[name], case, 1)
            other = emulated(emulate, paths[name], case, folder)
            wrong = sum(int((one[o][:EMULATED] != other[o]).sum()) for o in one)
            row[f"{name} differing"] = f"{wrong} of {sum(o.size for o in other.values())}"
    one = {k: v[:1] for k, v in case.evaluate.items()}
    orders = (("any", "vnni"), ("vnni", "any"))  # what runs after the float model finds the caches full of its weights
    ratios = [interleaved({"float": case.model, **{n: paths[n] for n in order}}, one, 100, 5.0) for order in orders]
    return row | {f"{name} latency": mean(r[name] for r in ratios) for name in ("any", "vnni")}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="*", default=["*"])
    parser.add_argument("--emulate")
    options = parser.parse_args()
    print(
        "# Weights without saturating pairs\n\n"
        + f"{processor()}; `python {' '.join(['benchmarks/every_processor.py'])}`.\n"
    )
    keys = [
        "any",
        "vnni",
        "7 bits",
        "any top-1",
        "vnni top-1",
        "any latency",
        "vnni latency",
        "any differing",
        "vnni differing",
    ]
    print("| model | " + " | ".join(keys) + " |\n|" + "---|" * (len(keys) + 1), flush=True)
    gaps, seven = [], []
    for name, make in cases().items():
        if not any(fnmatch(name, pattern) for pattern in options.models):
            continue
        with tempfile.TemporaryDirectory() as folder:
            try:
                row = measured(make(Path(folder), Counts()), Path(folder), options.emulate)
            except Absent:
                continue
        gaps.append(float(row["any"]) - float(row["vnni"]))
        seven.append(float(row["7 bits"]) - float(row["vnni"]))
        cells = [f"{row[k]:.2f}" if isinstance(row.get(k), float) else str(row.get(k, "")) for k in keys]
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)
    print(f"\nMean of {len(gaps)} models, in dB compared with exact sums: ", end="")
    print(f"any {mean(gaps):+.2f}, 7 bits {mean(seven):+.2f}.")


if __name__ == "__main__":
    main()
