"""Running models: the only place that talks to onnxruntime."""

from __future__ import annotations

import ctypes
import logging
import os
import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
from numpy.typing import NDArray
from onnxruntime.capi.onnxruntime_pybind11_state import Fail, NotImplemented

from quantpipe import extend
from quantpipe.arrays import Feeds
from quantpipe.errors import ModelError
from quantpipe.graph.custom_ops import register_custom_ops
from quantpipe.graph.external_weights import heavy_weights, is_heavy, strip_initializers, without_large_weights
from quantpipe.graph.io import model_bytes
from quantpipe.graph.length_limits import refuse_longer, stated_lengths
from quantpipe.graph.pairs import PAIR, pair, separated
from quantpipe.graph.runtime_reasons import runtime_reason, runtime_remedy
from quantpipe.graph.session_options import EXACT_PAIRS, carried, differs_by_threads, quantizes_itself, runs_as_declared
from quantpipe.graph.spooled import leave_pages
from quantpipe.graph.stored_ports import decoded, encoded, stored_ports
from quantpipe.graph.unsigned import unsigned_weights
from quantpipe.types import Outputs, Samples

log = logging.getLogger(__name__)


MAX_CONCURRENT = 4
"""Batches of one model that run at once, at most."""

COPY_WEIGHTS = ("ConstantFolding", "ConvAddFusion", "ConvMulFusion", "ConvBNFusion", "MatMul_BatchNormalization_Fusion")
"""onnxruntime's optimizers, by its own names, that make new weights from old ones."""

HALF = "tensor(float16)"

SEPARATE = frozenset({ir.DataType.FLOAT, ir.DataType.INT8, ir.DataType.UINT8})
"""Types of weights that sessions get apart from the bytes of a model."""

LEAST_BESIDE = 1 << 24
"""Bytes of weights from which on a session gets them apart from the model, not in it."""

LEAST_RELEASED = 1 << 26
"""Bytes of weights beside a model from which on memory that earlier sessions left is given back first."""

REORDER = ("MatMulScaleFusion",)
"""Those that put a new node in the place of one that reads a weight as the simulated graph makes it real: it would run
behind all nodes that were there before."""


class Kernels(Enum):
    """Select the kernels that a session runs."""

    EXACT = "exact"
    """Integer kernels that compute what the model says, on every CPU: exact ones, unless the metadata of the model name
    its session options, and exact kernels are not among them."""
    NATIVE = "native"
    """Those that the runtime takes of its own accord: on x86 CPUs without VNNI, those for uint8 data and int8 weights
    add pairs of products in int16 and saturate, and the exact ones are slower (elsewhere both are the same)."""
    AS_WRITTEN = "as written"
    """Exact ones, of the nodes as they are written: without the runtime's optimizations."""


