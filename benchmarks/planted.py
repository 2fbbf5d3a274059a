"""Planted faults in models: is the first thing that explain says each of them, and does what it promises come true?

    python benchmarks/planted.py [--models GLOB ...] [--faults GLOB ...] > benchmarks/results/planted.md

Each row is a run with one fault, without anything that would mend it by itself (no recovery, precision=none), and what
`quantpipe.explain` says of it. `named`: the first advice, by what it is about or by its reason, or for preprocessing
the first doubt, names the place and the kind of the fault. `promised` and `given`: the share of the loss on the search
samples that the first advice takes away, as measured by explain, and by a run with its overrides pasted.

Faults: `range` (a tenth of a stored tensor's range), `bias` (one channel's bias beyond 32 bits of its sums), `outlier`
(one channel of an inner tensor, which nothing reads, a thousand times as large as the others), `preprocessing` (inputs
sixteen times too small and shifted; without labels, sixteen times too great), `mask` (-1e9 added to the attention
scores of the last token, or the masks that the model has), `float` (one kernel with weights kept in float for nothing).
"""

from __future__ import annotations

import argparse
import platform
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from corpus import Case, Counts, cases
from onnx import numpy_helper

import quantpipe
from quantpipe.data import DigitsColumnsDataset, DigitsDataset, SampleSets
from quantpipe.types import Accumulate

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.explain.planted import loss_of, options_of, run  # noqa: E402

MODELS = ("digits", "digits_vit", "digits_vit_masked", "cifar10_resnet20_bn", "kws_dscnn")
COUNTS = Counts(calibrate=48, search=48, evaluate=48)
SUMS = ("Conv", "Gemm", "MatMul")
WRONG, GREAT = (0.0625, -3.0), (16.0, 0.0)
"""Factor and offset of inputs that are prepared wrong: of samples with labels, and of those without."""


@dataclass(frozen=True, eq=False)
class Planted:
    """A run with a fault: its model, samples and options; `names` are the words of which one must be said."""

    model: Path
    samples: Any
    names: tuple[str, ...]
    kind: str
    options: Mapping[str, Any] = field(default_factory=dict)


def sets(case: Case) -> SampleSets:
    """The samples of a case."""
    return SampleSets(calibrate=case.calibrate, search=case.search, evaluate=case.evaluate)


