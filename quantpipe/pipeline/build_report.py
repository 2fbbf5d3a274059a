"""report.json from what the stages found. The keys are an interface: docs/artifacts.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from quantpipe.annotate.bits import held_back
from quantpipe.annotate.run_scales import dynamic_note
from quantpipe.check.decision_text import decisions
from quantpipe.check.islands import conversions, rescales
from quantpipe.evaluate.baseline import baseline_warning
from quantpipe.evaluate.beyond_ranges import beyond_warnings
from quantpipe.evaluate.forms_agreement import forms_warnings
from quantpipe.evaluate.slower import Speed
from quantpipe.graph.view import Graph
from quantpipe.metrics.interval import wilson
from quantpipe.metrics.losses import OutputLoss
from quantpipe.pipeline.context import RunContext, SearchDecision
from quantpipe.pipeline.loss_text import losing_outputs
from quantpipe.pipeline.plan_rows import cache_rows, choice_rows, table_rows
from quantpipe.pipeline.stages import Evaluation
from quantpipe.realize.kernels import WithoutKernel, slow_warning
from quantpipe.report.imported import imported_warning
from quantpipe.search import Metric, Objective
from quantpipe.types import (
    BaselinePart,
    BeyondRow,
    CalibratePart,
    ConversionsPart,
    CostPart,
    DataPart,
    DeploymentPart,
    EnoughPart,
    FloatNodeRow,
    FloatType,
    FormRow,
    HardwareSpec,
    ImportedPart,
    LoadedPart,
    ModelPart,
    OptionalParts,
    Profile,
    QuantPlan,
    RunPart,
    RunReport,
    Score,
    SearchReport,
    ThresholdRuleRow,
    Topology,
    by_model,
)
from quantpipe.types.run_files import SplitRecord
from quantpipe.version import __version__


@dataclass(frozen=True, eq=False)
class Evaluated:
    """Hold the facts about the integer model at the end of a run.

    `model`: Sizes, operations and bits (`stages.describe_model`). `costs`: The strategy by every cost measure. `host`:
    Relevant facts of the machine that ran it. `lacking`: The nodes that no kernel runs as they are (`without_kernel`).
    `speed`: Its speed compared with the float model; None if unknown. `slower`: A sentence if it is slower.
    `deployment`: How model.onnx is run. `imported`: The file's grids and integers, where it was quantized already.
    `forms`: A row for each form, where there are several. `beyond`: What stored ranges cut off, compared with
    calibration. `enough`: How ranges and loss depend on the number of calibration samples. `first`: Warnings that come
    before all others but the doubts. `baseline`: The accuracy of onnxruntime's own quantization, where it was compared.
    """

    plan: QuantPlan
    evaluation: Evaluation
    model: ModelPart
    costs: CostPart
    host: str | None
    lacking: Sequence[WithoutKernel]
    speed: Speed | None
    slower: str | None
    deployment: DeploymentPart
    imported: ImportedPart | None = None
    forms: Sequence[FormRow] = ()
    beyond: Sequence[BeyondRow] = ()
    first: Sequence[str] = ()
    enough: EnoughPart | None = None
    baseline: BaselinePart | None = None


def build_report(
    context: RunContext, decision: SearchDecision, evaluated: Evaluated, profile: Profile | None
) -> RunReport:
    """Return the whole report as plain data.

    `context` has the topology of the found strategy. `profile` has its statistics, if this run has them.
    """
    settings, graph, topology, inputs = context.settings, context.graph, context.topology, context.inputs
    behind = baseline_warning(evaluated.baseline, graph, topology, settings.spec)
    evaluation, plan, data = evaluated.evaluation, evaluated.plan, inputs.data_record()
    recovery = decision.recovery
    free: OptionalParts = {} if not evaluation.free_running else {"free_running": evaluation.free_running}
    free |= {"steps": evaluation.steps} if evaluation.steps is not None else {}
    caches = cache_rows(topology, plan)
    free |= {"caches": caches} if caches else {}
    free |= {"next_tokens": evaluation.next_tokens} if evaluation.next_tokens is not None else {}
    free |= {"imported": evaluated.imported} if evaluated.imported is not None else {}
    free |= {"baseline": evaluated.baseline} if evaluated.baseline is not None else {}
    free |= {"detections": evaluation.detections} if evaluation.detections is not None else {}
    several: OptionalParts = {} if not evaluated.forms else {"forms": list(evaluated.forms)}
    return {
        "version": __version__,
        "run": _run(context, decision, evaluation),
        "metrics": evaluation.metrics,
        "outputs": list(evaluation.outputs),
        "intervals": _intervals(evaluation),
        "doubts": list(inputs.doubts),
        "agreement": evaluation.agreement.as_dict(),
        "deployment": evaluated.deployment,
        **free,
        **several,
        "data": {role: _data(record) for role, record in data.items()},
        "generalization": evaluation.generalization,
        "calibrate": _calibrate(profile),
        "precision": decision.report.get("precision") or None,
        "search": _without_precision(decision.report),
        "model": evaluated.model,
        "cost": evaluated.costs,
        "latency": evaluation.latency,
        "speed": evaluated.speed.as_dict() if evaluated.speed is not None else None,
        "float_nodes": _float_nodes(graph, topology),
        "conversions": _conversions(graph, topology),
        "without_kernel": [entry.as_dict() for entry in evaluated.lacking],
        "rescales": list(plan.rescales),
        "raised": list(plan.raised),
        "tables": table_rows(graph, plan),
        "overflow": list(evaluation.overflow),
        "beyond": list(evaluated.beyond),
        "enough": evaluated.enough,
        "groups": {"rows": evaluation.groups.rows, "worst": evaluation.groups.worst},
        "rectified": list(decision.rectified),
        "recover": list(recovery.get("steps", [])),
        "recovery": recovery.get("gain"),
        "layers": list(evaluation.layers),
        "layer_samples": evaluation.layer_samples,
        "choices": choice_rows(context.space, topology, decision.strategy),
        "host": evaluated.host,
        "warnings": [
            *inputs.doubts,
            *evaluated.first,
            *beyond_warnings(evaluated.beyond),
            *evaluation.hidden,
            *inputs.notes,
            *graph.notes,
            *decisions(graph, settings.spec),
            *_left_out(data),
            *_shared(data),
            *_profile_notes(profile),
            *_search_notes(decision.report),
            *_overruled(decision.report.get("threshold_rules", ())),
            *evaluation.warnings,
            *form_notes(graph, topology, settings.spec, lossy=bool(evaluation.lossy)),
            *([changed] if (changed := imported_warning(evaluated.imported)) is not None else []),
            *forms_warnings(evaluated.forms),
            *([slow] if (slow := slow_warning(evaluated.lacking)) is not None else []),
            *([evaluated.slower] if evaluated.slower is not None else []),
            *([] if behind is None else [behind]),
        ],
    }


def form_notes(graph: Graph, topology: Topology, spec: HardwareSpec, *, lossy: bool) -> list[str]:
    """Return what to know of the form of layers: scales of each run, and (`lossy`) what keeps tensors at 8 bits."""
    found = (dynamic_note(topology), held_back(graph, topology, spec) if lossy else None)
    return [note for note in found if note is not None]


def _float_nodes(graph: Graph, topology: Topology) -> list[FloatNodeRow]:
    rows: list[FloatNodeRow] = []
    for name in (node.name for node in graph.nodes if node.name in topology.float_nodes):
        reason = topology.float_nodes[name]
        row: FloatNodeRow = {"node": name, "op": graph.by_name[name].op, "reason": reason.text}
        rows.append({**row, "type": FloatType.FLOAT16.value} if name in topology.half_nodes else row)
    return rows


def _run(context: RunContext, decision: SearchDecision, evaluation: Evaluation) -> RunPart:
    settings, graph, inputs = context.settings, context.graph, context.inputs
    run = {
        "model": Path(graph.source).name,
        "model_path": graph.source,
        "model_hash": graph.model_hash,
        "command": settings.command,
        "seed": settings.seed,
        "folder": str(settings.folder),
        **{k: v for k, v in settings.choices.items() if k != "model"},
        "schema": settings.schema.name,
        "realize": settings.backend,
        "float_on": settings.spec.float_on.value,
        "samples": evaluation.samples,
        **_bounded(evaluation),
        **({"output": inputs.output} if len(graph.outputs) > 1 else {}),
        **(_replayed(decision.report) if settings.command == "replay" else {}),
    }
    return cast("RunPart", run)  # the options of the groups come as one mapping


def _without_precision(search: SearchReport) -> SearchReport:
    """Return the search alone: what was decided before it is a part of its own."""
    return cast("SearchReport", {name: value for name, value in search.items() if name != "precision"})


def _bounded(evaluation: Evaluation) -> dict[str, int]:
    """Return the number of samples of the realized model's metrics, if it is not all of them."""
    few = evaluation.realized_samples
    return {"realized_samples": few} if few < evaluation.samples else {}


