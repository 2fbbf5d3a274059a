"""Lint a whole model: every rule on every op, and the float nodes in its middle."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from quantpipe.check.lint.reading import Reading, read
from quantpipe.check.lint.rules import PAIRS, RULES, LintPlace
from quantpipe.errors import ModelError
from quantpipe.graph.io import RESIDENT_MB
from quantpipe.graph.op_tables import CAST, MULTIPLY, NARROWING
from quantpipe.graph.view import Graph, Node
from quantpipe.hardware.legality import has_float, refusal, takes_float
from quantpipe.intake.load import load_as_written
from quantpipe.oprules import Family, rule_of
from quantpipe.types import AddInputs, HardwareSpec, RequantizeKind, Scales, TensorInfo

Feeds = Mapping[str, Any]


class Severity(StrEnum):
    """Name how much a finding matters.

    `refused`: the device cannot run the model as written. `note`: it runs, but not as an integer model should.
    """

    REFUSED = "refused"
    NOTE = "note"


@dataclass(frozen=True)
class Finding:
    """State one rule that a tensor or a node breaks.

    `where` is the tensor or node; `rule` is the name of what was broken.
    """

    severity: Severity
    rule: str
    node: str
    where: str
    message: str


@dataclass(frozen=True)
class Findings:
    """Hold a device's objections to a model: counts of the parts read, and every finding in graph order."""

    model: str
    hardware: str
    quantized_ops: int
    real_ops: int
    findings: tuple[Finding, ...]

    @property
    def refused(self) -> tuple[Finding, ...]:
        """Return the findings for which the device rejects the model."""
        return tuple(f for f in self.findings if f.severity is Severity.REFUSED)

    @property
    def exit_code(self) -> int:
        """Return 0 when nothing is rejected, 3 when something is, 2 for a model without a single integer op."""
        return 2 if not self.quantized_ops else 3 if self.refused else 0

    def as_dict(self) -> dict[str, Any]:
        """Return plain data, for `check.format=json`."""
        return asdict(self) | {"exit_code": self.exit_code}


def lint_model(
    path: Path,
    spec: HardwareSpec,
    example: Any,
    fixed: Mapping[str, Any] | None = None,
    *,
    resident_mb: int = RESIDENT_MB,
    isolate: bool = True,
) -> Findings:
    """Return the findings of a model file.

    `example` makes feeds from the model's inputs. `fixed` inputs are made constants first. External data beyond
    `resident_mb` MiB stay in their files. With `isolate`, a separate process runs native code on the model first.
    Raises ModelError for files that cannot be read or run.
    """

    def feeds(raw: Graph) -> Feeds:
        inputs: Sequence[TensorInfo] = raw.inputs
        made: Feeds = example(inputs)
        return made

    try:
        graph = load_as_written(path, feeds, resident_mb, fixed, isolate=isolate)
    except ModelError as error:
        raise ModelError(
            f"{error}. If it is the made-up sample that does not fit, give the shapes of its inputs, such as "
            "'check.shapes={input: [1, 3, 48, 320]}'",
            stage="lint",
        ) from error
    return lint(graph, spec)


def lint(graph: Graph, spec: HardwareSpec) -> Findings:
    """Return the findings of a graph that was read as written."""
    reading = read(graph)
    found: list[tuple[str, Finding]] = []
    told: set[tuple[str, str]] = set()
    weighted = [op.node.name for op in reading.ops if op.weight is not None]
    ends = {*weighted[:1], *weighted[-1:]}
    for op in reading.ops:
        if _stays_real(op.node, graph, spec, weighted=op.weight is not None):
            found.append((op.node.name, _island(op.node, spec)))
            continue
        place = LintPlace(op, graph, spec, at_end=op.node.name in ends)
        for rule, where, message in (o for check in RULES for o in check(place)):
            if (rule, where) not in told:  # a tensor with several readers is one finding
                told.add((rule, where))
                severity = Severity.NOTE if rule == PAIRS else Severity.REFUSED
                found.append((op.node.name, Finding(severity, rule, op.node.name, where, message)))
    found += [(f.node, f) for f in (*_real_nodes(reading, spec), *_at_run_time(reading, spec))]
    order = {n.name: i for i, n in enumerate(graph.nodes)}
    findings = tuple(f for _, f in sorted(found, key=lambda pair: order[pair[0]]))
    taken = len(reading.weight_only) if takes_weight_only(spec) else 0
    return Findings(graph.source, spec.name, len(reading.ops) + taken, len(reading.real) - taken, findings)


def takes_weight_only(spec: HardwareSpec) -> bool:
    """Return whether a device multiplies floats by integer weights: such ops then count as integer ones."""
    return any(s.is_weight_only for signatures in spec.ops.values() for s in signatures)


