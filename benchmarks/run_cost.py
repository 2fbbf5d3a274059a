"""What a run costs by stage, in seconds and float passes over its evaluation samples, and onnxruntime's own tools.

    python benchmarks/run_cost.py > benchmarks/results/run_cost.md
    python benchmarks/run_cost.py --cases 'digits*' transformer --devices ort_cpu vta --effort quick

Cases are those of benchmarks/corpus.py, and an encoder with drawn weights (`--layers`, `--width`: 12 and 768 have the
size of BERT-base without its embedding). Every measurement is a process of its own, with every default of quantpipe
but statistics measured again; peak memory is the kernel's figure. Static and dynamic quantization by onnxruntime
include loading its tool and one pass over the evaluation samples.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from corpus import Absent, Case, Counts, Make, cases
from machine import processor
from onnx import TensorProto, helper, numpy_helper

TOKENS, HEADS = 64, 12
PARTS = ("agreement", "latency", "onnxruntime's own quantization")
"""Parts of evaluate with a column of their own."""
STAGES = ("model", "calibrate", "search", "recover", "evaluate", "explain")
EXPLAIN = ("alone", "advice")


def encoder(layers: int, width: int, path: Path) -> None:
    """Write an encoder with drawn weights: attention of twelve heads and a feed-forward layer, each normalized."""
    rng, nodes, weights = np.random.default_rng(0), [], []

    def constant(name: str, array: Any) -> str:
        weights.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def node(op: str, *inputs: str, **attributes: Any) -> str:
        output = f"{op.lower()}_{len(nodes)}"
        nodes.append(helper.make_node(op, list(inputs), [output], name=output, **attributes))
        return output

    def dense(x: str, rows: int, columns: int) -> str:
        drawn = rng.standard_normal((rows, columns), np.float32) / np.float32(rows**0.5)
        product = node("MatMul", x, constant(f"w{len(weights)}", drawn))
        return node("Add", product, constant(f"b{len(weights)}", rng.standard_normal(columns).astype(np.float32) / 10))

    def normalized(x: str) -> str:
        scale = constant(f"s{len(weights)}", np.ones(width, np.float32))
        return node("LayerNormalization", x, scale, constant(f"o{len(weights)}", np.zeros(width, np.float32)))

    shape = constant("heads", np.array([0, TOKENS, HEADS, width // HEADS]))
    flat = constant("flat", np.array([0, TOKENS, width]))
    root = constant("root", np.float32((width // HEADS) ** -0.5))
    x = "x"
    for _ in range(layers):
        q, k, v = (node("Reshape", dense(x, width, width), shape) for _ in range(3))
        q, k, v = (node("Transpose", one, perm=turn) for one, turn in ((q, HEAD), (k, [0, 2, 3, 1]), (v, HEAD)))
        share = node("Softmax", node("Mul", node("MatMul", q, k), root), axis=-1)
        seen = node("Reshape", node("Transpose", node("MatMul", share, v), perm=HEAD), flat)
        x = normalized(node("Add", x, dense(seen, width, width)))
        x = normalized(node("Add", x, dense(node("Gelu", dense(x, width, 4 * width)), 4 * width, width)))
    nodes[-1].output[0] = "y"
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", TOKENS, width]) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "encoder", ports[:1], ports[1:], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9), path)


HEAD = [0, 2, 1, 3]
"""The order of axes that puts heads before tokens, and back."""


def drawn_encoder(layers: int, width: int, folder: Path, counts: Counts) -> Case:
    """Return the encoder with samples of normal noise."""
    path = folder / "encoder.onnx"
    encoder(layers, width, path)
    rng = np.random.default_rng(1)
    numbers = (counts.calibrate, counts.search, counts.evaluate)
    arrays = ({"x": rng.standard_normal((n, TOKENS, width), np.float32)} for n in numbers)
    return Case(path, *arrays, None, "normal noise")


def quantized(case: Case, device: str, effort: str) -> dict[str, Any]:
    """Run quantpipe with its defaults; return its entries in the report."""
    import quantpipe

    evaluate = (case.evaluate, case.labels) if case.labels is not None else case.evaluate
    sets = quantpipe.SampleSets(calibrate=case.calibrate, search=case.search, evaluate=evaluate)
    report = quantpipe.quantize(case.model, sets, device, effort=effort).report
    output = report["outputs"][0]
    return {"effort": report["effort"], "sqnr_db": output["sqnr_db"], "differing": report["agreement"]["differing"]}


def rival(case: Case, form: str) -> dict[str, Any]:
    """Quantize with onnxruntime's tool and run the result once over the evaluation samples."""
    import rivals

    with tempfile.TemporaryDirectory() as folder:
        samples = case.calibrate if form == "static" else case.evaluate
        made, _ = getattr(rivals, form)(case.model, Path(folder), samples, 8)
        session, real = (rivals.session(path, os.cpu_count() or 1) for path in (made, case.model))
        signal = noise = 0.0
        for batch in rivals.batches(case.evaluate, 8):
            own, found = real.run(None, batch)[0], session.run(None, batch)[0]
            signal, noise = signal + float(np.sum(own**2.0)), noise + float(np.sum((own - found) ** 2.0))
    return {"sqnr_db": 10 * float(np.log10(signal / noise)) if noise and signal else None}


