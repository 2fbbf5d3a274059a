"""Results of the default line for twelve models on ten devices.

A cell has accuracy or SQNR as deployed, size, nodes in float and seconds. It is one command line of run.py with nothing
but the model, its samples and the device. A line of results/gallery.jsonl is written as soon as a cell is done, so an
interrupted measurement resumes. A cell that was measured with the same command and the same sources is not measured
again. Cells that were not measured are empty.

Models of the zoo without samples of their own run on random inputs, which show SQNR and no accuracy.

    python benchmarks/gallery.py [--models GLOB ...] [--devices GLOB ...] [--minutes M] [--work FOLDER]
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shlex
import subprocess
import sys
import time
from collections import Counter
from dataclasses import asdict, dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
sys.path.insert(0, str(ROOT))  # the checkout that is measured is that of this file

import numpy as np  # noqa: E402
import onnx  # noqa: E402
from machine import processor  # noqa: E402

DEVICES = (
    "ort_cpu", "openvino_x86", "tensorrt", "tflite_int8", "qnn_htp", "cmsis_nn", "ethos_u", "vitis_dpu", "vta",
    "fpga_shift",
)  # fmt: skip
CIFAR = (
    "dataset=npz dataset.calibrate.path=$QUANTPIPE_ZOO/data/cifar10_calib.npz "
    "dataset.evaluate.path=$QUANTPIPE_ZOO/data/cifar10_val.npz"
)
NORMAL = (
    "dataset.preprocess.scale=1/255 dataset.preprocess.mean=[0.485,0.456,0.406] "
    "dataset.preprocess.std=[0.229,0.224,0.225]"
)
IMAGENET = (
    "dataset=image_folder dataset.calibrate.path=$QUANTPIPE_ZOO/data/imagenet/calib "
    "dataset.evaluate.path=$QUANTPIPE_ZOO/data/imagenet/val dataset.labels=$QUANTPIPE_ZOO/data/imagenet/labels.csv "
    "dataset.preprocess.mean=127 dataset.preprocess.std=128 dataset.preprocess.size=[224,224]"
)
RANDOM = "dataset=npz dataset.path=$WORK/{name}.npz"
ZOO = "model.path=$QUANTPIPE_ZOO/models/{name}.onnx"
MODELS = {
    "digits": "",
    "digits_vit": "model=digits_vit",
    "digits_vit_masked": "model=digits_vit_masked dataset=digits_columns",
    "digits_detect": "model=digits_detect dataset=digits_detect",
    "cifar10_resnet8_mlperf": f"{ZOO} {CIFAR} dataset.preprocess.layout=NHWC",
    "cifar10_resnet20": f"{ZOO} {CIFAR} {NORMAL}",
    "cifar10_resnet20_bn": f"{ZOO} {CIFAR} {NORMAL}",
    "ad_autoencoder": f"{ZOO} {RANDOM}",
    "kws_dscnn": f"{ZOO} {RANDOM}",
    "vww_mobilenet_v1_025": f"{ZOO} {RANDOM}",
    "imagenet_efficientnet_lite0": f"{ZOO} {IMAGENET}",
    "imagenet_efficientnet_lite0_bn": f"{ZOO} {IMAGENET}",
}
"""Model -> what the command line has besides the device."""
SECONDS = 1800
SAMPLES = 192
"""Random samples of a model without samples of its own."""


@dataclass(frozen=True)
class Cell:
    """One measured cell.

    `problem`: the error's paragraph, where the run ended with one. `load`: the machine's load average before the
    run.
    """

    model: str
    device: str
    command: str
    sources: str
    seconds: float
    float_top1: float | None = None
    top1: float | None = None
    sqnr_db: float | None = None
    bytes: int | None = None
    float_nodes: int | None = None
    integer_nodes: int | None = None
    differing: int | None = None
    problem: str | None = None
    load: float = 0.0
    processor: str = ""


def command(model: str, device: str) -> str:
    """The command line of a cell, as a user types it."""
    return " ".join(["python run.py", MODELS[model].format(name=model), f"hardware={device}"]).replace("  ", " ")


def sources() -> str:
    """A digest of what decides the results: the package and its configuration."""
    found = hashlib.sha256()
    for folder, kind in (("quantpipe", "*.py"), ("conf", "*.yaml")):
        for path in sorted((ROOT / folder).rglob(kind)):
            found.update(path.read_bytes())
    return found.hexdigest()[:16]


def random_samples(model: str, folder: Path) -> None:
    """Write random inputs of a model of the zoo into a file, the same ones every time."""
    path = folder / f"{model}.npz"
    if path.exists():
        return
    graph = onnx.load(Path(os.environ["QUANTPIPE_ZOO"]) / "models" / f"{model}.onnx", load_external_data=False).graph
    rng, arrays = np.random.default_rng(0), {}
    for port in graph.input:
        shape = [d.dim_value or 1 for d in port.type.tensor_type.shape.dim][1:]
        arrays["images" if len(graph.input) == 1 else port.name] = rng.standard_normal((SAMPLES, *shape), np.float32)
    np.savez(path, **arrays)


def measured(model: str, device: str, folder: Path, made: str) -> Cell:
    """Run a cell's command, and return what its report has."""
    if "$WORK" in MODELS[model].replace("{name}", ""):
        random_samples(model, folder)
    line = command(model, device)
    run = folder / f"{model}-{device}"
    words = shlex.split(os.path.expandvars(line.replace("$WORK", str(folder))))[2:]
    load, begun = os.getloadavg()[0], time.perf_counter()
    done = subprocess.run(
        [sys.executable, str(ROOT / "run.py"), *words, "tracking=none", "-q", f"hydra.run.dir={run}"],
        capture_output=True, text=True, check=False, timeout=SECONDS,
    )  # fmt: skip
    seconds = time.perf_counter() - begun
    report_file = run / "evaluate" / "report.json"
    if not report_file.is_file():
        last = (done.stderr.strip().splitlines() or ["no report"])[-1]
        return Cell(model, device, line, made, seconds, problem=last[:200], load=load, processor=processor())
    report: dict[str, Any] = json.loads(report_file.read_text(encoding="utf-8"))
    metrics = report["metrics"]
    return Cell(
        model, device, line, made, seconds,
        float_top1=metrics["float"].get("top1"), top1=metrics["realized"].get("top1"),
        sqnr_db=metrics["realized"].get("sqnr_db"), bytes=report["model"]["realized_bytes"],
        float_nodes=report["model"]["float_nodes"], integer_nodes=report["model"]["integer_nodes"],
        differing=report["agreement"]["differing"], load=load, processor=processor(),
    )  # fmt: skip


