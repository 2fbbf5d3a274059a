"""What a run costs by stage, in seconds and float passes over its evaluation samples, and onnxruntime's own tools.

    python benchmarks/run_cost.py > benchmarks/results/run_cost.md
    python benchmarks/run_cost.py --cases 'digits*' transformer --devices ort_cpu vta --effort quick

Cases are those of benchmarks/corpus.py, and transformers with drawn weights (benchmarks/drawn_models.py): `transformer`
(`--layers`, `--width`), and by name only `bert_base` (436 MB), `vit_base` (346 MB), `decoder_100m` (440 MB),
`decoder_1gb` (1,040 MB) and `transformer_1300mb` (weights in a data file). Every
measurement is a process of its own, with every default of quantpipe but statistics measured again. Peak memory is
the kernel's figure. Static and dynamic quantization by onnxruntime
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatch
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from corpus import Absent, Case, Counts, Make, cases
from drawn_models import (
    BERT_BASE,
    DECODER,
    LARGE,
    LARGE_DECODER,
    VIT_BASE,
    Size,
    picture_encoder,
    samples,
    text_decoder,
    text_encoder,
)
from machine import processor

TOKENS, HEADS = 64, 12

PARTS = ("agreement", "latency", "onnxruntime's own quantization")
"""Parts of evaluate with a column of their own."""
STAGES = ("model", "calibrate", "precision", "search", "recover", "evaluate", "explain")
EXPLAIN = ("alone", "advice")


def in_own_process(make: Callable[[Size, Path, bool], Any], size: Size, path: Path, outside: bool) -> None:
    """Draw a model in a process of its own, whose memory does not count as the run's."""
    process = get_context("spawn").Process(target=make, args=(size, path, outside))
    process.start()
    process.join()
    if process.exitcode:
        raise RuntimeError(f"drawing the model ended with {process.exitcode}")


def drawn(size: Size, pictures: bool, outside: bool, folder: Path, counts: Counts) -> Case:
    """Return a transformer with drawn weights and samples; `outside`: weights in a data file."""
    path = folder / "drawn.onnx"
    in_own_process(picture_encoder if pictures else text_encoder, size, path, outside)
    return Case(path, *samples(size, (counts.calibrate, counts.search, counts.evaluate), pictures), None, "drawn")


def drawn_decoder(size: Size, outside: bool, folder: Path, counts: Counts) -> Case:
    """Return a decoder with drawn weights and samples from empty caches."""
    path = folder / "drawn.onnx"
    in_own_process(text_decoder, size, path, outside)
    return Case(path, *samples(size, (counts.calibrate, counts.search, counts.evaluate), places=True), None, "drawn")


def makers_of(given: argparse.Namespace) -> dict[str, Make]:
    """Return how each case is made; those of many bytes run only by name."""
    encoder = Size(given.layers, given.width, HEADS, TOKENS)
    return {
        **cases(given.more),
        "transformer": partial(drawn, encoder, False, False),
        "bert_base": partial(drawn, BERT_BASE, False, False),
        "vit_base": partial(drawn, VIT_BASE, True, False),
        "decoder_100m": partial(drawn_decoder, DECODER, False),
        "decoder_1gb": partial(drawn_decoder, LARGE_DECODER, True),
        "transformer_1300mb": partial(drawn, LARGE, False, True),
    }


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
    times = f"{found['seconds']:.0f} | {found['worked']:.0f}"
    memory = f"{found['peak_mb']:.0f} | {effort['estimated_peak_mb']:.0f}"
    sums = f"{times} | {memory} | {once:.2f} | {effort['passes']:.1f}"
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
    common = [*numbers, f"--effort={given.effort}", *([f"--more={given.more}"] if given.more else [])]
    for name in names:
        for device in devices:
            yield name, device, measured([*common, "--cases", name, "--devices", device])


def main(arguments: Sequence[str]) -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", default=["digits*", "cifar10_resnet20", "kws_*", "ad_*", "vww_*",
                                                       "imagenet_efficientnet_lite0", "transformer"])  # fmt: skip
    parser.add_argument("--devices", nargs="+", default=["ort_cpu", "vta"])
    parser.add_argument("--more", type=Path, help="list of other models, as benchmarks/packages.py writes it")
    parser.add_argument("--effort", default="default")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--calibrate", type=int, default=64)
    parser.add_argument("--search", type=int, default=32)
    parser.add_argument("--evaluate", type=int, default=128)
    parser.add_argument("--shared", action="store_true", help="note that other programs ran on the machine")
    parser.add_argument("--own", action="store_true", help="leave onnxruntime's own tools out")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    makers = makers_of(given)
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
    sums = ["model", "device", "s", "s of all cores", "peak MiB", "estimated", "float pass s", "passes"]
    print(f"| {' | '.join((*sums, *columns, 'dB', 'differing'))} |")
    print("|---" * (10 + len(columns)) + "|")
    for name, device, found in runs(given, names, given.devices):
        print(row(name, device, found), flush=True)
    if given.own:
        return
    print("\n## onnxruntime's own tools\n\n| model | form | s | s of all cores | peak MiB | dB |")
    print("|---|---|---|---|---|---|")
    for name, form, found in runs(given, names, ("static", "dynamic")):
        print(other(name, form, found), flush=True)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except Absent as error:
        sys.exit(str(error))
