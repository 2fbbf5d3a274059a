"""One split as the rest of the program sees it: a source's samples, read lazily, fitted to the model's input port."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantpipe.data.preprocess import Layout, Preprocess, SourceLayout
from quantpipe.data.source import Source
from quantpipe.errors import ConfigError, DataError
from quantpipe.types import Batch, TensorInfo


class SourceSamples:
    """The samples of `source` at sorted `indices`, preprocessed for the input `port`. Implements `types.Samples`.

    Nothing is kept between batches. `Batch.indices` are positions in the source, so that a sample can be named.
    """

    def __init__(self, source: Source, indices: NDArray[np.int64], preprocess: Preprocess, port: TensorInfo) -> None:
        self._source, self._preprocess, self._port = source, preprocess, port
        self._indices = np.asarray(indices, dtype=np.int64)

    @property
    def indices(self) -> NDArray[np.int64]:
        """Positions in the source, ascending."""
        return self._indices

    @property
    def source(self) -> Source:
        return self._source

    @property
    def labelled(self) -> bool:
        return self._source.labels is not None

    def __len__(self) -> int:
        return len(self._indices)

    def batches(self, size: int) -> Iterator[Batch]:
        """See `types.Samples`. DataError names the sample that is broken, not finite, or does not fit the input."""
        if size < 1:
            raise ConfigError(f"a batch of {size} samples; legal is 1 and above.", stage="data")
        for start in range(0, len(self._indices), size):
            chosen = self._indices[start : start + size]
            labels = self._source.labels
            yield Batch(
                {self._port.name: self.values(chosen)}, None if labels is None else labels[chosen].copy(), chosen.copy()
            )

    def values(self, chosen: NDArray[np.int64]) -> NDArray[Any]:
        """Model input `[len(chosen), …]` of the samples at these positions of the source."""
        raw = self._source.read(chosen)
        names = [self._source.name(int(i)) for i in chosen]
        if self._preprocess.size is None:
            _check_equal_shapes(raw, names)
        try:
            values = self._preprocess.apply(raw, self._source.layout)
        except DataError as error:
            raise DataError(str(error), stage="data", where=self._source.where) from error
        self._check_shape(values, names[0])
        return _cast(values, self._port, names)

    @cached_property
    def digest(self) -> str:
        """`sha256:…` over the content and labels of the chosen samples, the preprocessing and the input's dtype."""
        hasher = hashlib.sha256()
        header = (self._preprocess, self._source.layout.value, self._port.name, self._port.dtype, len(self))
        hasher.update(repr(header).encode())
        labels = self._source.labels
        hasher.update(b"unlabelled" if labels is None else labels[self._indices].tobytes())
        self._source.hash_into(hasher, self._indices)
        return f"sha256:{hasher.hexdigest()}"

    def _check_shape(self, values: NDArray[Any], name: str) -> None:
        """Every axis but the first must be the model's, or free there."""
        wanted, found = self._port.shape[1:], values.shape[1:]
        if len(wanted) == len(found) and all(w in (None, f) for w, f in zip(wanted, found, strict=True)):
            return
        raise DataError(
            f"model input {self._port.name!r} takes {_shape(self._port.shape)} {self._port.dtype}, but a sample is "
            f"{_shape((None, *found))} after preprocessing (source layout {self._source.layout}, model layout "
            f"{self._preprocess.layout}). {self._remedy(wanted, found)}",
            stage="data",
            where=name,
        )

    def _remedy(self, wanted: tuple[int | None, ...], found: tuple[int, ...]) -> str:
        """The configuration key that would mend a wrong shape, as far as it can be told."""
        layout, as_is = self._preprocess.layout, self._source.layout is SourceLayout.AS_IS

        def fits(shape: tuple[int, ...]) -> bool:
            return all(w in (None, n) for w, n in zip(wanted, shape, strict=True))

        if len(wanted) == len(found) == 3:
            if fits((found[2], found[0], found[1])):
                first = "dataset.source_layout=NHWC and " if as_is else ""
                return f"Set {first}dataset.preprocess.layout=NCHW."
            if fits((found[1], found[2], found[0])):
                first = "dataset.source_layout=NCHW and " if as_is else ""
                return f"Set {first}dataset.preprocess.layout=NHWC."
            channel = 0 if layout is Layout.NCHW else 2
            height, width = wanted[1:] if layout is Layout.NCHW else wanted[:2]
            if not as_is and wanted[channel] in (None, found[channel]) and height and width:
                return f"Set dataset.preprocess.size=[{height},{width}]."
        if len(wanted) == 3 and len(found) == 2:
            return "Set dataset.source_layout=NHW if these are grey images without a channel axis."
        return "Give data of that shape, or mend dataset.source_layout or dataset.preprocess.layout and .size."


def _check_equal_shapes(raw: Sequence[NDArray[Any]] | NDArray[Any], names: list[str]) -> None:
    """Samples of one batch must have one shape, or they cannot be stacked."""
    for array, name in zip(raw, names, strict=True):
        if array.shape != raw[0].shape:
            raise DataError(
                f"has shape {list(array.shape)} where {names[0]} has {list(raw[0].shape)}; samples must have one "
                "shape. Set dataset.preprocess.size=[height,width].",
                stage="data",
                where=name,
            )


def _cast(values: NDArray[Any], port: TensorInfo, names: list[str]) -> NDArray[Any]:
    """Values as the input's dtype. Fractions, too large integers, NaN and infinity are errors, never lost."""
    try:
        target = np.dtype(port.dtype)
    except TypeError:
        raise DataError(
            f"model input {port.name!r} takes {port.dtype}, which NumPy has not; legal are float, integer and boolean "
            "inputs.",
            stage="data",
        ) from None
    legal = {"f": "biuf", "i": "biu", "u": "biu", "b": "b"}.get(target.kind, "")
    if values.dtype.kind not in legal:
        raise DataError(
            f"model input {port.name!r} takes {port.dtype}, but samples are {values.dtype} after preprocessing, and "
            "casting would lose their fractions. Set dataset.preprocess.scale=1, mean=0 and std=1, or store the data "
            f"as {port.dtype}.",
            stage="data",
            where=names[0],
        )
    if target.kind in "iu" and values.dtype.kind in "iu":
        limits = np.iinfo(target)
        _refuse((values < limits.min) | (values > limits.max), values, f"does not fit {port.dtype}", port, names)
    with np.errstate(over="ignore"):  # an overflow to infinity is reported below, by name
        cast = values.astype(target, copy=False)
    if target.kind == "f":
        _refuse(~np.isfinite(cast), cast, "is not finite", port, names)
    return cast


def _refuse(wrong: NDArray[np.bool_], values: NDArray[Any], what: str, port: TensorInfo, names: list[str]) -> None:
    """DataError that names the first sample in which `wrong` holds."""
    if not wrong.any():
        return
    row = int(np.flatnonzero(wrong.reshape(len(wrong), -1).any(axis=1))[0])
    raise DataError(
        f"holds {values[row][wrong[row]].flat[0]} for model input {port.name!r}, which {what} "
        f"({int(wrong[row].sum())} of {wrong[row].size} elements). Remove or repair the sample.",
        stage="data",
        where=names[row],
    )


def _shape(shape: Sequence[int | None]) -> str:
    return "[" + ", ".join("N" if i == 0 else "?" if n is None else str(n) for i, n in enumerate(shape)) + "]"
