"""Run realized models in default sessions of onnxruntime and count elements that differ from expected ones.

It runs on processors that are emulated, so it imports nothing but NumPy and onnxruntime.

    python count.py FOLDER      # of CASE.onnx, CASE.inputs.npz, CASE.expected.npz; prints JSON
"""

import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime as ort


def counted(folder: Path, case: str) -> dict[str, int]:
    """Differing elements and all elements of one case."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    session = ort.InferenceSession(str(folder / f"{case}.onnx"), options, providers=["CPUExecutionProvider"])
    expected = dict(np.load(folder / f"{case}.expected.npz"))
    names = [output.name for output in session.get_outputs()]
    assert sorted(names) == sorted(expected), f"{case}: outputs {names}, expected {sorted(expected)}"
    found = dict(zip(names, session.run(None, dict(np.load(folder / f"{case}.inputs.npz"))), strict=True))
    wrong = {name: int(np.count_nonzero(found[name] != value)) for name, value in expected.items()}
    return {"differing": sum(wrong.values()), "elements": sum(v.size for v in expected.values())}


if __name__ == "__main__":
    root = Path(sys.argv[1])
    cases = sorted(path.name.removesuffix(".inputs.npz") for path in root.glob("*.inputs.npz"))
    print(json.dumps({case: counted(root, case) for case in cases}))
