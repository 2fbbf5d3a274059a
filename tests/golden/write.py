"""Write the golden plans anew, after a change that is meant to change numbers:

    python -m tests.golden.write [CASE ...]

What changed is then in `git diff tests/golden/plans`, one line per edge, tensor, kernel and constant.
"""

from __future__ import annotations

import os
import sys

os.environ["QUANTPIPE_CACHE"] = "none"

from tests.golden.cases import CASES
from tests.golden.content import FOLDER, as_json, content_of, file_of


def main(names: list[str]) -> None:
    """Write the files of these cases, or of all; of all, files without a case are removed."""
    FOLDER.mkdir(exist_ok=True)
    for name in names or CASES:
        file_of(name).write_text(as_json(content_of(name)))
    for path in FOLDER.glob("*.json") if not names else ():
        if path.stem not in CASES:
            path.unlink()


if __name__ == "__main__":
    main(sys.argv[1:])
