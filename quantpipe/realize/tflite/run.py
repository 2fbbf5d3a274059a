"""Run a .tflite file by LiteRT's interpreter, and read every tensor that the plan stores."""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Collection, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np

from quantpipe import intmath
from quantpipe.arrays import Array, Feeds
from quantpipe.errors import HardwareError, brief
from quantpipe.intake.tflite import litert
from quantpipe.intake.tflite.layout import Order
from quantpipe.intake.tflite.operators import IDENTIFIER
from quantpipe.intake.tflite.read_tables import METADATA

LATENCY_RUNS = 30
LATENCY_SECONDS = 1.0


class LiteRTKernels(StrEnum):
    """Name the kernels that LiteRT runs a file by: its reference ones, or XNNPACK (its default)."""

    REFERENCE = "BUILTIN_REF"
    XNNPACK = "AUTO"

    @property
    def word(self) -> str:
        """Return its name in reports."""
        return self.name.lower()


class TfliteModel:
    """A file in memory and what its metadata say of it."""

    def __init__(self, content: bytes, where: str, metadata: Mapping[str, Any] | None = None) -> None:
        """`where` names the file in errors; `metadata` is for a file without ours."""
        self.content, self.where = content, where
        self.metadata = metadata_of(content, where) if metadata is None else metadata
        self.tensors: Mapping[str, Mapping[str, Any]] = self.metadata["tensors"]
        self.inputs: Mapping[str, Mapping[str, Any]] = self.metadata["inputs"]
        self.outputs: Mapping[str, Mapping[str, Any]] = self.metadata["outputs"]

    @classmethod
    def read(cls, path: Path) -> TfliteModel:
        """Return the model in a file."""
        return cls(path.read_bytes(), str(path))

    def watched(self) -> bytes:
        """Return the same file with every stored tensor as an output, so that delegates keep all of them."""
        s = litert.schema()
        model = s.ModelT.InitFromObj(s.Model.GetRootAs(self.content))
        model.signatureDefs = None
        stored = [t["index"] for t in self.tensors.values() if t["index"] not in set(self.input_numbers)]
        model.subgraphs[0].outputs = list(dict.fromkeys([*model.subgraphs[0].outputs, *stored]))
        builder = litert.flatbuffers().Builder(len(self.content))
        builder.Finish(model.Pack(builder), file_identifier=IDENTIFIER)
        return bytes(builder.Output())

    @property
    def input_numbers(self) -> list[int]:
        """Return the tensors of the inputs."""
        return [int(port["index"]) for port in self.inputs.values()]