def _left_out(data: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return a line per split that had samples which cannot be used."""
    return [
        f"{len(record['skipped'])} samples of the {role} split cannot be used and were skipped; the first: "
        f"{record['skipped'][0]['reason']}"
        for role, record in data.items()
        if record.get("skipped")
    ]


def _shared(data: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return a line per split that held samples of another one."""
    counts = {role: _count(record.get("duplicates", [])) for role, record in data.items()}
    return [
        f"{count} samples of the {role} split are also in a judging split, and were removed from {role} "
        "(dataset.duplicates=drop)"
        for role, count in counts.items()
        if count
    ]


def _count(ranges: Sequence[Sequence[int]]) -> int:
    return sum(last - first + 1 for first, last in ranges)


def _intervals(evaluation: Evaluation) -> dict[str, Any]:
    """Return the 95 % interval of each model's accuracy (Wilson), `[low, high]`; nothing without labels."""
    models = by_model(evaluation.metrics)
    found = {name: wilson(metrics.get("top1"), evaluation.samples) for name, metrics in models.items()}
    return {name: list(interval) for name, interval in found.items() if interval is not None}


def _profile_notes(profile: Profile | None) -> list[str]:
    if profile is None:
        return []
    return [f"{profile.loaded['file']}: {warning}" for warning in profile.loaded.get("warnings", [])]


def _search_notes(search: SearchReport) -> list[str]:
    missed = search.get("shortfall")
    return [*search.get("notes", []), *([missed] if missed else [])]


def _overruled(rules: Sequence[ThresholdRuleRow]) -> list[str]:
    """Return a line per rule whose tensors follow another rule, because they share a scale with its tensors."""
    return [
        f"threshold.rules: {row['rule']} does not decide on {', '.join(row['overruled'][:5])}: "
        f"{'it shares its' if len(row['overruled']) == 1 else 'they share their'} scale with tensors that an earlier "
        "rule fits, which decides for all of them"
        for row in rules
        if row["overruled"]
    ]


def shortfall(
    objective: Objective,
    best: Score,
    samples: str = "the search samples",
    *,
    doubtful: bool = False,
    losses: Sequence[OutputLoss] = (),
) -> str | None:
    """Return by how much the best candidate misses the objective, and the key that decides; None if it meets it.

    `samples` describes the samples of the score. `doubtful`: the samples themselves are in doubt, so no other tolerance
    is advised. `losses` are used where the metric is auto.
    """
    if objective.feasible(best):
        return None
    if objective.open_ended:
        return "no candidate has a finite value (all are NaN); the point of highest precision is used"
    head = "no candidate met the objective, and the best one found is used: "
    if objective.cost_limit is not None:
        return (
            f"{head}the lowest cost found is {best.cost:.6g} ({objective.cost}), allowed are "
            f"{objective.cost_limit:.6g} (objective.cost_limit); raise that, or lower annotate.min_bits"
        )
    if objective.metric is Metric.ACCURACY:
        found = (
            f"its accuracy on {samples} is {best.value:.4g}, allowed is "
            f"{objective.reference_value - objective.tolerance:.4g} (the float model's {objective.reference_value:.4g} "
            f"less objective.tolerance={objective.tolerance:g})"
        )
    elif objective.metric is Metric.DETECTIONS:
        found = (
            f"its average precision compared with the float model is {best.value:.4g} on {samples}, allowed "
            f"is {objective.reference_value - objective.tolerance:.4g} (1 less objective.tolerance="
            f"{objective.tolerance:g})"
        )
    elif objective.metric is Metric.CALLABLE:
        found = (
            f"{objective.target} gives it {best.value:.4g} on {samples}, allowed is "
            f"{objective.reference_value - objective.tolerance:.4g} (the float model's {objective.reference_value:.4g} "
            f"less objective.tolerance={objective.tolerance:g})"
        )
    elif objective.metric is Metric.AUTO:
        worst = losing_outputs(losses, dict(best.metrics), objective.tolerance)
        found = (
            f"its loss on {samples} is {-best.value:.4g}, allowed is {objective.tolerance:g} "
            f"(objective.tolerance: KL of class scores, twice a relative squared error)"
            + (f"; {worst}" if worst else "")
        )
    else:
        found = (
            f"its {_LOSSES[objective.metric]} from the float model on {samples} is {-best.value:.4g}, "
            f"allowed is {objective.tolerance:g} (objective.tolerance)"
        )
    if doubtful:
        return f"{head}{found}; check the samples first (see the first warning)"
    return f"{head}{found}; raise objective.tolerance, or try another threshold or schema"


_LOSSES = {Metric.KL: "KL divergence", Metric.MSE: "relative squared error"}


def _data(record: SplitRecord) -> DataPart:
    """Return the part of `data.json` for the report; indices, and names of all skipped samples, stay there."""
    skipped = record.get("skipped", [])
    known = {k: v for k, v in record.items() if k not in ("indices", "skipped", "duplicates")}
    shared = _count(record.get("duplicates", []))
    names = [s["name"] for s in skipped[:10]]
    part = {**known, "duplicates": shared, "skipped": len(skipped), "skipped_names": names}
    return cast("DataPart", part)  # a data set says what it is on its own


def _conversions(graph: Graph, topology: Topology) -> ConversionsPart:
    """Return how many tensors change their form in a run, and how many operands are rescaled.

    The forms are floats, stored integers and accumulators.
    """
    ends, inside = conversions(graph, topology)
    return {"ends": ends, "inside": inside, "rescales": rescales(topology)}


def _replayed(search: SearchReport) -> dict[str, Any]:
    """Return the search of the strategy's own run; its objective and estimator are not known in a replay."""
    return {"search": search.get("algorithm"), "objective": None, "threshold": None}


def _calibrate(profile: Profile | None) -> CalibratePart:
    if profile is None:
        return {"seconds": None, "samples": None, "float_pass_seconds": None, "peak_rss_mb": None}
    found: CalibratePart = {
        "seconds": profile.seconds,
        "samples": profile.samples,
        "float_pass_seconds": profile.float_pass_seconds,
        "peak_rss_mb": profile.peak_rss_mb,
    }
    if profile.loaded:
        found["loaded"] = cast("LoadedPart", dict(profile.loaded))
    return found
