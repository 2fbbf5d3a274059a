"""Numbers as people read them. Whatever is missing is a dash; whatever is no number is shown as it is."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from quantpipe.types import PrecisionRecord, RecoveryGain, RunReport

DASH = "–"


def number(value: Any, digits: int = 4) -> str:
    """Return four significant digits, thousands grouped: 0.9722, 1,234, 1.2e-07, 10^120."""
    if not is_number(value):
        return _other(value)
    if abs(value) >= 1e15:  # the size of a search space can be beyond what a float holds
        return f"{'-' if value < 0 else ''}{power(math.log10(abs(value)))}"
    if value == int(value) or abs(value) >= 10**digits:
        return f"{value:,.0f}"
    return f"{value:.{digits}g}"


def power(exponent: float) -> str:
    """Return a number beyond what is written out, by its decimal logarithm: 10^412.3."""
    return f"10^{exponent:.1f}"


def count(value: Any) -> str:
    """Return a great count in short: 19.2 G, 300.8 M; below a million every digit."""
    if not is_number(value) or abs(value) < 1e6 or abs(value) >= 1e18:
        return number(value)
    scale, unit = next(pair for pair in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M")) if abs(value) >= pair[0])
    return f"{value / scale:.1f} {unit}"


def percent(value: Any) -> str:
    """Return a share between 0 and 1: 0.9722 is 97.22 %."""
    return f"{100 * value:.2f} %" if is_number(value) else _other(value)


def interval(value: Any) -> str:
    """Return from and to, as shares between 0 and 1: "97.5 – 99.4 %"."""
    ends = value if isinstance(value, list | tuple) and len(value) == 2 else ()
    return f"{100 * ends[0]:.1f} – {100 * ends[1]:.1f} %" if ends and all(map(is_number, ends)) else _other(None)


def decibel(value: Any) -> str:
    """Return a number of decibels as text."""
    return f"{value:.1f} dB" if is_number(value) else _other(value)


def several_outputs(rows: Any) -> list[dict[str, Any]]:
    """Return the rows of a model's outputs, where there are several: of a single one the metrics say all."""
    found = [row for row in rows or () if isinstance(row, dict) and row.get("output") is not None]
    return found if len(found) > 1 or any(_parts(row) for row in found) else []


def squared_error(report: RunReport) -> float | None:
    """Return the realized model's squared error at the output that metrics are about, as a share of its variance.

    The result is None where the output was judged by something else, such as class scores.
    """
    losses = {row["output"]: row.get("kind") for row in _named(mapping(report.get("search")).get("losses"))}
    rows = {row["output"]: row for row in _named(report.get("outputs"))}
    name = mapping(report.get("run")).get("output")
    name = name if isinstance(name, str) else next(iter(rows), None)
    error = rows[name].get("mse") if name in rows and losses.get(name) == "mse" else None
    return error if is_number(error) else None


FOUND = (
    ("detections", "detections, AP compared with float"),
    ("map", "mAP 0.5:0.95, labels"),
    ("map50", "mAP 0.5, labels"),
)


def detections(report: RunReport) -> list[tuple[str, list[str]]]:
    """Return rows of what float, simulated and realized model find, where they are detectors: label and cells."""
    models = mapping(report.get("metrics"))
    columns = [mapping(models.get(name)) for name in ("float", "simulated", "realized")]
    rows = [(label, [percent(column.get(key)) for column in columns]) for key, label in FOUND]
    return [(label, cells) for label, cells in rows if any(cell != DASH for cell in cells)]


GROUPS_SHOWN = 12
"""Groups of samples on the page, at most."""


def groups(part: Any) -> list[dict[str, Any]]:
    """Return the groups of samples that lose most, the marked ones first, each next to its whole output."""
    found = [row for row in mapping(part).get("rows") or () if isinstance(row, dict) and row.get("by")]
    some = [row for row in found if row["by"] != "all" and row.get("judged")]
    some.sort(key=lambda row: (not row.get("worse"), _group_loss(row)))
    outputs = [row for row in found if row["by"] == "all"]
    keys = ("output", "by", "group", "samples", "sqnr_db", "kl", "equal")
    return [{key: row[key] for key in keys if key in row} for row in (*outputs, *some[:GROUPS_SHOWN])] if some else []


