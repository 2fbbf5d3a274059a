"""README.md of exported vectors: what is in the folder, how a dump looks, and code that makes one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePath

from quantpipe.conform.vectors import VectorSet


def readme(
    sets: Sequence[VectorSet],
    left_out: Mapping[str, str],
    *,
    model: str,
    hardware: str,
    forms: Mapping[str, str],
    hex_samples: int,
) -> str:
    """Return README.md.

    `sets` begins with the network; `left_out` maps a probe to the reason. `forms` maps a file in each probe's folder to
    its form. `hex_samples` samples are in hex files.
    """
    net, *probes = sets
    more = f", `DUMPS/{probes[0].name}.npz`" if probes else ""
    rows = [f"| `{v.name}` | {v.purpose} | {len(v.golden)} | {_elements(v):,} |" for v in sets]
    absent = [f"| `{name}` | {why} |" for name, why in left_out.items()]
    listed = "\n".join(f"- `{file}`: the {form} form" for file, form in forms.items())
    return f"""# Vectors of {PurePath(model).name} on {hardware}

Golden inputs and integers to compare with a device or a simulator, tensor by tensor. Every set is a folder:

| set | what for | tensors | elements |
|---|---|---|---|
{chr(10).join(rows)}

## Files of a set

- `inputs.npz`: real inputs by name, `[N, …]`, as the float model takes them (prepared, not raw pictures).
- `golden.npz`: the stored integers of every tensor, by name, `[N, …]` with the axes of the ONNX model. Accumulators
  that one kernel passes to another are named `TENSOR (accumulator)`.
- `set.json`: type, scale, zero point and range of each tensor; operands, result and attributes of each kernel.
- `ops/*.npz`: one op each: operands, weight, bias, accumulator, the numbers that narrow it, result.
- `hex/*.hex`: the first {hex_samples} samples of each tensor, and weights: one integer a line, in two's complement of
  the width of its type, row by row (`$readmemh` reads them).

The folder of a probe also has its model: `float.onnx`, and the forms for this device:

{listed or "- (none: the run writes no form that holds them)"}

## Dumps

Run the inputs of a set, and keep the integers of as many tensors as the device shows: `golden.npz` is what a perfect
dump looks like. One npz file by name, or a folder of `.npz`, `.npy`, `.bin` or `.hex` files named as here; fewer
samples are fine. A folder for all: `DUMPS/{net.name}.npz`{more}, …

    python run.py command=compare runs=[RUN] dump=DUMPS
    python run.py command=identify runs=[RUN] dump=DUMPS

The first command shows which tensor differs first, by how much, and what would explain it. The second shows which
values of the fields of the hardware file agree with the probes. onnxruntime as a device, from this folder:

```python
import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort

for folder in sorted(Path("probes").iterdir()):
    model = onnx.load(folder / "model.onnx")
    tensors = json.loads((folder / "set.json").read_text())["tensors"]
    names = {{t["name"]: t["value"] for t in tensors if "value" in t}}
    known = {{o.name for o in model.graph.output}} | {{i.name for i in model.graph.input}}
    model.graph.output.extend(onnx.ValueInfoProto(name=v) for v in names.values() if v not in known)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    found = dict(zip([o.name for o in session.get_outputs()], session.run(None, dict(np.load(folder / "inputs.npz")))))
    Path("dumps/probes").mkdir(parents=True, exist_ok=True)
    np.savez(f"dumps/probes/{{folder.name}}.npz", **{{name: found[v] for name, v in names.items() if v in found}})
```
{_absent(absent)}"""


def _absent(rows: Sequence[str]) -> str:
    if not rows:
        return ""
    return f"""
## Probes that this device does not get

| probe | why |
|---|---|
{chr(10).join(rows)}
"""


def _elements(vectors: VectorSet) -> int:
    return sum(int(values.size) for values in vectors.golden.values())
