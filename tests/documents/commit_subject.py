"""The hook of a commit message: `area: what changes`, at most 72 characters, the reason in the body.

python tests/documents/commit_subject.py FILE      # exit code 1 and a sentence where the subject is not like that
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

LONGEST = 72
FORM = re.compile(r"[a-z][a-z0-9_ /,.-]*: [^ ].*[^.]")
MADE_BY_GIT = ("Merge ", "Revert ", "fixup! ", "squash! ")


def fault(message: str) -> str | None:
    """Return what is wrong with the subject of a message; None where nothing is."""
    subject, *rest = message.splitlines() or [""]
    if subject.startswith(MADE_BY_GIT):
        return None
    if len(subject) > LONGEST:
        return f"the subject has {len(subject)} characters; legal are {LONGEST}"
    if FORM.fullmatch(subject) is None:
        return "the subject is not `area: what changes` (lower case, no full stop)"
    if rest and rest[0].strip():
        return "the second line is not empty"
    return None


if __name__ == "__main__":
    if (found := fault(Path(sys.argv[1]).read_text())) is not None:
        sys.exit(f"{found} (CONTRIBUTING.md: English)")
