"""Compare the result with onnxruntime's own quantization of the same model, where onnxruntime is the device.

Its static form estimates ranges by extremes alone. Its dynamic form has ranges of each batch and leaves everything but
products in float. One of them may have a more accurate output at the same speed, or be as accurate and faster. Then a
better result is possible on this device, and a warning reports it. A form that is certainly slower than the result
causes no warning; its accuracy and time are in the line on both forms. All models run on the same samples, and in turns
where they are timed.

Files of this feature, all `baseline.py`: `types`, `evaluate` (compares), `report` (the line on both forms).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from quantpipe.annotate.run_scales import able_nodes
from quantpipe.data.subset import First
from quantpipe.errors import brief
from quantpipe.evaluate.nearness import below, figures_of_models
from quantpipe.evaluate.slower import OWN_CELLS, SLOWER
from quantpipe.graph import runtime_quantization
from quantpipe.graph.execute import Session, start_runtime
from quantpipe.graph.op_tables import DYNAMIC_CELLS
from quantpipe.graph.view import Graph
from quantpipe.intake.isolated_process import Limits, Tell, apart
from quantpipe.metrics.latency import interleaved
from quantpipe.oprules import OP_RULES, Family
from quantpipe.types import (
    BaselinePart,
    BaselineRow,
    HardwareSpec,
    Isa,
    LatencyPart,
    OutputRow,
    ReasonKind,
    Samples,
    Topology,
)

BEHIND_DB = 0.5
"""From here on it is told."""

NEAR_DB = 40.0
"""An output this near the float model's is near enough: only time can be gained."""

LEAST_MS = 0.01
"""A form is faster from this difference on: less is within what two calls of the runtime differ by."""

MOST_SECONDS = 10.0
"""What both forms may take together, as foreseen from the float model's latency."""

RUNS, RUN_SECONDS = 30, 0.5
"""Pairs of runs at batch 1 that time a form, and how long they may take."""

MOST_BYTES = 256 << 20
"""Of weights; the tool copies larger models several times."""

SAMPLES = (4, 64)
"""At least and at most, of each split."""

TRIAL = Limits(60.0, 4 << 30)
"""Of a form that may end its process: seconds of a step, and bytes of memory."""

RESULT = "result"
PASSES = {"static": 4.0, "dynamic": 3.0}
"""What a sample costs, in passes of the float model, at worst: calibration writes every tensor."""


@dataclass(frozen=True, eq=False)
class BaselineModels:
    """Hold the compared models: the float model, the realized one, and samples to calibrate and to compare with."""

    graph: Graph
    realized: Session
    calibrate: Samples
    evaluate: Samples
    float_ms: float
    seconds: float = MOST_SECONDS
    """What both forms may take, at most `MOST_SECONDS`."""
    left_out: Callable[[str], None] = lambda sentence: None
    """Notes that fewer samples are compared than without the limit."""


def worth_comparing(
    graph: Graph, spec: HardwareSpec, rows: Sequence[OutputRow], accurate: str | None, *, ratio: float
) -> bool:
    """Return whether a comparison with onnxruntime's own tools is informative.

    It is for onnxruntime on this machine, and where an output is not accurate already or integers are slower than
    float. `accurate` is the output that is as accurate as the float model's, if one is.
    `ratio` is the latency of the result over the latency of the float model.
    """
    if not spec.runs_here or graph.imported is not None or graph.given:
        return False
    return ratio > SLOWER or bool(below(rows, NEAR_DB, accurate))


def too_large(graph: Graph) -> str | None:
    """Return in a sentence why onnxruntime's tool is not tried on a model; None if it is small enough."""
    size = runtime_quantization.weight_bytes(graph.model)
    if size <= MOST_BYTES:
        return None
    return (
        f"the comparison with onnxruntime's own quantization, whose tool copies the {size >> 20} MB of weights several "
        f"times (up to {MOST_BYTES >> 20} MB are compared)"
    )


