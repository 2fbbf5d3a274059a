"""Make a model's values of raw samples: (pixel * scale - mean) / std per channel, axes in the model's order.

Pure arithmetic on arrays; which model input they must fit is checked in `samples`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from fractions import Fraction
from math import isfinite
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from quantpipe.arrays import along
from quantpipe.errors import ConfigError, DataError, nearest

T = TypeVar("T", bound=StrEnum)


CHANNELS = (1, 3, 4)
"""Numbers of channels that show which axis of a picture has them."""


class Layout(StrEnum):
    """The axes of the batch that the model takes."""

    NCHW = "NCHW"
    NHWC = "NHWC"


class SourceLayout(StrEnum):
    """The axes of a batch of raw samples. `auto` is NHWC for uint8 `[N, H, W, 1 | 3 | 4]`, else `as_is`.

    `NHW` are grey images without a channel axis; `as_is` are features: no axis is moved.
    """

    AUTO = "auto"
    NHWC = "NHWC"
    NCHW = "NCHW"
    NHW = "NHW"
    AS_IS = "as_is"

    def resolve(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> SourceLayout:
        """Return the value of `auto` for a batch of this shape and dtype; other values unchanged."""
        if self is not SourceLayout.AUTO:
            return self
        is_image = len(shape) == 4 and dtype == np.uint8 and shape[-1] in CHANNELS
        return SourceLayout.NHWC if is_image else SourceLayout.AS_IS


def one_of(kind: type[T], value: str, key: str) -> T:
    """Return the enum member of a configuration value, in whatever case it was written."""
    for member in kind:
        if member.value.lower() == str(value).lower():
            return member
    raise ConfigError(f"{value!r} is not one of {', '.join(m.value for m in kind)}.", where=key)


def number(value: Any, key: str) -> float:
    """Return a configuration number: 0.5, or a fraction written as a string, "1/255"."""
    try:
        result = float(Fraction(value.replace(" ", ""))) if isinstance(value, str) else float(value)
    except (ValueError, TypeError, ZeroDivisionError):
        raise ConfigError(
            f"{value!r} is not a number; legal are 0.5, 1e-3 or a fraction such as 1/255.", where=key
        ) from None
    if not isfinite(result):
        raise ConfigError(f"{value!r} is not a finite number.", where=key)
    return result


def numbers(value: Any, key: str) -> tuple[float, ...]:
    """Return one number for all channels, or a list with one for each."""
    values = (value,) if isinstance(value, str) or not isinstance(value, Iterable) else tuple(value)
    if not values:
        raise ConfigError("an empty list; give one number, or one for each channel.", where=key)
    return tuple(number(v, key) for v in values)


@dataclass(frozen=True)
class Preprocess:
    """Turn a raw sample into a model's input.

    `mean` and `std` hold one value, or one per channel, in units of `pixel * scale`. `size` `(height, width)` resizes
    images (bicubic, to exactly that size, the aspect ratio is not kept); None leaves them as they are.
    """

    scale: float = 1.0
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    layout: Layout = Layout.NCHW
    size: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        key = "dataset.preprocess"
        object.__setattr__(self, "scale", number(self.scale, f"{key}.scale"))
        object.__setattr__(self, "mean", numbers(self.mean, f"{key}.mean"))
        object.__setattr__(self, "std", numbers(self.std, f"{key}.std"))
        object.__setattr__(self, "layout", one_of(Layout, self.layout, f"{key}.layout"))
        if self.scale == 0:
            raise ConfigError("0 would make every sample the same; use 1 to leave values alone.", where=f"{key}.scale")
        if any(s <= 0 for s in self.std):
            raise ConfigError(f"{list(self.std)} must all be above 0, because it divides.", where=f"{key}.std")
        if self.size is not None:
            given = self.size
            if isinstance(given, str) or not isinstance(given, Iterable):
                raise ConfigError(f"{given!r} must be null or [height, width].", where=f"{key}.size")
            sides = tuple(given)
            if len(sides) != 2 or not all(isinstance(s, int) and s > 0 for s in sides):
                raise ConfigError(f"{list(sides)} must be null or [height, width], in pixels.", where=f"{key}.size")
            object.__setattr__(self, "size", sides)

    @classmethod
    def of(cls, config: Preprocess | Mapping[str, Any]) -> Preprocess:
        """Return the preprocessing of a configuration node; keys that are absent keep their defaults."""
        if isinstance(config, Preprocess):
            return config
        known = [f.name for f in fields(cls)]
        for key in config:
            if key not in known:
                hint = nearest(str(key), known)
                raise ConfigError(
                    f"no such key{hint}; legal are {', '.join(known)}.", where=f"dataset.preprocess.{key}"
                )
        return cls(**{str(k): v for k, v in config.items()})

    def for_input(self, shape: Sequence[int | None], source: SourceLayout) -> Preprocess:
        """Return it for a model's input, whose last axis alone may show that it has channels last.

        Samples of NCHW, and lists per channel of another length, show that it has not.
        """
        last = len(shape) == 4 and shape[3] in CHANNELS and shape[1] not in CHANNELS
        last = last and source is not SourceLayout.NCHW and {len(self.mean), len(self.std)} <= {1, shape[3]}
        return replace(self, layout=Layout.NHWC) if last else self

    @property
    def is_identity(self) -> bool:
        """Return whether values pass unchanged, so that integer features stay integers."""
        return self.scale == 1 and set(self.mean) == {0.0} and set(self.std) == {1.0}

    def apply(self, images: Sequence[NDArray[Any]] | NDArray[Any], source: SourceLayout) -> NDArray[Any]:
        """Return a batch `[N, …]` in the model's layout, in float32 or unchanged if `is_identity`.

        Wide sources give float64. `images` is one array or a list of samples, which must have one shape after resizing.
        Raises DataError if a per-channel list does not fit the channels, or if `size` is set for samples that are no
        images.
        """
        batch = (
            self._resized(images, source)
            if self.size
            else np.stack(list(images))
            if len(images)
            else np.asarray(images)
        )
        batch = self._arranged(batch, source)
        if self.is_identity:
            return batch
        values = batch.astype(np.result_type(batch.dtype, np.float32))
        values *= values.dtype.type(self.scale)
        values -= self._per_channel(self.mean, "mean", values, source)
        values /= self._per_channel(self.std, "std", values, source)
        return values

    def _arranged(self, batch: NDArray[Any], source: SourceLayout) -> NDArray[Any]:
        """Return the values with axes from the source's to the model's order."""
        if source is SourceLayout.AS_IS:
            return batch
        wanted = 3 if source is SourceLayout.NHW else 4
        if batch.ndim != wanted:
            raise DataError(
                f"source layout {source} means {wanted} axes, found shape {list(batch.shape)}; set "
                "dataset.source_layout to one of NHWC, NCHW, NHW (grey, no channel axis) or as_is (features)."
            )
        if source is SourceLayout.NHW:
            return batch[:, np.newaxis] if self.layout is Layout.NCHW else batch[..., np.newaxis]
        if source.value == self.layout.value:
            return batch
        return np.ascontiguousarray(batch.transpose((0, 3, 1, 2) if self.layout is Layout.NCHW else (0, 2, 3, 1)))

    def _per_channel(
        self, given: tuple[float, ...], key: str, values: NDArray[Any], source: SourceLayout
    ) -> NDArray[Any]:
        """Return the constants, shaped to broadcast over the channel axis (the last one for other than images)."""
        axis = 1 if values.ndim == 4 and self.layout is Layout.NCHW else values.ndim - 1
        if len(given) not in (1, values.shape[axis]):
            raise DataError(
                f"{len(given)} values for samples with {values.shape[axis]} channels (axis {axis} of "
                f"{list(values.shape)}, layout {self.layout}, source layout {source}). Give one value, or one for each "
                "channel, or correct dataset.source_layout or dataset.preprocess.layout.",
                where=f"dataset.preprocess.{key}",
            )
        return along(np.asarray(given, dtype=values.dtype), axis, values.ndim)

    def _resized(self, images: Sequence[NDArray[Any]] | NDArray[Any], source: SourceLayout) -> NDArray[Any]:
        """Return uint8 images resized one by one; images that have the size already stay unchanged."""
        from PIL import Image  # only sources of images need it

        if self.size is None or source not in (SourceLayout.NHWC, SourceLayout.NHW):
            raise DataError(
                f"resizing takes images with source layout NHWC or NHW, found {source}; set it to null, or correct "
                "dataset.source_layout.",
                where="dataset.preprocess.size",
            )
        height, width = self.size
        resized = []
        for image in images:
            if image.shape[:2] == self.size:
                resized.append(image)
                continue
            if image.dtype != np.uint8:
                raise DataError(
                    f"resizing takes uint8 images, found {image.dtype}; resize the data beforehand and set it to null.",
                    where="dataset.preprocess.size",
                )
            grey = image.ndim == 3 and image.shape[-1] == 1  # Pillow knows grey images without a channel axis only
            picture = Image.fromarray(image[..., 0] if grey else image)
            array = np.asarray(picture.resize((width, height), Image.Resampling.BICUBIC))
            resized.append(array[..., np.newaxis] if grey else array)
        return np.stack(resized)
