"""Check that samples fit a model's inputs: fields, shapes, dtypes; every error names the expected value."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantpipe.data.cache_inputs import EMPTY, is_cache
from quantpipe.data.preprocess import Layout, Preprocess, SourceLayout
from quantpipe.data.source import SINGLE, Source
from quantpipe.errors import DataError, nearest
from quantpipe.types import TensorInfo

MOST_WHOLE = 2.0**53
"""Floats below are whole numbers of integers that come back from them."""


@dataclass(frozen=True)
class Feed:
    """Hold which field goes into which model input, and how."""

    port: TensorInfo
    field: str
    layout: SourceLayout
    preprocess: Preprocess


def route(
    inputs: Sequence[TensorInfo], source: Source, preprocess: Preprocess, carried: Sequence[str] = ()
) -> tuple[Feed, ...]:
    """Return a field for every input.

    With several inputs, preprocessing is applied to the float inputs. `carried` are inputs that hold state: a field of
    their name gives the first value, if it exists. A cache that grows needs no data either. Raises DataError that names
    the inputs without data, with their shapes and types.
    """
    needed = [i for i in inputs if i.name not in carried and not is_cache(i)]
    for port in needed:
        if not port.shape:
            raise DataError(
                f"model input {port.name!r} is a scalar, and samples need a batch axis; one value for all of them is "
                f"given as 'model.fixed={{{port.name}: VALUE}}'.",
                stage="data",
            )
    fields = source.fields
    if set(fields) == {SINGLE}:
        if len(needed) != 1:
            raise DataError(
                f"the model has {len(needed)} inputs ({_ports(needed) or 'none'}), and each sample here is one array "
                "without a name. Give one array for each input, by its name (docs/data.md: how in each data set).",
                stage="data",
                where=source.where,
            )
        how = preprocess.for_input(needed[0].shape, fields[SINGLE])
        return (Feed(needed[0], SINGLE, fields[SINGLE], how), *_empty(inputs, {*carried, needed[0].name}))
    missing = [i for i in needed if i.name not in fields]
    if missing:
        names = ", ".join(fields) or "nothing"
        value = "true" if missing[0].dtype == "bool" else "0"
        raise DataError(
            f"there is no data for model input {_ports(missing)}{nearest(missing[0].name, fields)}; the samples hold "
            f"{names}. Give the data the names of the inputs, or map them (npz: dataset.keys.inputs, table: "
            "dataset.inputs). An input that is equal for all samples is a constant: "
            f"'model.fixed={{{missing[0].name}: {value}}}'.",
            stage="data",
            where=source.where,
        )
    plain = Preprocess(layout=preprocess.layout)
    chosen = [i for i in inputs if i.name in fields]
    given = [(i, preprocess if len(needed) == 1 or i.dtype.startswith("float") else plain) for i in chosen]
    feeds = (Feed(i, i.name, fields[i.name], how.for_input(i.shape, fields[i.name])) for i, how in given)
    return (*feeds, *_empty(inputs, {*carried, *fields}))


def _empty(inputs: Sequence[TensorInfo], others: Collection[str]) -> list[Feed]:
    """Return feeds for the caches among the inputs that get neither data nor state."""
    return [Feed(i, EMPTY, SourceLayout.AS_IS, Preprocess()) for i in inputs if is_cache(i) and i.name not in others]


def one_number_each(values: NDArray[Any], port: TensorInfo) -> NDArray[Any]:
    """Return values [N, 1] as [N], if an input takes one number per sample: the position of a step of one token.

    Of one sample, the places of its tokens [1, S] as [S], for an input without an axis for samples.
    """
    if len(port.shape) != 1 or values.ndim != 2:
        return values
    places = len(values) == 1 and port.shape[0] in (None, values.size)
    return values.reshape(-1) if places or values.shape[1] == 1 else values


def check_shape(values: NDArray[Any], feed: Feed, name: str) -> None:
    """Check that every axis of `values` but the first has the size of the input's axis, or is free there.

    Raises DataError where an axis has another size.
    """
    wanted, found = feed.port.shape[1:], values.shape[1:]
    if len(wanted) == len(found) and all(w in (None, f) for w, f in zip(wanted, found, strict=True)):
        return
    how = ""
    if feed.layout is not SourceLayout.AS_IS or feed.field == SINGLE:
        how = f" after preprocessing (source layout {feed.layout}, model layout {feed.preprocess.layout})"
    raise DataError(
        f"model input {feed.port.name!r} takes {shape_text(feed.port.shape)} {feed.port.type_name}, but a sample is "
        f"{shape_text((None, *found))}{how}. {_remedy(feed, wanted, found)}",
        stage="data",
        where=name,
    )


def _remedy(feed: Feed, wanted: tuple[int | None, ...], found: tuple[int, ...]) -> str:
    """Return the configuration key that would fix a wrong shape, if it is known."""
    layout, as_is = feed.preprocess.layout, feed.layout is SourceLayout.AS_IS

    def fits(shape: tuple[int, ...]) -> bool:
        return len(shape) == len(wanted) and all(w in (None, n) for w, n in zip(wanted, shape, strict=True))

    if found[:1] == (1,) and fits(found[1:]):
        return "A sample has no batch axis of its own: leave its first axis of size 1 out."
    if not wanted and len(found) == 1 and feed.port.dtype.startswith("int"):
        return (
            "The only axis of this input is the sample axis. If it counts the tokens of a run (cache_position), export "
            "the model for one sample, and give each sample as many numbers as tokens (dataset.cut); or give this "
            "input a first axis for samples."
        )
    whole = feed.port.shape
    if len(whole) == len(found) and all(w in (None, n) for w, n in zip(whole, found, strict=True)):
        return (
            "The first axis of an input is the sample axis. If this input takes an output of the sample before, leave "
            f"it out of the data and name that output: dataset.state={{OUTPUT: {feed.port.name}}}. If it is equal for "
            f"all samples, leave it out, too, and make a constant of it: model.fixed={{{feed.port.name}: 0}}."
        )
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
    if as_is:
        return "Give data of that shape."
    return "Give data of that shape, or correct dataset.source_layout or dataset.preprocess.layout and .size."


def cast(values: NDArray[Any], port: TensorInfo, names: Sequence[str]) -> NDArray[Any]:
    """Return values of any shape as the input's dtype.

    Integral values in float arrays become integers. Raises DataError for fractions, integers out of range, NaN and
    infinity.
    """
    try:
        target = np.dtype(port.dtype)
    except TypeError:
        raise DataError(
            f"model input {port.name!r} takes {port.dtype}, which NumPy has not; legal are float, integer and boolean "
            "inputs.",
            stage="data",
        ) from None
    if target.kind in "iu" and values.dtype.kind == "f" and np.array_equal(values, np.floor(values)):
        values = values.astype(np.int64) if np.all(np.abs(values) < MOST_WHOLE) else values
    legal = {"f": "biuf", "i": "biu", "u": "biu", "b": "b"}.get(target.kind, "")
    if values.dtype.kind not in legal:
        raise DataError(
            f"model input {port.name!r} takes {shape_text(port.shape)} {port.type_name}, but samples are "
            f"{values.dtype} after preprocessing, and casting would lose their fractions. Set "
            f"dataset.preprocess.scale=1, mean=0 and std=1, or store the data as {port.type_name}.",
            stage="data",
            where=names[0],
        )
    if target.kind in "iu" and values.dtype.kind in "iu":
        limits = np.iinfo(target)
        _refuse((values < limits.min) | (values > limits.max), values, f"does not fit {port.dtype}", port, names=names)
    with np.errstate(over="ignore"):  # an overflow to infinity is reported below, by name
        found = values.astype(target, copy=False)
    if target.kind == "f":
        _refuse(~np.isfinite(found), found, "is not finite", port, names=names)
        whole, found = found, port.rounded(found)
        _refuse(~np.isfinite(found), whole, f"{port.given} does not hold", port, names=names)
    return found


def _refuse(
    wrong: NDArray[np.bool_], values: NDArray[Any], what: str, port: TensorInfo, *, names: Sequence[str]
) -> None:
    """Raise DataError that names the first sample in which `wrong` holds."""
    if not wrong.any():
        return
    row = int(np.flatnonzero(wrong.reshape(len(wrong), -1).any(axis=1))[0])
    raise DataError(
        f"holds {values[row][wrong[row]].flat[0]} for model input {port.name!r}, which {what} "
        f"({int(wrong[row].sum())} of {wrong[row].size} elements). Remove or repair the sample, or set "
        "dataset.on_error=skip.",
        stage="data",
        where=names[row],
    )


def shape_text(shape: Sequence[int | None]) -> str:
    """Return `[N, 3, ?]`: N is the batch axis, ? an axis that is free."""
    return "[" + ", ".join(str(n) if n is not None else "?" if i else "N" for i, n in enumerate(shape)) + "]"


def _ports(ports: Sequence[TensorInfo]) -> str:
    return ", ".join(f"{p.name!r} ({shape_text(p.shape)} {p.type_name})" for p in ports)


def shapes_of(rows: Mapping[str, Any], feeds: Sequence[Feed], number: int) -> tuple[tuple[int, ...], ...]:
    """Return the parts that must be equal for samples to share a batch: each field's shape, unless resized."""
    return tuple(() if f.preprocess.size else tuple(rows[f.field][number].shape) for f in feeds)