def known(path: Path) -> dict[tuple[str, str], Cell]:
    """The cells of an earlier measurement; the last line of a cell counts."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    cells = [Cell(**json.loads(line)) for line in lines]
    return {(cell.model, cell.device): cell for cell in cells}


def shown(cell: Cell | None) -> str:
    """A cell of the table: accuracy or SQNR as deployed, size, nodes in float, seconds."""
    if cell is None:
        return ""
    if cell.problem is not None:
        return "no result"
    quality = (
        f"{cell.top1:.4f}" if cell.top1 is not None else "exact" if cell.sqnr_db is None else f"{cell.sqnr_db:.1f} dB"
    )
    size = f"{(cell.bytes or 0) / 1000:,.0f} kB"
    return f"{quality}, {size}, {cell.float_nodes} float, {cell.seconds:.0f} s"


def markdown(cells: dict[tuple[str, str], Cell], made: str) -> str:
    """The page: a row per model, a column per device, then the command of each cell."""
    done = [cell for cell in cells.values() if cell.model in MODELS and cell.device in DEVICES]
    older = sum(cell.sources != made for cell in done)
    loads = [cell.load for cell in done] or [0.0]
    low, high = min(loads), max(loads)
    counts = Counter(cell.processor for cell in done)
    machines = " and ".join(f"{name} (cells: {count})" for name, count in counts.items())
    lines = [
        "# Gallery",
        "",
        f"Results of the default command line on {machines}. {len(done)} of {len(MODELS) * len(DEVICES)} cells are "
        f"measured; empty cells are not.{f' {older} cells are of earlier sources.' if older else ''} "
        "A cell has top-1 accuracy of the written file (without labels the SQNR to float), the size of the file, the "
        "nodes that stay in float, and the seconds of the whole run.",
        "",
        f"Seconds are of {os.cpu_count()} cores that other work shared: the load average was {low:.1f} to {high:.1f}.",
        "",
        "Models marked with * ran on random inputs. `python benchmarks/gallery.py` measures the cells and resumes.",
        "",
        "| model | float | " + " | ".join(DEVICES) + " |",
        "|---|---|" + "---|" * len(DEVICES),
    ]
    for model in MODELS:
        row = [cells.get((model, device)) for device in DEVICES]
        reference = next((c.float_top1 for c in row if c is not None and c.float_top1 is not None), None)
        mark = "*" if "$WORK" in MODELS[model] else ""
        lines.append(
            f"| {model}{mark} | {'' if reference is None else f'{reference:.4f}'} | "
            + " | ".join(map(shown, row))
            + " |"
        )
    differing = [cell for cell in done if cell.differing]
    lines += ["", f"Elements that differ between simulation and file: {sum(c.differing or 0 for c in differing)}."]
    wrong = [cell for cell in done if cell.problem]
    lines += ["", "## No result", "", *(f"- {c.model} on {c.device}: {c.problem}" for c in wrong)] if wrong else []
    lines += ["", "## Commands", "", "Add `hydra.run.dir=FOLDER` to keep a run. `$WORK` is the folder of `--work`.", ""]
    for model in MODELS:
        lines += [f"- {model}: `{command(model, 'DEVICE')}`"]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", default=["*"])
    parser.add_argument("--devices", nargs="*", default=["*"])
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("--work", type=Path, default=ROOT / "outputs" / "gallery")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    log, made, begun = RESULTS / "gallery.jsonl", sources(), time.monotonic()
    cells = known(log)
    for model in (m for m in MODELS if any(fnmatch(m, glob) for glob in options.models)):
        for device in (d for d in DEVICES if any(fnmatch(d, glob) for glob in options.devices)):
            cell = cells.get((model, device))
            if cell is not None and (cell.sources, cell.command) == (made, command(model, device)):
                continue
            if time.monotonic() - begun > 60 * options.minutes:
                break
            cells[model, device] = cell = measured(model, device, options.work.resolve(), made)
            with log.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(cell)) + "\n")
            print(f"{model} {device}: {shown(cell)} {cell.problem or ''}", flush=True)
            (RESULTS / "gallery.md").write_text(markdown(cells, made), encoding="utf-8")
    (RESULTS / "gallery.md").write_text(markdown(cells, made), encoding="utf-8")


if __name__ == "__main__":
    main()
