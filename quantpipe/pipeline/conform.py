"""`command=export_vectors` and `command=compare dump=…`: vectors of a finished run, and dumps held against them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from quantpipe.arrays import Array
from quantpipe.artifacts import ArtifactUnit, read_json
from quantpipe.conform.compare_dump import compare_dump
from quantpipe.conform.describe import Described
from quantpipe.conform.dump import has_dump, read_dump
from quantpipe.conform.network import joined
from quantpipe.conform.probes import Probe, probes_of
from quantpipe.conform.readme import readme
from quantpipe.conform.vectors import INPUTS, VectorSet, contents
from quantpipe.data.subset import First
from quantpipe.errors import ArtifactError, HardwareError
from quantpipe.evaluate.beyond_ranges import beyond_rows, beyond_warnings, clipped_in
from quantpipe.graph.io import model_bytes
from quantpipe.lowering import Rendered
from quantpipe.pipeline import stages
from quantpipe.pipeline.context import RunContext
from quantpipe.pipeline.inputs import load
from quantpipe.pipeline.replay import finished_run
from quantpipe.pipeline.report_attachments import digest_of
from quantpipe.pipeline.settings import Console, Settings
from quantpipe.pipeline.vector_settings import VectorSettings
from quantpipe.pipeline.write_forms import provenance
from quantpipe.realize import BACKENDS, FILE_FORMS
from quantpipe.types import BeyondRow, DumpReport
from quantpipe.version import __version__

NET, PROBES, KIT, FOLDER = "net", "probes", "kit.json", "vectors"
EXPORT = "export_vectors"


@dataclass(frozen=True, eq=False)
class Opened:
    """Hold a finished run with its network, whose hardware file can be changed."""

    context: RunContext
    described: Described
    strategy: str

    @property
    def folder(self) -> Path:
        """Return where its vectors lie."""
        return self.context.settings.folder / FOLDER


def opened(settings: Settings, console: Console, stage: str) -> Opened:
    """Return the finished run of some settings; `stage` names it in errors.

    Raises ArtifactError where the folder holds no finished run, or a damaged one.
    """
    console.stage("model", str(settings.model))
    context = RunContext.of(settings, load(settings), console)
    found = finished_run(context, stage)
    context = context.with_topology_of(found.strategy).recovered_network(found.overrides)
    described = Described(
        *(
            context.graph,
            context.topology,
            settings.schema,
            found.strategy,
            settings.config["hardware"],
            found.overrides,
        )
    )
    return Opened(context, described, digest_of(found.strategy, found.overrides))


def export_vectors(settings: Settings, console: Console, options: VectorSettings) -> dict[str, Any]:
    """Write golden vectors of a finished run into its folder, and return the content of kit.json."""
    run = opened(settings, console, EXPORT)
    with run.context.files.lock():
        whole = stages.whole_batches(run.context.graph, options.samples)
        batches: list[Mapping[str, Array]] = []
        for batch in run.context.inputs.evaluate.batches(run.context.graph.fixed_batch or options.samples):
            batches.append(batch.inputs)
            if sum(len(next(iter(b.values()))) for b in batches) >= whole:
                break
        purpose = f"the network, on the first {whole} samples of the evaluate split"
        golden = [run.described.network.golden(inputs) for inputs in batches]
        net = VectorSet(NET, purpose, run.described.network, joined(batches), joined(golden))
        console.stage(EXPORT, f"{len(net.golden)} tensors of the network")
        probes, left_out = probes_of(settings.config["hardware"], settings.schema) if options.probes else ([], {})
        if options.probes:
            console.stage("probes", f"{len(probes)}, {len(left_out)} that the device does not get")
        return _written(run, net, probes, left_out, options=options, beyond=_beyond(run, whole))


def _beyond(run: Opened, samples: int) -> list[BeyondRow]:
    """Return which tensors of the vectors' samples are beyond their stored ranges, and warn of those far beyond."""
    context, plan = run.context, run.described.network.plan
    found = {"vectors": clipped_in(context.graph, plan, First(context.inputs.evaluate, samples))}
    rows = beyond_rows(context.topology, plan, context.files.read_profile(context.calibrated), found)
    for said in beyond_warnings(rows):
        context.console.warn(said)
    return rows


