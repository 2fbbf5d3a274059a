"""The whole mutation campaign on the digits model: every hardware file in every form it can be written in.

    python -m tests.mutation.campaign --out benchmarks/results/mutation.md

prints a row per hardware file and form, and writes them as a table. Exit code 1 where a mutant that moves an output is
not found.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from sklearn.datasets import load_digits

import quantpipe
from quantpipe.errors import QuantpipeError
from quantpipe.graph.view import Graph
from quantpipe.realize import BACKENDS
from tests.mutation.mutants import mutants, tally
from tests.ops.line import CONF, ArraySamples, Line, line, load

SAMPLES = 16
MODEL = Path(quantpipe.__file__).parent / "assets" / "digits.onnx"
COLUMNS = ("mutants", "moved", "found", "missed", "inside")


@cache
def samples() -> ArraySamples:
    images = load_digits().images[-SAMPLES:, None].astype(np.float32) / 16
    return ArraySamples({onnx.load(MODEL).graph.input[0].name: images})


@cache
def graph() -> Graph:
    return load(onnx.load(MODEL), lambda raw: samples())


def combinations(hardware: list[str] | None = None) -> Iterator[tuple[str, str]]:
    """Hardware files and the forms that the digits model can be written in for them."""
    for path in sorted((CONF / "hardware").glob("*.yaml")):
        if hardware and path.stem not in hardware:
            continue
        made = digits(path.stem)
        plan = made.plan()
        for backend in BACKENDS:
            try:
                made.realize(plan, backend)
            except QuantpipeError:
                continue
            yield path.stem, backend


@cache
def digits(hardware: str) -> Line:
    return line(graph(), hardware, samples=samples())


def row(hardware: str, backend: str, seed: int) -> tuple[Counter[str], list[str]]:
    """The counts of one combination, and the mutants that were missed."""
    made, found, missed = digits(hardware), Counter[str](), []
    for mutant in mutants(made, made.plan(), backend, seed):
        tally(found, mutant)
        if mutant.missed:
            missed.append(f"{hardware} {backend}: {mutant.constant}{list(mutant.index)}")
    return found, missed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hardware", nargs="*")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    lines, total, missed = [], Counter[str](), []
    for hardware, backend in combinations(arguments.hardware):
        start = time.perf_counter()
        found, gone = row(hardware, backend, arguments.seed)
        total += found
        missed += gone
        cells = " | ".join(str(found[c]) for c in COLUMNS)
        lines.append(f"| {hardware} | {backend} | {cells} |")
        print(lines[-1], f"{time.perf_counter() - start:.0f} s", flush=True)
    cells = " | ".join(str(total[c]) for c in COLUMNS)
    text = "\n".join(
        [
            "# Mutation campaign",
            "",
            f"`python -m tests.mutation.campaign --out benchmarks/results/mutation.md --seed {arguments.seed}`, the "
            f"digits model, {SAMPLES} samples, onnxruntime {ort.__version__}. Of every constant of the realized model "
            "(weights, biases, scales, zero points, multipliers, shifts, bounds, tables) one element is changed: an "
            "integer by 1, a real number by 1/128 of it, a real weight of a node in float is doubled; up to three "
            "elements, until an output of the plain model moves in any bit. *Found*: moved, and the comparison counts "
            "differing elements. *Inside*: no output moves, and the comparison sees it all the same.",
            "",
            "| hardware | form | mutants | moved | found | missed | inside |",
            "|---|---|---:|---:|---:|---:|---:|",
            *lines,
            f"| **all** | | {cells} |",
            "",
            *(f"- missed: {m}" for m in missed),
        ]
    )
    if arguments.out:
        arguments.out.write_text(text.rstrip() + "\n")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
