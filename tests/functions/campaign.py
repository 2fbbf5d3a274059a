"""Faults in every function's table and steps, planted into one implementation at a time: does the comparison see them?

    python -m tests.functions.campaign --out benchmarks/results/functions_planted.md

Each function, formed in each way, is planned once. A fault changes one number of the plan (an entry of a table, a
constant of a step, the multiplier, zero point or bounds behind it) or one step (its op, its rounding, the order of its
operands). Then one implementation is made of the changed plan, and compared with the simulated graph of the unchanged
one: the integer form, the interpreter, the C form, and LiteRT where a .tflite file can hold the function; the other way
round, the simulated graph is made of the changed plan and compared with the unchanged integer form. A fault is *moved*
where the interpreter, which here looks at no bounds, gives other integers on the samples. Those that take a value out
of the bounds that its step states are refused by the interpreter itself, and a C file is not made of them.
Exit code 1 where a moved fault is not found.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from quantpipe.errors import QuantpipeError
from quantpipe.evaluate.agreement import compare_with, session_kinds
from quantpipe.evaluate.compared_models import SimulatedModel
from quantpipe.evaluate.forms_agreement import WrittenBeside, executed
from quantpipe.intake.tflite import litert
from quantpipe.lowering import Rendered
from quantpipe.realize.c import runner
from quantpipe.realize.c.form import walked
from quantpipe.realize.tflite.run import LiteRTKernels, TfliteModel, TfliteRunner
from quantpipe.realize.tflite.write import write_model
from quantpipe.types import FunctionKind, Lookup, Program, QuantPlan, Requantize, Rounding, Step
from quantpipe.types.program import StepOp
from tests.functions.devices import device
from tests.functions.planted import FUNCTION, PAIRS, line_of, net_of
from tests.ops.line import ArraySamples, Line, line
from tests.realize.executed import c_text
from tests.simulate.interpreter import Interpreter

ENTRIES = 12
"""Entries of a table that are changed, one at a time."""
NUMBERS = 2
"""Numbers of a step that are changed, one at a time."""
IMPLEMENTATIONS = ("simulate", "integer", "interpreter", "C", "LiteRT")
COMPILED = 6
"""Faults that a C file is made and compiled of, of each function; of those within bounds."""
SWAPPED = {
    StepOp.ADD: StepOp.SUB,
    StepOp.SUB: StepOp.ADD,
    StepOp.MUL: StepOp.ADD,
    StepOp.MAX_OVER: StepOp.SUM_OVER,
    StepOp.SUM_OVER: StepOp.MAX_OVER,
    StepOp.SQRT: StepOp.BITS,
    StepOp.SHIFT_LEFT: StepOp.SHIFT_RIGHT,
}
ROUNDED = {Rounding.HALF_UP: Rounding.FLOOR, Rounding.FLOOR: Rounding.HALF_UP}
COLUMNS = ("faults", "moved", "found", "missed", "outside")


def faults(kernel: Any) -> Iterator[tuple[str, Any]]:
    """Name -> the kernel with one fault."""
    if isinstance(kernel, Lookup):
        yield from _entries(kernel)
        return
    for number, step in enumerate(kernel.steps):
        for name, changed in _steps(step):
            steps = (*kernel.steps[:number], changed, *kernel.steps[number + 1 :])
            yield f"step {number} ({step.op}): {name}", replace(kernel, steps=steps)
    if kernel.output is not None:
        for name, output in _narrowed(kernel.output):
            yield name, replace(kernel, output=output)


def _entries(kernel: Lookup) -> Iterator[tuple[str, Lookup]]:
    flat = kernel.table.reshape(-1)
    for at in np.unique(np.linspace(0, flat.size - 1, ENTRIES).astype(int)):
        table = flat.copy()
        old = int(table[at])
        table[at] = old - 1 if old == kernel.high else old + 1
        yield f"entry {at}", replace(kernel, table=table.reshape(kernel.table.shape))
    yield "all entries one code on", replace(kernel, table=np.roll(kernel.table, 1, axis=-1))


def _steps(step: Step) -> Iterator[tuple[str, Step]]:
    if step.numbers is not None:
        flat = np.asarray(step.numbers).reshape(-1)
        for at in np.unique(np.linspace(0, flat.size - 1, NUMBERS).astype(int)):
            numbers = flat.copy()
            numbers[at] += 1
            yield f"number {at}", replace(step, numbers=numbers.reshape(np.shape(step.numbers)))
    if step.op in SWAPPED:
        yield f"as {SWAPPED[step.op]}", replace(step, op=SWAPPED[step.op])
    if step.op is StepOp.SHIFT:
        rounding = ROUNDED[Rounding(step.rounding)]
        yield f"rounded {rounding}", replace(step, rounding=rounding)
    if step.op is StepOp.SUB and len(step.operands) > 1:
        yield "operands swapped", replace(step, operands=step.operands[::-1])


def _narrowed(output: Requantize) -> Iterator[tuple[str, Requantize]]:
    yield "zero point", replace(output, zero_point=output.zero_point + 1)
    yield "greatest result", replace(output, high=output.high - 1)
    if output.fixed is not None:
        moved = replace(output.fixed, multiplier=output.fixed.multiplier + (1 << 22))
        yield "multiplier", replace(output, fixed=moved)
    elif output.multiplier is not None and output.shift == 0:
        yield "multiplier", replace(output, multiplier=np.asarray(output.multiplier) * np.float32(1 + 2.0**-7))
    else:
        yield "shift", replace(output, shift=output.shift + 1)


class Planted:
    """One function, formed in one way: its plan, and every implementation of it."""

    def __init__(self, made: Line) -> None:
        self.made, self.plan = made, made.plan(8)
        self.kernel = self.plan.kernels[FUNCTION]
        self.output = made.topology.kernel_of[FUNCTION].output

    def with_fault(self, kernel: Any) -> QuantPlan:
        """The plan with another kernel; a zero point stands in it twice."""
        changed = replace(self.plan, kernels={**self.plan.kernels, FUNCTION: kernel})
        q, narrowed = self.plan.quantizers[self.output], getattr(kernel, "output", None)
        if narrowed is None or narrowed.zero_point == q.zero_point:
            return changed
        moved = replace(q, zero_point=narrowed.zero_point)
        return replace(changed, quantizers={**self.plan.quantizers, self.output: moved})

    def moves(self, plan: QuantPlan) -> bool:
        """Whether the interpreter gives other integers, or cannot carry the plan out at all."""
        try:
            return self.in_interpreter(plan) > 0
        except (AssertionError, IndexError, ValueError, OverflowError):
            return True

    def is_bounded(self, plan: QuantPlan) -> bool:
        """Whether every value stays within what its step states."""
        try:
            self.truth(plan)
        except (AssertionError, IndexError, ValueError, OverflowError):
            return False
        return True

    def truth(self, plan: QuantPlan) -> np.ndarray:
        """What the interpreter gives for every sample."""
        batches = self.made.samples.batches(len(self.made.samples))
        found = [Interpreter(self.made.graph, self.made.topology, plan).run(b.inputs) for b in batches]
        return np.concatenate([f.q(self.output) for f in found])

    @cached_property
    def before(self) -> np.ndarray:
        return self.truth(self.plan)

    @cached_property
    def realized(self) -> Rendered:
        return self.made.realize(self.plan, "integer")

    def simulated(self, plan: QuantPlan, realized: Rendered) -> SimulatedModel:
        return SimulatedModel(self.made.graph, self.made.topology, plan, self.made.simulate(plan), realized=realized)

    def in_simulate(self, plan: QuantPlan) -> int:
        return self._compared(self.simulated(plan, self.realized), self.realized)

    def in_integer(self, plan: QuantPlan) -> int:
        realized = self.made.realize(plan, "integer")
        return self._compared(self.simulated(self.plan, realized), realized)

    def _compared(self, simulated: SimulatedModel, realized: Rendered) -> int:
        kinds = [kind for kind in session_kinds(realized.model) if kind.decides]
        return compare_with(simulated, realized, self.made.samples, kinds).differing

    def in_interpreter(self, plan: QuantPlan) -> int:
        return int((self.truth(unbounded(plan)) != self.before).sum())

    def in_c(self, plan: QuantPlan) -> int:
        walk = walked(self.made.graph, self.made.topology, self.plan)
        run = runner.CRunner(c_text(self.made, plan), walk, ())
        try:
            return self._run(run)
        finally:
            run.close()

    def in_litert(self, plan: QuantPlan) -> int:
        content = write_model(self.made.graph, self.made.topology, plan, whole=True).content
        return self._run(TfliteRunner(TfliteModel(content, "memory"), LiteRTKernels.REFERENCE))

    def _run(self, run: Any) -> int:
        held = Rendered(self.made.simulate(self.plan).rendered.model, {t: t for t in run.tensors})
        row = executed(
            WrittenBeside("", "", 0, 0.0), run, self.simulated(self.plan, held), self.made.samples, timed=False
        )
        return int(row["differing"] or 0)


def unbounded(plan: QuantPlan) -> QuantPlan:
    """The plan, its function without the bounds of its steps."""
    kernel = plan.kernels[FUNCTION]
    if not isinstance(kernel, Program):
        return plan
    steps = tuple(replace(step, low=-(1 << 80), high=1 << 80) for step in kernel.steps)
    return replace(plan, kernels={**plan.kernels, FUNCTION: replace(kernel, steps=steps)})


def litert_line(op: str, kind: str) -> Line:
    """The function on TensorFlow Lite's own device."""
    spec = device("fixed", {op: kind} if kind != FunctionKind.SUM else {})
    samples = line_of(op, kind).samples
    assert isinstance(samples, ArraySamples)
    return line(net_of(op), spec, samples=samples)


