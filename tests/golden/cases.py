"""What is kept as golden plans: a model, a hardware file, and the options of the run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import onnx

import quantpipe
from quantpipe.data import DigitsDataset
from tests.golden import nets

EXTREMES: Mapping[str, Any] = {"option": "max_range", "weights": {"method": "max_range"}}
"""Ranges that are values of the tensors themselves."""

MIXED: Mapping[str, Any] = {"pin": {"bits:c5": 5, "bits:c9": 6, "bits:*1_out": 7, "bits:conv4_out": 6}}
"""Bits that differ from tensor to tensor, decided beforehand."""

SEARCHED: Mapping[str, Any] = {
    "search": {"option": "greedy", "max_evaluations": 40},
    "objective": {"option": "auto", "cost": "bits"},  # the device itself gains nothing from fewer than 8
    "recover": "none",  # its algebra rounds differently on other processors
}


@dataclass(frozen=True)
class Case:
    """A run whose numbers are kept.

    Attributes:
        net: Which model.
        hardware: A shipped hardware file.
        exact: Every number follows from values that float32 holds exactly; else they are compared within a tolerance.
        options: Those of `quantpipe.Pipeline`.
    """

    net: str
    hardware: str
    exact: bool = True
    options: Mapping[str, Any] = field(default_factory=dict)

    def pipeline(self) -> quantpipe.Pipeline:
        """The run, in this process."""
        model, samples = _model(self.net), SAMPLES[self.net]()
        options: dict[str, Any] = {"executor": "serial", **self.options}
        if self.exact:
            options |= {"threshold": EXTREMES}
            options.setdefault("recover", "none")  # which solves linear systems in real numbers
        return quantpipe.Pipeline(model, samples, self.hardware, **options)


NETS: Mapping[str, Callable[[], onnx.ModelProto]] = {
    "residual": nets.residual,
    "mobile": nets.mobile,
    "dense": nets.dense,
    "attention": nets.attention,
    "recurrent": nets.recurrent,
    "digits": lambda: onnx.load(quantpipe.example_model()),
}

SAMPLES: Mapping[str, Callable[[], Any]] = {
    "residual": lambda: nets.dyadic_samples(3, 8, 8),
    "mobile": lambda: nets.dyadic_samples(3, 8, 8),
    "dense": lambda: nets.dyadic_samples(4, 12),
    "attention": lambda: nets.dyadic_samples(4, 8),
    "recurrent": lambda: nets.dyadic_samples(3, 6),
    "digits": DigitsDataset,
}

CASES: Mapping[str, Case] = {
    "residual-ort_cpu": Case("residual", "ort_cpu"),
    "residual-vta-mixed": Case("residual", "vta", options={"choices": MIXED}),
    "residual-snpe": Case("residual", "snpe"),
    "residual-hago_sample": Case("residual", "hago_sample"),
    "mobile-tflite_int8": Case("mobile", "tflite_int8"),
    "mobile-ort_cpu-symmetric-mixed": Case("mobile", "ort_cpu", options={"schema": "symmetric", "choices": MIXED}),
    "mobile-tensorrt": Case("mobile", "tensorrt"),
    "dense-ort_cpu-qoperator": Case("dense", "ort_cpu", options={"realize": "qoperator"}),
    "dense-cmsis_nn": Case("dense", "cmsis_nn"),
    "attention-ort_cpu": Case("attention", "ort_cpu", exact=False),
    "recurrent-tflite_int8-percentile": Case("recurrent", "tflite_int8", False, {"threshold": "percentile"}),
    "digits-ort_cpu": Case("digits", "ort_cpu", exact=False),
    "digits-vta-greedy": Case("digits", "vta", exact=False, options=SEARCHED),
    "residual-ort_cpu-recover": Case("residual", "ort_cpu", exact=False, options={"recover": "default"}),
}


@cache
def _model(net: str) -> onnx.ModelProto:
    return NETS[net]()
