"""The run folder: which file holds what, and how typed values are written there and read back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from quantpipe.artifacts import (
    Origin,
    RunLock,
    digest_array,
    digest_file,
    digest_json,
    is_current,
    plain,
    read_json,
    read_npz,
    read_origin,
    write_json,
    write_npz,
    write_text,
)
from quantpipe.artifacts.write import digest_arrays
from quantpipe.calibrate.profile import profile_from_arrays, stats_arrays
from quantpipe.calibrate.yaml_profile import profile_yaml
from quantpipe.errors import ArtifactError
from quantpipe.graph.store import data_files, is_model_current, write_model
from quantpipe.graph.view import Graph
from quantpipe.plan import Overrides
from quantpipe.planfile import plan_payload
from quantpipe.recover import Climbed, overrides_arrays, overrides_from_arrays
from quantpipe.rendering import Rendered
from quantpipe.report import render_html
from quantpipe.settings import Settings
from quantpipe.strategyfile import strategy_payload
from quantpipe.types import ChoiceSpace, Profile, QuantPlan, Strategy, Topology

FREE = {
    "recover": ("strategy", "metric", "threshold", "profile"),
    "evaluate": ("strategy", "metric", "search_data", "recovery"),
}
"""By kind of artifact, the inputs that may be others in one folder; of any other kind, the strategy."""


class RunFolder:
    """Paths and artifacts of one run (the layout is part of the interface: docs/artifacts.md)."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.topology = root / "annotate" / "topology.json"
        self.stats = root / "calibrate" / "stats.npz"
        self.partial = root / "calibrate" / "partial.npz"
        self.strategy = root / "search" / "strategy.json"
        self.trials = root / "search" / "trials.jsonl"
        self.pareto = root / "search" / "pareto.json"
        self.front = root / "search" / "front"
        self.model = root / "realize" / "model.onnx"
        self.plan = root / "realize" / "plan.json"
        self.certificate = root / "realize" / "certificate.json"
        self.recovered = root / "recover" / "weights.npz"
        self.finalists = root / "recover" / "finalists"
        self.report = root / "evaluate" / "report.json"

    def lock(self) -> AbstractContextManager[Any]:
        """Keeps a second process out of the folder."""
        return RunLock(self.root)

    def write_annotation(self, topology: Topology, space: ChoiceSpace, origin: Origin, chosen_from: Origin) -> None:
        """`chosen_from` is the origin of the space, which a threshold may widen and the user may narrow."""
        payload = {
            "node_conds": dict(topology.node_conds),
            "edge_conds": dict(topology.edge_conds),
            "float_nodes": dict(topology.float_nodes),
            "groups": [
                {"key": g.key, "tensors": g.tensors, "sources": g.sources, "dtype": g.dtype, "max_bits": g.max_bits}
                for g in topology.groups
            ],
            "kernels": [
                {"node": k.node, "op": k.op, "output": k.output, "form": k.form, "fused": k.fused}
                for k in topology.kernels
            ],
        }
        write_json(self.topology, payload, origin)
        choices = [{"key": c.key, "kind": c.kind, "options": c.options, "edges": c.edges} for c in space]
        write_json(self.root / "annotate" / "choices.json", {"choices": choices, "size": str(space.size)}, chosen_from)

    def write_profile(self, profile: Profile, origin: Origin) -> None:
        write_text(self.root / "calibrate" / "profile.yaml", profile_yaml(profile), origin)
        write_npz(self.stats, stats_arrays(profile), origin)

    def read_profile(self, origin: Origin) -> Profile | None:
        """The stored statistics; None when there are none. ArtifactError when they have another origin."""
        if not self.stats.is_file():
            return None
        return profile_from_arrays(read_npz(self.stats, origin), str(self.stats))

    def refuse_other(self, path: Path, origin: Origin) -> None:
        """ArtifactError when the file is there and belongs to another run than `origin` says.

        Another strategy is no other run: a longer search goes on where a shorter one ended. Nor are others of what a
        report shows beside the strategy or compares it by, another objective, or other estimates of ranges: report and
        recovery are made anew.
        """
        if not path.is_file():
            return
        found = read_origin(path)
        if found is not None and "strategy" in origin.inputs:
            free = FREE.get(origin.kind, ("strategy",))
            kept = {name: digest for name, digest in origin.inputs.items() if name not in free}
            same = {name: found.inputs[name] for name in free if name in found.inputs}
            origin = replace(origin, inputs={**kept, **same})
        differing = origin.differences(found) if found is not None else ["the file carries no origin"]
        if differing:
            differing.sort(key=lambda text: ".name is " not in text)  # what it is called says more than its details
            raise ArtifactError(
                f"this folder holds the work of another run: {'; '.join(differing[:4])}. Choose another folder "
                "(hydra.run.dir) or the settings it was made with",
                stage=origin.kind,
                where=str(path),
            )

    def write_config(self, config: Mapping[str, Any], origin: Origin) -> None:
        """The resolved configuration."""
        text = yaml.safe_dump(plain(config), sort_keys=False, allow_unicode=True, width=120)
        write_text(self.root / "config.yaml", text, origin)

    def write_data(self, record: Mapping[str, Any], origin: Origin) -> None:
        """Which samples serve which split."""
        write_json(self.root / "data.json", record, origin)

    def write_strategy(
        self,
        settings: Settings,
        graph: Graph,
        topology: Topology,
        strategy: Strategy,
        results: Mapping[str, Any],
        origin: Origin | None,
        path: Path | None = None,
    ) -> None:
        """`origin` None: keep the one that the file has (its results are being completed). `path` None: the run's own
        strategy."""
        payload = strategy_payload(graph.model_hash, settings.spec, settings.schema, topology, strategy, results)
        if origin is None:
            known = read_origin(self.strategy) if self.strategy.is_file() else None
            origin = known or Origin("search/replay", {"model": graph.model_hash})
        write_json(path or self.strategy, payload, origin)

    def write_pareto(self, payload: Mapping[str, Any], origin: Origin) -> None:
        """The table of a Pareto front."""
        write_json(self.pareto, payload, origin)

    def clear_front(self, keep: Sequence[str]) -> None:
        """Delete strategies of points that are not on the front any more."""
        for path in self.front.glob("trial_*.json") if self.front.is_dir() else ():
            if path.name not in keep:
                path.unlink()

    def is_realized(self, origin: Origin) -> bool:
        """Whether model, plan and certificate are there, undamaged, and made from `origin`."""
        beside = is_current(self.plan, origin) and is_current(self.certificate, origin)
        return beside and is_model_current(self.model, origin)

    def write_realized(
        self, plan: QuantPlan, topology: Topology, realized: Rendered, claims: Mapping[str, Any], origin: Origin
    ) -> None:
        """The plan, the model, and last of all the certificate, which names both by the digests of their files."""
        write_json(self.plan, plan_payload(plan, topology), origin)
        write_model(self.model, realized.model, origin)
        write_json(self.certificate, {**claims, "digests": self._digests(origin)}, origin)

    def _digests(self, origin: Origin) -> dict[str, Any]:
        return {
            "model": digest_file(self.model),
            "data": {path.name: digest_file(path) for path in data_files(self.model)},
            "plan": digest_file(self.plan),
            "hardware": digest_json(origin.config["hardware"]),
            "source": origin.inputs["model"],
        }

    def write_report(self, report: Mapping[str, Any], origin: Origin) -> None:
        write_json(self.report, report, origin)
        write_text(self.report.with_suffix(".html"), render_html(report), origin, "<!--")

    def write_recovered(self, climbed: Climbed, origin: Origin) -> dict[str, Any]:
        """Store recovered weights; returns what the report and the strategy say of them."""
        arrays = overrides_arrays(climbed.overrides)
        weights = digest_arrays(arrays) if arrays else None
        record: dict[str, Any] = {
            "steps": list(climbed.steps),
            "layers": list(climbed.layers),
            "weights": weights,
            "metrics": dict(climbed.metrics),
        }
        write_npz(self.recovered, arrays, origin)
        write_json(self.recovered.with_name("steps.json"), record, origin)
        return record

    def read_recovered(self, origin: Origin, topology: Topology) -> tuple[Overrides, dict[str, Any]] | None:
        """What an earlier run of the same origin recovered, or None."""
        steps = self.recovered.with_name("steps.json")
        if not (is_current(self.recovered, origin) and is_current(steps, origin)):
            return None
        arrays = read_npz(self.recovered, origin)
        record = read_json(steps, origin)
        known = {k: record[k] for k in ("steps", "layers", "weights", "metrics")}
        return overrides_from_arrays(arrays, topology, str(self.recovered)), known

    def digest_of(self, strategy: Strategy, overrides: Overrides) -> str:
        """Digest of a strategy's numbers, recovered weights included."""
        ranges = {k: [r.low, r.high] for k, r in strategy.ranges.items()}
        weights = {k: digest_array(np.asarray(v)) for k, v in strategy.weights.items()}
        recovered = {k: digest_array(v) for k, v in overrides_arrays(overrides).items()}
        return digest_json([dict(strategy.bits), ranges, weights, recovered, strategy.structure.decided])


def replayed_overrides(strategy: Path, recovery: Mapping[str, Any], topology: Topology) -> Overrides:
    """The recovered weights that belong to a strategy file: they stand beside it in its run folder.

    Raises ArtifactError when they are not there, or are not the ones that the strategy names.
    """
    path = RunFolder(strategy.parent.parent).recovered
    if not path.is_file():
        raise ArtifactError(
            f"its weights were recovered, and {path} is not there; replay it from its own run folder",
            stage="replay",
            where=str(strategy),
        )
    arrays = read_npz(path)
    if digest_arrays(arrays) != recovery["weights"]:
        raise ArtifactError("holds other weights than the strategy names", stage="replay", where=str(path))
    return overrides_from_arrays(arrays, topology, str(path))
