"""The pages about what programs call: the Python API from its docstrings, the command line from its help and errors."""

from __future__ import annotations

import re

from website.configuration import CONF, defaults
from website.pages import ROOT

EXTEND = ("Extension", "DeviceOp", "Site", "NodeFacts", "Layer", "LayerDecision", "ExactGrid", "Views")
"""Classes of `quantpipe.extend` that packages use."""


def api() -> str:
    """The page of `quantpipe`'s functions and classes: one directive of mkdocstrings for each."""
    import quantpipe
    from quantpipe import api as door

    first = ("quantize", "Pipeline", "Result", "check", "lint", "verify", "explain", "explain_file", "explain_strategy")
    public = [name for name in quantpipe.__all__ if not name.startswith("_")]
    behind = [name for name in door.__all__ if name not in public]
    parts = [
        "# Python API\n\nMade from the docstrings of `quantpipe`. With examples, from top to bottom: "
        "[From Python](../python.md).\n",
        *(_directive(name) for name in (*first, *sorted(set(public) - set(first)))),
        "## What stages return\n\nResults of single stages of a `Pipeline`.\n",
        *(_directive(name, level=3) for name in behind),
        "## For packages\n\nHow they are used: [Extending](../extending.md).\n",
        *(_directive(name, level=3, module="quantpipe.extend") for name in EXTEND),
    ]
    return "\n".join(parts)


def command_line() -> str:
    """The page of commands and exit codes: the help as the program prints it, and the errors with their codes."""
    from quantpipe import errors
    from quantpipe.app.help import USAGE

    kinds = [
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, errors.QuantpipeError) and kind is not errors.QuantpipeError
    ]
    rows = [f"| `{kind.__name__}` | {kind.exit_code} | {_first(kind.__doc__ or '')} |" for kind in kinds]
    usage = USAGE.format(program="python run.py").rstrip()
    return "\n".join(
        [
            "# Command line\n",
            "`python run.py` in a checkout, `quantpipe` after an installation. Overrides and flags: "
            "[Configuration](../configuration.md).\n",
            f"```text\n{usage}\n```\n",
            "## Groups and options\n",
            "| group | default | options |\n|---|---|---|",
            *_groups(),
            "\n## Exit codes\n",
            _exit_codes(),
            "## Errors\n",
            "What ends a run early is one paragraph on standard error. From Python the same errors are raised, by "
            "these classes of `quantpipe.errors`:\n",
            "| class | exit code | meaning |\n|---|---|---|",
            *rows,
            "",
        ]
    )


def _directive(name: str, level: int = 2, module: str = "quantpipe.api") -> str:
    return (
        f"::: {module}.{name}\n    options:\n      heading: {name}\n      toc_label: {name}\n"
        f"      heading_level: {level}\n"
    )


def _groups() -> list[str]:
    default = defaults()
    names = {group: sorted(path.stem for path in (CONF / group).glob("*.yaml")) for group in default}
    listed = {group: ", ".join(f"`{name}`" for name in found) for group, found in names.items()}
    return [
        f"| [`{group}`](configuration.md#group-{group}) | `{default[group]}` | {listed[group]} |" for group in default
    ]


def _exit_codes() -> str:
    """The table in docs/configuration.md."""
    page = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    found = re.search(r"^### Exit codes\n\n(.*?)^Relative paths", page, re.M | re.S)
    if found is None:
        raise ValueError("docs/configuration.md has no section 'Exit codes'")
    return found[1]


def _first(text: str) -> str:
    return " ".join(text.split())