def measured(arguments: Sequence[str]) -> dict[str, Any]:
    """Return the result of a process of this script, with its seconds, those of all cores, and its peak memory."""
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    command = [sys.executable, "-W", "ignore", __file__, "--child", *arguments]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    seconds, after = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    worked = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    lines = process.stdout.strip().splitlines()
    if process.returncode or not lines:
        return {"failed": (process.stderr.strip().splitlines() or ["no reason"])[-1][:120], "seconds": seconds}
    return {**json.loads(lines[-1]), "seconds": seconds, "worked": worked}


def child(given: argparse.Namespace, makers: Mapping[str, Make]) -> None:
    """Measure one thing and print it as JSON."""
    with tempfile.TemporaryDirectory() as folder:
        counts = Counts(given.calibrate, given.search, given.evaluate)
        case = makers[given.cases[0]](Path(folder), counts)
        what = given.devices[0]
        found = rival(case, what) if what in ("static", "dynamic") else quantized(case, what, given.effort)
    found["peak_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps(found))


def seconds_by_stage(effort: Mapping[str, Any]) -> dict[str, float]:
    """Return the seconds of each column."""
    found = dict.fromkeys((*STAGES, *PARTS), 0.0)
    for row in effort["rows"]:
        name = row["part"] or ("explain" if row["stage"] in EXPLAIN else row["stage"])
        if name in found:
            found[name] += row["seconds"]
    return found


def row(name: str, device: str, found: Mapping[str, Any]) -> str:
    """Return one run as a row of the table."""
    if "failed" in found:
        return f"| {name} | {device} | {found['seconds']:.0f} | | | failed: {found['failed']} |"
    effort = found["effort"]
    once, spent = effort["float_pass_seconds"], seconds_by_stage(effort)
    shown = [f"{spent[one]:.1f} ({spent[one] / once:.1f})" if spent[one] else "" for one in (*STAGES, *PARTS)]
    sums = (
        f"{found['seconds']:.0f} | {found['worked']:.0f} | {found['peak_mb']:.0f} | {once:.2f} | {effort['passes']:.1f}"
    )
    sqnr = "" if found["sqnr_db"] is None else f"{found['sqnr_db']:.1f}"
    return f"| {name} | {device} | {sums} | {' | '.join(shown)} | {sqnr} | {found['differing']} |"


def other(name: str, form: str, found: Mapping[str, Any]) -> str:
    """Return one run of onnxruntime's tool as a row."""
    if "failed" in found:
        return f"| {name} | {form} | {found['seconds']:.0f} | | failed: {found['failed']} | |"
    sqnr = "" if found["sqnr_db"] is None else f"{found['sqnr_db']:.1f}"
    return f"| {name} | {form} | {found['seconds']:.0f} | {found['worked']:.0f} | {found['peak_mb']:.0f} | {sqnr} |"


def runs(given: argparse.Namespace, names: Sequence[str], devices: Sequence[str]) -> Iterator[tuple[str, str, Any]]:
    """Yield each case on each device, or by each form, with what was measured."""
    numbers = (f"--{key}={getattr(given, key)}" for key in ("layers", "width", "calibrate", "search", "evaluate"))
    common = [*numbers, f"--effort={given.effort}"]
    for name in names:
        for device in devices:
            yield name, device, measured([*common, "--cases", name, "--devices", device])


def main(arguments: Sequence[str]) -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", default=["digits*", "cifar10_resnet20", "kws_*", "ad_*", "vww_*",
                                                       "imagenet_efficientnet_lite0", "transformer"])  # fmt: skip
    parser.add_argument("--devices", nargs="+", default=["ort_cpu", "vta"])
    parser.add_argument("--effort", default="default")
    for key, default in (("layers", 4), ("width", 384), ("calibrate", 64), ("search", 32), ("evaluate", 128)):
        parser.add_argument(f"--{key}", type=int, default=default)
    parser.add_argument("--shared", action="store_true", help="note that other programs ran on the machine")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    makers = {**cases(), "transformer": partial(drawn_encoder, given.layers, given.width)}
    if given.child:
        child(given, makers)
        return
    names = [name for name in makers if any(fnmatch(name, pattern) for pattern in given.cases)]
    print(f"# What a run costs\n\n`python benchmarks/run_cost.py {' '.join(arguments)}`, effort={given.effort},")
    print(f"onnxruntime {onnxruntime.__version__}, {os.cpu_count()} CPUs ({processor()}).")
    if given.shared:
        print("Other programs ran on the machine: seconds by the clock are longer than on a quiet one.")
    print(f"{given.calibrate} samples to calibrate, {given.search} to search, {given.evaluate} to evaluate;")
    print(f"the transformer has {given.layers} layers of width {given.width} and {TOKENS} tokens.")
    print("In brackets: float passes over the evaluation samples. `passes` counts everything after calibration.\n")
    columns = [*STAGES, *PARTS]
    sums = ["model", "device", "s", "s of all cores", "peak MiB", "float pass s", "passes"]
    print(f"| {' | '.join((*sums, *columns, 'dB', 'differing'))} |")
    print("|---" * (9 + len(columns)) + "|")
    for name, device, found in runs(given, names, given.devices):
        print(row(name, device, found), flush=True)
    print("\n## onnxruntime's own tools\n\n| model | form | s | s of all cores | peak MiB | dB |")
    print("|---|---|---|---|---|---|")
    for name, form, found in runs(given, names, ("static", "dynamic")):
        print(other(name, form, found), flush=True)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except Absent as error:
        sys.exit(str(error))
