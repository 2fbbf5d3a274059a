"""Read the kernels of a hardware file that are patterns of ops, and reject contradictions.

`kernels:` names patterns. `fuse:` is a short form of them: each pair of a chain is a kernel of two steps and no more.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace

from quantpipe.errors import HardwareError, nearest
from quantpipe.hardware.pattern import read_of, read_pattern
from quantpipe.hardware.reader import Data, Reader, listed
from quantpipe.hardware.shorthand import choices, wildcards
from quantpipe.oprules import OP_RULES, Family
from quantpipe.types import Cost, DType, OpSignature
from quantpipe.types.kernel import LogicalKernel, PatternStep

OWN = ("requantize", "functions", "accumulator", "fixed_scale")
"""Fields with an entry for each value that is made in another way than elsewhere on the device."""
FIELDS = ("pattern", "types", "results", "when", *OWN, "limits", "cost")
LIMITS = ("bits", "min", "max")
WIDEST = 16
"""Bits of the widest type that activations are stored in."""
COSTS = ("macs_per_cycle",)
OF_TYPES = (*OWN, "limits", "cost")
"""What a kernel says of its values, which it must give types for that."""


def read_kernels(reader: Reader, data: Data, cost: Cost) -> tuple[LogicalKernel, ...]:
    """Return the kernels that a file describes by patterns, in the order of the file.

    Raises HardwareError that names kernel, field and the legal values.
    """
    given = data.get("kernels")
    if given is None:
        return ()
    of = "names and kernels, such as {conv_swish: {pattern: {y: Conv(x, w), z: HardSwish(y)}, types: {…}}}"
    found = [
        _kernel(reader, str(name), part, data, cost=cost) for name, part in reader.mapping(given, "kernels", of).items()
    ]
    for number, kernel in enumerate(found):
        for other in found[:number]:
            if _alike(kernel, other):
                raise reader.error(
                    f"kernels.{kernel.name}.pattern",
                    f"is the same as in kernels.{other.name}, so it is ambiguous which one runs. Legal is one kernel "
                    "with several types by a name of `types`, or another `when`",
                )
    return tuple(found)


def read_fuse(reader: Reader, data: Data, cost: Cost) -> tuple[LogicalKernel, ...]:
    """Return the kernels that the chains of `fuse` abbreviate: one for each pair of consecutive ops.

    Raises HardwareError for anything but a list of chains, and for unknown ops.
    """
    chains = reader.chains(data["fuse"])
    for chain in chains:
        for op in chain:
            if op not in OP_RULES:
                raise reader.error("fuse", f"names the unknown op {op!r}{nearest(op, OP_RULES)}")
        if len(chain) < 2:
            raise reader.error(
                "fuse", f"has [{', '.join(chain)}], which fuses nothing; legal are chains of two ops and more"
            )
    pairs = dict.fromkeys(pair for chain in chains for pair in itertools.pairwise(chain))
    return tuple(
        replace(_kernel(reader, f"[{', '.join(pair)}]", {"pattern": _written_out(*pair)}, data, cost=cost), chain=pair)
        for pair in pairs
    )


def _written_out(first: str, second: str) -> dict[str, str]:
    """Return the pattern for which a pair of `fuse` is short; an addition may fuse either of its operands."""
    last = f"{second}(y, ...)"
    either = OP_RULES[second].family is Family.SUM
    return {"y": f"{first}(...)", "z": f"{last} | {second}(x, y)" if either else last}


def _alike(a: LogicalKernel, b: LogicalKernel) -> bool:
    """Return whether two patterns are the same but for the names of values."""
    return _numbered(a) == _numbered(b)


def _numbered(kernel: LogicalKernel) -> object:
    places: dict[str, int] = {}

    def place(argument: str | float) -> object:
        return places.setdefault(argument, len(places)) if isinstance(argument, str) else argument

    return [
        (sorted((c.op, tuple(map(place, c.arguments)), c.attributes, c.open) for c in s.calls), s.when, place(s.value))
        for s in kernel.steps
    ]


def _kernel(reader: Reader, name: str, part: object, data: Data, *, cost: Cost) -> LogicalKernel:
    field = f"kernels.{name}"
    given = reader.mapping(part, field, ", ".join(FIELDS))
    reader.keys(given, FIELDS, field)
    if given.get("pattern") is None:
        raise reader.error(f"{field}.pattern", f"is missing; legal fields are {', '.join(FIELDS)}")
    for key in OF_TYPES:
        if given.get("types") is None and given.get(key) is not None:
            raise reader.error(f"{field}.types", f"is missing, and {key} needs them; legal is a type for every value")
    when = _by_value(reader, given, field, "when")
    steps = read_pattern(reader, given["pattern"], when, f"{field}.pattern")
    names = {step.value for step in steps}
    values = names.union(*(read_of(step) for step in steps))
    for key in ("when", *OWN, "limits"):
        for value in _by_value(reader, given, field, key):
            legal = sorted(names if key != "limits" else values)
            if value not in legal:
                raise reader.error(f"{field}.{key}.{value}", f"is no value here; legal are {', '.join(legal)}")
    types = _types(reader, given, field, values) if given.get("types") is not None else {}
    results = tuple(str(v) for v in listed(given.get("results") or steps[-1].value))
    for value in results:
        if value not in names:
            raise reader.error(f"{field}.results", f"names {value!r}, which no step makes")
    for step in steps:
        if step.value not in results and not any(step.value in read_of(other) for other in steps):
            raise reader.error(
                f"{field}.pattern.{step.value}", "is read by no step; legal is to name it in `results`, too"
            )
    return LogicalKernel(
        name,
        steps,
        results,
        {step.value: _signatures(reader, step, types, given, data=data, field=field) for step in steps if types},
        _bits(reader, given, field, types, data=data),
        _cost(reader, given, field, cost),
    )


def _by_value(reader: Reader, given: Data, field: str, key: str) -> Mapping[str, Data]:
    part = given.get(key) or {}
    found = reader.mapping(part, f"{field}.{key}", "values of the pattern")
    return {
        str(value): reader.mapping(content, f"{field}.{key}.{value}", "fields") if key not in OWN else content
        for value, content in found.items()
    }


def _types(reader: Reader, given: Data, field: str, values: set[str]) -> dict[str, tuple[str, ...]]:
    """Return value -> the types (or names of `types`) that it may be stored in."""
    part = reader.mapping(given["types"], f"{field}.types", "values of the pattern and their types")
    for value in part:
        if str(value) not in values:
            raise reader.error(f"{field}.types.{value}", f"is no value of the pattern; they are {_list(values)}")
    for value in sorted(values):
        if value not in part:
            raise reader.error(f"{field}.types.{value}", "is missing; every value of the pattern has a type")
    return {str(value): tuple(str(d) for d in listed(types)) for value, types in part.items()}


def _list(values: set[str]) -> str:
    return ", ".join(sorted(values))


def _signatures(
    reader: Reader, step: PatternStep, types: Mapping[str, tuple[str, ...]], given: Data, *, data: Data, field: str
) -> dict[str, tuple[OpSignature, ...]]:
    """Return op -> the ways to run the node that makes a value, one for each choice of the names of `types`."""
    said = {key: (given.get(key) or {}).get(step.value) for key in OWN}
    place = {key: f"{field}.{key}.{step.value}" for key in OWN}
    own, sums, grid = said["requantize"], said["accumulator"], said["fixed_scale"]
    narrowing = None if own is None else reader.requantize({"requantize": own}, f"{place['requantize']}: ")
    held = None if sums is None else reader.accumulator(sums, place["accumulator"])
    fixed = None if grid is None else reader.fixed_scale(grid, place["fixed_scale"])
    found: dict[str, tuple[OpSignature, ...]] = {}
    for call in step.calls:
        kind = None if said["functions"] is None else reader.function(call.op, said["functions"], place["functions"])
        read = [types[a][0] for a in call.arguments if isinstance(a, str)]
        ways = []
        for chosen in choices([*read, *types[step.value]], wildcards(data, reader)):
            inputs = tuple(reader.storable(chosen.get(d, d), f"{field}.types") for d in read)
            outputs = tuple(reader.storable(chosen.get(d, d), f"{field}.types.{step.value}") for d in types[step.value])
            ways.append(OpSignature(inputs, outputs, step.when, narrowing, kind, held, fixed))
        if not read:
            raise reader.error(f"{field}.pattern.{step.value}", f"has {call.op} read no value; legal is one at least")
        found[call.op] = (*found.get(call.op, ()), *ways)
    return found


def _bits(
    reader: Reader, given: Data, field: str, types: Mapping[str, tuple[str, ...]], *, data: Data
) -> dict[str, int]:
    """Return value -> its highest bits, from `bits`, or from the smallest and largest integer."""
    found, names, fixed = {}, wildcards(data, reader), _by_value(reader, given, field, "fixed_scale")
    for value, limits in _by_value(reader, given, field, "limits").items():
        place = f"{field}.limits.{value}"
        reader.keys(limits, LIMITS, place)
        said = {_bits_of_range(reader, limits, place)} if {"min", "max"} & set(limits) else set()
        said |= {reader.bits(limits, place)} if limits.get("bits") is not None else set()
        if len(said) != 1:
            raise reader.error(place, f"says {limits!r}; legal is bits, or min and max of so many bits")
        (bits,) = said
        held = [reader.storable(d, f"{field}.types.{value}") for t in types[value] for d in names.get(t, (t,))]
        widest = max(dtype.bits for dtype in held)
        if bits > widest:
            raise reader.error(place, f"has {bits} bits, and {field}.types.{value} holds {widest}")
        if widest > WIDEST:
            raise reader.error(place, f"limits what is not stored: {field}.types.{value} is {max(held, key=_width)}")
        if value in fixed:
            raise reader.error(place, f"contradicts {field}.fixed_scale.{value}, which has all the bits of its type")
        if limits.get("min") is not None and any(dtype.signed != (limits["min"] < 0) for dtype in held):
            signs = ", ".join(held)
            raise reader.error(
                place, f"has min {limits['min']}, and {field}.types.{value} is {signs}; legal is its sign"
            )
        found[value] = bits
    return found


def _width(dtype: DType) -> int:
    return dtype.bits


def _bits_of_range(reader: Reader, limits: Data, place: str) -> int:
    least, most = limits.get("min"), limits.get("max")
    for bits in range(2, 17):
        half = 1 << (bits - 1)
        if (least, most) in ((-half, half - 1), (1 - half, half - 1), (0, 2 * half - 1)):
            return bits
    raise reader.error(
        place,
        f"has min {least!r} and max {most!r}; legal are all integers of some width: -64 or -63 to 63, or 0 to 127",
    )


def _cost(reader: Reader, given: Data, field: str, cost: Cost) -> Cost | None:
    if given.get("cost") is None:
        return None
    part = reader.mapping(given["cost"], f"{field}.cost", ", ".join(COSTS))
    reader.keys(part, COSTS, f"{field}.cost")
    try:
        return replace(cost, macs_per_cycle={**cost.macs_per_cycle, **reader.rates(part.get("macs_per_cycle", {}))})
    except HardwareError as error:
        raise reader.error(f"{field}.cost", f"is wrong: {error}") from None


class KernelReader(Reader):
    """Words errors of a kernel's ops as what they are: fields of the kernel."""

    def __init__(self, name: str, kernel: str) -> None:
        super().__init__(name)
        self._kernel = kernel

    def error(self, field: str, problem: str) -> HardwareError:
        """Return the error of a field; fields of `ops` belong to the kernel."""
        return super().error(field.replace("ops.", f"kernels.{self._kernel}.", 1), problem)
