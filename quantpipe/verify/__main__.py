"""Check a run folder: `python -m quantpipe.verify FOLDER`.

The exit code is 0 when every claim holds, 3 with the first line that is wrong, 2 when the folder's files cannot be
read.
"""

from __future__ import annotations

import sys
from pathlib import Path

from quantpipe.errors import QuantpipeError, printable
from quantpipe.verify import verify_folder


def main(arguments: list[str]) -> int:
    """Check the folder that the arguments name, and return the exit code."""
    if len(arguments) != 1 or arguments[0] in ("-h", "--help"):
        sys.stderr.write("usage: python -m quantpipe.verify FOLDER (a run folder, or a copy of one)\n")
        return 2
    try:
        verdict = verify_folder(Path(arguments[0]))
    except QuantpipeError as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code
    sys.stdout.write(f"{printable(str(verdict))}\n")
    return 0 if verdict.wrong is None else 3


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
