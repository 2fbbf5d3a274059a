"""From the folder of a run to the store that it is filed in, for `command=sync`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from quantpipe.app.explain import settings_of_run
from quantpipe.app.instances import make
from quantpipe.artifacts import read_text
from quantpipe.errors import ArtifactError, ConfigError
from quantpipe.passwords import MASK
from quantpipe.pipeline.run_folder import RunFolder
from quantpipe.pipeline.settings import Settings
from quantpipe.tracking import NullTracker, filed_in

STAGE = "sync"


def run_folders(given: list[str] | tuple[str, ...], launch: Path) -> Iterator[Path]:
    """Yield the folders of finished runs: the given ones, and the jobs of given sweeps.

    Raises ArtifactError for a folder without a run.
    """
    for name in given:
        folder = launch / Path(name).expanduser()
        jobs = sorted((p.parent for p in folder.glob("*/config.yaml")), key=lambda p: (len(p.name), p.name))
        if RunFolder(folder).config.is_file():
            yield folder
        elif jobs:
            yield from jobs
        else:
            raise ArtifactError(
                "is no folder of a run, nor of a sweep; legal is one that holds config.yaml, or folders that do",
                stage=STAGE,
                where=str(folder),
            )


def settings_to_sync(folder: Path, now: Settings) -> Settings:
    """Return the settings of a run in a folder, with the tracker that filed it.

    `tracking.*` overrides of the command `now` choose another store. Raises ConfigError where the run has no store, or
    where its address needs a password that is not kept.
    """
    settings = settings_of_run(folder, plugins=list(now.config.get("plugins") or ()), given={"dataset": None})
    return replace(settings, tracker=_tracker(folder, now), changed=_changed(folder))


def _tracker(folder: Path, now: Settings) -> Any:
    if any(key.startswith("tracking.") for key in now.changed):
        return now.tracker
    kept = yaml.safe_load(read_text(RunFolder(folder).config)).get("tracking") or {}
    if str(kept.get("_target_")).endswith(NullTracker.__name__):
        return now.tracker
    record = filed_in(folder)
    uri = record.uri if record is not None else kept.get("uri")
    if MASK in str(uri):
        raise ConfigError(
            f"is {uri}, and passwords are not kept; give tracking.uri= with it, or by a variable of the environment",
            stage=STAGE,
            where="tracking.uri",
        )
    return make({**kept, "uri": uri}, "tracking", [], launch_folder=str(Path.cwd()), parent_key=None)


def _changed(folder: Path) -> dict[str, str]:
    """Return the overrides that Hydra has written into the folder."""
    path = folder / ".hydra" / "overrides.yaml"
    try:
        given = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError):
        return {}
    pairs = (str(text).lstrip("+").partition("=") for text in given or () if "=" in str(text))
    return {key: value for key, _, value in pairs if not key.startswith(("hydra", "model.path"))}
