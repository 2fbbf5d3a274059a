"""The run folder of a call from Python."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from pathlib import Path
from typing import Any


class Workspace:
    """The caller's folder, or a temporary one that lives as long as something refers to this object."""

    def __init__(self, folder: Any) -> None:
        self.temporary = folder is None
        if self.temporary:
            self.path = Path(tempfile.mkdtemp(prefix="quantpipe-"))
            weakref.finalize(self, shutil.rmtree, str(self.path), ignore_errors=True)
        else:
            self.path = Path(folder).expanduser().absolute()

    @property
    def resume_call(self) -> str:
        """Return how an interrupted run goes on, in words."""
        if self.temporary:
            return "the interrupted method (a new call starts again, as this folder is temporary: give folder=…)"
        return f"the same call, with folder={str(self.path)!r}"
