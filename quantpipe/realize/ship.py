"""Write SHIP.md: which files to deploy, which session options they need, how inputs are prepared, code that runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from quantpipe.annotate.run_scales import dynamic_note
from quantpipe.graph.length_limits import KEY as LENGTHS
from quantpipe.graph.length_limits import LengthLimit
from quantpipe.graph.stored_ports import StoredPort
from quantpipe.graph.view import Graph
from quantpipe.realize.deployment import THREADS, how_to_run, loading_code
from quantpipe.realize.open_lengths import length_limits, longest_open_sum
from quantpipe.realize.provenance import Provenance, port_numbers
from quantpipe.realize.ship_samples import IDENTITY
from quantpipe.types import HardwareSpec, QuantPlan, TensorInfo, Topology


@dataclass(frozen=True)
class Shipped:
    """Hold one form's content for SHIP.md.

    `files`: Names of all of its files. `options`: Session options that it needs, where onnxruntime runs it. `inexact`:
    Why it does not compute exactly the searched numbers; None where it does. `howto`: How it is used, where onnxruntime
    does not run it: Markdown. `caches`: Caches of a decoder whose inputs and outputs are integers. `one_thread`: Its
    results depend on the number of threads.
    """

    form: str
    files: tuple[str, ...]
    options: Mapping[str, str] = field(default_factory=dict)
    inexact: str | None = None
    howto: str | None = None
    caches: tuple[StoredPort, ...] = ()
    one_thread: bool = False


def ship_text(
    graph: Graph, plan: QuantPlan, forms: Sequence[Shipped], *, topology: Topology, spec: HardwareSpec, made: Provenance
) -> str:
    """Return SHIP.md, whose Python code runs in the folder of the files.

    `forms` begins with the form of model.onnx.
    """
    by_run = dynamic_note(topology)
    lines = [
        "# What to ship",
        "",
        f"Made by quantpipe {made.version} for `{made.hardware}`. One of these forms is enough; all have the same "
        "integers, unless noted.",
        "",
        "| form | files | session options | exact |",
        "|---|---|---|---|",
        *(_row(form) for form in forms),
        "",
        "`plan.json` has every scale, multiplier, shift and bias; `certificate.json` has the proofs for `model.onnx`.",
        *([] if by_run is None else ["", f"{_capital(by_run)}."]),
        "",
        "## Inputs",
        "",
        *(_port(port, plan, forms[0].caches) for port in graph.inputs),
        "",
        *_preprocessing(made.preprocessing),
        "",
        "## Outputs",
        "",
        *(_port(port, plan, forms[0].caches) for port in graph.outputs),
        *_caches(forms[0].caches),
        *_length(longest_open_sum(graph, plan), length_limits(graph, plan)),
    ]
    if made.class_names:
        lines += ["", f"Classes by index: {', '.join(made.class_names)}."]
    for form in forms:
        lines += ["", f"## Run {form.files[0]}", ""]
        if form.howto is not None:
            lines += [form.howto]
            continue
        file, one = form.files[0], form.one_thread
        code = loading_code(file, form.options, graph, made.preprocessing, caches=form.caches, one_thread=one)
        run = how_to_run(file, form.options, spec, one_thread=one)
        lines += [f"{_capital(run)}.", "", "```python", code, "```"]
    return "\n".join(lines) + "\n"


def _row(form: Shipped) -> str:
    files = ", ".join(f"`{name}`" for name in form.files)
    named = [f"`{THREADS}`"] if form.one_thread else []
    options = ", ".join([*named, *(f"`{k}={v}`" for k, v in form.options.items())]) or "none"
    return f"| {form.form} | {files} | {options} | {'yes' if form.inexact is None else f'no: {form.inexact}'} |"


def _caches(caches: Sequence[StoredPort]) -> list[str]:
    """Return the section about caches whose ports are integers."""
    if not caches:
        return []
    rows = [f"| {c.holds} | `{c.input}` | `{c.output}` | {c.stored} | {c.scale:.9g} | {c.zero_point} |" for c in caches]
    return [
        "",
        "## Caches",
        "",
        "Input and output of a cache are integers with the same numbers: real = scale * (q - zero point). Pass each "
        "output on as the next input, unchanged. A sequence begins with a cache of length 0; one of a fixed length "
        "begins with the zero point in every element.",
        "",
        "| holds | input | output | type | scale | zero point |",
        "|---|---|---|---|---|---|",
        *rows,
    ]


def _length(longest: int | None, limits: Sequence[LengthLimit]) -> list[str]:
    """Return the section about sums whose length the inputs decide, in integers that hold so many terms."""
    if longest is None:
        return []
    text = f"Integer sums over an axis of free length hold {longest:,} terms."
    text += (
        " In an attention these are the positions, with those of its caches. Longer inputs may overflow, and nothing "
    )
    text += "in the file reports it: limit them in your program."
    if limits:
        text += f" The metadata of the file (`{LENGTHS}`) have the limits: {'; '.join(map(str, limits))}."
    return ["", "## Length", "", text]


def _port(port: TensorInfo, plan: QuantPlan, caches: Sequence[StoredPort]) -> str:
    """Return one line: the port as the file has it, and the meaning of its integers."""
    known = port_numbers(port, plan, caches)
    shape = [str(size) if size is not None else "?" if axis else "N" for axis, size in enumerate(port.shape)]
    text = f"- `{port.name}`: {known['dtype']} [{', '.join(shape)}]"
    if known.get("stored") == "accumulator":
        scales = known["scale"]
        several = isinstance(scales, list)
        return f"{text}; inside an accumulator, {'a scale per channel' if several else f'scale {scales:.9g}'}"
    if "scale" not in known:
        return text
    low, high = known["range"]
    grid = f"scale {known['scale']:.9g}, zero point {known['zero_point']}, {low} to {high}"
    if any(port.name in (cache.input, cache.output) for cache in caches):
        return f"{text}; {grid}"
    return f"{text}; inside {known['stored']}, {grid}"


def _preprocessing(given: Mapping[str, Any]) -> list[str]:
    if all(given.get(key, value) == value for key, value in IDENTITY.items()):
        return ["Values go in as they are."]
    parts = [f"value = (raw * {given['scale']:.9g} - {_list(given['mean'])}) / {_list(given['std'])}, per channel"]
    if given.get("size") is not None:
        parts.append(f"pictures resized (bicubic) to {list(given['size'])} (height, width) before that")
    return [f"{'; '.join(parts)}; axes {given.get('layout', 'NCHW')}."]


def _list(values: Any) -> str:
    found = [float(v) for v in values]
    return f"{found[0]:.9g}" if len(set(found)) == 1 else f"[{', '.join(f'{v:.9g}' for v in found)}]"


def _capital(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]
