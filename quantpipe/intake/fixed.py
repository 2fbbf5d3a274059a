"""Inputs that are always the same, such as a sampling rate: turned into constants before anything else.

What depends on them alone is then constant too, so that a branch chosen by them can be taken for good.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from quantpipe.artifacts import digest_bytes
from quantpipe.errors import ConfigError, nearest

KEY = "model.fixed"
FREE = "samples"


def fix_inputs(model: ir.Model, fixed: Mapping[str, Any]) -> None:
    """Make constants of some inputs, in place. `fixed`: input name -> number or nested lists of numbers.

    A single number fills the input's shape (its free axes are 1). Raises ConfigError for a name that is no input, and
    for values that do not have the input's shape or cannot be held by its type.
    """
    inputs = {v.name or "": v for v in model.graph.inputs}
    if fixed and set(inputs) - set(model.graph.initializers) <= set(fixed):
        raise ConfigError(f"fixes every input ({', '.join(inputs)}); legal is to leave one to the samples", where=KEY)
    for name, value in fixed.items():
        if name not in inputs:
            raise ConfigError(
                f"the model has no input {name!r}{nearest(name, inputs)}; it has {', '.join(inputs)}", where=KEY
            )
        port = inputs[name]
        array = _array(port, value)
        port.const_value = ir.tensor(array, name=name)
        port.shape = ir.Shape(array.shape)
        model.graph.inputs.remove(port)
        model.graph.register_initializer(port)


def free_first_axes(model: ir.Model) -> int:
    """Declare the first axis of every input free, in place, and of outputs of the same size; return that size.

    Shapes of other tensors are forgotten. 0 without a fixed axis, or with several sizes.
    """
    inputs = [v for v in model.graph.inputs if v.name not in model.graph.initializers and v.shape]
    sizes = {v.shape[0] for v in inputs if v.shape is not None}
    if len(sizes) != 1 or not isinstance(size := sizes.pop(), int):
        return 0
    for value in (*inputs, *model.graph.outputs):
        if value.shape and value.shape[0] == size:
            value.shape = ir.Shape([FREE, *list(value.shape)[1:]])
    outputs = set(model.graph.outputs)
    for value in (v for node in model.graph for v in node.outputs if v not in outputs):
        value.shape = None
    return size


def fixed_hash(model_hash: str, fixed: Mapping[str, Any]) -> str:
    """Return the hash of a model with some inputs fixed: another model than the file's own."""
    if not fixed:
        return model_hash
    return digest_bytes(f"{model_hash} {json.dumps(dict(fixed), sort_keys=True)}".encode())


def _array(port: ir.Value, value: Any) -> np.ndarray[Any, Any]:
    where = f"{KEY}.{port.name}"
    dtype = port.dtype.numpy() if port.dtype is not None else np.dtype("float32")
    wanted = [d if isinstance(d, int) else None for d in port.shape] if port.shape is not None else []
    try:
        exact = np.asarray(value, np.float64 if np.dtype(dtype).kind == "f" else None)
        array = exact.astype(dtype)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"is {value!r}; legal are numbers, and lists of them", where=where) from error
    if exact.dtype.kind not in "biuf" or (array.dtype.kind in "biu" and np.any(array != exact)):
        raise ConfigError(f"is {value!r}, which {np.dtype(dtype).name} does not hold", where=where)
    if array.ndim == 0:
        return np.full([d or 1 for d in wanted], array)
    if len(wanted) != array.ndim or any(d not in (None, n) for d, n in zip(wanted, array.shape, strict=True)):
        shape = ", ".join("?" if d is None else str(d) for d in wanted)
        raise ConfigError(f"has shape {list(array.shape)}; the input takes [{shape}]", where=where)
    return array
