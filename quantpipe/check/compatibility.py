"""Tell what a device would make of a model.

The answer lists the nodes that it rejects and why, their cost, and the sums and biases near their limits. It takes no
data, no ranges, no search: the topology and the weights determine everything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from quantpipe.annotate.conditions import AnnotateOptions
from quantpipe.annotate.run_scales import dynamic_note
from quantpipe.annotate.topology import analyze
from quantpipe.check.decision_text import decisions
from quantpipe.check.exact_forms import LoadedForm, loaded_forms
from quantpipe.check.islands import Island, computes_reals, conversions, islands, rescales
from quantpipe.check.sample import made_up
from quantpipe.check.sum_bounds import Accumulation, accumulations
from quantpipe.errors import ModelError
from quantpipe.graph.io import RESIDENT_MB
from quantpipe.graph.view import Graph
from quantpipe.hardware.cost import alignment, cycles, macs
from quantpipe.hardware.legality import reachable
from quantpipe.hardware.matching import unmatched
from quantpipe.hardware.storage import widest_accumulator
from quantpipe.intake.load import clean_graph, read_graph
from quantpipe.oprules.work import is_unknown_work
from quantpipe.recover import with_split_channels
from quantpipe.types import (
    NO_CELLS,
    Chip,
    FloatOn,
    HardwareSpec,
    Keep,
    LoopForms,
    Overflow,
    RandomOps,
    Schema,
    Topology,
)

LARGE_THRESHOLD = 0.1
"""A bias that fits only from such an input range on (real units) is worth telling: few activations are smaller."""


class DeviceVerdict(StrEnum):
    """Name whether a model fits a device, falls back to float in part, or cannot run."""

    FITS = "fits"
    FALLS_BACK = "falls_back"
    CANNOT_RUN = "cannot_run"


EXIT_CODES: Mapping[DeviceVerdict, int] = {
    DeviceVerdict.FITS: 0,
    DeviceVerdict.FALLS_BACK: 3,
    DeviceVerdict.CANNOT_RUN: 2,
}


@dataclass(frozen=True)
class Refused:
    """Hold a float node that stays in float."""

    node: str
    op: str
    reason: str
    macs: int


@dataclass(frozen=True)
class Waste:
    """A layer whose channels the device pads: `factor` is the work it does over the work that counts."""

    node: str
    factor: float


@dataclass(frozen=True)
class Fit:
    """Hold what a device would make of a model.

    `mac_share`: multiply-accumulates that run in integers, 0..1. `alignment`: device work over real work of all integer
    layers together, 1 without waste. `arithmetic_on_shapes`: nodes that compute no float values. `float_on`: where the
    rejected nodes run. `cycles`: of the device per sample at the highest bits, `seconds` at its clock (None: the file
    has no clock). `loads`: the forms that the device's own tool chain loads, and where they are not exact.
    `device`: the chip, where the file names it.
    """

    model: str
    hardware: str
    schema: str
    verdict: DeviceVerdict
    nodes: int
    integer_nodes: int
    mac_share: float
    refused: tuple[Refused, ...]
    islands: tuple[Island, ...]
    conversions_at_ends: int
    conversions_inside: int
    rescales: int
    accumulators: tuple[Accumulation, ...]
    wasted: tuple[Waste, ...]
    alignment: float
    arithmetic_on_shapes: int
    float_on: str
    cycles: float
    seconds: float | None
    loads: tuple[LoadedForm, ...] = ()
    notes: tuple[str, ...] = ()
    device: Chip | None = None

    @property
    def exit_code(self) -> int:
        """Return the exit code that goes with the verdict."""
        return EXIT_CODES[self.verdict]

    @property
    def overflowing(self) -> tuple[Accumulation, ...]:
        """Return sums that could leave the accumulator, in the worst case of their inputs."""
        return tuple(a for a in self.accumulators if a.overflows)

    @property
    def tight_biases(self) -> tuple[Accumulation, ...]:
        """Return the kernels whose bias fits only from a large input threshold on."""
        return tuple(a for a in self.accumulators if a.bias_threshold > LARGE_THRESHOLD)

    def as_dict(self) -> dict[str, Any]:
        """Return plain data, for `check.format=json`."""
        return asdict(self) | {
            "verdict": self.verdict.value,
            "tight_biases": [asdict(a) for a in self.tight_biases],
            "exit_code": self.exit_code,
        }


@dataclass(frozen=True)
class Loading:
    """State how a model file is read.

    `fixed` inputs are made constants; external data beyond `resident_mb` MiB stay in their files. `isolate`: a separate
    process runs native code on the model first. `keep`: the kept parts of a quantized model. `cells`: recurrent layers
    that are written as their steps. `random`: what replaces ops that draw random numbers.
    """

    fixed: Mapping[str, Any] | None = None
    resident_mb: int = RESIDENT_MB
    isolate: bool = True
    keep: Keep = Keep.ALL
    cells: LoopForms = NO_CELLS
    random: RandomOps | None = None


def check_model(
    path: Path,
    spec: HardwareSpec,
    schema: Schema,
    options: AnnotateOptions,
    *,
    shapes: Mapping[str, Sequence[int]],
    loading: Loading = Loading(),
) -> Fit:
    """Return the fit of a model file.

    `shapes` are shapes of inputs with free axes (see `made_up`). Raises ModelError for files that cannot be read or
    run, and ConfigError for shapes that do not fit.
    """
    try:
        raw = read_graph(path, loading.resident_mb, loading.fixed, loading.keep, random=loading.random)
        feeds = made_up(raw.graph.inputs, shapes)
        graph = clean_graph(raw, feeds, isolate=loading.isolate, declared=reachable(spec), cells=loading.cells)
    except ModelError as error:
        raise ModelError(
            f"{error}. If it is the made-up sample that does not fit, give the shapes of its inputs, such as "
            "'check.shapes={input: [1, 3, 48, 320]}'",
            stage="check",
        ) from error
    graph = with_split_channels(graph, spec, schema, options.split_channels or {})
    # Where nothing runs floats, the answer still lists every node that is refused.
    topology = analyze(graph, replace(spec, float_on=FloatOn.CPU), schema, options)
    return check(graph, topology, spec, schema)


def check(graph: Graph, topology: Topology, spec: HardwareSpec, schema: Schema) -> Fit:
    """Return the fit of a clean model on a device under a schema, which the device must be able to run."""
    reals = [n for n in graph.nodes if computes_reals(graph, n.name)]
    work = {n.name: macs(n, graph) for n in graph.nodes}
    refused = tuple(
        Refused(n.name, n.op, topology.float_nodes[n.name].text, work[n.name])
        for n in reals
        if n.name in topology.float_nodes and n.name not in {*topology.weighted_of, *topology.cell_of}
    )
    sums = accumulations(graph, topology, spec, schema)
    total = sum(work.values())
    integer = sum(work[k.node] for k in topology.kernels) + sum(work[loop.node] for loop in topology.loops)
    factors = {k.node: alignment(graph.by_name[k.node], graph, spec) for k in topology.kernels if k.weight is not None}
    padded = sum(work[node] * factor for node, factor in factors.items())
    ends, inside = conversions(graph, topology)
    bits = {t: g.max_bits for g in topology.groups for t in g.tensors} | {
        w.tensor: w.max_bits for w in topology.weights
    }
    spent = cycles(topology, graph, spec, bits)
    return Fit(
        model=graph.source,
        hardware=spec.name,
        device=spec.device,
        schema=schema.name,
        verdict=_verdict(topology, refused, sums, spec),
        nodes=len(reals),
        integer_nodes=len(reals) - len(refused) - len(topology.weighted) - len(topology.cells),
        mac_share=integer / total if total else 0.0,
        refused=refused,
        islands=islands(graph, topology),
        conversions_at_ends=ends,
        conversions_inside=inside,
        rescales=rescales(topology),
        accumulators=sums,
        wasted=tuple(Waste(node, factor) for node, factor in factors.items() if factor > 1),
        alignment=padded / real if (real := sum(work[node] for node in factors)) else 1.0,
        arithmetic_on_shapes=len(graph.nodes) - len(reals),
        float_on=spec.float_on.value,
        cycles=spent,
        seconds=spent / spec.cost.clock_hz if spec.cost.clock_hz else None,
        loads=loaded_forms(graph, topology, spec),
        notes=(
            *graph.notes,
            *_weights_only(topology, spec),
            *_uncounted(graph),
            *decisions(graph, spec),
            *unmatched(graph, spec),
        ),
    )


def _weights_only(topology: Topology, spec: HardwareSpec) -> list[str]:
    """Return a sentence where weights alone are in integers, or inputs have scales of each run."""
    count, block, by_run = len(topology.weighted) - len(topology.dynamic), spec.weights.block, dynamic_note(topology)
    found = [] if by_run is None else [by_run]
    if count and block is not None:
        found.append(f"{count} nodes multiply float inputs by integer weights in blocks of {block.size}")
    return found


def _uncounted(graph: Graph) -> list[str]:
    """Return a sentence where the share of multiply-accumulates leaves something out."""
    left = [n for n in graph.nodes if is_unknown_work(n, graph)]
    if not left:
        return []
    named = ", ".join(f"{n.name} ({n.op})" for n in left[:4]) + (f" and {len(left) - 4} more" if len(left) > 4 else "")
    return [f"multiply-accumulates of {named} are not known and not counted: the share in integers is an upper limit"]


def _verdict(
    topology: Topology, refused: tuple[Refused, ...], sums: tuple[Accumulation, ...], spec: HardwareSpec
) -> DeviceVerdict:
    """Return the verdict: a device that never overflows rejects risky sums; others run them, wrongly."""
    if not (topology.kernels or topology.weighted or topology.cells) or (refused and spec.float_on is FloatOn.NONE):
        return DeviceVerdict.CANNOT_RUN
    # Of a product of two activations no overflow is simulated, so a plan that could reach one is refused.
    over = [topology.kernel_of[a.node] for a in sums if a.overflows]
    if any(k.weight is None or widest_accumulator(topology, spec, k.node).overflow is Overflow.NEVER for k in over):
        return DeviceVerdict.CANNOT_RUN
    return DeviceVerdict.FALLS_BACK if refused else DeviceVerdict.FITS
