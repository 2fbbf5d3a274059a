"""Masks of decoders whose columns count the cache as well: a piece's own mask goes on where the one before ended."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from quantpipe.arrays import Array
from quantpipe.types import TensorInfo

MASK = re.compile(r"(?!.*(encoder|cross))(.*[._])?attention_mask")
"""The name of a mask as exporters of decoders write it: a column for each token of the cache and of the sample.

The masks of an encoder's tokens do not grow.
"""


class GrownMasks:
    """The inputs that take such masks, in `names`."""

    def __init__(self, inputs: Sequence[TensorInfo], state: Collection[str]) -> None:
        free = [i for i in inputs if i.name not in state and len(i.shape) > 1 and i.shape[1] is None]
        others = [i for i in free if "mask" not in i.name]
        others.sort(key=lambda i: len(i.shape) != 2 or not i.dtype.startswith("int"))
        self._tokens = next((i.name for i in others), None)
        masks = [i.name for i in free if MASK.fullmatch(i.name) and len(i.shape) == 2]
        self.names = tuple(masks) if self._tokens is not None else ()

    def of(self, feeds: Mapping[str, Array], cached: int, before: Mapping[str, Array]) -> dict[str, Array]:
        """Return the masks of a sample after `cached` tokens, by input; `before`: the masks of the sample before.

        A mask as long as its sample's tokens begins with the columns of the samples before it, or with ones for a
        cache that the data gave. Another one stays as the data have it.
        """
        found = {}
        for name in self.names:
            mask = found[name] = feeds[name]
            if cached and mask.shape[1] == np.shape(feeds[self._tokens or ""])[1]:
                known = before.get(name, mask[:, :0])
                if known.shape[1] != cached:
                    known = np.ones((len(mask), cached), mask.dtype)
                found[name] = np.concatenate([known, mask], axis=1)
        return found
