"""Try the oldest versions that pyproject.toml admits: one package at a time, everything else as new as possible.

    python -m tests.floors [--python python3.12] [--versions scipy==1.14.1 ...]     # prints a table; by hand, minutes

One environment is made. For each version it is installed there, `python run.py` runs on the embedded model with MLflow,
and the environment is restored.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def floors() -> list[str]:
    """Return `name==version` of the oldest version of each dependency."""
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    return [re.sub(r"\s*>=\s*([\w.]+).*", r"==\1", requirement) for requirement in listed]


class Environment:
    """A virtual environment with quantpipe, and what was installed there first."""

    def __init__(self, folder: Path, python: str) -> None:
        subprocess.run([python, "-m", "venv", str(folder / "venv")], check=True)
        self.folder, self.python = folder, str(folder / "venv" / "bin" / "python")
        failed = self.pip("-e", f"{ROOT}")
        if failed is not None:
            sys.exit(failed)
        frozen = subprocess.run([self.python, "-m", "pip", "freeze"], capture_output=True, text=True, check=True).stdout
        self.first = folder / "first.txt"
        self.first.write_text("\n".join(line for line in frozen.splitlines() if "quantpipe" not in line))

    def pip(self, *arguments: str) -> str | None:
        """Install; the last line of what went wrong, or None."""
        return self._last("-m", "pip", "install", "-q", *arguments)

    def tried(self, version: str) -> str:
        """What the default run gives with a version: "passed", or what went wrong."""
        failed = self.pip(version)
        if failed is None:
            own = self.folder / re.sub(r"\W", "_", version)
            run = [str(ROOT / "run.py"), f"hydra.run.dir={own}", "evaluate.latency_runs=5"]
            failed = self._last(*run)
        self.pip("-r", str(self.first))
        return failed or "passed"

    def _last(self, *arguments: str) -> str | None:
        done = subprocess.run([self.python, *arguments], cwd=self.folder, capture_output=True, text=True, check=False)
        lines = [line for line in (done.stdout + done.stderr).splitlines() if re.search(r"error|ERROR|Error", line)]
        return None if done.returncode == 0 else (lines or [f"exit code {done.returncode}"])[-1][:140].replace("|", "/")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--versions", nargs="*", default=floors())
    options = parser.parse_args()
    found = subprocess.run([options.python, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    print(f"# The oldest versions that pyproject.toml admits\n\n{found}; `python -m tests.floors`.\n")
    print("| version | `python run.py` |\n|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        environment = Environment(Path(folder), options.python)
        for version in options.versions:
            print(f"| {version} | {environment.tried(version)} |", flush=True)


if __name__ == "__main__":
    main()
