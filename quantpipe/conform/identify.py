"""Find the fields of a hardware file that agree with what a device gave of the probes.

A field is a variable with the values that are legal on this device. For each probe, some values of the fields that it
depends on give exactly the device's integers, on the device's own operands. The values that agree with all probes are
the answer.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from typing import Any

import numpy as np

from quantpipe.arrays import Array
from quantpipe.conform.alternatives import ALL_WIDTHS, WIDTHS, limits, narrowings
from quantpipe.conform.describe import Change
from quantpipe.conform.dump import Dump
from quantpipe.conform.faults import Fault
from quantpipe.conform.numpy_kernels import RepeatedKernel
from quantpipe.conform.probes import Probe
from quantpipe.types import MULTIPLIER_BITS, Form, HardwareSpec, IdentifiedField, Isa, RequantizeKind, Unify

Assignment = Mapping[str, str]
WIDTH = ", multiplier_bits "


@dataclass(frozen=True, eq=False)
class FieldValue:
    """Hold one value of a field: the file's entry for it, and a kernel fault that no plan has."""

    label: str
    change: Change = field(default_factory=dict)
    fault: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Held:
    """Hold a probe with the device's result; `found` None: the device gave no result."""

    probe: Probe
    found: Array | None
    given: Mapping[str, Array] = field(repr=False)

    @classmethod
    def of(cls, probe: Probe, dump: Dump | None) -> Held:
        """Return a probe with its dump."""
        samples = probe.vectors.samples if dump is None else dump.samples
        golden = {t: v[:samples].astype(np.int64) for t, v in probe.vectors.golden.items()}
        if dump is None:
            return cls(probe, None, golden)
        return cls(probe, dump.tensors.get(probe.kernel.output), {**golden, **dump.tensors})

    @property
    def narrowing(self) -> str:
        """Return the variable of how its op narrows."""
        return f"requantize of {self.probe.kernel.op}"

    def predicted(self, values: Sequence[FieldValue]) -> Array | None:
        """Return the device's result for some values of fields; None where no such file is legal."""
        change: dict[str, Any] = {}
        fault: dict[str, Any] = {}
        for value in values:
            change, fault = {**change, **value.change}, {**fault, **value.fault}
        key = repr((sorted(change.items(), key=str), sorted(fault.items(), key=str)))
        if key not in self._known:
            self._known[key] = self._predict(change, Fault(**fault))
        return self._known[key]

    @cached_property
    def _known(self) -> dict[str, Array | None]:
        return {}

    def _predict(self, change: Change, fault: Fault) -> Array | None:
        kernel = self.probe.kernel
        if kernel.form is Form.RAW:  # its accumulator is handed on, and narrowed for those who read it so
            return self._narrowed(change, fault)
        site: RepeatedKernel | None = self.probe.described.site(kernel, change)
        return None if site is None else site.result(self.given, fault)

    def _narrowed(self, change: Change, fault: Fault) -> Array | None:
        kernel = self.probe.kernel
        first = self.probe.described.site(kernel, change)
        second = self.probe.described.site(kernel, change, narrows=True)
        if first is None or second is None:
            return None
        acc = first.accumulator(self.given, fault)
        return None if acc is None else second.result({second.operands[0]: acc}, fault)


def variables(spec: HardwareSpec, ops: Sequence[str]) -> dict[str, list[FieldValue]]:
    """Return the fields that may differ on the probed ops, each with its values, the file's own value first."""
    found: dict[str, list[FieldValue]] = {f"requantize of {op}": [FieldValue("as in the file"), *_ways()] for op in ops}
    own = spec.accumulator
    found["accumulator"] = [FieldValue(f"{own.label}, overflow {own.overflow}")]
    for limit in limits():
        if (limit.label, limit.overflow) != (own.label, own.overflow):
            found["accumulator"].append(FieldValue(f"{limit.label}, overflow {limit.overflow}", fault={"limit": limit}))
    for name, kind, mine in (("unify", Unify, spec.unify), ("isa", Isa, spec.isa)):
        found[name] = [FieldValue(str(mine)), *(FieldValue(str(v), {name: str(v)}) for v in kind if v is not mine)]
    found["pad.value"] = [FieldValue("zero_point"), FieldValue("zero", fault={"pads_zero": True})]
    found["narrowing"] = [FieldValue("saturate"), FieldValue("wrap", fault={"wraps": True})]
    return found