def implementations(op: str, kind: str) -> Iterator[tuple[str, Planted, Callable[[Planted, QuantPlan], int]]]:
    """Name -> the function, and what makes the implementation of a plan and compares it."""
    main = Planted(line_of(op, kind))
    yield "simulate", main, Planted.in_simulate
    yield "integer", main, Planted.in_integer
    yield "interpreter", main, Planted.in_interpreter
    if runner.compiler() is not None and _works(lambda: main.in_c(main.plan)):
        yield "C", main, Planted.in_c
    if litert.missing() is None:
        other = _made(lambda: Planted(litert_line(op, kind)))
        if other is not None and not other.made.topology.float_nodes and _works(lambda: other.in_litert(other.plan)):
            yield "LiteRT", other, Planted.in_litert


def _made(make: Callable[[], Planted]) -> Planted | None:
    try:
        return make()
    except (QuantpipeError, KeyError):
        return None


def _works(run: Callable[[], int]) -> bool:
    """Whether the implementation exists; one that does must agree before anything is planted."""
    try:
        differing = run()
    except QuantpipeError:
        return False
    if differing:
        raise AssertionError("the unchanged plan differs")
    return True


def scaled(planted: Planted) -> Iterator[tuple[str, QuantPlan]]:
    """What a file holds of a function that its kernels form themselves: the grid of its input."""
    tensor = planted.made.topology.kernel_of[FUNCTION].operands[0].tensor
    q = planted.plan.quantizers[tensor]
    moved = replace(q, scale=np.asarray(q.scale * np.float32(1 + 2.0**-6), np.float32))
    yield "scale of the input", replace(planted.plan, quantizers={**planted.plan.quantizers, tensor: moved})


