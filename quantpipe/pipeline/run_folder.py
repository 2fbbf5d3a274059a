"""The run folder: which file holds what, and how typed values are written there and read back."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

import yaml

from quantpipe.artifacts import (
    ArtifactUnit,
    Origin,
    RunLock,
    damage,
    digest_json,
    is_current,
    plain,
    read_json,
    read_npz,
    read_origin,
    write_json,
    write_text,
)
from quantpipe.artifacts.encode import digest_arrays
from quantpipe.calibrate.profile import profile_from_arrays, stats_arrays
from quantpipe.calibrate.yaml_profile import profile_yaml
from quantpipe.certify.real_part import file_part
from quantpipe.errors import ArtifactError, DamagedError
from quantpipe.graph.store import is_model_current, stage_model
from quantpipe.lowering import Rendered
from quantpipe.pipeline.plan_file import plan_payload
from quantpipe.pipeline.report_attachments import Beside
from quantpipe.plan import Overrides
from quantpipe.recover import RecoveryResult, overrides_arrays, overrides_from_arrays
from quantpipe.report import render_html
from quantpipe.types import (
    ChoiceSpace,
    ExplainReport,
    Profile,
    QuantPlan,
    RecoveryGain,
    RecoveryRecord,
    RunReport,
    Topology,
)
from quantpipe.types.certificate_file import CertificateFile, CertifiedFiles, ModelClaims
from quantpipe.types.figures import Figures
from quantpipe.types.run_files import ChoicesFile, ParetoFile, SplitRecord, TopologyFile

_DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)  # libyaml's where it is there: the same text, sooner
NOTHING: Mapping[str, Any] = MappingProxyType({})

FREE = {
    "recover": ("strategy", "metric", "threshold", "profile", "aim"),
    "evaluate": ("strategy", "metric", "search_data", "recovery", "search", "model_file"),
}
"""By kind of artifact, the inputs that may be others in one folder; of any other kind, the strategy."""


class RunFolder:
    """Paths and artifacts of one run (the layout is part of the interface: docs/artifacts.md)."""

    PLACES = (
        "annotate", "calibrate", "precision", "search", "search/front", "recover", "recover/partial",
        "recover/finalists/*/recover", "recover/finalists/*/recover/partial", "realize", "evaluate", "evaluate/partial",
        "vectors", "vectors/*", "vectors/*/*", "vectors/*/*/*",
    )  # fmt: skip
    """Folders that files are written to, below `root`."""

    def __init__(self, root: Path, warn: Callable[[str], None] = lambda text: None) -> None:
        """`warn` is called about damaged files, once for each."""
        self.root, self.warn = root, warn
        self._said: set[Path] = set()
        self.config = root / "config.yaml"
        self.data = root / "data.json"
        self.choices = root / "annotate" / "choices.json"
        self.profile = root / "calibrate" / "profile.yaml"
        self.plan = root / "realize" / "plan.json"
        self.topology = root / "annotate" / "topology.json"
        self.stats = root / "calibrate" / "stats.npz"
        self.partial = root / "calibrate" / "partial.npz"
        self.precision = root / "precision" / "precision.json"
        self.precision_trials = root / "precision" / "trials.jsonl"
        self.strategy = root / "search" / "strategy.json"
        self.trials = root / "search" / "trials.jsonl"
        self.pareto = root / "search" / "pareto.json"
        self.front = root / "search" / "front"
        self.model = root / "realize" / "model.onnx"
        self.plan = root / "realize" / "plan.json"
        self.certificate = root / "realize" / "certificate.json"
        self.ship = root / "realize" / "SHIP.md"
        self.recovered = root / "recover" / "weights.npz"
        self.finalists = root / "recover" / "finalists"
        self.report = root / "evaluate" / "report.json"
        self.page = root / "evaluate" / "report.html"
        self.samples = root / "evaluate" / "samples.npz"
        self.figures = root / "evaluate" / "figures.json"
        self.evaluating = root / "evaluate" / "partial"
        self.explained = root / "explain.json"

    def lock(self) -> AbstractContextManager[Any]:
        """Return a lock that keeps a second process out of the folder."""
        return RunLock(self.root, self.PLACES)

    def current(self, path: Path, origin: Origin) -> bool:
        """Return whether the file is there, whole and of this origin.

        It reports damaged files, which are then made again.
        """
        return is_current(path, origin, self.damaged)

    def damaged(self, error: DamagedError) -> None:
        """Tell of a damaged file that is going to be made again."""
        path = Path(error.where or self.root)
        if path not in self._said:
            self._said.add(path)
            self.warn(f"{path} is damaged ({error.what}): it is not used, and what it held is made again")

    @property
    def renewed(self) -> tuple[Path, ...]:
        """Return the files that every run writes again."""
        return self.config, self.data, self.topology, self.choices

    def look_over(self, *paths: Path) -> None:
        """Tell of damage in files that are about to be written again, whatever they held."""
        for path in paths:
            found = damage(path)
            if found is not None:
                self.damaged(found)

    def write_annotation(self, topology: Topology, space: ChoiceSpace, origin: Origin, chosen_from: Origin) -> None:
        """Write the topology and the choice space.

        `chosen_from` is the origin of the space, which a threshold may widen and the user may narrow.
        """
        payload: TopologyFile = {
            "node_conds": dict(topology.node_conds),
            "edge_conds": dict(topology.edge_conds),
            "float_nodes": {node: reason.text for node, reason in topology.float_nodes.items()},
            "groups": [
                {
                    "key": g.key,
                    "tensors": list(g.tensors),
                    "sources": list(g.sources),
                    "dtype": g.dtype,
                    "max_bits": g.max_bits,
                }
                for g in topology.groups
            ],
            "kernels": [
                {"node": k.node, "op": k.op, "output": k.output, "form": k.form, "fused": list(k.fused)}
                for k in topology.kernels
            ],
        }
        decided: ChoicesFile = {
            "choices": [
                {"key": c.key, "kind": c.kind, "options": list(c.options), "edges": list(c.edges)} for c in space
            ],
            "size": str(space.size),
        }
        with ArtifactUnit(self.topology.parent) as unit:
            unit.json(self.topology, payload, origin)
            unit.json(self.choices, decided, chosen_from)

    def write_profile(self, profile: Profile, origin: Origin) -> None:
        """Write the statistics, for programs and for people.

        What an interrupted calibration had left is removed.
        """
        self.look_over(self.profile, self.stats)
        with ArtifactUnit(self.stats.parent) as unit:
            unit.text(self.profile, profile_yaml(profile), origin)
            unit.npz(self.stats, stats_arrays(profile), origin)
            unit.remove(self.partial)

    def keep_profile(self, profile: Profile, origin: Origin) -> None:
        """Write what people read of the stored statistics again, where it is missing or damaged."""
        if not self.current(self.profile, origin):
            write_text(self.profile, profile_yaml(profile), origin)

    def read_profile(self, origin: Origin) -> Profile | None:
        """Return the stored statistics; None when they are missing or damaged.

        Raises ArtifactError when they have another origin.
        """
        if not self.stats.is_file():
            return None
        try:
            return profile_from_arrays(read_npz(self.stats, origin), str(self.stats))
        except DamagedError as error:
            self.damaged(error)
            return None

    def refuse_other(self, path: Path, origin: Origin) -> None:
        """Raise ArtifactError when the file is there and belongs to another run than `origin` says.

        Another strategy is no other run: a longer search continues where a shorter one ended. Neither is another
        objective, other range estimates, or other additions and comparisons of the report: report and recovery are made
        again.
        """
        if not path.is_file():
            return
        try:
            found = read_origin(path)
        except DamagedError as error:
            self.damaged(error)
            return
        if path == self.model and found is None and self.plan.is_file():  # so earlier versions left it when killed
            self.refuse_other(self.plan, origin)
            return
        if found is not None and "strategy" in origin.inputs:
            free = FREE.get(origin.kind, ("strategy",))
            kept = {name: digest for name, digest in origin.inputs.items() if name not in free}
            same = {name: found.inputs[name] for name in free if name in found.inputs}
            origin = replace(origin, inputs={**kept, **same})
        differing = origin.differences(found) if found is not None else ["the file has no origin"]
        if differing:
            differing.sort(key=lambda text: ".name is " not in text)  # what it is called says more than its details
            whose = "run" if found is None or found.format == origin.format else "version of quantpipe"
            raise ArtifactError(
                f"this folder holds the work of another {whose}: {'; '.join(differing[:4])}. Choose another folder "
                "(hydra.run.dir) or the settings it was made with",
                stage=origin.kind,
                where=str(path),
            )

    def write_config(self, config: Mapping[str, Any], origin: Origin) -> None:
        """Write the resolved configuration."""
        text = yaml.dump(plain(config), Dumper=_DUMPER, sort_keys=False, allow_unicode=True, width=120)
        write_text(self.config, text, origin)

    def write_data(self, record: Mapping[str, SplitRecord], origin: Origin) -> None:
        """Write which samples serve which split."""
        write_json(self.data, record, origin)

    def write_precision(self, record: Mapping[str, Any], origin: Origin) -> None:
        """Write what stays in float, and what was measured to decide that."""
        self.look_over(self.precision)
        write_json(self.precision, record, origin)

    def write_strategy(self, payload: Mapping[str, Any], origin: Origin) -> None:
        """Write the run's own strategy with its results."""
        write_json(self.strategy, payload, origin)

    def strategy_origin(self, model: str) -> Origin:
        """Return the origin of the strategy in the folder, whose results are being completed.

        It is a replay's own origin if the folder has no strategy.
        """
        known = read_origin(self.strategy) if damage(self.strategy) is None and self.strategy.is_file() else None
        return known or Origin("search/replay", {"model": model})

    def write_front(
        self, strategy: Mapping[str, Any], points: Mapping[str, Mapping[str, Any]], table: ParetoFile, origin: Origin
    ) -> None:
        """Write a Pareto front and remove the points of an earlier one.

        `points` maps a file name to the strategy of one point.
        """
        with ArtifactUnit(self.strategy.parent) as unit:
            for name, payload in points.items():
                unit.json(self.front / name, payload, origin)
            unit.json(self.pareto, table, origin)
            unit.json(self.strategy, strategy, origin)
            for path in self.front.glob("trial_*.json") if self.front.is_dir() else ():
                if path.name not in points:
                    unit.remove(path)

    def front_current(self, names: Sequence[str], origin: Origin) -> bool:
        """Return whether the table and these strategies of a front are there, whole and of this origin."""
        found = [self.current(path, origin) for path in (self.pareto, *(self.front / name for name in names))]
        return all(found)

    def beside(self, name: str) -> Path:
        """Return the place of another form's file."""
        return self.model.with_name(name)

    def realized_current(self, origin: Origin, files: Collection[str] = ()) -> bool:
        """Return whether the integer model, the numbers in it and other forms' `files` are there, of this origin."""
        texts = [self.current(path, origin) for path in (self.plan, self.certificate, self.ship)]
        others = [self.beside(name) for name in files]
        models = [p for p in (self.model, *others) if p.suffix == self.model.suffix]
        found = [is_model_current(path, origin, self.damaged) for path in models]
        found += [self.current(path, origin) for path in others if path not in models]
        return all(texts) and all(found)

    def write_realized(
        self,
        plan: QuantPlan,
        topology: Topology,
        realized: Rendered,
        claims: ModelClaims,
        *,
        origin: Origin,
        others: Mapping[str, Rendered | bytes] = NOTHING,
        ship: str = "",
    ) -> None:
        """Write the integer model, the numbers in it, and the certificate.

        The certificate (`claims`) names both by the digests of their files. `others` are other forms by file name;
        `ship` is the text of SHIP.md.
        """
        with ArtifactUnit(self.model.parent) as unit:
            unit.json(self.plan, plan_payload(plan, topology), origin)
            stage_model(unit, self.model, realized.model, origin)
            for name, content in others.items():
                if isinstance(content, Rendered):
                    stage_model(unit, self.beside(name), content.model, origin)
                else:
                    unit.bytes(self.beside(name), content, origin)
            unit.bytes(self.ship, ship.encode(), origin)
            certificate: CertificateFile = {
                **claims,
                **file_part(realized.model),
                "digests": self._digests(unit, origin),
            }
            unit.json(self.certificate, certificate, origin)

    def _digests(self, unit: ArtifactUnit, origin: Origin) -> CertifiedFiles:
        return {
            "model": unit.digests[self.model],
            "data": {path.name: digest for path, digest in unit.digests.items() if self._is_data(path)},
            "plan": unit.digests[self.plan],
            "hardware": digest_json(origin.config["hardware"]),
            "source": origin.inputs["model"],
        }

    def _is_data(self, path: Path) -> bool:
        """Return whether a file holds weights of model.onnx."""
        return path.suffix == ".data" and path.name.startswith(f"{self.model.stem}-")

    def write_report(self, report: RunReport, beside: Beside, origin: Origin) -> None:
        """Write all results, for programs and for people."""
        self.look_over(self.report, self.page, self.samples, self.figures)
        with ArtifactUnit(self.report.parent) as unit:
            unit.json(self.report, report, origin)
            unit.npz(self.samples, dict(beside.samples), origin)
            unit.json(self.figures, beside.figures, origin)
            unit.text(self.page, render_html(report, beside.figures), origin, "<!--")

    def read_report(self, origin: Origin) -> RunReport | None:
        """Return the report of an earlier run of the same origin, or None.

        Its page is made again where it is damaged.
        """
        whole = [self.current(path, origin) for path in (self.report, self.samples, self.figures)]
        if not all(whole):
            return None
        report = cast("RunReport", read_json(self.report, origin))
        if not self.current(self.page, origin):
            figures = cast("Figures", read_json(self.figures, origin))
            write_text(self.page, render_html(report, figures), origin, "<!--")
        return report

    def write_explained(self, report: ExplainReport, origin: Origin) -> None:
        """Write the diagnosis of the run, with remedies."""
        self.look_over(self.explained)
        write_json(self.explained, report, origin)

    def write_recovered(
        self, result: RecoveryResult, origin: Origin, gain: RecoveryGain | None = None
    ) -> RecoveryRecord:
        """Store recovered weights, and return what the report and the strategy say of them.

        `gain`: what recovery cost and gained, where it ran for a missed objective.
        """
        arrays = overrides_arrays(result.overrides)
        weights = digest_arrays(arrays) if arrays else None
        record: RecoveryRecord = {
            "steps": list(result.steps),
            "layers": list(result.layers),
            "weights": weights,
            "metrics": dict(result.metrics),
        }
        if gain is not None:
            record["gain"] = gain
        with ArtifactUnit(self.recovered.parent) as unit:
            unit.npz(self.recovered, arrays, origin)
            unit.json(self.recovered.with_name("steps.json"), record, origin)
        return record

    def read_recovered(self, origin: Origin, topology: Topology) -> tuple[Overrides, RecoveryRecord] | None:
        """Return the recovery result of an earlier run of the same origin, or None."""
        steps = self.recovered.with_name("steps.json")
        if not all([self.current(self.recovered, origin), self.current(steps, origin)]):
            return None
        arrays = read_npz(self.recovered, origin)
        record = read_json(steps, origin)
        known = {k: record[k] for k in ("steps", "layers", "weights", "metrics", "gain") if k in record}
        return overrides_from_arrays(arrays, topology, str(self.recovered)), cast("RecoveryRecord", known)
