"""Entry point of `python run.py` and of the `quantpipe` command.

Exit codes: 0 done; 2 bad input (one paragraph on standard error); 3 the promise of agreement is broken; 130
interrupted.
"""

from __future__ import annotations

import io
import itertools
import logging
import os
import re
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import entry_points
from pathlib import Path
from types import FrameType

import hydra
from hydra.conf import HydraConf
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from quantpipe.app.arguments import arranged
from quantpipe.app.command_line import explain_command, overrides_of, sync_command
from quantpipe.app.conceal_passwords import learn_environment, without_secrets
from quantpipe.app.configfiles import check_config_files
from quantpipe.app.console import RichConsole, plain, say
from quantpipe.app.explain import diagnosis
from quantpipe.app.files import asset, folder_of
from quantpipe.app.hints import in_our_words, no_folder, no_option, no_reference, no_text
from quantpipe.app.loader import install
from quantpipe.app.mainlog import LOG, ended
from quantpipe.app.outlets import guard, lost_output
from quantpipe.app.settings import GROUPS, build_settings
from quantpipe.app.shortfall import falls_short
from quantpipe.app.sweep import end_sweep, sweep_is_open
from quantpipe.app.targets import PLUGINS
from quantpipe.errors import Interrupted, QuantpipeError, TargetError, brief
from quantpipe.pipeline import open_run, run
from quantpipe.pipeline.log_run import start_tracking
from quantpipe.pipeline.settings import RUNS, Settings
from quantpipe.report import diagnosed, summary_table
from quantpipe.types import RunReport
from quantpipe.version import __version__

_NAMED_ERROR = re.compile(r"[\w.]+(?:Error|Interrupted|Exception): ")

_exit_codes: list[int] = []
"""Of the commands that answered in this process."""


_tasks: list[HydraConf] = []
"""What Hydra has composed and handed over in this process; before the first, every error is the configuration's."""


def main() -> None:
    """Run the command line; always ends in SystemExit, with 2 where its answer could not be written."""
    try:
        _main()
    except SystemExit as end:
        if end.code != 0 or (lost := lost_output()) is None:
            raise
        say(f"standard output cannot be written ({brief(lost)}); what the command writes to files is complete")
        raise SystemExit(2) from None


def _main() -> None:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # names of files need not be text
    guard()
    learn_environment()
    os.environ["HYDRA_FULL_ERROR"] = "1"  # errors come here as exceptions and leave as one paragraph
    OmegaConf.register_new_resolver("asset", asset, replace=True)
    signal.signal(signal.SIGTERM, _as_interrupt)
    install()
    check_config_files()
    if (wrong := no_text([*sys.argv[1:], os.getcwd()])) is not None:  # noqa: PTH109 (bytes that are no text included)
        say(wrong)
        raise SystemExit(2)
    try:
        sys.argv[1:] = without_secrets(sys.argv[1:])
    except QuantpipeError as error:
        raise SystemExit(_report(error)) from None
    sys.argv[1:] = arranged(sys.argv[1:])
    folders = {group: folder_of("conf") / group for group in GROUPS} | {"experiments": folder_of("experiments")}
    if (wrong := no_option(sys.argv[1:], folders) or no_folder(sys.argv[1:])) is not None:
        say(wrong)
        raise SystemExit(2)
    if "command=verify" in sys.argv[1:]:
        raise SystemExit(_verify([a for a in sys.argv[1:] if a not in ("command=verify", "verbosity=quiet")]))
    sys.argv[1:] = _with_search_path([_experiment(a) for a in sys.argv[1:]])
    try:
        hydra.main(version_base="1.3", config_path=str(folder_of("conf")), config_name="config")(_task)()
    except (QuantpipeError, HydraException, OmegaConfBaseException) as error:
        raise SystemExit(_report(error)) from None
    except OSError as error:  # ours are StorageErrors; this is Hydra, which makes the run folder before we are asked
        say(f"hydra.run.dir: the run folder cannot be made or written ({error}); choose another one")
        raise SystemExit(2) from None
    except Exception as error:  # Hydra lets through whatever the YAML of a defaults list or an override makes it raise
        if _tasks:
            raise
        if sweep_is_open():  # a launcher's job ran in another process, and this is what came back of its error
            say(f"a job of the sweep failed: {_last_line(error)}")
            raise SystemExit(2) from None
        say(f"the configuration cannot be composed ({type(error).__name__}: {brief(error)})")
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        say("interrupted before there was anything to keep; run the same command again")
        raise SystemExit(130) from None
    finally:
        end_sweep()  # of one whose job failed Hydra does not tell
    raise SystemExit(max(_exit_codes, default=0))


