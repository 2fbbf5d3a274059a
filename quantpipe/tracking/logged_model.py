"""An ONNX model as MLflow keeps it: with a signature and one example."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any

import numpy as np
from numpy.typing import NDArray

_REFUSED = re.compile(r"[/:.%\"']")
"""In names of logged models."""
_CHECK = "_check_requirement_satisfied"
_log = logging.getLogger(__name__)
_EXAMPLE_ELEMENTS = 20_000
"""MLflow writes an example as JSON and runs it: beyond a small image that costs more than it tells."""


def log_onnx(
    client: Any,
    uri: str,
    run: Any,
    path: str | os.PathLike[str],
    *,
    params: Mapping[str, str],
    example: Mapping[str, NDArray[Any]] | None,
) -> Any:
    """File the model at `path` as a logged model of the MLflow run entity `run`; return it, or None if impossible.

    A model with external weights is left to the run's artifacts, with a warning: MLflow would load it whole. `example`
    is one sample of the model's inputs. The logged model has the run's name, so that a list of models can be read.
    """
    import mlflow
    import mlflow.onnx
    import onnx

    if any(t.external_data for t in onnx.load(path, load_external_data=False).graph.initializer):
        _log.warning(
            "MLflow: %s is too large to be logged as a model (its weights are in a data file, and MLflow would load "
            "all of them). Model and data file are in the run's artifacts, under realize",
            path,
        )
        return None
    proto = onnx.load(path)
    name = _REFUSED.sub("-", run.info.run_name or "").strip() or "model"
    # Made here and not by log_model, which would take the experiment from MLflow's global state.
    logged = client.create_logged_model(
        run.info.experiment_id, name=name, source_run_id=run.info.run_id, params=dict(params)
    )
    with _global_uri(mlflow, uri), _requirements_unchecked():
        mlflow.onnx.log_model(
            proto,
            name=name,
            model_id=logged.model_id,
            run_id=run.info.run_id,
            signature=_signature(proto),
            input_example=_one_sample(example, proto),
            # Said here, because MLflow would otherwise load the model in a new process to find out.
            pip_requirements=[f"{package}=={version(package)}" for package in ("onnx", "onnxruntime", "numpy")],
            onnx_execution_providers=["CPUExecutionProvider"],
            save_as_external_data=False,
        )
    return client.get_logged_model(logged.model_id)


def _signature(proto: Any) -> Any:
    """Return the declared ports of the model; a free axis is -1."""
    from mlflow.models import ModelSignature

    constants = {tensor.name for tensor in proto.graph.initializer}
    inputs = (port for port in proto.graph.input if port.name not in constants)
    return ModelSignature(inputs=_schema(inputs), outputs=_schema(proto.graph.output))


def _schema(ports: Iterable[Any]) -> Any:
    import onnx
    from mlflow.types import Schema, TensorSpec

    specs = []
    for port in ports:
        kind = port.type.tensor_type
        shape = [axis.dim_value if axis.HasField("dim_value") else -1 for axis in kind.shape.dim]
        dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type))
        specs.append(TensorSpec(dtype, tuple(shape) if kind.HasField("shape") else (-1,), port.name))
    return Schema(specs)


def _one_sample(example: Mapping[str, NDArray[Any]] | None, proto: Any) -> dict[str, NDArray[Any]] | None:
    """Return the first sample; an input whose first axis has a size, such as the layers of a state, is whole."""
    sizes = {i.name: i.type.tensor_type.shape.dim[0].dim_value for i in proto.graph.input
             if i.type.tensor_type.shape.dim}  # fmt: skip
    first = {name: np.asarray(array)[: sizes.get(name) or 1] for name, array in (example or {}).items()}
    small = sum(array.size for array in first.values()) <= _EXAMPLE_ELEMENTS
    # JSON keeps no shape of an empty cache, so MLflow would reject its own copy of the example.
    written = all(array.size for array in first.values())
    return first if first and small and written else None


@contextmanager
def _requirements_unchecked() -> Iterator[None]:
    """Skip MLflow's comparison of the requirements with what is installed: they are read from that.

    The comparison reads the files of every installed package, which takes longer than all else that is filed.
    """
    from mlflow.utils import requirements_utils

    check = getattr(requirements_utils, _CHECK, None)
    if check is not None:
        setattr(requirements_utils, _CHECK, lambda requirement: None)
    try:
        yield
    finally:
        if check is not None:
            setattr(requirements_utils, _CHECK, check)


@contextmanager
def _global_uri(mlflow: Any, uri: str) -> Iterator[None]:
    """Set the global address while MLflow's model flavors need it, and restore the environment afterwards."""
    before = os.environ.get("MLFLOW_TRACKING_URI")
    mlflow.set_tracking_uri(uri)
    try:
        yield
    finally:
        mlflow.set_tracking_uri(None)
        if before is not None:
            os.environ["MLFLOW_TRACKING_URI"] = before
