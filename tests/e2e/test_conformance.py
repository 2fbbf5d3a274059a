"""Vectors of a run go to a device, onnxruntime by the README's own code, and its dumps are held against the plan."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import numpy as np
import pytest

from tests.e2e.program import Program
from tests.e2e.schemas import faults

ISA = {"isa: avx2"}
"""On CPUs without VNNI a session as the README opens it adds pairs of products in int16."""


@pytest.mark.program
def test_vectors_are_exported_run_and_compared(program: Program) -> None:
    run = program.run()
    assert run.code == 0, run.err
    refused = program.bare("command=compare", "runs=[run]", "dump=run")
    assert "export vectors first" in refused.paragraph
    made = program.bare("command=export_vectors", "runs=[run]", "vectors.samples=2")
    assert made.code == 0, made.err
    folder = run.folder / "vectors"
    code = re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text(), re.S)[0]
    subprocess.run([sys.executable, "-c", code], cwd=folder, check=True)
    held = program.bare("command=compare", "runs=[run]", f"dump={folder / 'dumps'}", "check.format=json")
    found = json.loads(held.out)
    assert not faults("dump", found)
    assert {s["name"] for s in found["sets"]} > {"probes/conv_narrowing", "probes/add_ties", "probes/mean_general"}
    wrong = [r for s in found["sets"] for r in s["rows"] if r["differing_own"]]
    assert held.code == (3 if wrong else 0)
    assert all(ISA & {f"{e['field']}: {e['value']}" for e in r["explanations"] if not e["left"]} for r in wrong), wrong

    told = program.bare("command=identify", "runs=[run]", f"dump={folder / 'dumps'}", "check.format=json")
    assert not faults("identify", json.loads(told.out))
    left = {row["field"]: row["values"] for row in json.loads(told.out)["fields"]}
    assert left["requantize of Conv"] == ["float_multiplier, rounding half_even"]
    assert left["isa"] == (["avx2"] if wrong else ["any", "vnni", "avx2"]) and told.code == (3 if wrong else 0)

    golden = dict(np.load(folder / "net" / "golden.npz"))
    first = list(golden)[1]
    golden[first] = golden[first][:, ::-1]
    np.savez(folder / "swapped.npz", **golden)
    swapped = program.bare("command=compare", "runs=[run]", f"dump={folder / 'swapped.npz'}")
    assert swapped.code == 3 and f"the first tensor that differs: {first}" in " ".join(swapped.out.split())
    assert "in another order" in " ".join(swapped.out.split())
    inputs = program.bare("command=compare", "runs=[run]", f"dump={folder / 'net' / 'inputs.npz'}")
    assert "legal are the stored integers" in inputs.paragraph
