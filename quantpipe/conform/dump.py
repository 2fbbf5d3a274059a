"""Read a dump: the integers that a device or a simulator gave, by tensor, checked against what the set of vectors has.

A dump is an npz file, or a folder of npz, npy, hex and bin files; tensors have the names of the set.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import permutations
from pathlib import Path

import numpy as np

from quantpipe.arrays import Array
from quantpipe.conform.vectors import VectorSet
from quantpipe.errors import ArtifactError, nearest, some_of
from quantpipe.types import DType

STAGE = "compare"
KINDS = (".npz", ".npy", ".hex", ".bin")
MOST_NAMED = 8


@dataclass(frozen=True, eq=False)
class Dump:
    """Hold a device's results for one set.

    `tensors`: Its integers by tensor, int64, of the first samples. `samples`: How many samples all of them have.
    `missing`: Tensors of the set that it does not have.
    """

    tensors: Mapping[str, Array] = field(repr=False)
    samples: int
    missing: tuple[str, ...] = ()


def read_dump(path: Path, vectors: VectorSet) -> Dump:
    """Return the dump of a set.

    `path` is a file or a folder of files; a sub-folder with the set's name takes precedence. Raises ArtifactError that
    names all tensors that are unknown, or of another shape or type, and for a dump without a tensor of the set.
    """
    inner = path / vectors.name
    place = inner if inner.is_dir() else next((f for k in KINDS if (f := path / f"{vectors.name}{k}").is_file()), path)
    found, wrong = {}, []
    for name, values in _read(place, vectors):
        problem = _problem(name, values, vectors)
        if problem is None:
            found[name] = np.asarray(values).astype(np.int64)
        else:
            wrong.append(problem)
    if wrong:
        raise ArtifactError(some_of(wrong, MOST_NAMED, "; "), stage=STAGE, where=str(place))
    if not found:
        raise ArtifactError(
            f"holds no tensor of the set {vectors.name!r}. Legal is an npz file with the integers by tensor "
            f"({_some(vectors)}), or a folder of npz, npy, hex or bin files with the names in set.json",
            stage=STAGE,
            where=str(place),
        )
    samples = min(len(values) for values in found.values())
    missing = tuple(t for t in vectors.golden if t not in found)
    return Dump({t: found[t][:samples] for t in vectors.golden if t in found}, samples, missing)


def has_dump(path: Path, name: str) -> bool:
    """Return whether a folder of dumps has one of the set of this name."""
    return (path / name).is_dir() or any((path / f"{name}{kind}").is_file() for kind in KINDS)


def _read(path: Path, vectors: VectorSet) -> Iterator[tuple[str, Array]]:
    """Yield (name, integers) of every array, names as they are given."""
    if path.is_dir():
        files = sorted(p for p in path.rglob("*") if p.suffix in KINDS and "ops" not in p.parent.parts[-1:])
        files = [p for p in files if p.name != "inputs.npz" and not p.stem.endswith((".weight", ".bias"))]
    elif path.is_file():
        files = [path]
    else:
        raise ArtifactError("is not there; legal is a file or a folder of dumps", stage=STAGE, where=str(path))
    whole = any(p.suffix == ".npz" for p in files)
    for file in files:
        if file.suffix == ".npz":
            yield from _arrays(file)
        elif file.suffix not in KINDS:
            raise ArtifactError(f"is no dump; legal are {', '.join(KINDS)}", stage=STAGE, where=str(file))
        elif not whole:
            yield _single(file, vectors)


def _arrays(file: Path) -> Iterator[tuple[str, Array]]:
    if not zipfile.is_zipfile(file):
        raise ArtifactError("is no npz file, whatever its name says, or not all of one", stage=STAGE, where=str(file))
    try:
        with np.load(file, allow_pickle=False) as archive:
            for name in archive.files:
                yield name, archive[name]
    except (ValueError, OSError, zipfile.BadZipFile, EOFError, KeyError) as error:
        raise ArtifactError(f"cannot be read as npz ({error})", stage=STAGE, where=str(file)) from error


def _single(file: Path, vectors: VectorSet) -> tuple[str, Array]:
    """Return the one tensor of a file, which is named as the hex file of the set, or as the tensor."""
    known = {stem: tensor for tensor, stem in vectors.files.items()}
    known |= {stem.split("_", 1)[1]: tensor for tensor, stem in vectors.files.items()}
    name = known.get(file.stem, file.stem)
    try:
        if file.suffix == ".npy":
            return name, np.load(file, allow_pickle=False)
        if name not in vectors.golden:
            return name, np.zeros(0, np.int64)
        dtype = vectors.network.dtype(name)
        if file.suffix == ".bin":
            flat = np.frombuffer(file.read_bytes(), np.dtype(dtype.numpy).newbyteorder("<"))
        else:
            flat = _from_hex(file.read_text("ascii").split(), dtype)
    except (ValueError, OSError, EOFError) as error:
        raise ArtifactError(f"cannot be read ({error})", stage=STAGE, where=str(file)) from error
    shape = vectors.golden[name].shape[1:]
    size = int(np.prod(shape))
    if size and len(flat) and len(flat) % size == 0:
        return name, flat.reshape(-1, *shape)
    return name, flat


def _from_hex(words: list[str], dtype: DType) -> Array:
    digits = 2 * np.dtype(dtype.numpy).itemsize
    values = np.asarray([int(word, 16) for word in words], np.int64)
    if len(values) and (values.min() < 0 or values.max() >= 1 << (4 * digits)):
        raise ValueError(f"a word is wider than {digits} digits")
    half = 1 << (4 * digits - 1)
    return np.where(values >= half, values - 2 * half, values) if dtype.signed else values


def _problem(name: str, values: Array, vectors: VectorSet) -> str | None:
    """Return the problem of a dumped tensor, in a sentence; None where it can be compared."""
    golden = vectors.golden.get(name)
    if golden is None:
        return f"{name!r} is no tensor of this set{nearest(name, list(vectors.golden))}; legal are {_some(vectors)}"
    dtype = vectors.network.dtype(name)
    if values.dtype.kind not in "iu":
        return f"{name!r} has the type {values.dtype}; legal are the stored integers, {dtype}"
    if values.shape[1:] != golden.shape[1:] or not 1 <= len(values) <= len(golden):
        most = f"[1 … {len(golden)}, {', '.join(map(str, golden.shape[1:]))}]"
        return f"{name!r} has the shape {list(values.shape)}; legal is {most}{_turned(values.shape, golden.shape)}"
    least, greatest = int(values.min()), int(values.max())
    if least < dtype.qmin or greatest > dtype.qmax:
        return f"{name!r} holds integers from {least} to {greatest}; its type is {dtype}, {dtype.qmin} to {dtype.qmax}"
    return None


def _turned(found: tuple[int, ...], golden: tuple[int, ...]) -> str:
    """Return whether the axes are the golden tensor's in another order."""
    if len(found) != len(golden) or len(golden) > 5:
        return ""
    for order in permutations(range(1, len(golden))):
        if tuple(golden[a] for a in order) == found[1:]:
            return f" (its axes look turned: [0, {', '.join(map(str, order))}] of the model's)"
    return ""


def _some(vectors: VectorSet) -> str:
    names = list(vectors.golden)
    more = f", … ({len(names)} in all)" if len(names) > MOST_NAMED else ""
    return ", ".join(names[:MOST_NAMED]) + more
