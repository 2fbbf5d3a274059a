"""`command=identify`: which values of a hardware file's fields agree with a device's dumps of the probes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from quantpipe.conform.dump import has_dump, read_dump
from quantpipe.conform.identify import Held, identify
from quantpipe.conform.probes import Probe, probes_of
from quantpipe.errors import ArtifactError
from quantpipe.pipeline.conform import PROBES, opened, read_kit
from quantpipe.pipeline.settings import Console, Settings
from quantpipe.types import IdentifiedField, IdentifyReport
from quantpipe.version import __version__

STAGE = "identify"


def identify_device(settings: Settings, console: Console, dump: Path) -> IdentifyReport:
    """Identify the device from the dumps of a run's probes.

    Raises ArtifactError where no vectors were exported, or the folder has no dump of a probe.
    """
    run = opened(settings, console, STAGE)
    read_kit(run)
    probes, _ = probes_of(settings.config["hardware"], settings.schema)
    held = [_held(probe, dump) for probe in probes]
    given = [one.probe.recipe.name for one in held if one.found is not None]
    if not given:
        names = ", ".join(f"{PROBES}/{p.recipe.name}" for p in probes[:4])
        raise ArtifactError(
            f"has no dump of a probe; legal is a folder with {names}, … (npz files or folders), each with the tensor "
            "that its op makes",
            stage=STAGE,
            where=str(dump),
        )
    console.stage(STAGE, f"{len(given)} of {len(probes)} probes")
    found = identify(settings.spec, held)
    return {
        "version": __version__,
        "run": str(settings.folder),
        "dump": str(dump),
        "hardware": settings.spec.name,
        "probes": given,
        "fields": found.fields,
        "unexplained": found.unexplained,
        "overrides": list(_overrides(found.fields)),
    }


def _held(probe: Probe, dump: Path) -> Held:
    for name in (f"{PROBES}/{probe.recipe.name}", probe.recipe.name):
        if has_dump(dump, name):
            return Held.of(
                probe, read_dump(dump / name if (dump / name).is_dir() else _file(dump, name), probe.vectors)
            )
    return Held.of(probe, None)


def _file(dump: Path, name: str) -> Path:
    return next(dump.glob(f"{name}.*"))


def _overrides(fields: Sequence[IdentifiedField]) -> list[str]:
    """Return the hardware file's changes: of fields whose own value no device like this has."""
    found = []
    for row in fields:
        if row["own"] not in row["values"]:
            found.append(f"{row['field']}: {' or '.join(row['values'])}, not {row['own']}")
    return found
