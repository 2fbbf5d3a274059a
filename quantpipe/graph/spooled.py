"""Weights of a model in a temporary file without a name, mapped read-only: the system can take their pages back.

They count as weights in memory: every session gets them as arrays. Where the disk has no room they stay in memory.
"""

from __future__ import annotations

import logging
import mmap
import os
import tempfile
import weakref
from collections.abc import Iterator, Mapping

import numpy as np
import onnx_ir as ir

from quantpipe.arrays import Array

log = logging.getLogger(__name__)

LEAST_SPOOLED = 1 << 26
"""Bytes of weights from which on they are in a file."""

PAGE = mmap.ALLOCATIONGRANULARITY

_mapped: weakref.WeakSet[_Pages] = weakref.WeakSet()


class _Pages(mmap.mmap):
    """Mapped pages that can be referred to weakly."""


def spooled(tensors: Mapping[str, ir.TensorProtocol]) -> Iterator[tuple[str, Array]]:
    """Yield the values of tensors by name; in a file where they are many, and the disk has room."""
    places, size = {}, 0
    for name, tensor in tensors.items():
        places[name], size = size, size + -(-tensor.nbytes // PAGE) * PAGE
    pages = _written(tensors, places, size) if size >= LEAST_SPOOLED else None
    for name, tensor in tensors.items():
        if pages is None:
            yield name, tensor.numpy()
            continue
        shape, dtype = tuple(tensor.shape.numpy()), tensor.dtype.numpy()
        yield name, np.ndarray(shape, dtype, pages, places[name])


def leave_pages() -> None:
    """Give the pages of all such weights back to the system; who reads them gets them from the file again."""
    if hasattr(mmap, "MADV_DONTNEED"):
        for pages in list(_mapped):
            pages.madvise(mmap.MADV_DONTNEED)


def _written(tensors: Mapping[str, ir.TensorProtocol], places: Mapping[str, int], size: int) -> _Pages | None:
    try:
        with tempfile.TemporaryFile(prefix="quantpipe-") as file:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, size)
            for name, tensor in tensors.items():
                file.seek(places[name])
                file.write(np.ascontiguousarray(tensor.numpy()).reshape(-1).view(np.uint8).data)
            file.truncate(size)
            file.flush()
            pages = _Pages(file.fileno(), size, access=mmap.ACCESS_READ)
    except OSError as error:
        log.info("weights stay in memory: %s", error.strerror or error)
        return None
    _mapped.add(pages)
    return pages
