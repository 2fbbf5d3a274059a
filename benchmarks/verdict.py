"""What the rows of benchmarks/models.py say: the table, and per model whether it is as good as onnxruntime's best."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

BEHIND_DB = 0.5
NOISE = 1.05
"""A latency is no more than another one if it is below that by this factor: medians of runs differ that much."""
WAYS = ("ours", "static", "dynamic")
ABOUT_SAMPLES = (" has only ", " has fewer ", "copies")
"""Parts of warnings that speak of the samples, not of the result."""

Row = Mapping[str, Any]


def least(way: Row) -> float:
    """The SQNR of the worst output, dB; minus infinity where there is none."""
    return min(way["sqnr"].values()) if "sqnr" in way else -math.inf


def telling(way: Row) -> list[str]:
    """Warnings about the result."""
    return [w for w in way.get("warnings", ()) if not any(part in w for part in ABOUT_SAMPLES)]


def rival(row: Row) -> str | None:
    """The better of onnxruntime's two, by the worst output, of those that take no more time than the result.

    A form that takes several times as long (dynamic ranges of convolutions) is nobody's alternative.
    """
    ran = [name for name in ("static", "dynamic") if "sqnr" in row.get(name, {})]
    ran = [name for name in ran if row[name]["latency"] <= NOISE * row["ours"]["latency"]]
    return max(ran, key=lambda name: least(row[name])) if ran else None


def verdict(row: Row) -> str:
    """`as good`, `warned (…)`, or what is behind."""
    if "absent" in row:
        return "not there"
    if "failed" in row or "sqnr" not in row.get("ours", {}):
        return "failed"
    ours, other = row["ours"], rival(row)
    if other is None:
        return "as good"
    behind = []
    gaps = {o: value - ours["sqnr"][o] for o, value in row[other]["sqnr"].items() if value > ours["sqnr"][o]}
    output, gap = max(gaps.items(), key=lambda item: item[1], default=("", 0.0))
    if gap > BEHIND_DB:
        place = f" at {output}" if len(ours["sqnr"]) > 1 else ""
        behind.append(f"{gap:.1f} dB behind {other}{place}, which takes {row[other]['latency']:.2f} of float's time")
    near = all(value >= ours["sqnr"][o] - BEHIND_DB for o, value in row[other]["sqnr"].items())
    if near and ours["latency"] > NOISE * row[other]["latency"]:
        behind.append(f"slower than {other}, {ours['latency']:.2f} against {row[other]['latency']:.2f}")
    if not behind:
        return "as good"
    said = "; ".join(behind)
    return f"warned ({said})" if telling(ours) else f"**{said}**"


def markdown(rows: Mapping[str, Row], state: str, where: str) -> str:
    return "\n".join(_lines(rows, state, where)) + "\n"


def _lines(rows: Mapping[str, Row], state: str, where: str) -> Iterator[str]:
    settings = next(iter(rows.values()))["settings"] if rows else ""
    yield "# Real models by default settings, hardware=ort_cpu\n"
    yield (
        f"{where}, {settings}; one thread. benchmarks/models.py says what is measured and what the verdict means. Each "
        "cell: SQNR of the worst output in dB, latency as a ratio to float, size as a ratio to float; with labels, how "
        "many of the samples are right.\n"
    )
    verdicts = {name: verdict(row) for name, row in rows.items()}
    measured = [v for name, v in verdicts.items() if v != "not there"]
    good, warned = measured.count("as good"), sum(v.startswith("warned") for v in measured)
    yield f"{good} of {len(measured)} as good, {warned} behind and warned, {len(measured) - good - warned} without.\n"
    if any(row["sources"] != state for row in rows.values()):
        yield "A row with * was measured with other sources than the last ones.\n"
    heads = (
        "model",
        "data",
        "float",
        "quantpipe",
        "onnxruntime static",
        "onnxruntime dynamic",
        "warnings",
        "verdict",
        "processor",
    )
    yield f"| {' | '.join(heads)} |"
    yield "|---" * len(heads) + "|"
    for name, row in rows.items():
        star = "" if row["sources"] == state else " *"
        if "absent" in row or "failed" in row:
            text = row.get("absent") or row.get("failed", "")
            yield f"| {name}{star} | {_text(text, 200)} | | | | | | {verdicts[name]} | |"
            continue
        real = f"{row['float']['ms']:.3g} ms, {row['float_bytes'] / 1e3:.0f} kB{_right(row['float'], row)}"
        cells = [row["data"], real, *(_cell(row, way) for way in WAYS), _said(row["ours"]), verdicts[name]]
        cells.append(row.get("processor", "not recorded"))
        yield f"| {name}{star} | {' | '.join(cells)} |"
    yield from _losses(rows)


def _right(way: Row, row: Row) -> str:
    return f", {way['right']}/{row['samples'][2]}" if "right" in way else ""


def _cell(row: Row, name: str) -> str:
    way = row[name]
    if "failed" in way:
        return "failed: " + _text(way["failed"], 90)
    size = way["bytes"] / row["float_bytes"]
    return f"{_db(least(way))}, {way['latency']:.3f}, {size:.2f}{_right(way, row)}"


def _db(value: float) -> str:
    return f"{value:.1f} dB" if math.isfinite(value) else ("equal" if value > 0 else "not finite")


def _said(way: Row) -> str:
    """Number of warnings about the result, and the first sentence of the first."""
    found = telling(way)
    return f"{len(found)}: {_text(found[0].split('; ')[0].split('. ')[0], 160)}" if found else "0"


def _text(text: str, length: int) -> str:
    flat = " ".join(text.split()).replace("|", "/")
    return flat if len(flat) <= length else flat[: length - 1] + "…"


def _losses(rows: Mapping[str, Row]) -> Iterator[str]:
    yield "\n## Outputs, and where precision goes\n"
    yield (
        "SQNR per output (dB): quantpipe, static, dynamic. Tensors: those of the report's table with the greatest "
        "error of their own, as SQNR of quantizing them alone, and the share of it that is saturation. Leaps: tensors "
        "at which the error that has built up leaps, SQNR before and after. A tensor that holds a mask shows no error "
        "of its own: it is the mask's values that count in its mean square.\n"
    )
    yield "| model | outputs | tensors | leaps | nodes integer / float | seconds |"
    yield "|---|---|---|---|---|---|"
    for name, row in rows.items():
        ours = row.get("ours", {})
        if "sqnr" not in ours:
            continue
        ways = [row[way].get("sqnr", {}) for way in WAYS]
        outputs = "; ".join(
            f"`{o}` " + ", ".join(_db(w[o]).removesuffix(" dB") if o in w else "–" for w in ways) for o in ours["sqnr"]
        )
        tensors = "; ".join(_tensor(entry) for entry in ours["lost"])
        leaps = "; ".join(f"`{e['tensor']}` {e['before']:.1f} → {e['sqnr_db']:.1f}" for e in ours.get("falls", ()))
        counts = f"{ours['integer_nodes']} / {ours['float_nodes']}"
        yield f"| {name} | {outputs} | {tensors} | {leaps} | {counts} | {ours['seconds']:.1f} |"


def _tensor(entry: Row) -> str:
    own = entry["rounding"] + entry["saturation"]
    if own <= 0:
        return f"`{entry['tensor']}` exact"
    return f"`{entry['tensor']}` {-10 * math.log10(own):.1f} ({100 * entry['saturation'] / own:.0f} %)"