def _group_loss(row: Mapping[str, Any]) -> float:
    """Return how little is left: the SQNR, or the share of equal answers."""
    known: list[Any] = [row.get("sqnr_db"), row.get("equal"), -row["kl"] if is_number(row.get("kl")) else None]
    return next((float(value) for value in known if is_number(value)), math.inf)


def _named(rows: Any) -> list[dict[str, Any]]:
    """Return rows of outputs."""
    found = rows if isinstance(rows, list | tuple) else ()
    return [row for row in found if isinstance(row, dict) and isinstance(row.get("output"), str)]


def mapping(part: Any) -> Mapping[str, Any]:
    """Return a mapping as it is, and an empty one for anything else."""
    return part if isinstance(part, Mapping) else {}


def nearness(row: dict[str, Any]) -> str:
    """Return an output's SQNR and cosine; of integers, the share of equal ones; of maps, classes and keypoints."""
    if (fitting := map_figures(row)) is not None:
        return fitting
    whole = f"{decibel(row.get('sqnr_db'))}, cosine {number(row.get('cosine'))}"
    parts = [f"{part.get('tensor')} {decibel(part.get('sqnr_db'))}" for part in _parts(row)]
    return f"{whole} ({', '.join(parts)})" if parts else whole


def map_figures(row: Mapping[str, Any]) -> str | None:
    """Return the figures that fit an output of class numbers, class maps or heat maps; None for any other."""
    said = []
    if is_number(row.get("equal")):
        said.append(f"{percent(row['equal'])} equal")
    if is_number(row.get("miou")):
        said.append(f"mIoU {percent(row['miou'])}")
    if is_number(row.get("pixels")):
        said.append(f"keypoints {number(row['pixels'], 3)} pixels off, 95 % within {number(row.get('pixels_95'), 3)}")
    if said and is_number(row.get("sqnr_db")):
        said.append(decibel(row["sqnr_db"]))
    return ", ".join(said) or None


def main_map(report: RunReport) -> str | None:
    """Return `map_figures` of the output that metrics are about, in place of its divergence."""
    rows = {row["output"]: row for row in _named(report.get("outputs"))}
    name = mapping(report.get("run")).get("output")
    row = rows.get(name if isinstance(name, str) else next(iter(rows), ""))
    return None if row is None else map_figures(row)


