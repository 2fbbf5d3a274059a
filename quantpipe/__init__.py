"""quantpipe: find, check and file the integer version of an ONNX model that a piece of hardware can run.

From Python: `quantize` does everything, `Pipeline` has the stages one by one, `check` and `lint` look before anything
runs, `verify` checks the files of a run, `explain` reports where it loses accuracy. The page docs/python.md has
examples.
"""

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from quantpipe.version import __version__

__all__ = [
    "CheckResult",
    "DumpResult",
    "ExplainResult",
    "IdentifyResult",
    "LintResult",
    "Options",
    "Pipeline",
    "ProgressEvent",
    "QuantpipeWarning",
    "Result",
    "SampleSets",
    "Verdict",
    "__version__",
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

if TYPE_CHECKING:
    from quantpipe.api import (
        CheckResult,
        DumpResult,
        ExplainResult,
        IdentifyResult,
        LintResult,
        Options,
        Pipeline,
        ProgressEvent,
        QuantpipeWarning,
        Result,
        SampleSets,
        Verdict,
        check,
        compare_dump,
        example_model,
        explain,
        explain_file,
        explain_strategy,
        export_vectors,
        identify,
        lint,
        quantize,
        verify,
    )


class _Package(ModuleType):
    """Keep the functions `check`, `explain` and `verify`, although packages have these names, too.

    The import system makes a package an attribute of its parent; here the function stays. `from quantpipe.check import
    …` finds the package.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if not (isinstance(value, ModuleType) and name in __all__):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> Any:
    """Return a name of the Python API, loaded when it is asked for first.

    `import quantpipe` alone loads none of its libraries.
    """
    if name in __all__:
        from quantpipe import api

        return getattr(api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
