"""A plan written in a format that is not ONNX, executed and compared with the simulated model."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from quantpipe.evaluate.compared_models import SimulatedModel
from quantpipe.evaluate.forms_agreement import WrittenBeside, executed
from quantpipe.lowering import Rendered
from quantpipe.realize import Provenance
from quantpipe.realize.c.form import CForm, walked
from quantpipe.realize.c.runner import CRunner
from quantpipe.types import FormRow, QuantPlan
from tests.ops.line import Line

MADE = Provenance("0", "sha256:model", "sha256:strategy", "device", "sha256:hardware", {}, ("cat", "dog"))
SANITIZED = ("-O0", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")


def c_text(made: Line, plan: QuantPlan) -> str:
    return CForm().write(made.graph, made.topology, plan, MADE).files["model.c"].decode()


def run_c(
    made: Line, plan: QuantPlan, *, flags: Sequence[str] = (), change: Callable[[str], str] = lambda text: text
) -> FormRow:
    """The C form's row in the report; `change` plants faults into its text."""
    walk = walked(made.graph, made.topology, plan)
    runner = CRunner(change(c_text(made, plan)), walk, flags)
    try:
        simulation = made.simulate(plan)
        assert set(simulation.rendered.integers) <= set(runner.tensors), "every integer tensor can be looked at"
        held = Rendered(simulation.rendered.model, {tensor: tensor for tensor in runner.tensors})
        simulated = SimulatedModel(made.graph, made.topology, plan, simulation, realized=held)
        return executed(WrittenBeside("c", "model.c", 0, 0.0), runner, simulated, made.samples, timed=False)
    finally:
        runner.close()


def islands_in(made: Line) -> bool:
    """Whether some node stays in float, which no C file holds."""
    return bool(made.topology.float_nodes)
