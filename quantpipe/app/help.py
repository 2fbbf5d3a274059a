"""The answer to `--help`: one page, from the names of files, without loading what takes seconds."""

from __future__ import annotations

import shutil
import textwrap
from pathlib import Path

from quantpipe.app.files import folder_of

USAGE = """\
quantpipe finds the integer ONNX model with the smallest loss that a device
can run.   {program} [FLAGS] [GROUP=OPTION] [KEY=VALUE] …

  hardware=vta search=greedy            select options (below)
  search.max_evaluations=50             set a key
  experiment=vta_digits                 a prepared set of options
  model.path=M.onnx dataset=npz dataset.path=D.npz      your model and samples
  -m hardware=ort_cpu,vta               sweep, with a comparison at its end
  hydra.run.dir=FOLDER                  for results; repeat to resume

  command=check hardware=vta            what a device would reject; also lint
  command=explain explain.run=FOLDER    causes of the loss, and fixes
  command=compare runs=[A,B]            compare runs, or the jobs of a sweep
  command=replay strategy=FILE          realize and evaluate a stored strategy
  command=verify hydra.run.dir=FOLDER   check the certificate of a run
  command=export_vectors runs=[A]       write golden integers for a device
  command=identify runs=[A] dump=FILE   find a device's arithmetic from a dump
  command=sync runs=[A]                 record a run in MLflow again

  -q                                    print only warnings and the result
  --cfg job                             print the configuration and exit
  --config-dir FOLDER                   add options: FOLDER/hardware/NAME.yaml
  eval "$({program} -sc install=bash)"      complete names with tab
  --hydra-help                          show all flags
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
