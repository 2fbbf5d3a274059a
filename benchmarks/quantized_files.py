"""Files that other tools have quantized: what is imported of them, and how far their integers are ours.

    python benchmarks/quantized_files.py FOLDER --make onnxruntime=PYTHON --make nncf=PYTHON ...   # makes the files
    python benchmarks/quantized_files.py FOLDER --measure                                       # goes on where it was
    python benchmarks/quantized_files.py FOLDER > benchmarks/results/quantized_files.md            # the table

FOLDER gets the float models of the package (the digits net and the digits transformer), the digits, and the files of
`benchmarks/quantized_makers.py`, made by a Python in which the tool is installed. Each file is then imported for
onnxruntime, for a device of shifts (vta) and for one of fixed-point multipliers (tflite_int8). What is written for vta
in QONNX is imported for vta again.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from sklearn.datasets import load_digits

import quantpipe

ASSETS = Path(quantpipe.__file__).parent / "assets"
MODELS = ("digits", "digits_vit")
HOME, DEVICES = "ort_cpu", ("vta", "tflite_int8")
WRITTEN = "vta"
"""The device whose QONNX says exactly what runs, and is imported again; another's has real numbers in between."""
SAMPLES = 256
SLOW_SAMPLES = 8
"""What QONNX's own executor runs; it looks a tensor up among all of them in every node."""


def prepare(folder: Path) -> None:
    """Write the float models and the images."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in MODELS:
        shutil.copy(ASSETS / f"{name}.onnx", folder)
    digits = load_digits()
    images = (digits.images / 16).astype(np.float32)[:, None]
    np.savez(folder / "data.npz", calibrate=images[:512], labels=digits.target[:512].astype(np.int64))


def row(path: Path, device: str, data: Path, **given: Any) -> dict[str, Any]:
    """What one run says: of the import, and of the outputs beside the file's."""
    arrays = np.load(data)
    samples = (arrays["calibrate"][:SAMPLES], arrays["labels"][:SAMPLES])
    beside = {"baseline": "none", "explain": "none", "latency_runs": 1}  # nothing of it is asked for
    beside |= {"agreement_samples": SLOW_SAMPLES} if "realize" in given else {}
    options = {"recover": "none", "precision": "none", "executor": "serial", "evaluate": beside, **given}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = quantpipe.quantize(path, samples, device, **options)
    except quantpipe.errors.QuantpipeError as error:
        return {"error": str(error)}
    part = result.report.get("imported")
    if part is None:
        return {"error": "nothing in it is quantized"}
    compared, agreement = part["compared"], result.report["agreement"]
    found: dict[str, Any] = {
        "forms": part["forms"],
        "tensors": part["tensors"],
        "weights": part["weights"],
        "changed": len(part["changed"]),
        "first": part["changed"][0]["reason"] if part["changed"] else "",
        "lost": len(part["lost"]),
        "weight_integers": [part["weight_differing"], part["weight_integers"]],
        "agreement": agreement["differing"],
        "model": str(result.model_path),
        "why_not": part["why_not"],
    }
    if compared is not None:
        found["integers"] = [compared["differing"], compared["elements"]]
        found["real_softmax"] = compared["differing_with_real_softmax"]
        found["sqnr"] = compared["outputs"][0]["sqnr_db"]
    return found


def measure(folder: Path) -> None:
    """Append a line to FOLDER/rows.jsonl for each file and device that has none."""
    log = folder / "rows.jsonl"
    done = (
        {(r["file"], r["device"]) for r in map(json.loads, log.read_text("utf-8").splitlines())} if log.exists() else ()
    )
    files = sorted(p for p in folder.glob("*.onnx") if "." in p.stem)
    work = [(p, device) for device in (HOME, *DEVICES) for p in files]
    for path, device in work:
        if (path.name, device) not in done:
            here = folder / "runs" / f"{path.stem}.{device}"
            shutil.rmtree(here, ignore_errors=True)
            form = {"realize": "qonnx"} if device == WRITTEN else {}
            found = row(path, device, folder / "data.npz", folder=here, **form)
            if device == WRITTEN and "error" not in found:
                found["back"] = row(Path(found["model"]).with_name("model.qonnx.onnx"), WRITTEN, folder / "data.npz")
            shutil.rmtree(here, ignore_errors=True)
            with log.open("a", encoding="utf-8") as lines:
                lines.write(json.dumps({"file": path.name, "device": device, **found}) + "\n")
            print(path.name, device, found.get("error", found.get("integers")), file=sys.stderr)


