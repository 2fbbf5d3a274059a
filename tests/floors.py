"""Install the oldest versions that pyproject.toml admits, one package at a time and all together, and try them.

    python -m tests.floors [--python python3.12] [NAME ...]     # prints a table; by hand, it takes minutes for each

Each environment runs `python run.py` on the embedded model and a slice of the tests. Without NAME: all floors together,
then each floor alone with everything else as new as possible.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SLICE = ("tests/intmath", "tests/conf", "tests/recurrent/test_loops.py", "tests/search", "tests/graph", "tests/api")


def floors() -> dict[str, str]:
    """Package -> the oldest version that pyproject.toml admits."""
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    found = {}
    for requirement in listed:
        name, version = re.match(r"([\w-]+)\s*>=\s*([\w.]+)", requirement).groups()  # type: ignore[union-attr]
        found[name] = version
    return found


def tried(constraints: Mapping[str, str], python: str) -> tuple[str, str, str]:
    """What an environment with these versions gives: installation, the default run, the slice of tests."""
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        subprocess.run([python, "-m", "venv", str(work / "venv")], check=True)
        own = str(work / "venv" / "bin" / "python")
        pins = [f"{name}=={version}" for name, version in constraints.items()]
        steps = (
            [own, "-m", "pip", "install", "-q", "-e", f"{ROOT}[dev]", *pins],
            [own, str(ROOT / "run.py"), "tracking=none", f"hydra.run.dir={work / 'run'}"],
            [own, "-m", "pytest", "-q", "-n", "auto", "-p", "no:cacheprovider", *SLICE],
        )
        results = []
        for step in steps:
            done = subprocess.run(step, cwd=ROOT, capture_output=True, text=True, check=False)
            lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
            failed = [line for line in lines if re.match(r"(FAILED|ERROR|\w*Error)", line)]
            results.append("passed" if done.returncode == 0 else (failed or lines)[-1][:160].replace("|", "/"))
            if done.returncode:
                break
        return tuple([*results, "", ""][:3])  # type: ignore[return-value]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    known = floors()
    alone = [n for n in known if not options.names or n in options.names]
    sets = [
        *([("all floors", known)] if not options.names else []),
        *((f"{n} {known[n]}", {n: known[n]}) for n in alone),
    ]
    version = subprocess.run([options.python, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    print(f"# The oldest versions that pyproject.toml admits\n\n{version}; `python -m tests.floors`.\n")
    print("| versions | installed | `python run.py` | slice of the tests |\n|---|---|---|---|", flush=True)
    for name, constraints in sets:
        print(f"| {name} | {' | '.join(tried(constraints, options.python))} |", flush=True)


if __name__ == "__main__":
    main()
