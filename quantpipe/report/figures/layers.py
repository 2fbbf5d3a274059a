"""Errors and costs of tensors: along the depth, and as bars of those that matter most."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from quantpipe.report.figures.canvas import BAD, MARK, QUIET, WIDE, Canvas, shortened
from quantpipe.types.figures import HistogramFigure, StageErrors

SHOWN = 24
"""Bars of the worst tensors."""


def along_depth(layers: Sequence[Mapping[str, Any]], stages: Sequence[StageErrors] = ()) -> str:
    """Return a figure of the error from the first tensor to the last, after each stage that recorded errors.

    `layers` are rows of the report, in the order of the model.
    """
    last = [(n, row["sqnr_db"]) for n, row in enumerate(layers, 1) if row.get("sqnr_db") is not None]
    alone = [(n, _decibel(row)) for n, row in enumerate(layers, 1) if _decibel(row) is not None]
    lines = [("each tensor rounded alone", alone, QUIET, ":")]
    for stage in stages:
        known = stage["sqnr_db"]
        points = [(n, known[row["tensor"]]) for n, row in enumerate(layers, 1) if known.get(row["tensor"]) is not None]
        lines.append((f"after {stage['stage']}", points, WIDE, "--"))
    lines.append(("after recovery: the integer model" if stages else "in the integer model", last, MARK, "-"))
    with Canvas(9, 2.6, "SQNR of each stored tensor in the order of the model") as canvas:
        ax = canvas.axes[0]
        few = len(layers) <= 120
        for name, points, colour, style in lines:
            if points:
                ax.plot(*zip(*points, strict=True), color=colour, label=name, linewidth=1.4, linestyle=style,
                        marker="o" if few else "", markersize=2.5)  # fmt: skip
        ax.xaxis.get_major_locator().set_params(integer=True)
        ax.set_xlabel("stored tensor, in the order of the model")
        ax.set_ylabel("SQNR [dB]")
        if any(points for _, points, *_ in lines):
            ax.legend(fontsize=8, loc="lower left", ncols=len(lines), bbox_to_anchor=(0, 1), borderaxespad=0.2)
        return canvas.svg()


def _decibel(row: Mapping[str, Any]) -> float | None:
    """Return the SQNR of quantizing the float tensor alone, of rounding and saturation together."""
    from math import log10

    noise = (row.get("rounding") or 0.0) + (row.get("saturation") or 0.0)
    return -10.0 * log10(noise) if noise > 0 else None


def bars(layers: Sequence[Mapping[str, Any]], shares: Mapping[str, float]) -> str:
    """Return bars of the tensors with the largest errors of their own: error by kind, bits, share of the cost.

    `layers` are rows of the report, worst first. `shares` maps a tensor to its kernel's share of the device's cycles;
    it may be empty.
    """
    rows = sorted(layers, key=lambda r: -((r.get("rounding") or 0.0) + (r.get("saturation") or 0.0)))[:SHOWN]
    names, at = [shortened(str(row["tensor"])) for row in rows], range(len(rows))
    panels = 3 if shares else 2
    with Canvas(9, 0.7 + 0.17 * len(rows), "The tensors with the largest errors of their own", panels) as canvas:
        canvas.figure.clear()
        axes = canvas.figure.subplots(1, panels, sharey=True, width_ratios=[4, 1, 2][:panels])
        error, bits = axes[0], axes[1]
        rounding = [100 * (row.get("rounding") or 0.0) for row in rows]
        error.barh(at, rounding, color=MARK, label="rounding")
        clipped = [100 * (row.get("saturation") or 0.0) for row in rows]
        error.barh(at, clipped, left=rounding, color=BAD, label="clipping")
        error.set_yticks(at, names)
        error.invert_yaxis()
        error.set_xlabel("error alone [% of the tensor's power]")
        error.legend(fontsize=8, loc="lower right")
        bits.barh(at, [row.get("bits") or 0 for row in rows], color=QUIET)
        most = max([row.get("bits") or 0 for row in rows], default=0)
        bits.set_xticks([0, 4, 8] if most <= 8 else [0, 8, 16] if most <= 16 else [0, 16, 32])
        bits.set_xlabel("bits")
        if shares:
            axes[2].barh(at, [100 * shares.get(str(row["tensor"]), 0.0) for row in rows], color=QUIET)
            axes[2].set_xlabel("share of the cycles [%]")
            axes[2].locator_params(axis="x", nbins=3)  # small shares have long numbers
        canvas.figure.subplots_adjust(wspace=0.14)
        return canvas.svg()


def histogram(found: HistogramFigure) -> str:
    """Return a figure of a tensor's calibration data, its range, and the width of a code."""
    import numpy as np

    counts = np.array(found["counts"], float)
    edges = np.linspace(found["low"], found["high"], len(counts) + 1)
    share = 100 * counts / max(counts.sum(), 1.0)
    with Canvas(4.3, 1.9, f"Histogram of {found['tensor']} with its range") as canvas:
        ax = canvas.axes[0]
        ax.stairs(share, edges, fill=True, color=QUIET, alpha=0.55, baseline=1e-6)
        ax.set_yscale("log")
        ax.yaxis.set_major_formatter("{x:g}")  # powers as formulas and lines between decades are slow, and say less
        ax.minorticks_off()
        ax.set_ylim(bottom=max(1e-5, float(share[share > 0].min()) / 2) if (share > 0).any() else 1e-5)
        ax.axvspan(found["clip_low"], found["clip_high"], color=MARK, alpha=0.15)
        for end in (found["clip_low"], found["clip_high"]):
            ax.axvline(end, color=MARK, linewidth=1)
        low, high = min(found["low"], found["clip_low"]), max(found["high"], found["clip_high"])
        pad = 0.03 * (high - low or 1.0)
        ax.set_xlim(low - pad, high + pad)
        codes = round((found["clip_high"] - found["clip_low"]) / found["scale"]) + 1
        ax.set_xlabel(f"value (real units; {codes} codes, {found['scale']:.3g} apart)", size=8)
        ax.set_ylabel("elements [%]", size=8)
        outside = f", {100 * found['saturated']:.3g} % outside" if found["saturated"] else ""
        ax.set_title(f"{shortened(found['tensor'], 40)}: {found['bits']} bits{outside}", size=8, loc="left")
        return canvas.svg()
