"""The figures of the documents, drawn from committed results and from the program itself.

python -m website.figures      writes docs/figures/*.svg; a test compares the files with what this draws
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import numpy as np
import yaml

from website import svg
from website.pages import ROOT

FOLDER = ROOT / "docs" / "figures"
SHORT = {"cifar10_resnet20": "ResNet-20", "imagenet_efficientnet_lite0": "EfficientNet-Lite0"}


def main() -> None:
    """Write every figure."""
    FOLDER.mkdir(exist_ok=True)
    for name, draw in FIGURES.items():
        (FOLDER / f"{name}.svg").write_text(draw(), encoding="utf-8")


def rows(results: str) -> list[dict[str, str]]:
    """The rows of the first table in a file of results, by the names of the columns."""
    lines = [
        [cell.strip() for cell in line.strip().strip("|").split("|")]
        for line in _first_table((ROOT / "benchmarks" / "results" / f"{results}.md").read_text(encoding="utf-8"))
    ]
    head, body = lines[0], lines[2:]
    return [dict(zip(head, row, strict=True)) for row in body if len(row) == len(head)]


def pipeline() -> str:
    """The stages in their order, with the files that each leaves: those that the README lists."""
    listed = re.findall(r"\b([a-z]+)/([a-z_]+\.[a-z]+)", _listing())
    order = list(dict.fromkeys(stage for stage, _ in listed))
    stages = yaml.safe_load((ROOT / "conf" / "config.yaml").read_text(encoding="utf-8"))["stages"]
    if order != stages:
        raise ValueError(f"README.md lists files of the stages {order}, conf/config.yaml has {stages}")
    room = svg.WIDTH / len(order)
    body = []
    for number, stage in enumerate(order):
        x = number * room
        body.append(
            f'<rect x="{x + 8:.1f}" y="30" width="{room - 24:.1f}" height="34" rx="6" fill="{svg.COLOURS[0]}"/>'
        )
        body.append(svg.text(x + room / 2 - 4, 52, stage, anchor="middle", size=13, colour="white"))
        if number:
            body.append(svg.text(x - 4, 52, "›", anchor="middle", size=18, colour="#555"))
        files = [file for owner, file in listed if owner == stage]
        for row, file in enumerate(files):
            body.append(svg.text(x + room / 2 - 4, 88 + 18 * row, file, anchor="middle", size=11))
    return svg.document(body, "The stages of a run and the files they leave", height=150)


def recovery() -> str:
    """Top-1 before and after recovery, and of the float model."""
    groups: dict[str, Mapping[str, float]] = {}
    for row in rows("recovery"):
        setting = row["setting"].partition(",")[0] if "W4A4, 8" not in row["setting"] else "W4A4, image 8"
        setting = setting.replace(" per tensor", "") + (" 2ⁿ" if "powers of two" in row["setting"] else "")
        label = f"{setting}\n{SHORT[row['model']].replace('EfficientNet-', '')}"
        groups[label] = {"float": _number(row["float top-1"]), "before": _number(row["before"]),
                         "recovered": _number(row["after"])}  # fmt: skip
    return svg.bars(groups, svg.Axis("top-1 on the validation images", 0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1]))


def calibration() -> str:
    """Peak memory of calibration over the number of samples, beside onnxruntime's calibrators."""
    curves: dict[str, list[tuple[float, float]]] = {}
    for row in rows("calibration"):
        if row["peak RSS, MiB"].isdigit():
            way = row["way"].replace("onnxruntime", "ORT").replace("quantpipe, all statistics", "quantpipe")
            curves.setdefault(way, []).append((float(row["samples"]), float(row["peak RSS, MiB"])))
    across = svg.Axis("samples", 28, 600, [32, 128, 512], logarithmic=True)
    ticks = [200, 500, 1000, 2000, 5000, 10000]
    return svg.lines(curves, across, svg.Axis("peak memory, MiB", 150, 10000, ticks, logarithmic=True))


def estimators() -> str:
    """KL of the digits model by estimator, over the bits of its activations."""
    curves: dict[str, list[tuple[float, float]]] = {}
    for row in rows("estimators_digits"):
        if row["bits"].isdigit() and row["threshold"] != "power2_range":
            curves.setdefault(row["threshold"], []).append((float(row["bits"]), float(row["KL"])))
    across = svg.Axis("bits of activations", 3.8, 8.2, [4, 6, 8])
    return svg.lines(curves, across, svg.Axis("KL divergence", 0.001, 3, [0.001, 0.01, 0.1, 1], logarithmic=True))


def schemas() -> str:
    """What three bits make of real numbers in the range [-0.6, 1], by schema, from the program's own arithmetic."""
    from quantpipe.intmath import dequantize, quantize, scale_zero_point
    from quantpipe.types import DType, Range, TensorSchema

    real = np.linspace(-1.3, 1.3, 521)
    curves = {}
    for name in ("symmetric", "asymmetric", "symmetric_with_power2_scale"):
        fields = yaml.safe_load((ROOT / "conf" / "schema" / f"{name}.yaml").read_text(encoding="utf-8"))["activations"]
        scale, zero, low, high = scale_zero_point(Range(-0.6, 1.0), 3, DType.INT8, TensorSchema(**fields))
        kept = dequantize(quantize(real, scale, zero, qmin=low, qmax=high, dtype=DType.INT8), scale, zero)
        curves[name] = [(float(x), float(y)) for x, y in zip(real, kept, strict=True)]
    ticks = [-1, -0.5, 0, 0.5, 1]
    across, up = svg.Axis("real number", -1.3, 1.3, ticks), svg.Axis("what its integer stands for", -1.3, 1.3, ticks)
    return svg.lines(curves, across, up, marked=False)


FIGURES: Mapping[str, Callable[[], str]] = {
    "pipeline": pipeline,
    "recovery": recovery,
    "calibration": calibration,
    "estimators": estimators,
    "schemas": schemas,
}


def _listing() -> str:
    """The list of files in the README's section about results."""
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    found = re.search(r"^## Where the results are\n(?:(?! {4}|## ).*\n)*((?: {4}.*\n)+)", page, re.M)
    if found is None:
        raise ValueError("README.md lists no files under 'Where the results are'")
    return found[1]


def _first_table(page: str) -> list[str]:
    lines = page.splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("|"))
    end = next((number for number, line in enumerate(lines[start:], start) if not line.startswith("|")), len(lines))
    return lines[start:end]


def _number(cell: str) -> float:
    return float(cell.split()[0])


if __name__ == "__main__":
    main()
