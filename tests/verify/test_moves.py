"""What says how an op moves values: shapes, ends of slices, repeats, indices. Another one is found."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from quantpipe.verify import verify_folder
from tests.ops.test_every_op import line_of
from tests.verify.folders import changed, constants, with_constant, write

CASES = ("slice_maps", "reshape", "tile", "expand", "top_k", "gather", "split_three", "pad_edge", "pad_constant",
         "squeeze_unsqueeze", "resize_nearest")  # fmt: skip
"""Cases of moves with constants beside what they move."""

MOVES = ("Slice", "Reshape", "Tile", "Expand", "TopK", "Gather", "Split", "Pad", "Squeeze", "Unsqueeze", "Resize")


@pytest.mark.sliced(3)
@pytest.mark.parametrize(("spec", "form"), [("ort_cpu", "qdq"), ("tflite_int8", "integer"), ("vta", "integer")])
def test_other_constants_of_moves_are_found(spec: str, form: str, tmp_path: Path) -> None:
    looked = set()
    for name in CASES:
        made = line_of(name, spec, "auto")
        root = write(made, made.plan(), form, tmp_path / name)
        assert verify_folder(root).wrong is None, name
        model = onnx.load(root / "realize" / "model.onnx")
        kernels = {k.node for k in made.topology.kernels}
        moves = [n for n in model.graph.node if n.op_type in MOVES and n.name in kernels]
        held = {n: v for n, v in constants(root) if v.dtype == np.int64 and v.size}
        for node, value in ((n, i) for n in moves for i in n.input if i in held):
            with_constant(root, value, held[value] + 1)
            wrong = verify_folder(root).wrong
            assert wrong is not None and "the certificate names another" in wrong, (name, value)
            with_constant(root, value, held[value])
            looked.add(node.op_type)
    assert len(looked) >= 5, looked


def test_a_certificate_of_an_earlier_version_names_no_constants(tmp_path: Path) -> None:
    made = line_of("slice_maps", "ort_cpu", "auto")
    root = write(made, made.plan(), "qdq", tmp_path / "run")
    changed(root, "certificate.json", lambda content: [k.pop("parameters", None) for k in content["kernels"].values()])
    assert verify_folder(root).wrong is None
