"""What a comparison of a dump with a plan holds, as types. docs/conformance.md says what every key means."""

from __future__ import annotations

from typing import TypedDict


class ExplanationRow(TypedDict):
    """What would give what a device gave: a field of the hardware file, or a mistake.

    `left`: elements that differ still. `change`: the fields of the hardware file that say so; null for a mistake.
    """

    field: str
    value: str
    left: int
    change: dict[str, str] | None


class DumpedRow(TypedDict):
    """One tensor of a dump.

    `histogram`: difference in units of the last place -> elements. `where`: the first element that differs.
    `differing_own`: elements that differ from what the kernel gives on the device's own operands (null where it was
    not asked for: nothing differs before it, nor in it; or the kernel cannot be repeated).
    """

    tensor: str
    node: str | None
    op: str | None
    dtype: str
    elements: int
    differing: int
    max_lsb: int
    histogram: dict[str, int]
    where: list[int] | None
    differing_own: int | None
    explanations: list[ExplanationRow]


class DumpedSet(TypedDict):
    """How the dump of one set differs. `missing`: tensors that it does not have. `first`: the first that differs."""

    name: str
    samples: int
    tensors: int
    missing: list[str]
    elements: int
    differing: int
    first: str | None
    rows: list[DumpedRow]


class DumpReport(TypedDict):
    """How a dump differs from the plan, set by set."""

    version: str
    run: str
    dump: str
    hardware: str
    differing: int
    sets: list[DumpedSet]


class IdentifiedField(TypedDict):
    """What the probes leave of a field of the hardware file, whose own value is `own`.

    `state`: `found` (one value is left), `ambiguous` (several), `not tested` (no dump depends on it). `tested_by`:
    probes with a dump that depend on it. `would_decide`: probes without a dump on which the values that are left give
    other integers.
    """

    field: str
    own: str
    state: str
    values: list[str]
    tested_by: list[str]
    would_decide: list[str]


class IdentifyReport(TypedDict):
    """What dumps of the probes say of a device. `unexplained`: probes that no combination of values explains."""

    version: str
    run: str
    dump: str
    hardware: str
    probes: list[str]
    fields: list[IdentifiedField]
    unexplained: list[str]
    overrides: list[str]