def spoilt_range(case: Case, folder: Path) -> Planted:
    """A tenth of the range of a result in the middle of the model."""
    sound = run(sets(case), folder / "sound", model=case.model)
    ranges = {t: r for t, r in sound.strategy.ranges.items() if r.high > 0 and t not in case.calibrate}
    tensor = list(ranges)[len(ranges) // 2]
    statement = {"kind": "calibrated", "min": ranges[tensor].low / 10, "max": ranges[tensor].high / 10}
    options = {"annotate": {"constraints": {tensor: statement}}}
    return Planted(case.model, sets(case), (tensor,), "range ends", options)


def read(case: Case) -> tuple[onnx.ModelProto, list[tuple[onnx.NodeProto, onnx.NodeProto]]]:
    """The model, and its pairs: a layer, and the one layer that reads it, behind a clamp."""
    net = onnx.load(case.model)
    known = {i.name for i in net.graph.initializer}
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in net.graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    pairs = []
    for node in net.graph.node:
        if node.op_type not in (*SUMS, "BatchNormalization", "Add") or not any(i in known for i in node.input):
            continue
        behind = readers.get(node.output[0], [])
        while len(behind) == 1 and behind[0].op_type in ("Relu", "Clip", "BatchNormalization"):
            if behind[0].op_type == "BatchNormalization":
                break
            behind = readers.get(behind[0].output[0], [])
        if len(behind) == 1 and behind[0].op_type in SUMS and len(behind[0].input) > 1 and behind[0].input[1] in known:
            pairs.append((node, behind[0]))
    return net, pairs


def constant(net: onnx.ModelProto, name: str) -> np.ndarray[Any, Any]:
    """An initializer."""
    return numpy_helper.to_array(next(i for i in net.graph.initializer if i.name == name)).copy()


def put(net: onnx.ModelProto, name: str, values: np.ndarray[Any, Any]) -> None:
    """Replace an initializer."""
    target = next(i for i in net.graph.initializer if i.name == name)
    target.CopyFrom(numpy_helper.from_array(values.astype(np.float32), name))


def bias_of(net: onnx.ModelProto, node: onnx.NodeProto) -> str | None:
    """The name of the constant that a layer adds per channel."""
    known = {i.name: len(i.dims) for i in net.graph.initializer}
    if node.op_type == "Add":
        return next((i for i in node.input if known.get(i) == 1), None)
    return node.input[2] if len(node.input) > 2 and node.input[2] in known else None


def overflowing_bias(case: Case, folder: Path) -> Planted | None:
    """A channel that is always cut off at 0, by a bias beyond 32 bits of the sum."""
    net, _ = read(case)
    readers = {name: node for node in net.graph.node for name in node.input}
    clamped = [
        n
        for n in net.graph.node
        if n.op_type in (*SUMS, "BatchNormalization") and n.output[0] in readers
        and readers[n.output[0]].op_type in ("Relu", "Clip") and bias_of(net, n)
    ]  # fmt: skip
    if not clamped:
        return None
    node = clamped[len(clamped) // 2]
    name = bias_of(net, node) or ""
    values = constant(net, name)
    values[0] = -3e7
    put(net, name, values)
    path = folder / "bias.onnx"
    onnx.save(net, path)
    makers = {t: n for n in net.graph.node for t in n.output}
    names = tuple(n.name for n in (node, makers.get(node.input[0])) if n is not None and n.op_type != "Relu")
    return Planted(path, sets(case), names, "bias", {"hardware": "vta"})


def outlier(case: Case, folder: Path) -> Planted | None:
    """A channel a thousand times as large as the others, which the next layer does not read."""
    net, pairs = read(case)
    full = []
    for node, reader in pairs:
        name = bias_of(net, node)
        weight = constant(net, reader.input[1])
        axis = 1 if reader.op_type == "Conv" else 0
        if reader.op_type == "Gemm" and any(a.name == "transB" and a.i for a in reader.attribute):
            axis = 1
        size = len(constant(net, name)) if name else 0
        if name and weight.shape[axis] == size:
            full.append((node, reader, name, weight, axis))
    if not full:
        return None
    node, reader, name, weight, axis = full[len(full) // 2]
    weight[(slice(None),) * axis + (0,)] = 0
    put(net, reader.input[1], weight)
    bias = constant(net, name)
    bias[0] += 2000.0
    put(net, name, bias)
    path = folder / "outlier.onnx"
    onnx.save(net, path)
    return Planted(path, sets(case), tuple(t for t in (*node.output, *reader.input[:1])), "reaches")


def preprocessing(case: Case, folder: Path) -> Planted:
    """Inputs sixteen times too small, and shifted."""
    name = case.model.stem
    if name in ("digits", "digits_vit"):
        return Planted(case.model, DigitsDataset(preprocess={"scale": "1/16", "mean": 40}), ("preprocess",), "")
    if name == "digits_vit_masked":
        return Planted(case.model, DigitsColumnsDataset(preprocess={"scale": "1/16", "mean": 40}), ("preprocess",), "")

    factor, offset = GREAT if case.labels is None else WRONG

    def wrong(arrays: Mapping[str, Any]) -> dict[str, Any]:
        return {k: np.float32(v * factor + offset) if v.dtype.kind == "f" else v for k, v in arrays.items()}

    search: Any = wrong(case.search)
    evaluate: Any = wrong(case.evaluate)
    if case.labels is not None:  # those of the corpus are of `evaluate`
        half, whole = len(case.labels) // 2, evaluate
        search = {k: v[:half] for k, v in whole.items()}, case.labels[:half]
        evaluate = {k: v[half:] for k, v in whole.items()}, case.labels[half:]
    parts = SampleSets(calibrate=wrong(case.calibrate), search=search, evaluate=evaluate)
    return Planted(case.model, parts, ("preprocess",), "")


def mask(case: Case, folder: Path) -> Planted | None:
    """-1e9 added to the scores of the last token of the second block: as masks of padding are, but constant."""
    net = onnx.load(case.model)
    found = [i.name for i in net.graph.initializer if i.name.endswith("attention.bias")]
    if case.model.stem == "digits_vit_masked":  # it has its own
        softmax = [n for n in net.graph.node if n.op_type == "Softmax"]
        names = tuple(t for n in softmax for t in n.input)
        return Planted(case.model, sets(case), names, "mask", {"hardware": "tflite_int8"})
    if len(found) < 2:
        return None
    values = constant(net, found[1])
    values[..., -1] = -1e9
    put(net, found[1], values)
    path = folder / "mask.onnx"
    onnx.save(net, path)
    reader = next(n for n in net.graph.node if found[1] in n.input)
    return Planted(path, sets(case), (reader.name, *reader.output, found[1]), "mask", {"hardware": "tflite_int8"})


def in_float(case: Case, folder: Path) -> Planted:
    """A kernel with weights that is kept in float for nothing."""
    sound = run(sets(case), folder / "sound", model=case.model)
    heavy = [node for node, numbers in sound.plan.kernels.items() if isinstance(numbers, Accumulate)]
    node = heavy[len(heavy) // 2]
    options = {"annotate": {"float_nodes": [node]}, "objective": {"tolerance": 1.0}}
    return Planted(case.model, sets(case), (node,), "back in integers", options)


FAULTS: Mapping[str, Callable[[Case, Path], Planted | None]] = {
    "range": spoilt_range,
    "bias": overflowing_bias,
    "outlier": outlier,
    "preprocessing": preprocessing,
    "mask": mask,
    "float": in_float,
}


def first_said(fault: str, answer: Any) -> str:
    """The first thing that the answer says: of the samples, else of what would mend it."""
    if fault == "preprocessing":
        return str(answer["doubts"][0]) if answer["doubts"] else ""
    advised = [row for row in answer["advice"] if row["advised"]]
    if not advised:
        return ""
    row = advised[0]
    return f"{row['role']} ({', '.join(row['members'][:3])}): {row['change']}; {row['reason']}"


def row_of(fault: str, planted: Planted, folder: Path) -> list[str]:
    """Run, explain, paste, run again."""
    options = {"model": planted.model, **planted.options}
    result = run(planted.samples, folder / "run", **options)
    answer = quantpipe.explain(result.folder, planted.samples, culprits=2)
    said = first_said(fault, answer)
    named = any(name in said for name in planted.names) and planted.kind in said
    promised = given = "–"
    advised = [row for row in answer["advice"] if row["advised"]]
    if advised and fault != "preprocessing":
        first = advised[0]
        again = loss_of(run(planted.samples, folder / "again", **options_of(first["overrides"], options)))
        before = loss_of(result)
        promised, given = f"{first['gain']:.1%}", f"{(before - again) / before if before else 0.0:.1%}"
    return [planted.names[0], said.replace("|", "/") or "nothing", "yes" if named else "**no**", promised, given]


def main(arguments: Sequence[str]) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="*", default=list(MODELS))
    parser.add_argument("--faults", nargs="*", default=list(FAULTS))
    given = parser.parse_args(arguments)
    warnings.simplefilter("ignore", quantpipe.QuantpipeWarning)
    print("# What explain says first of planted faults\n")
    print(f"`python benchmarks/planted.py`, {platform.machine()}.\n")
    print("| fault | model | planted at | said first | named | promised | given |\n|---|---|---|---|---|---|---|")
    every = {name: make for name, make in cases().items() if any(fnmatch(name, one) for one in given.models)}
    right = total = 0
    for fault in (name for name in FAULTS if any(fnmatch(name, one) for one in given.faults)):
        for name, make in every.items():
            with tempfile.TemporaryDirectory() as folder:
                planted = FAULTS[fault](make(Path(folder), COUNTS), Path(folder))
                if planted is None:
                    continue
                cells = row_of(fault, planted, Path(folder))
            right, total = right + (cells[2] == "yes"), total + 1
            print(f"| {fault} | {name} | {' | '.join(cells)} |", flush=True)
    print(f"\n{right} of {total} are named by the first thing that is said.")


if __name__ == "__main__":
    main(sys.argv[1:])
