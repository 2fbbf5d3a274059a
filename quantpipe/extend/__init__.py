"""Extend quantpipe from outside: ops of a domain of their own, patterns, and output forms of plug-in packages.

A package describes them as an `Extension`, and names it by an entry point in the group `quantpipe.extensions`
(docs/extending.md). Every stage asks here what is installed; nothing is, unless the command line names the package.
"""

from quantpipe.arrays import Array
from quantpipe.extend.device_op import DeviceOp, Extension, NodeFacts, Numbers, Site, function
from quantpipe.extend.registry import (
    Installed,
    calibrator_of,
    called,
    ensure,
    forget,
    forms,
    functions,
    has_calibrators,
    install,
    install_given,
    install_object,
    installed,
    op_of,
    ops,
    package_of,
    qualified,
    refused,
)
from quantpipe.types.layer_views import Calibrator, ExactGrid, Layer, LayerDecision, Views

__all__ = [
    "Array",
    "Calibrator",
    "DeviceOp",
    "ExactGrid",
    "Extension",
    "Installed",
    "Layer",
    "LayerDecision",
    "NodeFacts",
    "Numbers",
    "Site",
    "Views",
    "calibrator_of",
    "called",
    "ensure",
    "forget",
    "forms",
    "function",
    "functions",
    "has_calibrators",
    "install",
    "install_given",
    "install_object",
    "installed",
    "op_of",
    "ops",
    "package_of",
    "qualified",
    "refused",
]
