"""Choose the schema of a run: the hardware's preferred one, or the user's, if the device can run it.

A schema file leaves `granularity`, `narrow`, `power_of_two` and the symmetry of weights open (null) where the hardware
decides them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quantpipe.errors import ConfigError, HardwareError, nearest
from quantpipe.types import Granularity, HardwareSpec, PowerOfTwo, Scales, Schema, Symmetry, TensorSchema

Data = Mapping[str, Any]
AUTO = "auto"
KEYS = ("symmetry", "granularity", "narrow", "denominator", "power_of_two")


def resolve_schema(spec: HardwareSpec, chosen: Data, known: Mapping[str, Data]) -> Schema:
    """Return the schema of a run.

    `known` are the shipped schemas by name; `chosen` is one of them or has the name `auto`.

    Raises HardwareError when the device cannot run it (the legal names are listed), ConfigError for malformed schemas.
    """
    name = str(chosen.get("name", "?"))
    if name != AUTO:
        return _checked(spec, chosen, known)
    changed = [key for key in chosen if key != "name" and chosen[key]]
    if changed:
        raise ConfigError(
            f"schema.{changed[0]} is given, and auto takes the schema of the hardware as it is; to change fields, name "
            f"it: schema={spec.preferred_schema}",
            where="schema",
        )
    if spec.preferred_schema not in known:
        raise HardwareError(
            f"preferred_schema is {spec.preferred_schema!r}{nearest(spec.preferred_schema, known)}; "
            f"known are {', '.join(sorted(known))}",
            stage="hardware",
            where=spec.name,
        )
    return _checked(spec, known[spec.preferred_schema], known)


def legal_schemas(spec: HardwareSpec, known: Mapping[str, Data]) -> list[str]:
    """Return the names of the shipped schemas that a device can run."""
    return [n for n, d in sorted(known.items()) if _refusal(spec, _build(spec, d)) is None]


def _checked(spec: HardwareSpec, data: Data, known: Mapping[str, Data]) -> Schema:
    schema = _build(spec, data)
    why = _refusal(spec, schema)
    if why is not None:
        legal = ", ".join(legal_schemas(spec, known)) or "none"
        raise HardwareError(
            f"the schema {schema.name!r} cannot run on {spec.name}: {why}; legal are auto, {legal}",
            stage="hardware",
            where="schema",
        )
    return schema


def _build(spec: HardwareSpec, data: Data) -> Schema:
    name = str(data.get("name", "?"))
    activations = _tensor(name, "activations", data.get("activations"))
    weights = _tensor(name, "weights", data.get("weights"))
    filled: dict[str, Any] = {"granularity": Granularity.PER_TENSOR, "narrow": spec.activations.narrow}
    filled_weights: dict[str, Any] = {"granularity": spec.weights.granularity[0], "narrow": spec.weights.narrow}
    filled_weights["symmetry"] = Symmetry.SYMMETRIC if spec.weights.symmetric else Symmetry.ASYMMETRIC
    filled |= activations
    filled_weights |= weights
    return Schema(name, TensorSchema(**filled), TensorSchema(**filled_weights))


def _tensor(name: str, part: str, data: Data | None) -> dict[str, Any]:
    where = f"schema {name}"
    if not isinstance(data, Mapping):
        raise ConfigError(f"{part} must be a mapping of {', '.join(KEYS)}", where=where)
    for key in data:
        if key not in KEYS:
            raise ConfigError(
                f"{part}.{key} is not a field{nearest(str(key), KEYS)}; legal are {', '.join(KEYS)}", where=where
            )
    try:
        given = {k: v for k, v in data.items() if v is not None}
        TensorSchema(**given)
    except ValueError as error:
        raise ConfigError(f"{part}: {error}", where=where) from None
    return given


def _refusal(spec: HardwareSpec, schema: Schema) -> str | None:
    for part, tensor in (("activation", schema.activations), ("weight", schema.weights)):
        if spec.scales is Scales.POWER_OF_TWO and tensor.power_of_two is PowerOfTwo.NONE:
            return f"it needs power-of-two {part} scales"
    if spec.activations.symmetric and schema.activations.symmetry is not Symmetry.SYMMETRIC:
        return "its activations must be symmetric (zero point 0)"
    if spec.weights.symmetric and schema.weights.symmetry is not Symmetry.SYMMETRIC:
        return "its weights must be symmetric (zero point 0)"
    if schema.weights.granularity not in spec.weights.granularity:
        return f"weights may be {' or '.join(spec.weights.granularity)}"
    if schema.activations.granularity is not Granularity.PER_TENSOR:
        return "activations may be per_tensor only"
    return None
