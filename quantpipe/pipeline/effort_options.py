"""The options of the group `effort`: how much is measured after calibration."""

from __future__ import annotations

from dataclasses import dataclass

from quantpipe.errors import ConfigError
from quantpipe.option_checks import number


@dataclass(frozen=True)
class EffortOptions:
    """State how many float passes over the evaluation samples what follows calibration may take.

    `passes`: For everything; they limit the optional parts. `explain_passes`: For the diagnosis of a poor result; 0:
    none. `session_passes`: For the comparison of integers in several sessions. `baseline_passes`: For onnxruntime's own
    quantization; 0: none. `recover_passes`: For recovery, counted in passes over the calibration samples.
    `other_sessions`: Whether sessions are compared that users may open instead of the file's own. `evaluated`: The
    share of the evaluation samples that is evaluated. `least_seconds`: Each of these parts may take this long, however
    short a pass is. `max_seconds`: Seconds for everything; None: only the passes limit it.
    """

    passes: float = 12.0
    explain_passes: float = 3.0
    session_passes: float = 3.0
    baseline_passes: float = 1.5
    recover_passes: float = 60.0
    other_sessions: bool = True
    evaluated: float = 1.0
    least_seconds: float = 5.0
    max_seconds: float | None = None

    def __post_init__(self) -> None:
        number("effort.passes", self.passes)
        if self.passes < 1:
            raise ConfigError(
                f"is {self.passes:g}, and the float model alone takes one pass; legal is 1 and above",
                where="effort.passes",
            )
        for name in ("explain_passes", "session_passes", "baseline_passes", "recover_passes", "least_seconds"):
            number(f"effort.{name}", getattr(self, name), least=0.0)
        number("effort.evaluated", self.evaluated, above=0.0)
        if self.evaluated > 1:
            raise ConfigError(f"is {self.evaluated:g}; legal is a share, up to 1", where="effort.evaluated")
        if self.max_seconds is not None:
            number("effort.max_seconds", self.max_seconds, above=0.0, also=", or null for no limit")
