"""Load libraries without garbage collection, which looks through all their objects again and again and frees none."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collection_paused() -> Iterator[None]:
    """Collect no garbage inside; what is alive at the end is looked through no more, unless collection was off."""
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            gc.freeze()
            gc.enable()