def row(op: str, kind: str) -> Iterator[tuple[str, Counter[str], list[str]]]:
    """Implementation -> the counts, and the faults that were missed."""
    for name, planted, compare in implementations(op, kind):
        found, missed = Counter[str](), []
        plans = [(fault, planted.with_fault(kernel)) for fault, kernel in faults(planted.kernel)]
        if name == "C":
            plans = [(fault, plan) for fault, plan in plans if planted.is_bounded(plan) and planted.moves(plan)]
            plans = plans[:: max(1, -(-len(plans) // COMPILED))]
        if name == "LiteRT":
            held = planted.kernel.kind is FunctionKind.TABLE and isinstance(planted.kernel, Lookup)
            plans = [*(plans if held else ()), *scaled(planted)]
        for fault, plan in plans:
            found["faults"] += 1
            inside, moved = planted.is_bounded(plan), planted.moves(plan)
            found["outside"] += not inside
            found["moved"] += moved
            seen = moved and (_differs(compare, planted, plan) or (name == "interpreter" and not inside))
            found["found"] += seen
            found["missed"] += moved and not seen
            missed += [f"{op} {kind} {name}: {fault}"] if moved and not seen else []
        yield name, found, missed


def _differs(compare: Callable[[Planted, QuantPlan], int], planted: Planted, plan: QuantPlan) -> bool:
    try:
        return compare(planted, plan) > 0
    except (QuantpipeError, AssertionError, IndexError, ValueError, OverflowError):
        return True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ops", nargs="*", help="functions; all without it")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    lines, total, missed = [], {name: Counter[str]() for name in IMPLEMENTATIONS}, []
    for op, kind in PAIRS:
        if arguments.ops and op not in arguments.ops:
            continue
        start, cells = time.perf_counter(), dict.fromkeys(IMPLEMENTATIONS, "–")
        for name, found, gone in row(op, kind):
            total[name] += found
            missed += gone
            cells[name] = f"{found['found']} of {found['moved']}"
        lines.append(f"| {op} | {kind} | {' | '.join(cells.values())} |")
        print(lines[-1], f"{time.perf_counter() - start:.0f} s", flush=True)
    sums = " | ".join(f"{found['found']} of {found['moved']}" for found in total.values())
    whole = sum(total.values(), Counter())
    text = "\n".join(
        [
            "# Faults planted in functions",
            "",
            f"`python -m tests.functions.campaign --out benchmarks/results/functions_planted.md`, onnxruntime "
            f"{ort.__version__}. Each cell: faults that the comparison found, of those that move an integer on the "
            f"samples. {whole['faults']} faults in all, {whole['moved']} move, {whole['found']} found, "
            f"{whole['missed']} missed; {whole['outside']} take a value out of the bounds that its step states. C: "
            f"{COMPILED} faults at most, without those. LiteRT: entries of tables that the file holds, "
            "and the grid of the input where its own kernels form the function; –: no such form.",
            "",
            "| op | formed by | simulate | integer | interpreter | C | LiteRT |",
            "|---|---|---:|---:|---:|---:|---:|",
            *lines,
            f"| **all** | | {sums} |",
            "",
            *(f"- missed: {m}" for m in missed),
        ]
    )
    if arguments.out:
        arguments.out.write_text(text.rstrip() + "\n")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
