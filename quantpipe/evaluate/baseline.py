"""The result beside onnxruntime's own quantization of the same model, where onnxruntime is the device.

Its static form estimates ranges by extremes alone, its dynamic one has ranges of each batch and leaves all but products
in float. Where one of them keeps an output nearer to the float model's, there is more to be had on this device, and
that is said. All models run on the same samples.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from quantpipe.data.subset import First
from quantpipe.errors import brief
from quantpipe.evaluate.nearness import below, nearness
from quantpipe.graph import runtime_quantization
from quantpipe.graph.execute import Session
from quantpipe.graph.view import Graph
from quantpipe.oprules import OP_RULES, Family
from quantpipe.types import BaselinePart, BaselineRow, HardwareSpec, OutputRow, Samples, Topology

BEHIND_DB = 0.5
"""From here on it is told."""

NEAR_DB = 40.0
"""An output this near the float model's is near enough: nothing is compared."""

MOST_SECONDS = 10.0
"""What each of the two forms may take, as foreseen from the float model's latency."""

MOST_BYTES = 256 << 20
"""Of weights; the tool copies larger models several times."""

SAMPLES = (4, 64)
"""At least and at most, of each split."""

PASSES = {"static": 4.0, "dynamic": 12.0}
"""What a sample costs, in passes of the float model, at worst: calibration writes every tensor, and convolutions have
slow kernels for ranges of their own."""


@dataclass(frozen=True, eq=False)
class Compared:
    """What is compared: the float model, the realized one, and samples to calibrate and to compare with."""

    graph: Graph
    realized: Session
    calibrate: Samples
    evaluate: Samples
    float_ms: float


def worth_comparing(graph: Graph, spec: HardwareSpec, rows: Sequence[OutputRow], accurate: str | None) -> bool:
    """Return whether the comparison says anything of a result.

    It does for onnxruntime on this machine, for models that its tool takes, and where an output is not near already.

    Args:
        graph: the clean model.
        spec: the device.
        rows: how near each output is.
        accurate: the output that is as accurate as the float model's, if one is.
    """
    if not spec.runs_here or graph.imported is not None or graph.states or graph.given:
        return False
    return runtime_quantization.weight_bytes(graph.model) <= MOST_BYTES and bool(below(rows, NEAR_DB, accurate))


def baseline(compared: Compared, accurate: str | None = None) -> BaselinePart:
    """Return how near onnxruntime's own forms are to the float model, and by how much the result is behind them.

    Args:
        compared: models and samples.
        accurate: the output that is as accurate as the float model's, if one is; it is not compared.

    Returns:
        The part of the report.
    """
    graph = compared.graph
    size = graph.batch_size
    few = First(compared.evaluate, _count(compared, "dynamic"))
    first = next(iter(few.batches(size))).inputs
    some = First(compared.calibrate, _count(compared, "static"))
    makers: Mapping[str, Callable[[], Session]] = {
        "static": lambda: runtime_quantization.static(graph.model, some, size),
        "dynamic": lambda: runtime_quantization.dynamic(graph.model, first),
    }
    own = nearness(graph, compared.realized, few)
    rows: list[BaselineRow] = []
    for form, make in makers.items():
        try:
            rows.append(_row(form, own, nearness(graph, make(), few), accurate))
        except Exception as error:  # the tool refuses many models, in many ways
            rows.append({"form": form, "output": None, "sqnr_db": None, "own_db": None, "failed": brief(error)})
    return {"samples": len(few), "rows": rows}


def baseline_warning(part: BaselinePart | None, topology: Topology) -> str | None:
    """Return a sentence where one of the forms is nearer to the float model by more than `BEHIND_DB`.

    Args:
        part: the comparison, if there was one.
        topology: what runs in integers.

    Returns:
        The sentence, or None.
    """
    behind = [row for row in part["rows"] if _gap(row) > BEHIND_DB] if part is not None else []
    if part is None or not behind:
        return None
    products = sorted({k.op for k in topology.kernels if OP_RULES[k.op].family is Family.ACCUMULATE})
    row = max(behind, key=_gap)
    helps = {
        "static": "threshold=max_range",
        "dynamic": f"annotate.only_ops=[{','.join(products)}], or recover=default",
    }
    return (
        f"onnxruntime's own {row['form']} quantization is nearer to the float model at the output {row['output']}: "
        f"{row['sqnr_db']:.1f} dB against {row['own_db']:.1f} dB on {part['samples']} samples; what could help: "
        f"{helps[row['form']]}"
    )


def _count(compared: Compared, form: str) -> int:
    least, most = SAMPLES
    seconds = max(compared.float_ms, 1e-3) / 1e3 * PASSES[form]
    return max(least, min(most, int(MOST_SECONDS / seconds)))


def _row(form: str, own: Sequence[OutputRow], other: Sequence[OutputRow], accurate: str | None) -> BaselineRow:
    """The output at which the result is most behind, or least ahead."""
    here = {lost.output: lost.sqnr_db for lost in below(own, math.inf, accurate)}
    there = {lost.output: lost.sqnr_db for lost in below(other, math.inf, accurate)}
    both = [name for name in here if name in there]
    if not both:
        return {"form": form, "output": None, "sqnr_db": None, "own_db": None, "failed": None}
    worst = max(both, key=lambda name: there[name] - min(here[name], NEAR_DB) if here[name] < NEAR_DB else -math.inf)
    return {"form": form, "output": worst, "sqnr_db": there[worst], "own_db": here[worst], "failed": None}


def _gap(row: BaselineRow) -> float:
    if row["sqnr_db"] is None or row["own_db"] is None or row["own_db"] >= NEAR_DB:
        return -math.inf
    return row["sqnr_db"] - row["own_db"]
