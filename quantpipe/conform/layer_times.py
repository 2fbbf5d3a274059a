"""Fit what a device's layers take to measured layers: microseconds and nanojoules per unit of work, by kind of kernel.

All figures are at least zero, and errors count as shares of the measured value, so small layers count as much as large
ones. The error is that on layers of networks, or parts of the layers, that the figures were not fitted to.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantpipe.errors import DataError, nearest
from quantpipe.hardware.predictor import AMOUNTS, ANY, QUANTITIES, LayerWork, predicted_layer
from quantpipe.types import LayerFit

Figures = dict[str, dict[str, float]]
UNITS: Mapping[str, Mapping[str, float]] = {
    "latency": {"nanoseconds": 1e-3, "microseconds": 1.0, "milliseconds": 1e3, "seconds": 1e6},
    "energy": {"nanojoules": 1.0, "microjoules": 1e3, "millijoules": 1e6},
}
"""Quantity -> the columns that hold it, and what brings them to microseconds and nanojoules."""
STAGE = "identify"
LEAST_LAYERS = 8
OF_A_KIND = 4
"""Measured layers of a kind from which it has figures of its own."""
SHARE = 0.5
"""Of the rows of a file that must name layers of the run."""
RATES = (1e-2, 1e9)
"""Multiply-accumulates in a microsecond that some device may do."""
ROUNDS = 8
NAMED = 4


@dataclass(frozen=True)
class MeasuredLayer:
    """Hold one layer with the network it is of, its work, and what it took by quantity."""

    network: str
    node: str
    work: LayerWork
    took: Mapping[str, float]


def read_times(path: Path, works: Mapping[str, Mapping[str, LayerWork]]) -> tuple[list[MeasuredLayer], list[str]]:
    """Return the layers of a CSV file with their work, and the names of rows that are no layers.

    `works`: the layers of each network. Columns are `node`, a quantity with its unit (`UNITS`), and `network`, the name
    of a run's folder, where there are several. Several rows of a layer count by their mean. Raises DataError for times
    of other layers, other units, and values that are negative or no numbers.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(line for line in file if not line.startswith("#"))
            rows, columns = list(reader), list(reader.fieldnames or ())
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"cannot be read as a CSV file ({error})", stage=STAGE, where=str(path)) from error
    given = {q: next((c for c in UNITS[q] if c in columns), None) for q in UNITS}
    _refuse_columns(path, columns, given, several=len(works) > 1)
    found: dict[tuple[str, str], dict[str, list[float]]] = {}
    unknown: list[str] = []
    for number, row in enumerate(rows, 2):
        network = (row.get("network") or next(iter(works))).strip() if len(works) > 1 else next(iter(works))
        node = (row["node"] or "").strip()
        if network not in works:
            raise DataError(
                f"has the network {network!r}{nearest(network, works)}; legal are the names of the runs' folders: "
                f"{', '.join(works)}",
                stage=STAGE,
                where=f"{path}, line {number}",
            )
        if node not in works[network]:
            unknown.append(node)
            continue
        for quantity, column in given.items():
            if column is not None:
                value = _value(row[column], column, f"{path}, line {number}") * UNITS[quantity][column]
                found.setdefault((network, node), {}).setdefault(quantity, []).append(value)
    _refuse_others(path, len(rows), unknown, works)
    layers = [
        MeasuredLayer(network, node, works[network][node], {q: float(np.mean(v)) for q, v in took.items()})
        for (network, node), took in found.items()
    ]
    _refuse_units(path, layers, given["latency"])
    return layers, list(dict.fromkeys(unknown))


def _refuse_columns(path: Path, columns: Sequence[str], given: Mapping[str, str | None], *, several: bool) -> None:
    needed = ["node", *(["network"] if several else [])]
    missing = [name for name in needed if name not in columns]
    if not missing and any(given.values()):
        return
    units = ", ".join(unit for quantity in UNITS.values() for unit in quantity)
    raise DataError(
        f"has the columns {', '.join(columns) or 'none'}; needed are {', '.join(needed)}, and one whose name is the "
        f"unit of its values: {units}",
        stage=STAGE,
        where=str(path),
    )


def _value(text: str | None, column: str, where: str) -> float:
    try:
        value = float(text or "")
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise DataError(f"{text!r} in column {column} is no time or energy; legal is a number above 0", where=where)
    return value


def _refuse_others(path: Path, rows: int, unknown: Sequence[str], works: Mapping[str, Mapping[str, LayerWork]]) -> None:
    if rows and len(unknown) <= (1 - SHARE) * rows:
        return
    known = [node for layers in works.values() for node in layers]
    raise DataError(
        f"{len(unknown)} of {rows} rows name no layer of the run, such as {', '.join(unknown[:NAMED]) or 'none'}; its "
        f"layers are {', '.join(known[:NAMED])}, … ({len(known)}). Is it of another model?",
        stage=STAGE,
        where=str(path),
    )


