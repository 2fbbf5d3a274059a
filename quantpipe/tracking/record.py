"""Record the MLflow run of a run folder in the folder: a resumed run continues in it.

The file names the store as it may be shown; who goes on knows the address with its password from the configuration or
the environment.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from quantpipe.artifacts import write_bytes
from quantpipe.errors import StorageError

NAME = ".mlflow_run.json"


@dataclass(frozen=True)
class Record:
    """Hold where a run folder is filed.

    `trials` of its search are filed already, and the integer model of the digest `model` (None: not filed); `complete`:
    nothing is left to be sent.
    """

    uri: str
    experiment: str
    run_id: str
    trials: int = 0
    model: str | None = None
    complete: bool = False


class RecordFile:
    """Read and write the record of one run folder; without a folder nothing is stored."""

    def __init__(self, folder: Path | None) -> None:
        self._path = None if folder is None else folder / NAME
        self.known = self._read()

    def begin(self, uri: str, experiment: str, run_id: str) -> None:
        """Keep which run of which store is open; of a run that goes on, what was filed stays known."""
        same = self.known is not None and (self.known.uri, self.known.run_id) == (uri, run_id)
        known = self.known if same and self.known is not None else Record(uri, experiment, run_id)
        self._write(replace(known, complete=False))

    def note(self, **changes: Any) -> None:
        """Keep what has been filed."""
        if self.known is not None:
            self._write(replace(self.known, **changes))

    def _write(self, record: Record) -> None:
        self.known = record
        if self._path is None:
            return
        try:
            write_bytes(self._path, json.dumps(asdict(record)).encode())
        except (OSError, StorageError):  # the run itself will meet the full disk, and say so
            return

    def _read(self) -> Record | None:
        if self._path is None:
            return None
        try:
            found = json.loads(self._path.read_bytes())
            return Record(**{f.name: found[f.name] for f in fields(Record) if f.name in found})
        except (OSError, ValueError, TypeError, KeyError):
            return None


def filed_in(folder: Path) -> Record | None:
    """Return where a run folder is filed, as far as the folder knows."""
    return RecordFile(folder).known
