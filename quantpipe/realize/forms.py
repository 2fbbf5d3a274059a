"""List the forms of the integer model, and find those that can express a device's arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from quantpipe.lowering import Dialect
from quantpipe.realize.c.form import CForm
from quantpipe.realize.protocol import FileForm
from quantpipe.realize.qonnx.qonnx_form import QonnxForm
from quantpipe.realize.sidecars import Sidecars
from quantpipe.realize.tflite.form import TfliteForm
from quantpipe.realize.vendor_qdq import VendorQdq
from quantpipe.realize.vta.vta_form import VtaForm
from quantpipe.types import HardwareSpec

VENDOR: Mapping[str, Callable[[], Dialect]] = {"qdq": VendorQdq}
"""ONNX form -> how it is written for other tools, where onnxruntime's own kernels cannot say the plan."""

FILE_FORMS: Mapping[str, Callable[[], FileForm]] = {
    "c": CForm,
    "tflite": TfliteForm,
    "tflite_integer_io": partial(TfliteForm, "tflite_integer_io", "model_integer_io.tflite", whole=True),
    "qonnx": QonnxForm,
    "sidecars": Sidecars,
    "vta": VtaForm,
}
"""Name in the configuration -> a format that is not ONNX."""

WITHOUT_FLOAT16 = ("c", "tflite", "tflite_integer_io", "vta")
"""Forms whose runtime has no float16: nodes left in float compute in float32 there."""

EXACT = "integer"
"""The form that can express every plan exactly: what equality is shown by where another form is not exact."""

ONE_WAY = ("qdq", "qoperator")
"""Forms whose kernels are onnxruntime's own, which narrow in one way."""


def inexact_on(spec: HardwareSpec, form: str) -> str | None:
    """Return why an ONNX form can say nothing exactly that a device computes; None where that depends on the plan."""
    if form in VENDOR and spec.qdq_bias is not None:
        return (
            f"whose biases the tool chain of {spec.name} only loads as float (qdq_bias), so onnxruntime does not "
            "compute them as integers"
        )
    other = next((how for how in spec.requantizations if not how.is_kernel_arithmetic), None)
    if form not in ONE_WAY or other is None:
        return None
    return (
        f"whose kernels multiply by float32 and round half_even; {spec.name} requantizes by {other.kind} with rounding "
        f"{other.rounding}"
    )
