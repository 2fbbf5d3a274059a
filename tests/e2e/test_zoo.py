"""Real models on real data: the accuracy that is promised, and the same integers simulated and realized."""

from __future__ import annotations

import pytest

from tests.e2e.program import Program
from tests.zoo import requires_zoo, zoo


def resnet20() -> list[str]:
    return [
        f"model.path={zoo('models/cifar10_resnet20.onnx')}",
        "dataset=npz",
        f"dataset.calibrate.path={zoo('data/cifar10_calib.npz')}",
        f"dataset.evaluate.path={zoo('data/cifar10_val.npz')}",
        "dataset.preprocess.scale=1/255",
        "dataset.preprocess.mean=[0.485,0.456,0.406]",
        "dataset.preprocess.std=[0.229,0.224,0.225]",
    ]


def efficientnet_lite0() -> list[str]:
    return [
        f"model.path={zoo('models/imagenet_efficientnet_lite0.onnx')}",
        "dataset=image_folder",
        f"dataset.calibrate.path={zoo('data/imagenet/calib')}",
        f"dataset.evaluate.path={zoo('data/imagenet/val')}",
        f"dataset.labels={zoo('data/imagenet/labels.csv')}",
        "dataset.label_columns=[wnid,index]",
        "dataset.preprocess.mean=127",
        "dataset.preprocess.std=128",
    ]


@requires_zoo
def test_resnet20_on_ort_cpu(program: Program) -> None:
    result = program.run(*resnet20())
    assert result.code == 0, result.err
    metrics = result.report["metrics"]
    assert metrics["float"]["top1"] == pytest.approx(0.8075, abs=0.0005)
    assert metrics["realized"]["top1"] >= 0.8075 - 0.01
    assert result.report["agreement"]["differing"] == 0


@requires_zoo
@pytest.mark.parametrize(
    ("hardware", "backend"), [("vta", "integer"), pytest.param("ort_cpu", "qoperator", marks=pytest.mark.slow)]
)
def test_resnet20_agrees(program: Program, hardware: str, backend: str) -> None:
    few = "dataset.samples.evaluate=200"
    result = program.run(*resnet20(), few, f"hardware={hardware}", f"realize={backend}")
    assert result.code == 0, result.err
    assert result.report["agreement"]["differing"] == 0
    assert result.report["agreement"]["elements"] > 1_000_000


@requires_zoo
@pytest.mark.slow
def test_efficientnet_lite0_on_ort_cpu(program: Program) -> None:
    result = program.run(*efficientnet_lite0())
    assert result.code == 0, result.err
    metrics = result.report["metrics"]
    assert metrics["float"]["top1"] == pytest.approx(0.8945, abs=0.0005)
    assert metrics["realized"]["top1"] >= 0.8945 - 0.01
    assert result.report["agreement"]["differing"] == 0


@requires_zoo
@pytest.mark.slow
@pytest.mark.parametrize(("hardware", "backend"), [("vta", "integer"), ("ort_cpu", "qoperator")])
def test_efficientnet_lite0_agrees(program: Program, hardware: str, backend: str) -> None:
    few = ("dataset.samples.evaluate=64", "evaluate.agreement_samples=16")
    result = program.run(*efficientnet_lite0(), *few, f"hardware={hardware}", f"realize={backend}")
    assert result.code == 0, result.err
    assert result.report["agreement"]["differing"] == 0
