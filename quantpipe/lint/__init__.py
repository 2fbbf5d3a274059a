"""What a device would refuse of an integer model, whoever wrote it: `command=lint`."""

from quantpipe.lint.findings import Finding, Findings, Severity, lint, lint_model
from quantpipe.lint.reading import read

__all__ = ["Finding", "Findings", "Severity", "lint", "lint_model", "read"]
