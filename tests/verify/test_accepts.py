"""No false alarm: what the realize stage writes is accepted, for every hardware file, form and op."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from quantpipe.errors import HardwareError
from quantpipe.types import QuantPlan
from quantpipe.verify import verify_folder
from tests.ops.line import Line
from tests.verify.folders import FORMS, digits_line, hardware_files, write

QUICK = {"ort_cpu": ("qdq", "qoperator", "integer"), "vta": ("integer",), "tflite_int8": ("integer",),
         "hago_int16_acc": ("integer",), "mixed_npu": ("integer",)}  # fmt: skip


def accepted(made: Line, plan: QuantPlan, form: str, root: Path) -> Any:
    found = verify_folder(write(made, plan, form, root))
    assert found.wrong is None, (made.spec.name, form, found.wrong)
    assert found.kernels == len(plan.kernels) > 0
    return found


@pytest.mark.parametrize("spec", QUICK)
def test_the_digits_model_is_accepted(spec: str, tmp_path: Path) -> None:
    made = digits_line(spec)
    for form in QUICK[spec]:
        found = accepted(made, made.plan((8, 7, 6, 5), seed=1), form, tmp_path / form)
        real = form != "integer"  # the logits leave as real numbers
        assert found.proved == found.kernels - real


@pytest.mark.slow
@pytest.mark.parametrize("spec", hardware_files())
def test_every_hardware_file_and_form_is_accepted(spec: str, tmp_path: Path) -> None:
    made, written = digits_line(spec), 0
    for number, plan in enumerate((made.plan(), made.plan((8, 7, 6, 5, 4), seed=1), made.plan(16), made.ties())):
        for form in FORMS:
            root = tmp_path / f"{number}{form}"
            try:
                accepted(made, plan, form, root)
            except (HardwareError, OverflowError):
                continue  # this form cannot express this hardware
            written += 1
    assert written >= 3


@pytest.mark.slow
def test_every_op_is_accepted(tmp_path: Path) -> None:
    from tests.ops.cases import CASES
    from tests.ops.test_every_op import TARGETS, line_of

    written = 0
    for target, (spec, schema, form) in TARGETS.items():
        for name in CASES:
            made = line_of(name, spec, schema)
            for kind in ("plan", "ties"):
                try:
                    plan = getattr(made, kind)()
                    root = write(made, plan, form, tmp_path / target / name / kind)
                except HardwareError:
                    continue
                found = verify_folder(root)
                assert found.wrong is None, (target, name, kind, found.wrong)
                written += 1
    assert written > 1000