def _written(
    run: Opened,
    net: VectorSet,
    probes: list[Probe],
    left_out: Mapping[str, str],
    *,
    options: VectorSettings,
    beyond: list[BeyondRow],
) -> dict[str, Any]:
    settings, folder, forms = run.context.settings, run.folder, dict[str, str]()
    sets = [net, *(replace(p.vectors, name=f"{PROBES}/{p.recipe.name}") for p in probes)]
    kit = {
        "version": __version__,
        "model": settings.model.name,
        "model_hash": run.context.graph.model_hash,
        "strategy": run.strategy,
        "hardware": settings.spec.name,
        "sets": [{"name": v.name, "purpose": v.purpose, "tensors": len(v.golden), "samples": v.samples} for v in sets],
        "left_out": dict(left_out),
        "beyond": beyond,
    }
    origin = run.context.origin("vectors", {"strategy": run.strategy}, ("hardware", "schema"))
    with ArtifactUnit(folder) as unit:
        kept: set[Path] = set()

        def put(name: str, content: bytes) -> None:
            unit.bytes(folder / name, content)
            kept.add(folder / name)

        for name, content in contents(net, options.hex_samples):
            put(f"{NET}/{name}", content)
        for probe in probes:
            values, made = _forms(run, probe)
            forms |= {file: form for file, (form, _) in made.items()}
            for name, content in contents(probe.vectors, options.hex_samples, values):
                put(f"{PROBES}/{probe.recipe.name}/{name}", content)
            put(f"{PROBES}/{probe.recipe.name}/float.onnx", probe.model.SerializeToString())
            for file, (_, content) in made.items():
                put(f"{PROBES}/{probe.recipe.name}/{file}", content)
        text = readme(
            *(sets, left_out), model=settings.model.name, hardware=settings.spec.name, forms=forms,
            hex_samples=options.hex_samples,
        )  # fmt: skip
        put("README.md", text.encode())
        unit.json(folder / KIT, kit, origin)
        kept.add(folder / KIT)
        for old in folder.rglob("*") if folder.is_dir() else ():  # of an earlier export, with other probes
            if old.is_file() and old not in kept and not old.name.startswith("."):
                unit.remove(old)
    return kit


def _forms(run: Opened, probe: Probe) -> tuple[dict[str, str], dict[str, tuple[str, bytes]]]:
    """Return (tensor -> its value in model.onnx, file -> (form, content)) of a probe in the forms of the run."""
    settings, described = run.context.settings, probe.described
    graph, topology, plan = described.graph, described.topology, described.network.plan
    made, found, values = provenance(run.context, run.strategy), dict[str, tuple[str, bytes]](), dict[str, str]()
    for form in (settings.backend, *settings.forms):
        try:
            if form in FILE_FORMS:
                written = FILE_FORMS[form]().write(graph, topology, plan, made)
                found |= {file: (form, content) for file, content in written.files.items()}
                continue
            rendered = stages.realize(graph, topology, plan, form)
        except HardwareError:  # the net may be what the form holds, and a probe not
            continue
        first = form == settings.backend and form in BACKENDS
        found["model.onnx" if first else f"model.{form}.onnx"] = (form, model_bytes(rendered.model))
        values = _values(rendered) if first else values
    return values, found


def _values(rendered: Rendered) -> dict[str, str]:
    return dict(rendered.integers)


def compare_with_dump(settings: Settings, console: Console, dump: Path) -> DumpReport:
    """Return how a dump differs from the plan of a finished run.

    `dump` is a dump of the network, or a folder with dumps of several sets. Raises ArtifactError where no vectors were
    exported, or the dump fits none of them.
    """
    run = opened(settings, console, "compare")
    sets = [compare_dump(*one, read_dump(dump, one[0])) for one in dumped(run, dump)]
    return {
        "version": __version__,
        "run": str(settings.folder),
        "dump": str(dump),
        "hardware": settings.spec.name,
        "differing": sum(found["differing"] for found in sets),
        "sets": sets,
    }


def dumped(run: Opened, dump: Path) -> Iterator[tuple[VectorSet, Described]]:
    """Yield every set that a dump covers, with its network.

    A dump without folders of sets is a dump of the network. Raises ArtifactError where no vectors were exported, or
    vectors of another strategy.
    """
    kit = read_kit(run)
    names = [str(one["name"]) for one in kit["sets"]]
    several = dump.is_dir() and any(has_dump(dump, name) for name in names)
    if not several or has_dump(dump, NET):
        inputs = _inputs(run.folder / NET / INPUTS)
        count = len(next(iter(inputs.values())))
        size = run.context.graph.fixed_batch or count
        parts = ({k: v[n : n + size] for k, v in inputs.items()} for n in range(0, count, size))
        golden = [run.described.network.golden(part) for part in parts]
        yield VectorSet(NET, "", run.described.network, inputs, joined(golden)), run.described
    if several:
        wanted = [name.removeprefix(f"{PROBES}/") for name in names if name != NET and has_dump(dump, name)]
        for probe in probes_of(run.context.settings.config["hardware"], run.context.settings.schema, wanted)[0]:
            yield replace(probe.vectors, name=f"{PROBES}/{probe.recipe.name}"), probe.described


def read_kit(run: Opened) -> Mapping[str, Any]:
    """Return kit.json of a run's vectors.

    Raises ArtifactError where the file is missing, or belongs to another strategy.
    """
    path = run.folder / KIT
    if not path.is_file():
        raise ArtifactError(
            f"is not there: export vectors first (command={EXPORT} runs=[{run.context.settings.folder}]), and let the "
            "device run their inputs",
            stage="compare",
            where=str(path),
        )
    kit: Mapping[str, Any] = read_json(path)
    if kit["strategy"] != run.strategy:
        raise ArtifactError(
            f"is of another strategy than the run has now; export again (command={EXPORT})",
            stage="compare",
            where=str(path),
        )
    return kit


def _inputs(path: Path) -> dict[str, Array]:
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except (OSError, ValueError) as error:
        raise ArtifactError(f"cannot be read ({error}); export again", stage="compare", where=str(path)) from error