def baseline(compared: BaselineModels, accurate: str | None = None) -> BaselinePart:
    """Return accuracy and speed of onnxruntime's own forms, compared with the result.

    `accurate` is the output that is as accurate as the float model's, if one is; it counts as near enough.
    """
    graph = compared.graph
    few = First(compared.evaluate, min(_count(compared, form) for form in PASSES))
    one = next(iter(few.batches(graph.fixed_batch or 1))).inputs
    some = First(compared.calibrate, _count(compared, "static"))
    makers: Mapping[str, Callable[[], Session]] = {
        # Its calibration keeps every tensor of a batch: 12.9 GB for 32 pictures of text, 0.7 GB for one.
        "static": lambda: runtime_quantization.static(graph.timed, some, graph.fixed_batch or 1),
        "dynamic": lambda: runtime_quantization.dynamic(graph.timed, one),
    }
    models, failed = {RESULT: compared.realized}, dict[str, Exception]()
    times: dict[str, LatencyPart] = {}
    for form, make in makers.items():
        try:
            if graph.varying:  # onnxruntime's kernels end the process on some tensors without elements
                apart(partial(_trial, make, few, graph.batch_size), start_runtime, TRIAL, f"its {form} form")
            session = make()
            times[form] = interleaved((session, compared.realized), one, RUNS, RUN_SECONDS)
            models[form] = session
        except Exception as error:  # the tool refuses many models, in many ways
            failed[form] = error
    few = First(few, min([len(few), *(_count(compared, form, timed) for form, timed in times.items())]))
    figures, wrong = figures_of_models(graph, models, few, {}) if times else ({}, {})
    found = {key: [one.row for one in own] for key, own in figures.items()}
    failed |= wrong
    rows: list[BaselineRow] = []
    for form in makers:
        if {RESULT, form} <= found.keys():
            rows.append(_row(form, found[RESULT], found[form], times[form], accurate=accurate))
        else:
            rows.append({**_nothing(form), "failed": brief(failed.get(form) or failed[RESULT])})
    if _is_cut(compared, times):
        compared.left_out("samples of the comparison with onnxruntime's own quantization (effort.baseline_passes)")
    return {"samples": len(few), "rows": rows}


def baseline_warning(part: BaselinePart | None, graph: Graph, topology: Topology, spec: HardwareSpec) -> str | None:
    """Return a warning if an onnxruntime form is more accurate at the same speed, or as accurate and faster."""
    if part is None:
        return None
    nearer = [row for row in part["rows"] if not row["slower"] and (row["gap_db"] or 0.0) > BEHIND_DB]
    faster = [row for row in part["rows"] if row["faster"] and row["least_gap_db"] is not None]
    faster = [row for row in faster if (row["least_gap_db"] or 0.0) >= -BEHIND_DB]
    if not nearer and not faster:
        return None
    row = max(nearer, key=lambda r: r["gap_db"] or 0.0) if nearer else min(faster, key=lambda r: r["latency"] or 1.0)
    helps = _dynamic_remedies(graph, topology, spec, accurate=bool(nearer))
    if row["form"] == "static":
        near = ["threshold=output_error", "threshold=max_range"]
        helps = near if nearer else ["annotate.choices=[float] search=greedy objective.cost=latency"]
    return (
        f"onnxruntime's own {row['form']} quantization is {'nearer' if nearer else 'as near'} to the float model at "
        f"the output {row['output']}: {row['sqnr_db']:.1f} dB against {row['own_db']:.1f} dB on {part['samples']} "
        f"samples, in {row['latency']:.2f} of the result's time; what could help: {', or '.join(helps)}"
    )


