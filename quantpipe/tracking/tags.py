"""Set the tags that MLflow's own front end would set on a run: the user, the source, and the commit."""

from __future__ import annotations

import contextlib
import getpass
import subprocess
import sys
from functools import cache
from pathlib import Path

from quantpipe.tracking import clean

_GIT_SECONDS = 5.0

EXPERIMENT_TAGS = {"mlflow.experimentKind": "custom_model_development"}
"""The UI then opens an experiment as one of models, and does not ask for its kind."""


def standard_tags(launch_folder: Path) -> dict[str, str]:
    """Return the tags of a new run; the commit is the one of the repository of the launch folder, if it is one."""
    tags = {"mlflow.source.name": clean.text(sys.argv[0], clean.MAX_TAG), "mlflow.source.type": "LOCAL"}
    with contextlib.suppress(OSError, KeyError, ImportError):  # a container may have no user names
        tags["mlflow.user"] = getpass.getuser()
    commit = _commit(launch_folder)
    return tags | ({"mlflow.source.git.commit": commit} if commit else {})


@cache
def _commit(folder: Path) -> str | None:
    command = ["git", "-C", str(folder), "rev-parse", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_GIT_SECONDS, check=False)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None
