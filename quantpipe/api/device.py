"""Hold a device against the plan of a finished run: export vectors, compare a dump with them, identify the device."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import Any

from quantpipe.api.options import given_dataset
from quantpipe.api.progress import Listener, Listening
from quantpipe.api.result import as_text
from quantpipe.app.explain import settings_of_run
from quantpipe.pipeline.conform import FOLDER, compare_with_dump
from quantpipe.pipeline.conform import export_vectors as export
from quantpipe.pipeline.identify import identify_device
from quantpipe.pipeline.settings import Settings
from quantpipe.pipeline.vector_settings import VectorSettings
from quantpipe.report import dump_tables, identified_table

Folder = str | PathLike[str]


class DumpResult(dict[str, Any]):
    """Describe how a dump differs from a plan (`quantpipe.types.DumpReport`); as text, the command line's tables."""

    def __str__(self) -> str:
        return as_text(dump_tables(self))


class IdentifyResult(dict[str, Any]):
    """Describe a device by its dumps (`quantpipe.types.IdentifyReport`); as text, the command line's table."""

    def __str__(self) -> str:
        return as_text(identified_table(self))


def export_vectors(
    folder: Folder,
    samples: Any = None,
    *,
    count: int = 4,
    hex_samples: int = 1,
    probes: bool = True,
    progress: Listener | bool | None = None,
) -> Path:
    """Write golden vectors of a finished run, and probes of its hardware, into the run folder.

    Args:
        folder: The run folder.
        samples: The samples of the run, in any form that `quantize` takes, where they were given from Python; None:
            those that the configuration in the folder names.
        count: On how many samples of the evaluate split.
        hex_samples: So many of them are in hex files, too.
        probes: Whether op-level probes are written.
        progress: As for `quantize`.

    Returns:
        The folder of the vectors; its README.md describes what a device has to run.

    Raises:
        ArtifactError: The folder holds no finished run of this version, or a damaged one.

    Examples:
        >>> import numpy as np
        >>> import quantpipe
        >>> from quantpipe.data import DigitsDataset
        >>> result = quantpipe.quantize(quantpipe.example_model(), DigitsDataset(), evaluate={"latency_runs": 1})
        >>> vectors = quantpipe.export_vectors(result.folder, DigitsDataset(), count=2, probes=False)
        >>> dump = dict(np.load(vectors / "net" / "golden.npz"))
        >>> dump["stem.out"] = dump["stem.out"][:, ::-1]  # a device that swaps the channels of a layer
        >>> np.savez(result.folder / "dump.npz", **dump)
        >>> found = quantpipe.compare_dump(result.folder, result.folder / "dump.npz", DigitsDataset())
        >>> [row["tensor"] for row in found["sets"][0]["rows"] if row["differing"]]
        ['stem.out']
    """
    settings = _settings(folder, samples)
    export(settings, Listening(progress), VectorSettings(count, hex_samples, probes))
    return settings.folder / FOLDER


def compare_dump(
    folder: Folder, dump: Folder, samples: Any = None, *, progress: Listener | bool | None = None
) -> DumpResult:
    """Compare a device's dump with the plan of a finished run, and say which field of the hardware explains it.

    Args:
        folder: The run folder, with exported vectors.
        dump: An npz file, or a folder (docs/conformance.md).
        samples: As for `export_vectors`.
        progress: As for `quantize`.

    Returns:
        Every tensor that differs, with what would explain it; `differing` is 0 where nothing does.

    Raises:
        ArtifactError: No vectors were exported, or the dump does not belong to them.
    """
    return DumpResult(compare_with_dump(_settings(folder, samples), Listening(progress), _path(dump)))


def identify(
    folder: Folder, dump: Folder, samples: Any = None, *, progress: Listener | bool | None = None
) -> IdentifyResult:
    """Report which values of a hardware file's fields agree with a device's dumps of the probes.

    Args:
        folder: The run folder, with exported vectors.
        dump: A folder with the dumps of the probes (docs/conformance.md).
        samples: As for `export_vectors`.
        progress: As for `quantize`.

    Returns:
        For each field the values that are left; `overrides` lists the required changes of the file.

    Raises:
        ArtifactError: No vectors were exported, or the folder has no dump of a probe.
    """
    return IdentifyResult(identify_device(_settings(folder, samples), Listening(progress), _path(dump)))


def _path(given: Folder) -> Path:
    return Path(given).expanduser().absolute()


def _settings(folder: Folder, samples: Any) -> Settings:
    path = _path(folder)
    given = {} if samples is None else {"dataset": given_dataset(path, samples)}
    return settings_of_run(path, plugins=[], given=given)
