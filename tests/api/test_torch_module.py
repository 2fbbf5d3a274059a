"""A torch.nn.Module in place of an ONNX model: exported with an example from the samples, in evaluation mode."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import onnx
import pytest

import quantpipe
from quantpipe.errors import DataError, ModelError

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")
nn = torch.nn

X = np.random.default_rng(0).standard_normal((128, 3, 8, 8)).astype(np.float32)
DATASET = {"samples": {"calibrate": 32, "search": 32, "evaluate": 32}}


class Small(nn.Module):  # type: ignore[misc, name-defined]
    """Two convolutions with a normalization and a dropout, then a dense layer."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.second = nn.Conv2d(8, 8, 3)
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(8, 5)

    def forward(self, pixels: Any) -> Any:
        hidden = torch.relu(self.second(torch.relu(self.norm(self.stem(pixels)))))
        return self.head(self.drop(hidden.mean((2, 3))))


class Sum(nn.Module):  # type: ignore[misc, name-defined]
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(6, 4), nn.Linear(3, 4)

    def forward(self, a: Any, b: Any) -> Any:
        return torch.relu(self.left(a)) + self.right(b)


class Fixed(nn.Module):  # type: ignore[misc, name-defined]
    """Its batch is a number in its code."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(8, 4)

    def forward(self, x: Any) -> Any:
        return self.head(torch.relu(x).reshape(1, 8))


class Untraceable(nn.Module):  # type: ignore[misc, name-defined]
    def forward(self, x: Any) -> Any:
        return x if float(x.sum()) > 0 else -x


class Rounded(nn.Module):  # type: ignore[misc, name-defined]
    """Pairs of quantize and dequantize around a layer, as torch's own quantization puts them in."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(8, 4)

    def forward(self, x: Any) -> Any:
        import torch.ao.quantization.fx._decomposed

        ops = torch.ops.quantized_decomposed
        how = (0.05, 3, -128, 127, torch.int8)
        x = ops.dequantize_per_tensor(ops.quantize_per_tensor(x, *how), *how)
        y, how = self.head(x), (0.1, -5, -128, 127, torch.int8)
        return ops.dequantize_per_tensor(ops.quantize_per_tensor(y, *how), *how)


def run(module: Any, samples: Any, **options: Any) -> quantpipe.Result:
    return quantpipe.quantize(module, samples, dataset=DATASET, recover="none", **options)


def test_a_module_is_quantized_in_evaluation_mode_with_its_names() -> None:
    torch.manual_seed(0)
    module = Small()
    module.train()
    result = run(module, X)
    assert module.training and module.drop.training
    assert result.report["agreement"]["differing"] == 0 and result.report["outputs"][0]["sqnr_db"] > 20
    port = result.model.graph.input[0]
    assert port.name == "pixels" and port.type.tensor_type.shape.dim[0].dim_param
    weights = {tensor.name for tensor in result.model.graph.initializer}
    assert any(name.startswith("second.weight") for name in weights)


def test_a_module_whose_mode_is_fixed_is_exported_as_it_is() -> None:
    """What torch.export and pt2e give rejects `eval()`."""

    class Graph(Small):
        def train(self, mode: bool = True) -> Any:
            raise NotImplementedError("a graph of torch.export has one mode")

    module = Graph()
    for part in module.modules():
        part.training = False
    assert run(module, X).report["agreement"]["differing"] == 0


def test_inputs_are_named_as_arguments() -> None:
    rng = np.random.default_rng(1)
    samples = {n: rng.standard_normal((128, s)).astype(np.float32) for n, s in (("b", 3), ("a", 6))}
    result = run(Sum(), samples)
    assert [port.name for port in result.model.graph.input] == ["a", "b"]
    assert result.report["agreement"]["differing"] == 0


def test_tensors_with_labels_are_samples() -> None:
    labels = np.arange(128) % 5
    result = run(Small(), (torch.from_numpy(X), labels))
    assert result.report["agreement"]["differing"] == 0


def test_a_batch_in_the_code_becomes_one_sample_at_a_time() -> None:
    x = np.random.default_rng(2).standard_normal((128, 8)).astype(np.float32)
    result = run(Fixed(), x)
    assert result.model.graph.input[0].type.tensor_type.shape.dim[0].dim_value == 1
    assert result.report["agreement"]["differing"] == 0


def test_a_program_of_torch_export_is_taken() -> None:
    free = {"pixels": {0: torch.export.Dim("n", min=1)}}
    program = torch.export.export(Small().eval(), (torch.from_numpy(X[:2]),), dynamic_shapes=free)
    assert run(program, X).report["agreement"]["differing"] == 0


def test_pairs_of_torchs_own_quantization_arrive_as_a_quantized_file() -> None:
    x = np.random.default_rng(2).standard_normal((128, 8)).astype(np.float32)
    try:
        import torch.ao.quantization.fx._decomposed  # noqa: F401
    except ImportError:
        pytest.skip("this torch has no ops of quantized_decomposed")
    part = run(Rounded(), x).report["imported"]
    assert part is not None and part["tensors"] == 2


@pytest.mark.parametrize(
    ("module", "samples", "kind", "found"),
    [
        (Untraceable(), X, ModelError, r"torch cannot export the module Untraceable \(\w+: .*legal are modules that"),
        (
            Sum(),
            {"a": X[:, 0, 0, :6], "c": X[:, 0, 0, :3]},
            DataError,
            r"have 'c', which is no argument of Sum.forward",
        ),
        (Small(), iter([X[0]]), DataError, r"are a list_iterator, which gives no example"),
        (object(), X, ModelError, r"it is a object; legal are .* and a torch.nn.Module"),
    ],
)
def test_what_cannot_be_exported_is_one_paragraph(module: Any, samples: Any, kind: Any, found: str) -> None:
    with pytest.raises(kind, match=found) as caught:
        run(module, samples)
    assert "\n" not in str(caught.value)


def test_torch_is_not_imported_without_a_module() -> None:
    code = (
        "import sys, numpy as np, quantpipe\n"
        "from quantpipe.api.torch_module import is_module\n"
        "assert not is_module(object()) and 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_exported_model_computes_what_the_module_computes() -> None:
    from quantpipe.api.torch_module import exported

    module = Small()
    proto = exported(module, X)
    onnx.checker.check_model(proto)
    import onnxruntime

    found = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, {"pixels": X[:5]})[0]
    with torch.no_grad():
        wanted = module.eval()(torch.from_numpy(X[:5])).numpy()
    assert np.abs(found - wanted).max() < 1e-4


def test_an_argument_left_out_in_the_middle_is_rejected() -> None:
    """Samples are given to `forward` by place: without an argument before them they would meet another one."""

    class Shifted(torch.nn.Module):
        def forward(self, x: Any, mask: Any = None, shift: Any = None) -> Any:
            x = x if mask is None else x * mask
            return x if shift is None else x + shift

    values = np.ones((8, 4), np.float32)
    with pytest.raises(DataError, match=r"have no 'mask', which Shifted\.forward takes before 'shift'"):
        quantpipe.quantize(Shifted(), {"x": values, "shift": values}, "ort_cpu")
