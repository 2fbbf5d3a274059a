"""The steps of recovery, one on top of the other, each measured on samples it was not fitted to and kept only if it
helps.

A step is a way to walk: `bias` corrects biases only, `rounding` adds scales on the layer's output error and Hessian
rounding, `propagation` adds the regression of the float output on the quantized input. Each walk starts from the float
weights, so the best step stands alone; the measure is KL to the float outputs on the search samples, without labels.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from quantpipe.errors import ConfigError, HardwareError, nearest
from quantpipe.plan import NO_OVERRIDES, Overrides
from quantpipe.recover.layer import LayerOptions
from quantpipe.recover.walk import Recovery

SEARCHED = ("hessian", "coordinate")
"""Roundings that look at a layer's output error."""


class Step(StrEnum):
    BIAS = "bias"
    ROUNDING = "rounding"
    PROPAGATION = "propagation"


@dataclass(frozen=True)
class RecoverOptions:
    """`steps` in the order in which they are tried (none: no recovery). `rows`: most sampled rows per layer.
    `rounding`: hessian | coordinate. `ridge`, `damping`: regularization of regression and rounding, as shares of the
    mean second moment."""

    steps: tuple[str, ...] = ()
    rows: int = 8192
    rounding: str = "hessian"
    ridge: float = 0.5
    damping: float = 0.01

    def __post_init__(self) -> None:
        object.__setattr__(self, "steps", tuple(self.steps))
        legal = [s.value for s in Step]
        for step in self.steps:
            if step not in legal:
                raise ConfigError(
                    f"has {step!r}{nearest(step, legal)}; legal are {', '.join(legal)}", where="recover.steps"
                )
        if self.rounding not in SEARCHED:
            raise ConfigError(
                f"is {self.rounding!r}{nearest(str(self.rounding), SEARCHED)}; legal are {', '.join(SEARCHED)}",
                where="recover.rounding",
            )
        for name, least in (("rows", 64), ("ridge", 1e-6), ("damping", 1e-6)):
            if not getattr(self, name) >= least:
                raise ConfigError(f"is {getattr(self, name)}; at least {least}", where=f"recover.{name}")

    def layer(self, step: str) -> LayerOptions:
        """How single layers are solved in a step."""
        plain = step == Step.BIAS
        return LayerOptions(
            propagate=step == Step.PROPAGATION,
            rounding="nearest" if plain else self.rounding,
            scale_search=not plain,
            ridge=self.ridge,
            damping=self.damping,
        )


@dataclass(frozen=True, eq=False)
class Climbed:
    """What the ladder ended with: the overrides of the best step (none when no step helped), and the table of steps."""

    overrides: Overrides
    steps: tuple[Mapping[str, Any], ...]
    layers: tuple[Mapping[str, Any], ...] = field(default=(), repr=False)
    metrics: Mapping[str, float] = field(default_factory=dict)
    """kl, mse and (with labels) top1 of the result on the samples that judged it; empty when no step was kept."""


def climb(
    options: RecoverOptions,
    walk: Callable[[LayerOptions], Recovery],
    measure: Callable[[Overrides], float],
    start: Overrides = NO_OVERRIDES,
) -> Climbed:
    """Try the steps in order. `measure` gives the KL of a plan with some overrides (lower is better); `start` are those
    that stay where no step helps.

    A step whose weights the device cannot express is not kept, and its row says why.
    """
    best = measure(start)
    kept = start
    layers: tuple[Mapping[str, Any], ...] = ()
    table: list[Mapping[str, Any]] = []
    for step in options.steps:
        started = time.perf_counter()
        row: dict[str, Any] = {"step": step, "kl_before": best, "kl_after": None, "kept": False}
        table.append(row)
        try:
            found = walk(options.layer(step))
            value = measure(found.overrides)
        except HardwareError as error:
            row |= {"seconds": time.perf_counter() - started, "reason": str(error)}
            continue
        helps = value < best
        row |= {"kl_after": value, "kept": helps, "seconds": time.perf_counter() - started}
        if helps:
            best, kept, layers = value, found.overrides, found.layers
    return Climbed(kept, tuple(table), layers)
