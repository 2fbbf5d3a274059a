"""Types of the comparison of a dump with a plan. docs/conformance.md describes every key."""

from __future__ import annotations

from typing import TypedDict


class ExplanationRow(TypedDict):
    """An explanation of the device's numbers: a field of the hardware file, or a mistake.

    `left`: elements that differ still. `change`: the corresponding fields of the hardware file; null for a mistake.
    """

    field: str
    value: str
    left: int
    change: dict[str, str] | None


class DumpedRow(TypedDict):
    """One tensor of a dump.

    `histogram`: difference in units of the last place -> elements. `where`: the first element that differs.
    `differing_own`: elements that differ from the kernel's result on the device's own operands. It is null where it was
    not computed: nothing differs before it, nor in it, or the kernel cannot be repeated.
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
    """The values of a hardware file's field that the probes leave; `own` is the file's value.

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
    """The device's fields by the dumps of the probes. `unexplained`: probes that no combination of values explains."""

    version: str
    run: str
    dump: str
    hardware: str
    probes: list[str]
    fields: list[IdentifiedField]
    unexplained: list[str]
    overrides: list[str]


class LayerFit(TypedDict):
    """How well fitted figures predict layers that they were not fitted to; errors are shares of the measured value.

    `left_out`: networks, or layers where there are fewer than three networks. `total_error`: of what was left out
    together, the median.
    """

    quantity: str
    unit: str
    layers: int
    networks: int
    left_out: str
    median_error: float
    error_90: float
    total_error: float


class TimesReport(TypedDict):
    """The figures that were fitted to measured layers, and the hardware file that has them."""

    version: str
    runs: list[str]
    times: str
    hardware: str
    file: str
    fits: list[LayerFit]
    kinds: dict[str, int]
    ignored: list[str]
