"""Select the forms of the integer model that a run writes, from the part `realize` of the configuration.

`realize=qdq` asks for one, `realize=[qdq,c]` for several: each option of the group adds its name to `realize.forms`.
The first ONNX form that expresses the plan exactly is `realize/model.onnx`; all others are written next to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from omegaconf import DictConfig

from quantpipe.errors import ConfigError, nearest
from quantpipe.hardware.schemas import AUTO
from quantpipe.realize import BACKENDS, EXACT, FILE_FORMS, WITHOUT_FLOAT16, inexact_on
from quantpipe.types import DType, FloatType, HardwareSpec


def several_options(config: DictConfig, group: str) -> str:
    """Return how a report calls the options of a group that has a list of them, of which `realize` alone takes one."""
    content = config.get(group)
    forms = content.get("forms") if isinstance(content, Mapping | DictConfig) else None
    if group != "realize" or not isinstance(forms, Mapping | DictConfig):
        raise ConfigError("is a list of options; legal is one", where=group)
    return f"[{','.join(str(name) for name in forms)}]"


def forms_of(realize: Mapping[str, Any], spec: HardwareSpec, *, verify: str) -> tuple[str, ...]:
    """Return the form of model.onnx, then every other form that is written next to it.

    The first form is an ONNX form that is exact on this device; if none was asked for, it is `integer`, which shows
    equality. With `verify=warn`, inexact forms are allowed alone. Raises ConfigError for an unknown form, and for a
    single form that is not exact here.
    """
    asked = [(spec.realize if name == AUTO else name, where) for name, where in _named(realize, spec)]
    legal = (*BACKENDS, *FILE_FORMS)
    for name, where in asked:
        if name not in legal:
            raise ConfigError(f"is {name!r}{nearest(name, legal)}; legal are {', '.join(legal)}", where=where)
    exact = [name for name, _ in asked if name in BACKENDS and inexact_on(spec, name) is None]
    if not exact and verify != "warn":
        for name, where in asked:
            reason = inexact_on(spec, name) if name in BACKENDS else None
            if reason is not None:
                raise ConfigError(
                    f"is {name!r}, {reason}, legal is {EXACT}; realize=[{EXACT},{name}] writes both and counts in what "
                    f"the {name} form differs, and so does verify=warn",
                    where=where,
                )
    return tuple(dict.fromkeys((exact[0] if exact else EXACT, *(name for name, _ in asked))))


def refuse_half(forms: Sequence[str], float_type: str) -> None:
    """Raise ConfigError where nodes in float are to compute in float16, and a form is of a runtime without it."""
    alone = [form for form in forms if form in WITHOUT_FLOAT16]
    if float_type == FloatType.FLOAT16 and alone:
        legal = [form for form in (*BACKENDS, *FILE_FORMS) if form not in WITHOUT_FLOAT16]
        raise ConfigError(
            f"is {float_type}, and realize={alone[0]} computes float nodes in {FloatType.FLOAT32}; legal are "
            f"{FloatType.FLOAT32}, or realize as one of {', '.join(legal)}",
            where="annotate.float_type",
        )


def refuse_brain(forms: Sequence[str], spec: HardwareSpec) -> None:
    """Raise ConfigError where a device gives results in bfloat16, and a form other than the exact one is asked for."""
    gives = [op for op, ways in spec.declared.items() if any(DType.BFLOAT16 in s.outputs for s in ways)]
    other = [form for form in forms if form != EXACT]
    if gives and other:
        raise ConfigError(
            f"is {other[0]}, which has no results in {DType.BFLOAT16}, and {spec.name} declares them for "
            f"{', '.join(gives)}; legal is {EXACT}",
            where="realize",
        )


def is_implied(realize: Mapping[str, Any], spec: HardwareSpec, form: str) -> bool:
    """Return whether a form is written although the part `realize` of the configuration does not name it."""
    return form not in [spec.realize if name == AUTO else name for name, _ in _named(realize, spec)]


def forms_record(forms: Sequence[str]) -> dict[str, Any]:
    """Return the part `realize` of a run's configuration as it is filed: of one form what it has always been."""
    return {"backend": forms[0]} if len(forms) == 1 else {"backend": forms[0], "forms": list(forms)}


def _named(realize: Mapping[str, Any], spec: HardwareSpec) -> list[tuple[str, str]]:
    """Return (form, the key that names it); a `backend` that no option of the group has set is its own key."""
    backend, forms = str(realize.get("backend")), realize.get("forms")
    if isinstance(forms, list | tuple):  # of a configuration that was filed
        names = [str(name) for name in forms]
    elif isinstance(forms, Mapping):
        names = [str(name) for name, wanted in forms.items() if wanted]
    elif forms is None:
        names = []
    else:
        raise ConfigError(f"is {forms!r}; legal is a mapping such as {{qdq: true, c: true}}", where="realize.forms")
    if backend not in names:
        names = [backend]
    return [(n, "realize.backend" if n != AUTO else f"hardware {spec.name}: realize") for n in names]