def _ways(widths: Sequence[int] = WIDTHS) -> Iterator[FieldValue]:
    for how in narrowings(widths):
        free = {"unify": "free"} if how["kind"] != RequantizeKind.SHIFT else {}
        width = f"{WIDTH}{how['multiplier_bits']}" if "multiplier_bits" in how else ""
        yield FieldValue(f"{how['kind']}, rounding {how['rounding']}{width}", {"requantize": how, **free})


@dataclass(frozen=True, eq=False)
class Identified:
    """Hold what the probes leave of each field, and the probes that no combination explains."""

    fields: list[IdentifiedField]
    unexplained: list[str]


def identify(spec: HardwareSpec, held: Sequence[Held]) -> Identified:
    """Return the values of fields that agree with every probe.

    `spec` is the hardware file that the probes were planned for.
    """
    ops = list(dict.fromkeys(h.probe.kernel.op for h in held))
    known = _without_twins(variables(spec, ops), held)
    asked = [(h, _relevant(h, known)) for h in held]
    left, unexplained = _left(asked, known)
    wider = {name: _with_all_widths(name, values, known[name], held) for name, values in left.items()}
    if any(len(wider[name]) > len(values) for name, values in left.items()):
        left, unexplained = _left(asked, wider)
    every = {name: [*values, *(v for v in wider[name] if v not in values)] for name, values in known.items()}
    fields = [_field(name, every[name], [v.label for v in left[name]], held=asked) for name in known]
    return Identified(fields, unexplained)


Known = Mapping[str, Sequence[FieldValue]]


def _left(asked: Sequence[tuple[Held, list[str]]], known: Known) -> tuple[dict[str, list[FieldValue]], list[str]]:
    """Return the values of each field that agree with every probe, and the probes that none agree with."""
    left = {name: list(values) for name, values in known.items()}
    told: dict[str, tuple[list[str], list[Assignment]]] = {}

    def keep(names: Sequence[str], agreeing: Sequence[Assignment]) -> None:
        for name in names if agreeing else ():
            labels = {assignment[name] for assignment in agreeing}
            left[name] = [value for value in left[name] if value.label in labels]

    # Probes of few fields first: what they rule out need not be tried together with the fields of others.
    for h, names in sorted(asked, key=lambda one: prod(len(known[name]) for name in one[1])):
        if h.found is not None:
            told[h.probe.recipe.name] = names, _agreeing(h, names, left)
            keep(*told[h.probe.recipe.name])
    unexplained = [name for name, (_, agreeing) in told.items() if not agreeing]
    before = None
    while before != left:  # a value that no assignment of some probe has is none of any other probe's, either
        before = {name: list(values) for name, values in left.items()}
        for probe, (names, agreeing) in told.items():
            labels = {name: {value.label for value in left[name]} for name in names}
            kept = [a for a in agreeing if all(a[n] in labels[n] for n in names)]
            if agreeing and not kept:
                unexplained.append(probe)
            told[probe] = names, kept
            keep(names, kept)
    return left, unexplained


def _with_all_widths(
    name: str, left: Sequence[FieldValue], known: Sequence[FieldValue], held: Sequence[Held]
) -> list[FieldValue]:
    """Return the rest of a narrowing, and the same with multipliers of every other width, where it multiplies by such.

    Where none of the widths that were tried agrees with a probe, all values are left, and so are all roundings.
    """
    mine = [h for h in held if h.narrowing == name]
    labels, roundings = {value.label for value in known}, {_rounding(value) for value in left}
    more = [v for v in _ways(ALL_WIDTHS) if v.label not in labels and _rounding(v) in roundings] if mine else []
    place = {value.label: number for number, value in enumerate(_ways(ALL_WIDTHS))}
    found = [*left, *(v for v in more if any(h.predicted([v]) is not None for h in mine))]
    return sorted(found, key=lambda value: place.get(value.label, -1))


