"""Statistics that all runs of a user share, so that another estimator or another hardware does not measure again.

One npz file per (model, samples with their preprocessing, clean graph, batch) holds all tensors measured so far:
hardware that needs other tensors adds to it. Files are replaced as a whole, so that any number of processes may read
and write. Of two that write at once the later wins, and the other's measurements are repeated when needed. A folder
that cannot be written, and a damaged file, cause a warning and a measurement, and never end the run.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from quantpipe.artifacts import Origin, digest_bytes, digest_json, read_npz, write_npz
from quantpipe.calibrate.profile import profile_from_arrays, stats_arrays
from quantpipe.errors import ArtifactError, StorageError
from quantpipe.graph.external_weights import skeleton
from quantpipe.graph.view import Graph
from quantpipe.types import Profile, Samples, TensorStats
from quantpipe.version import __version__

FORMAT = 2
"""Grows when statistics are measured differently, so that older ones are not taken for the new ones."""

LIMIT_BYTES = 256 << 20
"""What all files together may take; those that were used longest ago go first."""

VARIABLE = "QUANTPIPE_CACHE"


def cache_folder(setting: str) -> Path | None:
    """Return the folder that `calibrate.cache` means.

    It depends on the setting: nothing for `none`, the user's own for `auto`, else the path given. The user's own is the
    variable QUANTPIPE_CACHE (also `none`), else `quantpipe` in the cache folder that XDG_CACHE_HOME names, else in
    ~/.cache.
    """
    if setting == "auto":
        setting = os.environ.get(VARIABLE) or str(
            Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "quantpipe"
        )
    return None if setting == "none" else Path(setting).expanduser()


@dataclass(frozen=True)
class StatsCache:
    """Hold the file for one model and data below `folder`; `warn` is called about failures."""

    folder: Path
    origin: Origin
    warn: Callable[[str], None]

    @classmethod
    def of(cls, folder: Path, graph: Graph, samples: Samples, warn: Callable[[str], None]) -> StatsCache:
        """Return the cache of a model and its samples.

        The key covers everything that determines the statistics of a named tensor: also attributes and constants that
        the clean-up wrote, and the version, since another clean-up may write other weights. `warn` is called about
        damaged files.
        """
        names = [[n.name, n.op, n.inputs, n.outputs] for n in graph.nodes]
        written = digest_json([__version__, names, digest_bytes(skeleton(graph.model))])
        inputs = {"model": graph.model_hash, "samples": samples.digest, "graph": written}
        return cls(folder, Origin("cache/statistics", inputs, {"batch": graph.batch_size}, FORMAT), warn)

    @property
    def path(self) -> Path:
        """Return the file that holds the statistics of this origin."""
        return self.folder / "statistics" / f"{self.origin.digest.partition(':')[2][:32]}.npz"

    def read(self) -> Profile | None:
        """Return all that is known, or None."""
        try:
            found = self._read()
        except ArtifactError as error:
            self.warn(f"cached statistics are not used: {error}")
            return None
        with suppress(OSError):  # read-only is fine: it only loses track of what is in use
            os.utime(self.path)
        return found

    def write(self, profile: Profile) -> None:
        """Add these statistics to the file; full ones are never replaced by extremes."""
        with suppress(ArtifactError):  # `read` has told it
            known = self._read()
            profile = replace(profile, tensors=merged(known.tensors, profile.tensors)) if known else profile
        try:
            write_npz(self.path, stats_arrays(profile), self.origin)
            self._evict()
        except (StorageError, OSError) as error:
            reason = error.__cause__ if isinstance(error, StorageError) else error
            self.warn(f"statistics are not cached, {self.folder} cannot be written ({reason}); see calibrate.cache")

    def _read(self) -> Profile | None:
        if not self.path.is_file():
            return None
        return profile_from_arrays(read_npz(self.path, self.origin), str(self.path))

    def _evict(self) -> None:
        """Delete the files unused for longest until the rest is within the limit; the one just written stays."""
        found = []
        for path in self.path.parent.glob("*.npz"):
            with suppress(OSError):  # another process may have deleted it
                found.append((path.stat().st_mtime, path.stat().st_size, path))
        total = sum(size for _, size, _ in found)
        for _, size, path in sorted(found):
            if total <= LIMIT_BYTES or path == self.path:
                break
            path.unlink(missing_ok=True)
            total -= size


def merged(known: dict[str, TensorStats], new: dict[str, TensorStats]) -> dict[str, TensorStats]:
    """Return both profiles in one.

    For a tensor in both, the more detailed one is taken (the new one of equals).
    """
    kept = {name: stats for name, stats in known.items() if name not in new or _says(stats) > _says(new[name])}
    return {**new, **kept}


def _says(stats: TensorStats) -> int:
    return int(stats.full) + int(stats.channels is not None)