class Session:
    """One loaded model.

    `threads=None` uses every core. `options`: session options by name;
    None sets those that the model asks for in its metadata (`session_options.py`), an empty mapping none at all.
    `spin=False` lets the workers sleep as soon as a run ends, for use in turn with
    other sessions or other multi-threaded code (they would keep its cores for a while). `weights`: those that the model
    refers to and does not hold (`strip_initializers`), by name; the runtime copies them. Large float32 ones of a
    whole model go the same way.

    All sessions of a process share one arena: what a run leaves is there for the next one, whichever session's it is.
    (An arena each keeps the largest run of every session; none at all asks the system for fresh pages in every run.
    For a model in eight sections: 2.7 GB, or twice the time, against 0.8 GB.)

    A model with external weights, or with too many for one protobuf, is given to the runtime as a skeleton that refers
    to them; the runtime maps them itself. Features that would copy weights are then off: constant folding, fusions into
    weights, blocked layouts and prepacking. The arena is off too, because it would keep the largest temporary forever.
    Nodes run in the order in which they are written. By default the runtime begins with those that depend on no input,
    and so would load every weight before the first layer needs one. Exact kernels on x86 CPUs without VNNI need uint8
    weights, which are also made in files.

    A model whose results depend on the number of threads has one, except with `Kernels.NATIVE`.
    """

    def __init__(
        self,
        model: ir.Model | bytes,
        *,
        kernels: Kernels = Kernels.EXACT,
        threads: int | None = None,
        options: Mapping[str, str] | None = None,
        spin: bool = True,
        weights: Feeds | None = None,
        where: str = "model",
    ) -> None:
        wanted = carried(model) if options is None and isinstance(model, ir.Model) else options or {}
        self._ports = stored_ports(model) if isinstance(model, ir.Model) else ()
        self._lengths = stated_lengths(model) if isinstance(model, ir.Model) else ()
        own = isinstance(model, ir.Model) and (runs_as_declared(model) or quantizes_itself(model))
        declared = own and not EXACT_PAIRS.items() <= wanted.items()
        settings = ort.SessionOptions()
        settings.log_severity_level = 4
        by_threads = kernels is not Kernels.NATIVE and isinstance(model, ir.Model) and differs_by_threads(model)
        settings.intra_op_num_threads = 1 if by_threads else threads or available_cores()
        settings.inter_op_num_threads = 1
        if kernels is Kernels.AS_WRITTEN:
            settings.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        register_custom_ops(settings)
        if not spin:
            settings.add_session_config_entry("session.force_spinning_stop", "1")
        ask = kernels is not Kernels.NATIVE and not declared and pairs_saturate()
        for name, value in wanted.items():
            if not ask or name not in EXACT_PAIRS:  # asked for, it is set at load: the runtime reports a second entry
                settings.add_session_config_entry(name, value)
        if isinstance(model, ir.Model) and not weights:
            model, weights = _beside(
                model, {ir.DataType.FLOAT} if ask else SEPARATE
            )  # asked for, integers are rewritten
        if weights:
            if sum(weight.nbytes for weight in weights.values()) >= LEAST_RELEASED:
                release_memory()
            given = [ort.OrtValue.ortvalue_from_numpy(np.asarray(w, order="C")) for w in weights.values()]
            settings.add_external_initializers(list(weights), given)
        with ExitStack() as files:
            data, off = _prepare(model, settings, files, unsigned=ask)
            try:
                load = _loaded_exact if ask else _loaded
                self._session = load(data, settings, off)
            except Exception as error:  # onnxruntime raises its own family of types
                raise ModelError(f"onnxruntime cannot load it: {_reason(error)}", stage="run", where=where) from error
        if weights:
            leave_pages()  # the runtime has its own copy
        self.inputs = tuple(i.name for i in self._session.get_inputs())
        self._half = frozenset(i.name for i in self._session.get_inputs() if i.type == HALF)
        self.outputs = tuple(o.name for o in self._session.get_outputs())
        self._where = where

    def prepared(self, feeds: Feeds) -> dict[str, NDArray[Any]]:
        """Return feeds whose caches are integers where the model takes them so: what a user's program passes on."""
        return encoded(self._ports, feeds)

    def run(
        self, feeds: Feeds, outputs: Sequence[str] | None = None, *, stored: bool = False
    ) -> dict[str, NDArray[Any]]:
        """Return a mapping: output name -> array; float feeds of float16 inputs are rounded to float16.

        Float feeds of caches in integers are quantized, and such outputs are floats; with `stored` they are integers.
        Raises ModelError with onnxruntime's own reason, and DataError for inputs that are too long for integer sums.
        """
        names = list(outputs) if outputs is not None else list(self.outputs)
        given = {name: np.asarray(value) for name, value in feeds.items()}  # what NumPy makes of `()` is no array
        with np.errstate(over="ignore"):
            given |= {n: given[n].astype(np.float16) for n in self._half & {*given} if given[n].dtype == np.float32}
        if self._ports:
            given = encoded(self._ports, given)
        refuse_longer(self._lengths, given, self._where)
        try:
            values = self._session.run(names, given) if names else []  # onnxruntime: none asked for means all
        except Exception as error:
            raise ModelError(f"onnxruntime cannot run it: {_reason(error)}", stage="run", where=self._where) from error
        found = dict(zip(names, values, strict=True))
        return found if stored or not self._ports else decoded(self._ports, found)


