"""The commands that look and do not run: each prints its answer on standard output and gives an exit code.

0: nothing to object to; 3: the hardware takes it with reservations, or a claim does not hold; 2: it cannot run it.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import RenderableType

from quantpipe.app import apply
from quantpipe.app.compare_command import found_runs, show
from quantpipe.app.console import RichConsole, plain
from quantpipe.app.explain import settings_of_run, shipped
from quantpipe.app.sync import run_folders, settings_to_sync
from quantpipe.check import Fit, Loading, check_model, made_up
from quantpipe.check.lint import Findings, lint_model
from quantpipe.errors import ConfigError, Interrupted
from quantpipe.explain.explain import explain as explain_run
from quantpipe.explain.explain import explain_strategy
from quantpipe.explain.explain_file import explain_file
from quantpipe.pipeline.compare import compare as compare_runs
from quantpipe.pipeline.compare import found_in
from quantpipe.pipeline.conform import FOLDER as VECTORS
from quantpipe.pipeline.conform import compare_with_dump, export_vectors
from quantpipe.pipeline.identify import identify_device
from quantpipe.pipeline.identify_times import identify_times
from quantpipe.pipeline.run_folder import RunFolder
from quantpipe.pipeline.settings import Settings
from quantpipe.pipeline.sync import sync as sync_run
from quantpipe.report import dump_tables, explained, fit_tables, identified_table, kit_table, lint_table, times_table
from quantpipe.tracking import MlflowTracker, NullTracker
from quantpipe.verify.__main__ import main as check_certificate


def fit_of(settings: Settings) -> Fit:
    """Return whether the hardware can run the model, and what it would leave in float."""
    return check_model(
        settings.model,
        settings.spec,
        settings.schema,
        settings.annotate,
        shapes=settings.check.shapes or {},
        loading=Loading(
            settings.fixed, settings.resident_mb, settings.isolate, settings.keep, settings.cells, settings.random
        ),
    )


def findings_of(settings: Settings) -> Findings:
    """Return what the hardware would reject in an integer model of any tool."""
    shapes = settings.check.shapes or {}
    return lint_model(
        settings.model,
        settings.spec,
        lambda inputs: made_up(inputs, shapes),
        settings.fixed,
        resident_mb=settings.resident_mb,
        isolate=settings.isolate,
    )


def check(settings: Settings) -> int:
    """Run `command=check`."""
    fit = fit_of(settings)
    _answer(settings, fit.as_dict(), fit_tables)
    return fit.exit_code


def lint(settings: Settings) -> int:
    """Run `command=lint`."""
    found = findings_of(settings)
    _answer(settings, found.as_dict(), lint_table)
    return found.exit_code


def verify(settings: Settings) -> int:
    """Run `command=verify`.

    An independent checker reports whether every claim of a run folder's certificate holds.
    """
    return check_certificate([str(settings.folder)])


def explain(settings: Settings) -> int:
    """Run `command=explain`."""
    options, plugins = settings.explain, list(settings.config.get("plugins") or ())
    folder = options.run or settings.folder
    console = RichConsole(settings.verbosity)
    try:
        if options.file is not None:
            found = explain_file(settings, options.file, console, options)
        elif settings.strategy is not None:
            found = explain_strategy(settings, console, shipped(), options)
        else:
            found = explain_run(settings_of_run(folder, plugins=plugins), console, shipped(), options)
    except KeyboardInterrupt:
        raise Interrupted("interrupted; nothing was written. Run the same command again", stage="explain") from None
    finally:
        console.finish()
    _answer(settings, found, explained)
    if settings.check.format == "text":
        plain().print(f"files   {RunFolder(folder).explained}", soft_wrap=True)
    return _applied(settings, folder, found["advice"]) if options.apply else 0


def _applied(settings: Settings, folder: Path, advice: Sequence[Mapping[str, Any]]) -> int:
    """Return the run with the best of what was advised, and how it compares with the first."""
    out = plain()
    taken, changes = apply.best(advice, settings.explain.apply)
    if not taken:
        out.print("nothing that was measured gains anything, so that nothing is applied")
        return 0
    path = apply.write(folder, taken, changes)
    arguments = apply.command(folder, changes)
    out.print(f"applied {', '.join(row['change'] for row in taken)}: {path}", soft_wrap=True)
    out.print(f"        {shlex.join(arguments)}", soft_wrap=True)
    code = apply.run(arguments)
    if code == 0:
        after = folder / apply.NAME / "run"
        report = compare_runs([found_in(folder, str(folder)), found_in(after, str(after))])
        show(report, folder / apply.NAME)
    return code


def compare(settings: Settings) -> int:
    """Run `command=compare`: how runs differ, or a dump from the plan of one."""
    if settings.dump is not None:
        return _compare_dump(settings, settings.dump)
    tracking = settings.config.get("tracking") or {}
    uri = settings.tracker.config.uri if isinstance(settings.tracker, MlflowTracker) else tracking.get("uri")
    report = compare_runs(found_runs(settings.runs, Path.cwd(), uri))
    if settings.check.format == "json":
        sys.stdout.write(json.dumps(report, indent=2) + "\n")
    else:
        show(report, settings.folder)
    return 0


def _compare_dump(settings: Settings, dump: Path) -> int:
    found = _of_run(settings, lambda run, console: compare_with_dump(run, console, dump))
    _answer(settings, found, dump_tables)
    return 3 if found["differing"] else 0


def export(settings: Settings) -> int:
    """Run `command=export_vectors`: golden vectors of a finished run, into its folder."""
    kit = _of_run(settings, lambda run, console: export_vectors(run, console, settings.vectors))
    _answer(settings, kit, kit_table)
    if settings.check.format == "text":
        plain().print(f"files   {Path.cwd() / settings.runs[0] / VECTORS}", soft_wrap=True)
    return 0


def identify(settings: Settings) -> int:
    """Run `command=identify`: fit fields of the hardware file to a device's dumps, or to what its layers took."""
    if settings.identify.times is not None:
        return _fit_times(settings, settings.identify.times)
    dump = settings.dump
    assert dump is not None  # noqa: S101  (the settings have made sure)
    found = _of_run(settings, lambda run, console: identify_device(run, console, dump))
    _answer(settings, found, identified_table)
    return 3 if found["overrides"] or found["unexplained"] else 0


