"""The answer to `--help`: one page, from the names of files, without loading what takes seconds."""

from __future__ import annotations

import shutil
import textwrap
from pathlib import Path

from quantpipe.app.files import folder_of

USAGE = """\
quantpipe finds the integer ONNX model that a piece of hardware can run with
the least loss.   {program} [FLAGS] [GROUP=OPTION] [KEY=VALUE] …

  hardware=vta search=greedy            exchange options (below)
  search.max_evaluations=50             change a key
  experiment=vta_digits                 a ready-made set of changes
  model.path=M.onnx dataset=npz dataset.path=D.npz      your model and samples
  -m hardware=ort_cpu,vta               sweep; it ends with a comparison
  hydra.run.dir=FOLDER                  for results; the same again goes on

  command=check hardware=vta            what a device would refuse; also lint
  command=explain explain.run=FOLDER    what is wrong, and what would mend it
  command=compare runs=[A,B]            how runs, or a sweep's jobs, differ
  command=replay strategy=FILE          realize and evaluate a strategy again
  command=verify hydra.run.dir=FOLDER   whether its certificate holds
  command=export_vectors runs=[A]       golden integers for a device, and
  command=identify runs=[A] dump=FILE   what its answers say of its arithmetic
  command=sync runs=[A]                 file a run in MLflow that could not be

  -q                                    no progress: warnings and the result
  --cfg job                             show the configuration, run nothing
  --config-dir FOLDER                   your options: FOLDER/hardware/NAME.yaml
  eval "$({program} -sc install=bash)"      names by the tab key
  --hydra-help                          all flags
"""


def help_page(program: str) -> str:
    """Return the help page for a terminal of this width; `program` is the command as it was typed."""
    conf = folder_of("conf")
    groups = {place.name: _names(place) for place in sorted(conf.iterdir()) if place.is_dir()}
    groups["experiment"] = _names(folder_of("experiments"))
    width = max(60, min(100, shutil.get_terminal_size().columns))
    indent = max(map(len, groups)) + 4
    lines = [
        textwrap.fill(
            ", ".join(names), width, initial_indent=f"  {group:<{indent - 2}}", subsequent_indent=" " * indent,
            break_on_hyphens=False,
        )
        for group, names in groups.items()
    ]  # fmt: skip
    keys = "Keys: conf/config.yaml and the file of each option; docs/configuration.md."
    return "\n".join([USAGE.format(program=program), "Options:\n", *lines, "", keys, ""])


def _names(folder: Path) -> list[str]:
    return sorted(path.stem for path in folder.glob("*.yaml"))