def _beside(model: ir.Model, types: Collection[ir.DataType]) -> tuple[ir.Model | bytes, Feeds | None]:
    """Return a model as its bytes without its large weights of some types, and those.

    To copy them costs more than a run, and onnxruntime's session keeps the bytes that it was made of.

    The model itself where they are few, or are handed over in files.
    """
    held = {} if is_heavy(model) else heavy_weights(model)
    # onnxruntime drops what no node reads, and fails if it is given that.
    names = [n for n, t in held.items() if t.dtype in types and model.graph.initializers[n].uses()]
    tensors = {name: model.graph.initializers[name].const_value for name in names}
    if sum(t.nbytes for t in tensors.values() if t is not None) < LEAST_BESIDE:
        return model, None
    return strip_initializers(model, names), {n: t.numpy() for n, t in tensors.items() if t is not None}


def _loaded(data: bytes, options: ort.SessionOptions, off: list[str]) -> ort.InferenceSession:
    return ort.InferenceSession(data, options, providers=["CPUExecutionProvider"], disabled_optimizers=off)


def _loaded_exact(data: bytes, options: ort.SessionOptions, off: list[str]) -> ort.InferenceSession:
    """Load a model with kernels that add products in 32 bits.

    The runtime takes them by making uint8 weights of int8 ones. It also does so for int8 data, for which it has no such
    Gemm. Products of int8 by int8 never saturate, so nothing is lost where they stay.
    """
    options.add_session_config_entry("session.x64quantprecision", "1")
    try:
        return _loaded(separated(data), options, off)
    except NotImplemented:
        options.add_session_config_entry("session.x64quantprecision", "0")
        return _loaded(data, options, off)


def optimized(data: bytes, int8_kernels: bool = False) -> onnx.GraphProto:
    """Return the graph that the runtime makes of a model at load, as users load it.

    Layout changes (blocked weights, channels last) are off: they rename nodes and do not change a kernel's type. Raises
    ModelError where the model cannot be loaded.
    """
    options = ort.SessionOptions()
    register_custom_ops(options)
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    if int8_kernels:
        options.add_session_config_entry("session.qdqisint8allowed", "1")
    with tempfile.TemporaryDirectory(prefix="quantpipe-", ignore_cleanup_errors=True) as folder:
        path = Path(folder) / "optimized.onnx"
        options.optimized_model_filepath = str(path)
        try:
            _loaded(data, options, [])
        except Exception as error:  # onnxruntime raises its own family of types
            raise ModelError(f"onnxruntime cannot load it: {_reason(error)}", stage="run") from error
        return onnx.load(path).graph


@cache
def pairs_saturate() -> bool:
    """Return whether onnxruntime's default kernel on this CPU gives a wrong sum for 255·127 + 255·127.

    x86 CPUs without VNNI add such pairs in int16, with saturation.
    """
    session = Session(pair(), threads=1, kernels=Kernels.NATIVE)
    return int(session.run({"x": np.full((1, 2), 255, np.uint8)})["y"][0, 0]) != PAIR


def _prepare(
    model: ir.Model | bytes, options: ort.SessionOptions, files: ExitStack, *, unsigned: bool
) -> tuple[bytes, list[str]]:
    """Return the model for the runtime and the optimizers to leave out; set the options that a skeleton needs.

    `unsigned`: int8 weights in files are given to the runtime as uint8. Its own files go with `files`, once the session
    stands: it has mapped them.
    """
    if isinstance(model, bytes) or not is_heavy(model):
        _share_arena()
        options.add_session_config_entry("session.use_env_allocators", "1")
        return model if isinstance(model, bytes) else model_bytes(model), []
    spool = files.enter_context(tempfile.TemporaryDirectory(prefix="quantpipe-", ignore_cleanup_errors=True))
    if unsigned:
        model = unsigned_weights(model)
        files.callback(lambda held: None, model)  # its files are there until the runtime has mapped them
    data, folder = without_large_weights(model, Path(spool))
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(folder))
    options.add_session_config_entry("session.disable_prepacking", "1")
    options.enable_cpu_mem_arena = False
    options.execution_order = ort.ExecutionOrder.PRIORITY_BASED
    if options.graph_optimization_level == ort.GraphOptimizationLevel.ORT_ENABLE_ALL:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    return data, [*COPY_WEIGHTS, *REORDER]


