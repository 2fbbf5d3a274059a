"""Convert models to another version of ONNX's own ops by onnx's converter; external weights stay in files."""

from __future__ import annotations

import onnx
import onnx_ir as ir

from quantpipe.graph.external_weights import with_weights, without_weights
from quantpipe.graph.op_tables import RESIZE
from quantpipe.intake.untouched import untouched

MOST_OPSET = 27
"""The newest in which onnxruntime (1.32) has kernels for what back ends write: QuantizeLinear of 28 has none."""


RESIZE_MODES = 11
"""The first in which Resize names its coordinates. The converter gives older nodes the default, which is another."""


def lower_opset(model: ir.Model, most: int = MOST_OPSET) -> ir.Model:
    """Return the model in opset `most` where it is in a newer one, else the model itself."""
    return _converted(model, most) if _version(model) > most else model


def raise_to(model: ir.Model, least: int) -> ir.Model:
    """Return the model in opset `least` where it is in an older one, else the model itself."""
    return _converted(model, least) if _version(model) < least else model


def _version(model: ir.Model) -> int:
    return model.graph.opset_imports.get("", 0)


def _converted(model: ir.Model, version: int) -> ir.Model:
    proto, held = without_weights(model, untouched(model))
    newer = with_weights(onnx.version_converter.convert_version(proto, version), held)
    if _version(model) < RESIZE_MODES:
        _keep_asymmetric(newer)
    return newer


def _keep_asymmetric(model: ir.Model) -> None:
    """Give Resize nodes that come from Upsample, or from the first Resize, the coordinates of these, in place."""
    for node in model.graph.all_nodes():
        if node.op_type == RESIZE and not node.domain:
            for name, value in (("coordinate_transformation_mode", "asymmetric"), ("nearest_mode", "floor")):
                node.attributes.add(ir.AttrString(name, value))
