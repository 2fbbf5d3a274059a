"""Find what a device would reject in an integer model of any tool: `command=lint`."""

from quantpipe.check.lint.findings import Findings, Severity, lint_model