def _real_nodes(reading: Reading, spec: HardwareSpec) -> list[Finding]:
    """Return findings on multipliers of a device that only shifts, and on float nodes between integer ones."""
    below, above = _reach(reading)
    shifts = all(how.kind is RequantizeKind.SHIFT for how in spec.requantizations)
    found = []
    for node in reading.real:
        if shifts and _rescales(node, reading.graph):
            text = f"an accumulator is multiplied by a float value; {spec.name} narrows results by shifts only"
            found.append(Finding(Severity.REFUSED, "requantize", node.name, node.name, text))
        elif node in reading.weight_only and not takes_weight_only(spec):
            text = f"its weights are integers, its data float: {spec.name} computes it in float"
            found.append(Finding(Severity.NOTE, "weight_only", node.name, node.name, text))
        elif node.name in below & above and node not in reading.weight_only and not _joins_layer(node, reading, spec):
            found.append(_island(node, spec))
    return found


def _joins_layer(node: Node, reading: Reading, spec: HardwareSpec) -> bool:
    """Return whether the device computes a node within a layer whose result is not stored: an addition or clamp."""
    rule, graph = rule_of(node), reading.graph
    if rule is not None and rule.family is Family.CLAMP:
        before = graph.producers.get(node.inputs[0])
        return before is not None and before in reading.real and _joins_layer(before, reading, spec)
    if rule is None or rule.family is not Family.SUM or spec.add_inputs is not AddInputs.RESIDUAL_ONLY:
        return False
    layers = {op.node.outputs[0] for op in reading.ops if op.weight is not None and op.output is None}
    return any(tensor in layers for tensor in node.inputs)


def _at_run_time(reading: Reading, spec: HardwareSpec) -> Iterator[Finding]:
    """Return ranges that are found sample by sample, with scales that depend on the data."""
    why = ""
    if spec.scales is Scales.POWER_OF_TWO:
        why = "takes scales that are powers of two"
    elif any(how.kind is not RequantizeKind.FLOAT_MULTIPLIER for how in spec.requantizations):
        why = "narrows by numbers that are computed beforehand"
    for node in reading.dynamic:
        text = "its range is computed from each sample at run time"
        text += f"; {spec.name} {why}" if why else ", in float; a calibrated range costs nothing then"
        yield Finding(Severity.REFUSED if why else Severity.NOTE, "dynamic_range", node.name, node.name, text)


def _island(node: Node, spec: HardwareSpec) -> Finding:
    could = any(s.is_integer for s in spec.declared.get(node.op, ()))
    text = f"{node.op} computes in float between integer ops"
    text += ", and could be in integers" if could else "" if has_float(spec, node.op) else ", on the host"
    return Finding(Severity.NOTE, "float_island", node.name, node.name, text)


def _stays_real(node: Node, graph: Graph, spec: HardwareSpec, *, weighted: bool) -> bool:
    """Return whether a node between DQ and Q runs in float on the device.

    A function runs in integers only for a device that declares it so, a product of two activations where a signature
    takes such a product. What is in integers by its own name always is.
    """
    rule = rule_of(node)
    if rule is None or graph.by_name[node.name].op != node.op:
        return False
    integer = [s for s in spec.declared.get(node.op, ()) if s.is_integer]
    if rule.family in (Family.LOOKUP, Family.ROWS):
        return not integer
    product = rule.family is Family.ACCUMULATE and not weighted
    return product and takes_float(spec, node, graph, rule) and all(refusal(s, node, graph, rule) for s in integer)


def _rescales(node: Node, graph: Graph) -> bool:
    """Return whether a node multiplies a value that was int32 just before, and its product becomes integers again."""
    if node.op != MULTIPLY:
        return False
    makers = [graph.producers.get(t) for t in node.inputs]
    if not any(m is not None and m.op == CAST and graph.dtypes.get(m.inputs[0]) == "int32" for m in makers):
        return False
    return any(r.name != node.name and _goes_back(r, graph) for r, _ in graph.consumers.get(node.outputs[0], ()))


def _goes_back(node: Node, graph: Graph) -> bool:
    """Return whether a chain of single readers that round and clip ends in a cast to integers."""
    while True:
        if node.op not in (CAST, *NARROWING):
            return False
        if node.op == CAST:
            return not str(graph.dtypes.get(node.outputs[0], "float32")).startswith("float")
        readers = graph.consumers.get(node.outputs[0], ())
        if len(readers) != 1:
            return False
        node = readers[0][0]


def _reach(reading: Reading) -> tuple[set[str], set[str]]:
    """Return (nodes below some integer op, nodes above one), along the graph."""
    integer = {op.node.name for op in reading.ops}
    graph = reading.graph
    below: set[str] = set()
    for node in graph.nodes:
        makers = [graph.producers[t].name for t in (*node.inputs, *node.captured) if t in graph.producers]
        if any(m in integer or m in below for m in makers):
            below.add(node.name)
    above: set[str] = set()
    for node in reversed(graph.nodes):
        readers = [r.name for t in node.outputs for r, _ in graph.consumers.get(t, ())]
        if any(r in integer or r in above for r in readers):
            above.add(node.name)
    return below, above
