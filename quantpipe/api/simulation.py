"""The simulated model as an object that runs."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantpipe.errors import DataError, nearest
from quantpipe.graph.execute import Session
from quantpipe.graph.normalize import expose
from quantpipe.graph.view import Graph
from quantpipe.pipeline.finish import RealizedRun
from quantpipe.simulate.simulator import bind, simulate
from quantpipe.types import QuantPlan


class SimulatedNetwork:
    """Run the plan of a run: the numbers of the integer model, in float32 arithmetic.

    It needs none of the device's tools, so it runs for every hardware file.

    Attributes:
        plan: Every number of the integer model.
        inputs: Names of the inputs.
        outputs: Names of the outputs.
        tensors: Names of the tensors that are stored as integers.
    """

    def __init__(self, made: RealizedRun) -> None:
        graph: Graph = made.context.graph
        simulation = simulate(graph, made.context.topology, made.plan)
        held = simulation.rendered.integers
        self.plan: QuantPlan = made.plan
        self.inputs, self.outputs = (tuple(port.name for port in ports) for ports in (graph.inputs, graph.outputs))
        self._held = {t: held[t] for t in made.plan.quantizers if t in held}
        self.tensors = tuple(self._held)
        self._simulation = simulation
        self._fixed = next(iter(graph.first_axes.values()), None)

    @cached_property
    def _session(self) -> Session:
        model = bind(self._simulation.rendered.model, self._simulation.weights)
        return Session(expose(model, list(self._held.values())), where="simulated model")

    def __call__(self, inputs: Any) -> dict[str, NDArray[Any]]:
        """Return a mapping: output -> floats, `[N, ...]` each.

        Args:
            inputs: An array `[N, ...]`, or a mapping with such an array for each input.

        Raises:
            DataError: Inputs that the model does not have, or that are missing.
            ModelError: Arrays of other shapes than the model takes.
        """
        return self._run(inputs, self.outputs)

    def integers(self, inputs: Any) -> dict[str, NDArray[np.int64]]:
        """Return a mapping: stored tensor -> its integers, `[N, ...]` each, as the integer model stores them.

        Arguments and errors: as for a call.
        """
        centred = self._run(inputs, tuple(self._held.values()))
        zeros = {t: np.asarray(self.plan.quantizers[t].zero_point) for t in self._held}
        return {t: centred[name].astype(np.int64) + zeros[t] for t, name in self._held.items()}

    def _run(self, inputs: Any, names: tuple[str, ...]) -> dict[str, NDArray[Any]]:
        given = dict(inputs) if isinstance(inputs, Mapping) else {self.inputs[0]: inputs}
        for name in given:
            if name not in self.inputs:
                raise DataError(
                    f"is no input{nearest(name, self.inputs)}; legal are {', '.join(self.inputs)}", where=name
                )
        missing = [name for name in self.inputs if name not in given]
        if missing:
            raise DataError(f"gives no {', '.join(missing)}; the model reads {', '.join(self.inputs)}", where="inputs")
        arrays = {name: np.asarray(array) for name, array in given.items()}
        real = {n: a.astype(np.float32) if a.dtype == np.float64 else a for n, a in arrays.items()}
        if self._fixed is None:
            return self._session.run({**real, **self._simulation.scalars}, names)
        cuts = range(0, len(next(iter(real.values()))), self._fixed)
        runs = ({n: a[k : k + self._fixed] for n, a in real.items()} for k in cuts)
        parts = [self._session.run({**one, **self._simulation.scalars}, names) for one in runs]
        return {name: np.concatenate([part[name] for part in parts]) for name in names}
