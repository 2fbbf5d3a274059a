"""A PyTorch module as an ONNX model: written by torch's own exporter, with a sample of the caller's as its example.

torch is imported by the caller, who has the module; nothing here needs it otherwise.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from quantpipe.data.source import SINGLE
from quantpipe.data.sources.given import SampleSets, source_of
from quantpipe.errors import DataError, ModelError, brief

STAGE = "model"
FEW = 2
"""Samples of the example: with a single one, the exporter takes the size of the batch for a constant."""
OPSET = 18


def is_module(model: object) -> bool:
    """Return whether an object is a torch.nn.Module, or a program that torch.export made; torch is not imported."""
    torch = sys.modules.get("torch")
    if torch is None:
        return False
    program = getattr(getattr(torch, "export", None), "ExportedProgram", ())
    return isinstance(model, (torch.nn.Module, program) if program else torch.nn.Module)


def exported(module: Any, samples: Any) -> onnx.ModelProto:
    """Return a module as an ONNX model whose batch is free, or one sample where it cannot be.

    The module is exported in evaluation mode and gets its own mode back. Initializers have the names of its parameters.

    Args:
        module: The torch.nn.Module, or an ExportedProgram with the shapes that it was made with.
        samples: Samples of its inputs, in a form that can be read twice.

    Raises:
        ModelError: torch cannot export it.
        DataError: The samples give no example.
    """
    torch = sys.modules["torch"]
    if not isinstance(module, torch.nn.Module):
        return _written(lambda: torch.onnx.export(module, dynamo=True, verbose=False), type(module).__name__)
    names, example = _example(module, samples)
    modes = [(part, part.training) for part in module.modules()]
    with contextlib.suppress(NotImplementedError):  # graphs of torch.export have one mode
        module.eval()
    try:
        return _exported(torch, module, names, example)
    finally:
        for part, mode in modes:
            part.training = mode


def _exported(torch: Any, module: Any, names: list[str], example: list[NDArray[Any]]) -> onnx.ModelProto:
    name = type(module).__name__

    def export(arrays: list[NDArray[Any]], *, free: bool) -> Any:
        tensors = tuple(torch.from_numpy(np.array(array)) for array in arrays)
        axis = torch.export.Dim("samples", min=1)
        shapes = tuple({0: axis} for _ in tensors) if free else None
        return torch.onnx.export(
            module, tensors, dynamo=True, verbose=False, input_names=names, dynamic_shapes=shapes, opset_version=OPSET
        )

    if any(len(array) < FEW for array in example):
        return _written(lambda: export(example, free=False), name)
    try:
        return _written(lambda: export(example, free=True), name)
    except ModelError as error:
        one = [array[:1] for array in example]
        with contextlib.suppress(ModelError):
            return _written(lambda: export(one, free=False), name)  # its batch is a constant, or becomes one
        raise error


def _example(module: Any, samples: Any) -> tuple[list[str], list[NDArray[Any]]]:
    """Return the inputs of a module by name, and a few samples of each."""
    given = samples.calibrate if isinstance(samples, SampleSets) else samples
    if hasattr(given, "splits") or (hasattr(given, "__next__") and iter(given) is given):
        raise DataError(
            f"are a {type(given).__name__}, which gives no example to export the module with; legal are arrays, a "
            "mapping of arrays, a list of samples and pairs of samples and labels. Or export the module yourself",
            stage="data",
            where="the samples",
        )
    source = source_of(given, "the samples")
    indices = np.arange(min(FEW, len(source)))
    try:
        found = {name: np.stack([np.asarray(row) for row in rows]) for name, rows in source.read(indices).items()}
    except ValueError:  # samples of several lengths
        found = {name: np.asarray(rows[0])[None] for name, rows in source.read(indices[:1]).items()}
    parameters = [p.name for p in inspect.signature(module.forward).parameters.values() if p.kind is not p.VAR_KEYWORD]
    if set(found) == {SINGLE}:
        return parameters[:1] or ["input"], [_real(found[SINGLE])]
    if missing := [name for name in found if name not in parameters]:
        raise DataError(
            f"have {missing[0]!r}, which is no argument of {type(module).__name__}.forward; legal are "
            f"{', '.join(parameters)}",
            stage="data",
            where="the samples",
        )
    names = [name for name in parameters if name in found]
    if left_out := [name for name in parameters[: parameters.index(names[-1])] if name not in found]:
        raise DataError(
            f"have no {left_out[0]!r}, which {type(module).__name__}.forward takes before {names[-1]!r}; legal are "
            "samples of every argument up to the last that is given, or a module without the argument",
            stage="data",
            where="the samples",
        )
    return names, [_real(found[name]) for name in names]


def _real(array: NDArray[Any]) -> NDArray[Any]:
    return array.astype(np.float32) if array.dtype == np.float64 else array


def _written(export: Any, name: str) -> onnx.ModelProto:
    try:
        with _quiet():
            program = export()
            proto: onnx.ModelProto = program.model_proto
    except Exception as error:  # torch raises many types for what it cannot trace
        raise ModelError(
            f"torch cannot export the module {name} ({type(error).__name__}: {brief(error)}); legal are modules that "
            "torch.onnx.export takes with dynamo=True, or an ONNX file that was made otherwise",
            stage=STAGE,
        ) from error
    return proto


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hold back what the exporter prints and warns of."""
    with (
        warnings.catch_warnings(),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        warnings.simplefilter("ignore")
        yield
