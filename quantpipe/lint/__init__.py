"""Find what a device would reject in an integer model of any tool: `command=lint`."""

from quantpipe.lint.findings import Finding, Findings, Severity, lint, lint_model
from quantpipe.lint.reading import read

__all__ = ["Finding", "Findings", "Severity", "lint", "lint_model", "read"]
