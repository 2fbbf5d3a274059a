"""quantpipe from Python: `quantize` and its stages, looks at models and runs, and devices held against a plan.

Each is loaded at first use.

It depends on the command line's package, for the conversion of configurations to settings; its stages come from
`quantpipe.pipeline`.
"""

import logging

from quantpipe.api.device import DumpResult, IdentifyResult, compare_dump, export_vectors, identify
from quantpipe.api.look import (
    CheckResult,
    ExplainResult,
    LintResult,
    check,
    example_model,
    explain,
    explain_file,
    explain_strategy,
    lint,
    verify,
)
from quantpipe.api.options import Options
from quantpipe.api.pipeline import Pipeline, quantize
from quantpipe.api.progress import ProgressEvent, QuantpipeWarning
from quantpipe.api.result import Annotation, Realization, Result, SearchOutcome
from quantpipe.api.simulation import SimulatedNetwork
from quantpipe.data import SampleSets
from quantpipe.verify import Verdict

__all__ = [
    "Annotation",
    "CheckResult",
    "DumpResult",
    "ExplainResult",
    "IdentifyResult",
    "LintResult",
    "Options",
    "Pipeline",
    "ProgressEvent",
    "QuantpipeWarning",
    "Realization",
    "Result",
    "SampleSets",
    "SearchOutcome",
    "SimulatedNetwork",
    "Verdict",
    "check",
    "compare_dump",
    "example_model",
    "explain",
    "explain_file",
    "explain_strategy",
    "export_vectors",
    "identify",
    "lint",
    "quantize",
    "verify",
]

# What a library owes its caller: its log records go where the caller sends them, and nowhere else.
logging.getLogger("quantpipe").addHandler(logging.NullHandler())