def _last_line(error: BaseException) -> str:
    """Return the last line of another process's error, after its traceback."""
    lines = [line for line in str(error).splitlines() if line.strip(" -")] or [type(error).__name__]
    return next((line for line in reversed(lines) if _NAMED_ERROR.match(line)), lines[-1]).strip()


def _verify(arguments: list[str]) -> int:
    """Verify without Hydra, which would write into the folder: a check leaves it as it is."""
    key = "hydra.run.dir="
    folders = [a.removeprefix(key) for a in arguments if a.startswith(key)]
    if len(folders) != 1 or len(arguments) != 1:
        say("command=verify takes one argument, hydra.run.dir=FOLDER, the run folder whose certificate is checked")
        return 2
    from quantpipe.verify.__main__ import main as check_certificate

    return check_certificate([_unquoted(arguments[0], folders[0])])


def _unquoted(argument: str, given: str) -> str:
    """Return the value of an override as Hydra reads it; as given, where Hydra reads no text."""
    try:
        value = OverridesParser.create().parse_override(argument).value()
    except HydraException:
        return given
    return value if isinstance(value, str) else given


def _with_search_path(arguments: list[str]) -> list[str]:
    """Insert the search path next to the first override: Hydra's parser takes overrides on one side of a flag only."""
    first = next((i for i, a in enumerate(arguments) if "=" in a and not a.startswith("-")), len(arguments))
    return [*arguments[:first], *search_path(), *arguments[first:]]


def search_path(folders: Sequence[str] = ()) -> list[str]:
    """Return Hydra's search path.

    It is the folder that holds experiments/, every plug-in's conf package, and further folders.
    """
    plugins = [f"pkg://{entry.value}" for entry in entry_points(group=PLUGINS)]
    places = [f"file://{folder_of('experiments').parent}", *plugins, *(f"file://{Path(f).resolve()}" for f in folders)]
    return [f"hydra.searchpath=[{','.join(places)}]"]


def _experiment(argument: str) -> str:
    """`experiments=NAME` adds a delta that the defaults list does not mention."""
    return f"+{argument}" if argument.startswith("experiments=") else argument


def _task(config: DictConfig) -> None:
    """Run one job (the only one, or one of a sweep)."""
    hydra_config = HydraConfig.get()
    _tasks.append(hydra_config)
    _quiet_logs()
    LOG.info("quantpipe %s: %s", __version__, " ".join(overrides_of(hydra_config)) or "no overrides")
    try:
        _logged(config, hydra_config)
    except (QuantpipeError, HydraException, OmegaConfBaseException) as error:
        if hydra_config.mode == RunMode.MULTIRUN:
            raise  # Hydra says which job failed
        raise SystemExit(_report(error)) from None


def _logged(config: DictConfig, hydra_config: HydraConf) -> None:
    """Run the job, and record in main.log how it ended."""
    try:
        _job(config, hydra_config)
        LOG.info("done")
    except SystemExit as end:
        LOG.info("done, exit code %s", end.code)
        raise
    except BaseException as error:
        ended(error)
        raise


