"""Extend quantpipe from outside: ops of a domain of their own, patterns, and output forms of plug-in packages.

A package describes them as an `Extension`, and names it by an entry point in the group `quantpipe.extensions`
(docs/extending.md). Every stage asks here what is installed; nothing is, unless the command line names the package.
"""

from quantpipe.extend.device_op import Array, DeviceOp, Extension, NodeFacts, Numbers, Site, function
from quantpipe.extend.registry import (
    Installed,
    called,
    ensure,
    forget,
    forms,
    functions,
    install,
    install_object,
    installed,
    op_of,
    ops,
    package_of,
    qualified,
    refused,
)

__all__ = [
    "Array",
    "DeviceOp",
    "Extension",
    "Installed",
    "NodeFacts",
    "Numbers",
    "Site",
    "called",
    "ensure",
    "forget",
    "forms",
    "function",
    "functions",
    "install",
    "install_object",
    "installed",
    "op_of",
    "ops",
    "package_of",
    "qualified",
    "refused",
]