def _parts(row: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return rows of the parts of an output."""
    found = row.get("parts")
    return [part for part in found if isinstance(part, Mapping)] if isinstance(found, list | tuple) else []


def size(value: Any) -> str:
    """Return bytes in the largest fitting unit (powers of 1000)."""
    if not is_number(value):
        return _other(value)
    for unit in ("B", "kB", "MB", "GB"):
        if abs(value) < 1000 or unit == "GB":
            break
        value /= 1000
    return f"{value:.0f} B" if unit == "B" else f"{value:.1f} {unit}"


def seconds(value: Any) -> str:
    """Return a time as text, in seconds, minutes or hours."""
    if not is_number(value):
        return _other(value)
    if value < 120:
        return f"{value:.2f} s" if value < 10 else f"{value:.0f} s"
    minutes = round(value / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


def milliseconds(value: Any) -> str:
    """Return a number of milliseconds as text."""
    return f"{value:.3g} ms" if is_number(value) else _other(value)


def yes(value: Any) -> str:
    """Return a truth value as `yes` or `no`."""
    return ("yes" if value else "no") if isinstance(value, bool) else _other(value)


def times(value: Any, base: Any, less: str, more: str) -> str:
    """Return how many times `value` is smaller or larger than `base`, such as "3.9x smaller".

    `less` and `more` are the words for a smaller and a larger number.
    """
    if not (is_number(value) and is_number(base)) or value <= 0 or base <= 0:
        return DASH
    factor = base / value
    if 0.995 < factor < 1.005:
        return "the same"
    return f"{factor:.2f}× {less}" if factor > 1 else f"{1 / factor:.2f}× {more}"


def tables(rows: Any) -> str | None:
    """Return in one line the effect of look-up tables in integers; None without such tables."""
    found = [row for row in rows or () if isinstance(row, dict)]
    if not found:
        return None
    before, after = (sum(row.get(key) or 0 for row in found) for key in ("float_bytes", "bytes"))
    known = [row["sqnr_db"] for row in found if is_number(row.get("sqnr_db"))]
    worst = f", SQNR {'from ' if len(known) > 1 else ''}{decibel(min(known))}" if known else ""
    bits = " and ".join(sorted({str(row.get("bits")) for row in found}))
    what = f"{len(found)} tables" if len(found) > 1 else "1 table"
    return f"{what} of rows in {bits} bits: {size(before)} -> {size(after)}{worst}"


def forms(rows: Any) -> str | None:
    """Return how several forms of one plan compare with the simulated model, in one line; None where there is one."""
    compared = [row for row in rows or () if isinstance(row, dict) and is_number(row.get("differing"))]
    if len(compared) < 2:
        return None
    exact = [row for row in compared if row.get("exact")]
    wrong = [row for row in exact if row["differing"]]
    names = ", ".join(str(row.get("form")) for row in exact)
    head = f"forms compared on {number(min(row.get('samples') or 0 for row in compared))} samples: {names}"
    told = "; ".join(f"{row.get('form')}: {_share(row)} differ" for row in wrong)
    others = "".join(f"; {row.get('form')} in float: {_share(row)} differ" for row in compared if not row.get("exact"))
    return f"{head}: {told or '0 differing in all of them'}{others}"


def form_line(row: Mapping[str, Any]) -> str:
    """Return one form of a plan in a line: its file, size and time."""
    facts = row.get("facts")
    known = [f"{key.replace('_', ' ')} {_fact(key, value)}" for key, value in (facts or {}).items()]
    parts = [size(row.get("bytes")), f"written in {seconds(row.get('seconds'))}", *known]
    if is_number(row.get("latency_ms")):
        parts.append(f"{milliseconds(row['latency_ms'])} a sample")
    return f"{row.get('file')}: {', '.join(parts)}"


def _fact(key: str, value: Any) -> str:
    return size(value) if key.endswith("bytes") else str(value)


def _share(row: Mapping[str, Any]) -> str:
    return f"{number(row.get('differing'))} of {number(row.get('elements'))}"


def verdict(agreement: Any) -> tuple[str, str]:
    """Return how simulated and realized model agree: ("good" | "bad" | "open", one sentence)."""
    found = agreement if isinstance(agreement, dict) else {}
    elements, differing = found.get("elements"), found.get("differing")
    if not is_number(differing):
        return "open", "Simulated and realized model were not compared"
    if not elements and not differing:
        return "open", "No integer element to compare"
    samples = f" on {number(found['samples'])} samples" if is_number(found.get("samples")) else ""
    sentence = (
        f"{number(differing)} of {number(elements)} elements differ between simulated and realized model{samples}"
    )
    if not differing:
        return "good", sentence + _rounded(found)
    where = f", first in {found['first_tensor']}" if found.get("first_tensor") else ""
    steps = found.get("max_lsb")
    by = f", by at most {number(steps)} integer step{'' if steps == 1 else 's'}" if is_number(steps) else ""
    return "bad", sentence + where + by + _rounded(found)


def _rounded(agreement: dict[str, Any]) -> str:
    """Return the differing elements that are not counted: values that float32 rounds another way."""
    said = []
    for key, where in (("behind_float", "after nodes in float"), ("real_inexact", "of real results of kernels")):
        if is_number(agreement.get(key)) and agreement[key]:
            said.append(f"{number(agreement[key])} {where}")
    return f"; besides, {' and '.join(said)} differ by the rounding of float32" if said else ""


def sessions(agreement: Any, *, decide: bool) -> str | None:
    """Return one sentence about sessions that the realized model was compared in, and what differs in each.

    `decide` selects those that decide, or the others. Without such sessions it returns None.
    """
    found = agreement.get("sessions") if isinstance(agreement, dict) else None
    rows = [row for row in found or () if isinstance(row, dict) and is_number(row.get("differing"))]
    rows = [row for row in rows if bool(row.get("decides", True)) is decide]
    if not rows:
        return None
    total: dict[str, list[str]] = {}
    for row in rows:
        total.setdefault(str(row.get("session")), []).append(_session(row))
    head = "sessions compared: " if decide else "in other sessions, for information: "
    return head + "; ".join(f"{name} {' and '.join(parts)}" for name, parts in total.items())


def how_to_run(report: RunReport) -> str | None:
    """Return how the file is run, and the accuracy of a default session where the file needs another one."""
    deployment = mapping(report.get("deployment"))
    if not deployment.get("sentence"):
        return None
    return f"{deployment['sentence']}{_default_session(report)}"


def _default_session(report: RunReport) -> str:
    """Return what a default session would compute instead; empty where the file needs no other one."""
    found = mapping(mapping(report.get("metrics")).get("default_session"))
    if not found:
        return ""
    top1 = f"top-1 accuracy {percent(found['top1'])}, " if found.get("top1") is not None else ""
    return f"; in a default session: {top1}SQNR {decibel(found.get('sqnr_db'))}"


def capital(sentence: Any) -> str:
    """Return a sentence with a capital letter first; other letters stay."""
    said = str(sentence or "")
    return said[:1].upper() + said[1:]


def _session(row: dict[str, Any]) -> str:
    if row.get("refused"):
        return "cannot load the model"
    if row.get("same_as"):
        return f"runs the kernels of {row['same_as']} on this processor"
    alone = "" if row.get("watched", True) else " of its outputs alone"
    return f"{number(row['differing'])} of {number(row.get('elements'))}{alone}"


def proof(found: Any) -> str | None:
    """Return the proved claims, and how much is checked on samples only; None without a certificate."""
    found = found if isinstance(found, dict) else {}
    proved, kernels = found.get("proved"), found.get("kernels")
    if not (is_number(proved) and is_number(kernels)):
        return None
    sentence = f"proved for all inputs: {number(proved)} of {number(kernels)} kernels"
    left = [
        f"{number(found[key])} {one if found[key] == 1 else many}"
        for key, one, many in (("checked", "kernel", "kernels"), ("float_nodes", "node in float", "nodes in float"))
        if found.get(key)
    ]
    return f"{sentence}; checked on {number(found.get('samples'))} samples: {', '.join(left)}" if left else sentence


def is_number(value: Any) -> bool:
    """Return whether a value is an integer or a finite float."""
    if isinstance(value, bool):
        return False
    return isinstance(value, int) or (isinstance(value, float) and math.isfinite(value))


def _other(value: Any) -> str:
    # jinja2's undefined values print as nothing, and mean the same as None here.
    return DASH if value is None or str(value) == "" else str(value)


def recovery_gain(gain: RecoveryGain) -> str:
    """Return cost and gain of recovery for a missed objective, in words."""
    metric = gain["metric"]
    sign = -1 if metric in ("auto", "kl", "mse") else 1  # losses, whose values are negative
    before, after, least = (number(sign * value) for value in (gain["before"], gain["after"], gain["least_value"]))
    name = "loss" if metric == "auto" else metric
    made = f"{name} from {before} to {after}" if gain["kept"] else f"{name} stays at {before}"
    first, last = gain["accuracy_before"], gain["accuracy_after"]
    points = ""
    if gain["kept"] and metric != "accuracy" and first is not None and last is not None:
        points = f", accuracy from {100 * first:.2f} % to {100 * last:.2f} %"
    return (
        f"{made} ({'objective met' if gain['met'] else 'objective still missed'}, allowed is {least}){points}; "
        f"{gain['seconds']:.1f} s, {gain['evaluations']} evaluations"
    )


def precision(record: PrecisionRecord) -> str:
    """Return in words what was decided before the search."""
    floats, ranges = len(record["float"]), len(record.get("ranges") or ())
    parts = [f"{floats} node{'' if floats == 1 else 's'} in float"] if floats else []
    parts += [f"{ranges} range{'' if ranges == 1 else 's'} whole"] if ranges else []
    raised = len(record.get("raised") or ())
    parts += [f"{raised} tensor{'' if raised == 1 else 's'} with more bits"] if raised else []
    before, after = (_loss(record[key]) for key in ("loss_before", "loss_after"))
    loss, count = f"loss {before}", f"({record['evaluations']} evaluations)"
    if not parts:
        return f"{loss}; no tried change fixes it {count}"
    return f"{', '.join(parts)}: {loss} to {after} {count}"


def _loss(value: float | None) -> str:
    """Return a loss in words; files store no infinite loss."""
    return "infinite" if value is None or not math.isfinite(value) else f"{value:.3g}"