@cache
def _share_arena() -> None:
    """Register the arena with the runtime. A user's program may have done so already, then that one serves."""
    information = ort.OrtMemoryInfo("Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT)
    with suppress(Fail):
        ort.create_and_register_allocator(information, ort.OrtArenaCfg(0, -1, -1, -1))  # the runtime's own defaults


def release_memory() -> None:
    """Give memory that runs have left unused back to the system.

    It releases the arena's memory that no session uses. It also releases the memory that glibc keeps for the threads
    that asked for it; other C libraries need no release. Use it between two phases of a run, and after much
    memory was freed. The next run has to ask for its pages again. The arena's first region stays.
    """
    _shrinking().run(None, {"x": np.zeros(1, np.float32)}, _shrink())
    leave_pages()
    give_back = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if give_back is not None:
        give_back(0)


@cache
def _shrinking() -> Any:
    """Return a session without nodes: the arena shrinks at the end of a run, whichever session's it is."""
    port = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([1]))
    model = ir.Model(ir.Graph([port], [port], nodes=[], opset_imports={"": 17}, name="empty"), ir_version=8)
    return Session(model, threads=1)._session


def start_runtime() -> None:
    """Load and run a model without nodes: shows that the runtime works in this process."""
    _shrinking().run(None, {"x": np.zeros(1, np.float32)})


@cache
def _shrink() -> Any:
    options = ort.RunOptions()
    options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
    return options


def run_batches(
    session: Session, samples: Samples, batch_size: int, outputs: Sequence[str], *, extra: Feeds | None = None
) -> Iterator[dict[str, NDArray[Any]]]:
    """Run all samples and yield for each batch: output name -> array `[n, ...]`.

    `extra` feeds are the same for each batch (parameters of a simulated graph).
    """
    for batch in samples.batches(batch_size):
        found = session.run({**batch.inputs, **(extra or {})}, outputs)
        yield {name: a.astype(np.float32) if a.dtype == np.float16 else a for name, a in found.items()}


def joined(found: Sequence[NDArray[Any]]) -> Outputs:
    """Return the outputs `[n, ...]` of batches as one `[N, ...]`, or N arrays where shapes differ.

    A single number `()` is one row.
    """
    found = [np.atleast_1d(array) for array in found]
    if len({array.shape[1:] for array in found}) <= 1:
        return np.concatenate(found)
    return tuple(row for array in found for row in array)


def lifted(found: Mapping[str, NDArray[Any]], selected: Collection[str]) -> dict[str, NDArray[Any]]:
    """Return the outputs of a run with the outputs `selected`, which hold one sample's rows, as `[1, ...]`."""
    return {name: array[np.newaxis] if name in selected else array for name, array in found.items()}


def available_cores() -> int:
    """Return cores this process may use (containers and taskset respected)."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)


def concurrency(batches: int, cores: int | None = None) -> tuple[int, int]:
    """Return how many batches to run at once, and the threads for each.

    This is for layers that are too short to share each among threads. Every batch under way holds its tensors, so they
    are at most `MAX_CONCURRENT`. `cores` None: all that this process may use.
    """
    cores = cores or available_cores()
    concurrent = max(1, min(MAX_CONCURRENT, cores, batches))
    return concurrent, max(1, cores // concurrent)


def _reason(error: Exception) -> str:
    """Return why the runtime rejects it, the plug-in packages whose functions the model may hold, and a remedy."""
    log.debug("onnxruntime: %s", error)
    packages = [package for package, _ in extend.installed()]
    reason = runtime_reason(error) + (f" (with ops of the plug-in package {', '.join(packages)})" if packages else "")
    return ". ".join(filter(None, (reason, runtime_remedy(error))))