def _refuse_units(path: Path, layers: Sequence[MeasuredLayer], column: str | None) -> None:
    """Reject times that no device takes for so many multiply-accumulates."""
    rates = [one.work.amounts["macs"] / one.took["latency"] for one in layers if one.took.get("latency")]
    rates = [rate for rate in rates if rate > 0]
    if rates and not RATES[0] <= float(np.median(rates)) <= RATES[1]:
        raise DataError(
            f"the column {column} has {np.median(rates):.2g} multiply-accumulates in a microsecond (median), which no "
            f"device does; are the values in another unit? Legal columns are {', '.join(UNITS['latency'])}",
            stage=STAGE,
            where=str(path),
        )


def refuse_total(layers: Sequence[MeasuredLayer], measured_ms: float | None, where: str) -> None:
    """Raise DataError where the layers together take another order of time than the whole network, if that is known."""
    total = sum(one.took.get("latency", 0.0) for one in layers) / 1e3
    if measured_ms and total and not 1 / 30 <= total / measured_ms <= 30:
        raise DataError(
            f"all layers together take {total:.3g} ms, and the run measured {measured_ms:.3g} ms for the whole "
            "network; are the times in another unit?",
            stage=STAGE,
            where=where,
        )


def fit(layers: Sequence[MeasuredLayer], quantity: str) -> Figures:
    """Return what each unit of work takes, by kind; `any` is fitted to all layers."""
    some = [one for one in layers if quantity in one.took]
    by_kind: dict[str, list[MeasuredLayer]] = {}
    for one in some:
        by_kind.setdefault(one.work.kind, []).append(one)
    figures = {kind: _fit(rows, quantity) for kind, rows in by_kind.items() if len(rows) >= OF_A_KIND}
    return {**figures, ANY: _fit(some, quantity)}


def _fit(layers: Sequence[MeasuredLayer], quantity: str) -> dict[str, float]:
    """Return figures of at least zero with minimum relative errors; large errors count less than by their square."""
    from scipy.optimize import nnls

    work = np.array([[one.work.amounts[name] for name in AMOUNTS] for one in layers])
    took = np.array([one.took[quantity] for one in layers])
    scaled: NDArray[np.float64] = work / took[:, None]
    size = scaled.max(axis=0)
    used = size > 0
    weights = np.ones(len(took))
    found = np.zeros(int(used.sum()))
    for _ in range(ROUNDS):
        found = nnls(scaled[:, used] / size[used] * weights[:, None], weights)[0]
        errors = np.abs(scaled[:, used] / size[used] @ found - 1)
        weights = 1 / np.sqrt(np.maximum(errors, 0.02))
    names = [name for name, there in zip(AMOUNTS, used, strict=True) if there]
    return {name: float(value / s) for name, value, s in zip(names, found, size[used], strict=True) if value > 0}


def held_out(layers: Sequence[MeasuredLayer], quantity: str) -> LayerFit:
    """Return the errors on layers that the figures were not fitted to.

    Each network is left out in turn; with fewer than three networks, each fifth of the layers is.
    """
    some = [one for one in layers if quantity in one.took]
    networks = sorted({one.network for one in some})
    numbers = [networks.index(one.network) if len(networks) >= 3 else at % 5 for at, one in enumerate(some)]
    errors: list[float] = []
    totals: list[float] = []
    for part in sorted(set(numbers)):
        figures = fit([one for one, number in zip(some, numbers, strict=True) if number != part], quantity)
        out = [one for one, number in zip(some, numbers, strict=True) if number == part]
        guessed = [predicted_layer(one.work, figures) for one in out]
        errors += [abs(g - one.took[quantity]) / one.took[quantity] for g, one in zip(guessed, out, strict=True)]
        whole = sum(one.took[quantity] for one in out)
        totals.append(abs(sum(guessed) - whole) / whole)
    return {
        "quantity": quantity,
        "unit": QUANTITIES[quantity],
        "layers": len(some),
        "networks": len(networks),
        "left_out": "networks" if len(networks) >= 3 else "layers",
        "median_error": float(np.median(errors)),
        "error_90": float(np.quantile(errors, 0.9)),
        "total_error": float(np.median(totals)),
    }


def refuse_few(layers: Sequence[MeasuredLayer], where: str) -> None:
    """Raise DataError for fewer layers than figures can be fitted to."""
    if len(layers) < LEAST_LAYERS:
        raise DataError(
            f"has times of {len(layers)} layers; at least {LEAST_LAYERS} are needed", stage=STAGE, where=where
        )


def with_figures(name: str, hardware: Mapping[str, Any], figures: Mapping[str, Figures]) -> dict[str, Any]:
    """Return the content of a hardware file with the fitted figures, under a name of its own."""
    cost = dict(hardware.get("cost") or {})
    cost["layers"] = {q: {kind: dict(one) for kind, one in found.items()} for q, found in figures.items()}
    return {**hardware, "name": f"{name.removesuffix('_timed')}_timed", "cost": cost}