class TfliteRunner:
    """Run a file by some kernels of LiteRT.

    `tensors`: those whose integers `run` gives. `others`: the same file run by other kernels, by name. `ties`: how many
    elements of inputs lay exactly between two steps so far; `run` moves these to the step that the plan takes.
    """

    def __init__(
        self,
        model: TfliteModel,
        kernels: LiteRTKernels = LiteRTKernels.REFERENCE,
        others: Mapping[str, TfliteRunner] | None = None,
    ) -> None:
        self.model, self.kernels, self.others = model, kernels, dict(others or {})
        self.ties = 0
        content = model.content if kernels is LiteRTKernels.REFERENCE else model.watched()
        self._interpreter = _interpreter(content, kernels, model.where, keep=kernels is LiteRTKernels.REFERENCE)
        self._plain: Any = None
        self._ready: tuple[tuple[int, ...], ...] | None = None

    @property
    def tensors(self) -> Collection[str]:
        """Return the tensors whose integers `run` gives."""
        return self.model.tensors.keys()

    def takes(self, inputs: Feeds) -> bool:
        """Return whether samples of these shapes can be run at once."""
        details = {d["index"]: d for d in self._interpreter.get_input_details()}
        return all(
            _fits(tuple(details[port["index"]]["shape_signature"]), _fed(inputs[name], port).shape)
            for name, port in self.model.inputs.items()
        )

    def run(self, inputs: Feeds) -> dict[str, Array]:
        """Return the stored integers of every tensor, by name, in ONNX's order of axes, for the model's real inputs.

        LiteRT's QUANTIZE rounds ties away from zero, the plan to even: inputs exactly between two steps are moved to
        the plan's, and counted in `ties`. All other differences are visible.
        """
        samples = {value.shape[0] for value in inputs.values() if value.ndim}
        if samples != {1} and not self.takes(inputs):  # the file is made for one sample at a time
            count = max(samples)
            parts = [self.run({name: value[n : n + 1] for name, value in inputs.items()}) for n in range(count)]
            return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        self._feed(self._interpreter, self._off_ties(inputs), remember=True)
        self._invoke(self._interpreter)
        found = {}
        for name, port in self.model.tensors.items():
            value = self._interpreter.get_tensor(port["index"])
            found[name] = np.transpose(value, np.argsort(port["axes"])) if len(port["axes"]) else value
        return found

    def _invoke(self, interpreter: Any) -> None:
        """Run the file once. Raises HardwareError where LiteRT cannot, as with an index beyond a table."""
        try:
            interpreter.invoke()
        except RuntimeError as error:
            said = f"LiteRT cannot run {self.model.where}: {brief(error)}"
            raise HardwareError(said, stage="evaluate") from error

    def outputs(self, inputs: Feeds) -> dict[str, Array]:
        """Return the outputs of the file as it is, in ONNX's order of axes, for the model's real inputs."""
        interpreter = self._as_it_is()
        self._feed(interpreter, inputs)
        self._invoke(interpreter)
        found = {}
        for name, port in self.model.outputs.items():
            value = interpreter.get_tensor(port["index"])
            found[name] = np.transpose(value, np.argsort(port["axes"])) if len(port["axes"]) else value
        return found

    def latency(self, inputs: Feeds) -> float | None:
        """Return the milliseconds of one run of the first sample, the median of several; None for fixed batches."""
        one = {name: value[:1] for name, value in inputs.items()}
        if not self.takes(one):
            return None
        interpreter = self._as_it_is()
        self._feed(interpreter, one)
        self._invoke(interpreter)
        times: list[float] = []
        while len(times) < LATENCY_RUNS and sum(times) < LATENCY_SECONDS:
            start = time.perf_counter()
            interpreter.invoke()
            times.append(time.perf_counter() - start)
        return 1000 * float(np.median(times))

    def close(self) -> None:
        """Let the interpreters go."""
        self._interpreter = self._plain = None
        for other in self.others.values():
            other.close()

    def _as_it_is(self) -> Any:
        if self._plain is None:
            self._plain = _interpreter(self.model.content, self.kernels, self.model.where, keep=False)
        return self._plain

    def _feed(self, interpreter: Any, inputs: Feeds, *, remember: bool = False) -> None:
        fed = {port["index"]: _fed(inputs[name], port) for name, port in self.model.inputs.items()}
        shapes = tuple(value.shape for value in fed.values())
        if not remember or shapes != self._ready:
            for index, value in fed.items():
                interpreter.resize_tensor_input(index, value.shape)
            try:
                interpreter.allocate_tensors()
            except RuntimeError as error:
                raise HardwareError(
                    f"LiteRT does not take the file: {brief(error)}", stage="evaluate", where=self.model.where
                ) from error
            self._ready = shapes if remember else self._ready
        kinds = {d["index"]: d["dtype"] for d in interpreter.get_input_details()}
        for (index, value), port in zip(fed.items(), self.model.inputs.values(), strict=True):
            interpreter.set_tensor(index, _stored(value, port) if np.dtype(kinds[index]).kind == "i" else value)

    def _off_ties(self, inputs: Feeds) -> dict[str, Array]:
        """Return the float inputs, with those exactly between two steps moved to the plan's step."""
        found = dict(inputs)
        for name, port in self.model.inputs.items():
            value = inputs[name]
            if value.dtype.kind == "f" and port.get("scale"):
                steps = np.float32(value) / np.float32(port["scale"])
                whole = intmath.round_real(steps)
                ties = np.abs(steps - whole) == np.float32(0.5)
                self.ties += int(np.count_nonzero(ties))
                found[name] = np.where(ties, whole * np.float32(port["scale"]), value).astype(value.dtype)
        return found


def metadata_of(content: bytes, where: str) -> dict[str, Any]:
    """Return the metadata that quantpipe wrote into a .tflite file.

    Raises HardwareError where the file has no metadata, or is no .tflite file.
    """
    try:
        model = litert.schema().Model.GetRootAs(content)
        for number in range(model.MetadataLength()):
            entry = model.Metadata(number)
            if entry.Name() == METADATA.encode():
                found: dict[str, Any] = json.loads(model.Buffers(entry.Buffer()).DataAsNumpy().tobytes())
                return found
    except (AttributeError, ValueError, IndexError, TypeError, RuntimeError, struct.error) as error:
        raise HardwareError(
            f"is no .tflite file ({brief(error)}); legal is one that this program wrote", stage="evaluate", where=where
        ) from error
    raise HardwareError(
        f"has no metadata {METADATA!r}; legal is a .tflite file that this program wrote", stage="evaluate", where=where
    )


def _interpreter(content: bytes, kernels: LiteRTKernels, where: str, *, keep: bool) -> Any:
    module = litert.interpreter()
    try:
        return module.Interpreter(
            model_content=content,
            num_threads=1,
            experimental_op_resolver_type=getattr(module.OpResolverType, kernels.value),
            experimental_preserve_all_tensors=keep,
        )
    except (ValueError, RuntimeError) as error:
        raise HardwareError(f"LiteRT does not take the file: {brief(error)}", stage="evaluate", where=where) from error


def _fed(value: Array, port: Mapping[str, Any]) -> Array:
    order: Order = tuple(port["axes"])
    return np.ascontiguousarray(np.transpose(value, order)) if order else value


def _stored(value: Array, port: Mapping[str, Any]) -> Array:
    """Return a real input as the integers that the plan stores."""
    if value.dtype.kind != "f":
        return value
    low, high = port["range"]
    steps = np.float32(value) / np.float32(port["scale"])
    return np.asarray(np.clip(intmath.round_real(steps) + port["zero_point"], low, high), port["dtype"])


def _fits(signature: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    return len(signature) == len(shape) and all(a in (-1, b) for a, b in zip(signature, shape, strict=True))