def _rounding(value: FieldValue) -> str:
    """Return the way of a narrowing without the width of its multiplier."""
    return value.label.partition(WIDTH)[0]


def _without_twins(known: dict[str, list[FieldValue]], held: Sequence[Held]) -> dict[str, list[FieldValue]]:
    """Return the fields without illegal values; the file's own value, if listed twice, appears by its name."""
    found = {}
    for name, values in known.items():
        mine = [h for h in held if not name.startswith("requantize of ") or h.narrowing == name]
        legal = [v for v in values if any(h.predicted([v]) is not None for h in mine)]
        if name.startswith("requantize of ") and mine:
            own = _own_label(mine[0])
            legal = [replace(v, label=own) if n == 0 else v for n, v in enumerate(legal) if n == 0 or v.label != own]
        found[name] = legal
    return found


def _own_label(held: Held) -> str:
    site = held.probe.described.site(held.probe.kernel, {}, narrows=held.probe.kernel.form is Form.RAW)
    output = None if site is None else site.output
    if output is None:
        return "as in the file"
    fewer = output.fixed is not None and output.fixed.bits != MULTIPLIER_BITS
    width = f"{WIDTH}{output.fixed.bits}" if output.fixed is not None and fewer else ""
    return f"{output.kind}, rounding {output.rounding}{width}"


def _relevant(held: Held, known: Mapping[str, Sequence[FieldValue]]) -> list[str]:
    """Return the fields that a probe depends on: some value gives other integers than the file's."""
    found = []
    for name, values in known.items():
        if name.startswith("requantize of ") and name != held.narrowing:
            continue
        made = [p for v in values if (p := held.predicted([v])) is not None]
        if any(not np.array_equal(p, made[0]) for p in made[1:]):
            found.append(name)
    return found


def _agreeing(held: Held, names: Sequence[str], known: Known) -> list[Assignment]:
    found: list[Assignment] = []
    for values in itertools.product(*(known[name] for name in names)):
        made = held.predicted(values)
        if made is not None and held.found is not None and np.array_equal(made, held.found):
            found.append({name: value.label for name, value in zip(names, values, strict=True)})
    return found


def _field(
    name: str, values: Sequence[FieldValue], left: Sequence[str], *, held: Sequence[tuple[Held, list[str]]]
) -> IdentifiedField:
    touched = [h for h, names in held if name in names]
    some = [v for v in values if v.label in left]
    many = len(left) > 1
    tested = [h.probe.recipe.name for h in touched if h.found is not None]
    state = "found" if not many else "ambiguous" if len(left) < len(values) else "not tested"
    would = [h.probe.recipe.name for h in touched if h.found is None and many and _tells(h, some)]
    return {
        "field": name,
        "own": _shortened([values[0].label], [v.label for v in values])[0],
        "state": state,
        "values": _shortened(left, [v.label for v in values]),
        "tested_by": tested,
        "would_decide": would,
    }


def _shortened(left: Sequence[str], labels: Sequence[str]) -> list[str]:
    """Return the values without those that another one covers, as widths of its multiplier make no difference."""
    found = []
    for label in left:
        stem, _, width = label.partition(WIDTH)
        widths = [other for other in labels if other.startswith(stem + WIDTH)]
        if widths and stem in left and all(other in left for other in widths):
            found += [] if width else [stem]
        else:
            found.append(label)
    return found


def _tells(held: Held, values: Sequence[FieldValue]) -> bool:
    made = [p for v in values if (p := held.predicted([v])) is not None]
    return any(not np.array_equal(p, made[0]) for p in made[1:])