def text(folder: Path) -> str:
    """The table."""
    rows = [json.loads(line) for line in (folder / "rows.jsonl").read_text("utf-8").splitlines()]
    by_file: dict[str, dict[str, Any]] = {}
    for found in rows:
        by_file.setdefault(found["file"], {})[found["device"]] = found
    lines = [
        "# Files of other tools\n",
        f"`python benchmarks/quantized_files.py FOLDER`; onnxruntime {ort.__version__}. The digits net (ten layers)",
        "and the digits transformer (three blocks) as other tools quantize them; nothing is recovered. On",
        f"{SAMPLES} digits.\n",
        "Integers: how many differ from the file as onnxruntime runs it, of the tensors that are the file's (up to the",
        "shift by 128); in brackets where onnxruntime does not approximate the file's Softmax. Changed: tensors and",
        "weights that the device cannot hold as they are given. SQNR: outputs beside the file's, in dB; *same*: to the",
        "bit. Back: what was written for vta in QONNX, imported for vta again: integers that differ from that file as\n"
        "onnxruntime runs it.\n",
        "| file | forms | tensors / weights | ort_cpu: weights | tensors | changed / lost | SQNR | "
        + " | ".join(f"{d}: changed | SQNR" + " | back" * (d == WRITTEN) for d in DEVICES)
        + " |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    lines += [_line(name, found) for name, found in sorted(by_file.items())]
    refused = {p.stem: p.read_text("utf-8").strip() for p in sorted(folder.glob("*.refused"))}
    refused = {name: said for name, said in refused.items() if "its nets are of its own" not in said}
    lines += ["\nWhat a tool itself did not make:\n", *(f"- {name}: {said}" for name, said in refused.items())]
    return "\n".join(lines)


def _line(name: str, found: dict[str, Any]) -> str:
    home = found.get(HOME, {"error": "not measured"})
    cells = [name.removesuffix(".onnx")]
    if "error" in home:
        cells += [home["error"][:120], *[""] * 5]
    else:
        cells += [", ".join(home["forms"]), f"{home['tensors']} / {home['weights']}", _of(home["weight_integers"])]
        softmax = home.get("real_softmax")
        cells.append((_of(home["integers"]) if "integers" in home else home["why_not"][:60])
                     + ("" if softmax is None else f" ({softmax:,})"))  # fmt: skip
        cells += [f"{home['changed']} / {home['lost']}", _sqnr(home)]
    for device in DEVICES:
        other, back = found.get(device), [""] * (device == WRITTEN)
        if other is None or "error" in other:
            cells += ["–" if other is None else other["error"][:120], "", *back]
            continue
        if device == WRITTEN:
            again = other["back"]
            back = [again["error"][:80] if "error" in again else _of(again.get("integers", [0, 0]))]
        cells += [str(other["changed"]), _sqnr(other), *back]
    return f"| {' | '.join(c.replace('|', '/') for c in cells)} |"


def _of(pair: list[int]) -> str:
    return f"{pair[0]:,} of {pair[1]:,}" if pair[1] else "none to compare"


def _sqnr(found: dict[str, Any]) -> str:
    if "sqnr" not in found:
        return "–"
    return "same" if found["sqnr"] is None else f"{found['sqnr']:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--make", action="append", default=[], metavar="TOOL=PYTHON")
    parser.add_argument("--measure", action="store_true")
    given = parser.parse_args()
    if given.make:
        prepare(given.folder)
    for entry in given.make:
        tool, python = entry.split("=", 1)
        script = Path(__file__).with_name("quantized_makers.py").resolve()
        subprocess.run([python, str(script), tool, str(given.folder.resolve())], check=True, cwd=given.folder)
    if given.measure:
        measure(given.folder)
    if not given.make and not given.measure:
        print(text(given.folder))


if __name__ == "__main__":
    main()