def _dynamic_remedies(graph: Graph, topology: Topology, spec: HardwareSpec, *, accurate: bool) -> list[str]:
    """Return overrides that bring a result near to the dynamic form: the form itself first, where the device has it.

    `accurate`: it is nearer to the float model, not only faster.
    """
    products = sorted({k.op for k in topology.kernels if OP_RULES[k.op].family is Family.ACCUMULATE})
    dense = sorted({k.op for k in topology.kernels if k.op in spec.dynamic and k.weight is not None})
    taken = {name for name, reason in topology.float_nodes.items() if reason.kind is ReasonKind.KEPT}
    able = (graph.by_name[n].op for n in able_nodes(graph, spec) if n not in {*topology.cell_of, *taken})
    cells = sorted(DYNAMIC_CELLS.keys() & set(able))
    anew = graph.as_given is not None  # recurrent layers, which onnxruntime runs as one, are steps or loops
    found = [OWN_CELLS] if anew else []
    if dense or cells:
        only = f" annotate.only_ops=[{','.join(dense)}]" if dense else ""
        layers = " and ".join(["dense"] * bool(dense) + cells)
        found.append(
            f"annotate.dynamic=['*']{only}, the same form of the {layers} layers, whose results depend on what a batch "
            "holds"
        )
    elif topology.dynamic and spec.isa is Isa.ANY and accurate:
        found.append("hardware.isa=vnni, with which weights are not limited so that no pair of products saturates")
    if products and not anew:
        found.append(f"annotate.only_ops=[{','.join(products)}]")
    return [*found, "recover=default"] if accurate or not found else found


def _trial(make: Callable[[], Session], samples: Samples, size: int, _tell: Tell) -> None:
    """Make a session and run it on the samples."""
    session = make()
    for batch in samples.batches(size):
        session.run(batch.inputs)


def _count(compared: BaselineModels, form: str, timed: LatencyPart | None = None) -> int:
    """Return how many samples are compared: as foreseen from the float model, fewer if the form is slower than that."""
    least, most = SAMPLES
    each = max(compared.float_ms, 1e-3) * PASSES[form]
    if timed is not None:
        each = max(each, compared.float_ms + timed["float_ms"])
    return max(least, min(most, int(min(compared.seconds, MOST_SECONDS) / len(PASSES) / (each / 1e3))))


def _is_cut(compared: BaselineModels, times: Mapping[str, LatencyPart]) -> bool:
    """Return whether fewer samples are compared than without a limit."""
    free = replace(compared, seconds=MOST_SECONDS)
    return any(_count(compared, form, times.get(form)) < _count(free, form, times.get(form)) for form in PASSES)


def _faster(timed: LatencyPart) -> bool:
    certain = timed["ratio"] > SLOWER and timed.get("ratio_low", timed["ratio"]) > 1.0
    return certain and timed["realized_ms"] - timed["float_ms"] > LEAST_MS


def _nothing(form: str) -> BaselineRow:
    return {
        "form": form, "output": None, "sqnr_db": None, "own_db": None, "gap_db": None, "least_gap_db": None,
        "latency": None, "faster": False, "slower": False, "failed": None,
    }  # fmt: skip


def _row(
    form: str, own: Sequence[OutputRow], other: Sequence[OutputRow], timed: LatencyPart, *, accurate: str | None
) -> BaselineRow:
    """Return the output with the largest deficit of the result, or its smallest lead, and the time of a form."""
    ratio = timed["ratio"]  # of the result over this form
    slower = ratio < 1 / SLOWER and timed.get("ratio_high", ratio) < 1.0
    row: BaselineRow = {**_nothing(form), "latency": 1 / ratio, "faster": _faster(timed), "slower": slower}
    here = {lost.output: lost.sqnr_db for lost in below(own, math.inf)}
    there = {lost.output: lost.sqnr_db for lost in below(other, math.inf)}
    gaps = {name: there[name] - value for name, value in here.items() if name in there}
    if not gaps:
        return row
    near = {name for name in gaps if name == accurate or here[name] >= NEAR_DB}
    behind = {name: min(gap, 0.0) if name in near else gap for name, gap in gaps.items()}
    worst = max(behind, key=lambda name: (behind[name], gaps[name]))
    return {
        **row, "output": worst, "sqnr_db": there[worst], "own_db": here[worst], "gap_db": behind[worst],
        "least_gap_db": min(behind.values()),
    }  # fmt: skip
