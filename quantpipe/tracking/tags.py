"""Set the tags that MLflow's own front end would set on a run: the user, the source, and the commit."""

from __future__ import annotations

import contextlib
import getpass
import json
import subprocess
import sys
from functools import cache
from pathlib import Path

from quantpipe.tracking import clean

_GIT_SECONDS = 5.0

VIEW = "quantpipe"
"""The key under which an experiment has the columns of its table of runs."""
VIEW_TAG = f"mlflow.sharedViewState.{VIEW}"
COMPARED = ("realized/top1", "float/top1", "realized/kl", "model/realized_bytes", "latency/ratio")
"""As many as are visible on a common screen: MLflow orders columns by name, and opens its assistant next to them."""
TOLD_APART = ("hardware", "search", "model")
COLUMNS = (
    "attributes.`Created`",
    *(f"metrics.`{name}`" for name in COMPARED),
    *(f"params.`{name}`" for name in TOLD_APART),
)
"""Columns of the table: metrics first, then the few parameters by which runs differ."""
EXPERIMENT_TAGS = {
    "mlflow.experimentKind": "custom_model_development",
    VIEW_TAG: json.dumps({"selectedColumns": COLUMNS, "orderByKey": "attributes.start_time", "orderByAsc": False}),
}
"""The UI then opens an experiment as one of models, does not ask for its kind, and has a view of its runs."""


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
