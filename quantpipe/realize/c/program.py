"""The parts of a C file that are compiled on demand: conversions from and to floats, and a program."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from quantpipe.realize.c.c_buffers import CWalk
from quantpipe.realize.c.memory import Buffer
from quantpipe.realize.c.nest import axis_strides, collapsed, index, loops, strides_of
from quantpipe.realize.ship_samples import RAW, stored
from quantpipe.types import Form

FLAGS = "-std=c99 -O2"


def float_api(walk: CWalk) -> str:
    """Return functions that convert float inputs to integers, and integer outputs to floats."""
    parts = ["#ifdef QUANTPIPE_FLOAT_API\n#include <math.h>\n"]
    for n, (name, buffer) in enumerate(zip(entering(walk), walk.inputs, strict=True)):
        q = walk.plan.quantizers[name]
        scale = f"{float(q.scale).hex()}f"
        body = (
            f"float v = rintf(x[i0] / {scale}) + {q.zero_point}.0f;\n"
            f"y[i0] = ({buffer.ctype})(v <= {q.qmin}.0f ? {q.qmin} : v >= {q.qmax}.0f ? {q.qmax} : (int32_t)v);"
        )
        head = f"void quantpipe_quantize{n}(const float *x, {buffer.ctype} *y)"
        parts.append(f"{head};\n{head}\n{{\n{loops([buffer.count], body)}\n}}\n")
    for n, (info, buffer) in enumerate(zip(walk.graph.outputs, walk.outputs, strict=True)):
        head = f"void quantpipe_dequantize{n}(const {buffer.ctype} *x, float *y)"
        parts.append(f"{head};\n{head}\n{{\n{_dequantized(walk, info.name, buffer)}\n}}\n")
    return "\n".join([*parts, "#endif\n"])


def _dequantized(walk: CWalk, name: str, buffer: Buffer) -> str:
    if (name, Form.RAW) not in walk.values:
        q = walk.plan.quantizers[name]
        return loops([buffer.count], f"y[i0] = (float)(x[i0] - ({q.zero_point})) * {float(q.scale).hex()}f;")
    scales = np.asarray(walk.plan.raw_scales[name], np.float32).reshape(-1)
    if scales.size == 1:
        return loops([buffer.count], f"y[i0] = (float)x[i0] * {float(scales[0]).hex()}f;")
    listed = ", ".join(f"{float(s).hex()}f" for s in scales)
    channel = walk.channel(name) if len(buffer.shape) > 1 else axis_strides(0, 1)
    sizes, (place, own) = collapsed(buffer.shape, [strides_of(buffer.shape), channel])
    body = loops(sizes, f"y[{index(place)}] = (float)x[{index(place)}] * scale[{index(own)}];")
    return f"    static const float scale[{scales.size}] = {{{listed}}};\n{body}"


def entering(walk: CWalk) -> list[str]:
    """Return the model's inputs that are arguments of the function, in order."""
    return [i.name for i in walk.graph.inputs if (i.name, Form.QUANTIZED) in walk.values]


def main(walk: CWalk) -> str:
    """Return a program that runs the model on all samples of its standard input.

    A sample is the integers of every input, one after the other, in the byte order of the machine. It writes the
    integers of the outputs, or with `QUANTPIPE_TRACE` of every tensor. Its argument is how often each sample is run.
    """
    inputs = "\n".join(f"static {b.ctype} input{n}[{b.count}];" for n, b in enumerate(walk.inputs))
    outputs = "\n".join(f"static {b.ctype} output{n}[{b.count}];" for n, b in enumerate(walk.outputs))
    reads = " && ".join(f"fread(input{n}, {b.width}, {b.count}, stdin) == {b.count}" for n, b in enumerate(walk.inputs))
    names = [f"input{n}" for n in range(len(walk.inputs))] + [f"output{n}" for n in range(len(walk.outputs))]
    writes = "\n".join(
        f"        if (fwrite(output{n}, {b.width}, {b.count}, stdout) != {b.count}) return 1;"
        for n, b in enumerate(walk.outputs)
    )
    return f"""
#ifdef QUANTPIPE_MAIN
#include <stdio.h>
#include <stdlib.h>
{inputs}
{outputs}
#ifdef QUANTPIPE_TRACE
void quantpipe_trace(int tensor, const void *data, unsigned long bytes)
{{
    (void)tensor;
    if (fwrite(data, 1, bytes, stdout) != bytes) exit(1);
}}
#endif
int main(int argc, char **argv)
{{
    int times = argc > 1 ? atoi(argv[1]) : 1, n;
    while ({reads or "times-- > 0"}) {{
        for (n = 0; n < times; n++) quantpipe_run({", ".join(names)});
#ifndef QUANTPIPE_TRACE
{writes}
#endif
    }}
    return 0;
}}
#endif
"""


def howto(file: str, walk: CWalk, given: Mapping[str, Any]) -> str:
    """Return how the file is used, as Markdown; `given` is the preprocessing."""
    inputs = ", ".join(f"const {b.ctype} in{n}[{b.count}]" for n, b in enumerate(walk.inputs))
    outputs = ", ".join(f"{b.ctype} out{n}[{b.count}]" for n, b in enumerate(walk.outputs))
    ports = {port.name: port for port in walk.graph.inputs}
    samples = ", ".join(stored(ports[name], walk.graph, given, walk.plan) for name in entering(walk))
    fields = [
        (info.name, f"<{'i' if b.dtype.signed else 'u'}{b.width}", tuple(b.shape))
        for info, b in zip(walk.graph.outputs, walk.outputs, strict=True)
    ]
    return f"""Compile `{file}` into your program and call it with the integers of one prepared sample (row-major, axes
as the model has them); it allocates nothing and keeps its tensors in static memory, so one call at a time:

    void quantpipe_run({inputs}, {outputs});

`-DQUANTPIPE_FLOAT_API` adds `quantpipe_quantizeN(float *, …)` and `quantpipe_dequantizeN(…, float *)` for input and
output N. With `-DQUANTPIPE_MAIN` it is a program that reads samples and writes results:

```python
import subprocess, numpy as np
sample = b"".join(np.ascontiguousarray(x).tobytes() for x in [{samples}]){RAW}
subprocess.run("cc {FLAGS} -DQUANTPIPE_MAIN -o model {file} -lm", shell=True, check=True)
written = subprocess.run("./model", input=sample, stdout=subprocess.PIPE, check=True).stdout
outputs = np.frombuffer(written, {fields})[0]
```"""