@contextmanager
def _no_other_end() -> Iterator[None]:
    """Let no code of the user's (a data set, a metric, a plug-in) end the program by an exception that is no error."""
    try:
        yield
    except (Exception, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise QuantpipeError(
            f"code that the configuration names has raised {type(error).__name__}({brief(error)}); legal is to return "
            "a value, or to raise an Exception"
        ) from error


def _job(config: DictConfig, hydra_config: HydraConf) -> None:
    with _no_other_end():
        settings = build_settings(config, hydra_config)
        code = _answered(settings)
    if code is None:
        with _no_other_end():
            _run(settings)
    else:
        _leave(code, hydra_config)


def _answered(settings: Settings) -> int | None:
    """Return the exit code of a command that looks and does not run; None for a run, which needs none of them."""
    if settings.command in RUNS:
        return None
    from quantpipe.app.commands import COMMANDS

    return COMMANDS[settings.command](settings)


def _run(settings: Settings) -> None:
    """The stages, and what they came to."""
    console = RichConsole(settings.verbosity)
    console.announce(f"run folder {settings.folder}")
    tracker = settings.tracker
    try:
        tracker.check()
        steps = open_run(settings, console, diagnosis)  # a mistyped path leaves no failed run behind
        start_tracking(settings, steps.context.inputs, steps.context.console)
        with tracker:
            report = run(steps)
    except KeyboardInterrupt:
        raise Interrupted(
            f"interrupted; what was finished is in {settings.folder}. Resume with: {settings.resume_command}"
        ) from None
    finally:
        console.finish()
    _show(report, settings)
    missed = None if report is None else report["search"].get("shortfall")
    if missed and settings.annotate.strict:
        raise TargetError(f"strict=true, and {missed}", stage="search")


def _leave(code: int, hydra_config: HydraConf) -> None:
    """Leave with the command's own exit code; the jobs of a sweep leave together, with the worst one."""
    _exit_codes.append(code)
    if hydra_config.mode != RunMode.MULTIRUN:
        raise SystemExit(code)


def _show(report: RunReport | None, settings: Settings) -> None:
    out = plain()
    if report is not None:
        out.print(summary_table(report))
    out.print(f"files   {settings.folder}", soft_wrap=True)
    tracker = settings.tracker
    if tracker.run_id is not None:
        out.print(f"MLflow  run {tracker.run_id} in experiment {tracker.experiment}", soft_wrap=True)
        out.print(f"        {tracker.ui_command}", soft_wrap=True)
        if tracker.runs_page is not None:
            out.print(f"        {tracker.runs_page}", soft_wrap=True)
    if tracker.incomplete:
        out.print(f"        not all of it could be filed; later: {sync_command(settings.folder)}", soft_wrap=True)
    if report is not None and falls_short(report, settings):
        for line in diagnosed(report.get("diagnosis")):
            out.print(line, soft_wrap=True)
        out.print(f"why     {explain_command(settings.folder)}", soft_wrap=True)


def _report(error: BaseException) -> int:
    """Print one paragraph on standard error; return the exit code of the error."""
    cause = error
    while not isinstance(cause, QuantpipeError) and cause.__cause__ is not None:
        cause = cause.__cause__  # Hydra wraps what constructors raise
    if isinstance(cause, QuantpipeError):
        say(str(cause), head="" if isinstance(cause, Interrupted) else "error: ")
        return cause.exit_code
    say(_hint(error) or " ".join(str(error).split()))
    return 2


def _hint(error: BaseException) -> str | None:
    if isinstance(error, OmegaConfBaseException):
        return no_reference(error, sys.argv[1:])
    if not isinstance(error, HydraException):
        return None
    chosen = [a for a in sys.argv[1:] if a.split("=")[0] in GROUPS and "," not in a]
    return in_our_words(error, str(folder_of("conf")), [*chosen, *search_path(_config_folders(sys.argv[1:]))])


def _config_folders(arguments: Sequence[str]) -> list[str]:
    """Return the folders of `--config-dir`, which messages about mistakes need, too."""
    flags = ("--config-dir", "-cd")
    found = [b for a, b in itertools.pairwise(arguments) if a in flags]
    return found + [a.partition("=")[2] for a in arguments if a.partition("=")[0] in flags and "=" in a]


def _quiet_logs() -> None:
    for name in ("mlflow", "alembic", "onnxslim", "onnx_ir"):
        logging.getLogger(name).setLevel(logging.ERROR)


def _as_interrupt(signum: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
