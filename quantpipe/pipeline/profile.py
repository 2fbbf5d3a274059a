"""Statistics from a file in place of a calibration run (`profile.load`)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from quantpipe.artifacts import digest_file
from quantpipe.calibrate.estimators import Estimator
from quantpipe.calibrate.importers import load_profile
from quantpipe.calibrate.needs import require
from quantpipe.errors import ArtifactError
from quantpipe.graph.view import Graph
from quantpipe.pipeline.settings import Settings
from quantpipe.types import Profile


def digest_of_profile(path: Path) -> str:
    """Return the digest of the file as it is; ArtifactError when it cannot be read."""
    try:
        return digest_file(path)
    except OSError as error:
        raise ArtifactError(
            f"cannot be read ({error.strerror or error})", stage="profile.load", where=str(path)
        ) from error


def loaded_profile(settings: Settings, graph: Graph, measured: Sequence[str], estimator: Estimator) -> Profile | None:
    """Return the statistics of the file, checked against the model and the estimator.

    The result is None when no profile is to be loaded.
    """
    if settings.profile is None:
        return None
    profile = load_profile(settings.profile, graph, measured)
    require(estimator, profile)
    return profile
