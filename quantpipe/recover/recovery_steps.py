"""What recovery is asked to do: a list of steps, each a name or a name with parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from math import inf
from typing import Any

from quantpipe.errors import ConfigError, nearest
from quantpipe.recover.named_steps import STEPS, TRAIN, Walk, layer_options
from quantpipe.recover.parameters import KEY, SEARCHED
from quantpipe.recover.reconstruct.layer import LayerOptions
from quantpipe.recover.recovery_cost import PassCounts

WHEN = ("always", "missed", "searched")


@dataclass(frozen=True)
class StepItem:
    """One step to be tried: its name and its parameters, of the kind that the step takes."""

    name: str
    parameters: Any

    @property
    def walks(self) -> bool:
        """Return whether it is a walk."""
        return STEPS[self.name].parameters is Walk

    def count(self, counts: PassCounts, rows: int | None) -> float:
        """Return the float passes of the step and of its judgement.

        `rows`: the rows of the walk that was made before, if there was one.
        """
        return STEPS[self.name].count(counts, self.parameters, rows) + counts.judgement

    @property
    def rescales(self) -> bool:
        """Return whether it puts channels in other units, which after a walk costs another one."""
        return STEPS[self.name].rescales


@dataclass(frozen=True)
class RecoverOptions:
    """State which steps of recovery are tried, in which order, and with what.

    `steps`: names, or mappings of a name and parameters (none: no recovery). `rows`, `rounding`, `ridge`, `damping`,
    `shrinkage_factor`: for every step that walks through the layers, unless it has its own. `kl_target`: the
    KL at which no walk is repeated in other units. `holdout`: the share of the search samples that judge the steps, and
    that a search does not see whose candidates have recovered weights. `when`: `always`; `missed` for recovery only
    where the search missed its objective; or `searched` for recovery there and after searches of several candidates.
    """

    steps: Sequence[str | Mapping[str, Any]] = ()
    rows: int = 16384
    rounding: str = "gptq"
    ridge: float = 0.5
    damping: float = 0.05
    shrinkage_factor: float = 10.0
    kl_target: float = 0.02
    holdout: float = 0.5
    when: str = "always"

    def __post_init__(self) -> None:
        steps = tuple(self.steps) if isinstance(self.steps, Sequence) and not isinstance(self.steps, str) else None
        if steps is None:
            raise ConfigError(f"is {self.steps!r}; legal is a list of steps, such as [rounding,propagation]", where=KEY)
        object.__setattr__(self, "steps", steps)
        if self.when not in WHEN:
            raise ConfigError(
                f"is {self.when!r}{nearest(str(self.when), WHEN)}; legal are {', '.join(WHEN)}", where="recover.when"
            )
        if self.rounding not in SEARCHED:
            raise ConfigError(
                f"is {self.rounding!r}{nearest(str(self.rounding), SEARCHED)}; legal are {', '.join(SEARCHED)}",
                where="recover.rounding",
            )
        for name, least in (
            ("rows", 64),
            ("ridge", 1e-6),
            ("damping", 1e-6),
            ("shrinkage_factor", 0),
            ("kl_target", 0),
        ):
            value = getattr(self, name)
            if not least <= value < inf:
                raise ConfigError(f"is {value}; at least {least}, and finite", where=f"recover.{name}")
        if not 0 <= self.holdout < 1:
            raise ConfigError(f"is {self.holdout}; legal is 0 and above, and less than 1", where="recover.holdout")
        self.items()

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the steps, in order."""
        return tuple(item.name for item in self.items())

    def layer(self, step: str) -> LayerOptions:
        """Return how single layers are solved in a step that walks, without parameters of its own."""
        return layer_options(step, Walk(**self._walk))

    @property
    def _walk(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("rows", "rounding", "ridge", "damping", "shrinkage_factor")}

    def items(self) -> tuple[StepItem, ...]:
        """Return the steps with their parameters.

        Raises ConfigError for what no step is called, or takes.
        """
        return tuple(self._item(given) for given in self.steps)

    def _item(self, given: str | Mapping[str, Any]) -> StepItem:
        told = {"name": given} if isinstance(given, str) else dict(given) if isinstance(given, Mapping) else {}
        name = told.pop("name", None)
        legal = [step for step in STEPS if step != TRAIN]  # training has options of its own, and comes last
        if not isinstance(name, str) or name not in legal:
            near = nearest(str(name), legal) if name is not None else ""
            near = f" (training is asked for with {TRAIN}=lsq, say)" if name == TRAIN else near
            raise ConfigError(
                f"has {given!r}{near}; legal are {', '.join(legal)}, or one of them with parameters, such as "
                "{name: equalize, iterations: 20}",
                where=KEY,
            )
        kind = STEPS[name].parameters
        known = [f.name for f in fields(kind)]
        for parameter in told:
            if parameter not in known:
                raise ConfigError(
                    f"gives {name} the parameter {parameter!r}{nearest(str(parameter), known)}; legal are "
                    f"{', '.join(known)}",
                    where=KEY,
                )
        own = self._walk if kind is Walk else {}
        return StepItem(name, kind(**{**own, **told}))