def _fit_times(settings: Settings, times: str) -> int:
    path = None if times == "here" else Path.cwd() / Path(times).expanduser()
    plugins, console = list(settings.config.get("plugins") or ()), RichConsole(settings.verbosity)
    folders = {folder.name: folder for name in settings.runs for folder in [Path.cwd() / Path(name).expanduser()]}
    if len(folders) < len(settings.runs):
        raise ConfigError("has two folders of one name; legal are folders of different names", where="runs")
    runs = {name: settings_of_run(folder, plugins=plugins, key="runs") for name, folder in folders.items()}
    try:
        found = identify_times(runs, console, path, settings.identify.repeats)
    finally:
        console.finish()
    _answer(settings, found, times_table)
    return 0


def _of_run(settings: Settings, ask: Callable[[Settings, RichConsole], Any]) -> Any:
    """Run a command on the one finished run that the configuration names."""
    folder, plugins = Path.cwd() / Path(settings.runs[0]).expanduser(), list(settings.config.get("plugins") or ())
    console = RichConsole(settings.verbosity)
    try:
        return ask(settings_of_run(folder, plugins=plugins, key="runs"), console)
    except KeyboardInterrupt:
        raise Interrupted("interrupted; run the same command again", stage=settings.command) from None
    finally:
        console.finish()


def sync(settings: Settings) -> int:
    """Run `command=sync`: file finished runs in MLflow once more."""
    out = plain()
    for folder in run_folders(settings.runs, Path.cwd()):
        run = settings_to_sync(folder, settings)
        if isinstance(run.tracker, NullTracker):
            raise ConfigError("is set to none, so there is no store for runs; give tracking=mlflow", where="tracking")
        sync_run(run)
        out.print(f"{folder}: {run.tracker.run_id} in experiment {run.tracker.experiment}", soft_wrap=True)
        if run.tracker.incomplete:
            raise ConfigError("could not be filed as a whole; the warnings say why", stage="sync", where=str(folder))
    return 0


COMMANDS: Mapping[str, Callable[[Settings], int]] = {
    "check": check,
    "lint": lint,
    "verify": verify,
    "explain": explain,
    "compare": compare,
    "export_vectors": export,
    "identify": identify,
    "sync": sync,
}


def _answer(settings: Settings, found: Mapping[str, Any], show: Callable[[Mapping[str, Any]], RenderableType]) -> None:
    if settings.check.format == "json":
        sys.stdout.write(json.dumps(found, indent=2) + "\n")
    else:
        plain().print(show(found))
