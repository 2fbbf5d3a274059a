"""Sparse constants of TensorFlow Lite files: against LiteRT's own, against the dense array, and contradictions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quantpipe.errors import ModelError
from quantpipe.intake.tflite import litert
from quantpipe.intake.tflite.read_file import read_tflite
from quantpipe.realize.tflite.container import Container

pytest.importorskip("ai_edge_litert", reason="LiteRT is not installed")
Array = np.ndarray[Any, Any]


def thinned(seed: int, shape: tuple[int, ...], block: dict[int, int]) -> Array:
    """An array with whole blocks of zeros."""
    rng = np.random.default_rng(seed)
    coarse = tuple(size // block.get(axis, 1) for axis, size in enumerate(shape))
    kept = rng.uniform(size=coarse) < 0.4
    for axis, size in block.items():
        kept = np.repeat(kept, size, axis)
    return np.where(kept, rng.normal(0, 1, shape), 0).astype(np.float32)


def described(array: Array, order: list[int], block: dict[int, int], csr: set[int]) -> tuple[Any, Array]:
    """The schema's description of an array, with the axes `csr` of `order` sparse, and the stored elements."""
    s, rank, blocked = litert.schema(), array.ndim, sorted(block)
    sizes = [size // block.get(axis, 1) for axis, size in enumerate(array.shape)]
    split = array.reshape([n for axis in range(rank) for n in (sizes[axis], block.get(axis, 1))])
    places = [2 * axis for axis in range(rank)] + [2 * axis + 1 for axis in blocked]
    rest = [2 * axis + 1 for axis in range(rank) if axis not in block]
    view = split.transpose([places[axis] for axis in order] + rest).reshape([split.shape[places[a]] for a in order])
    found, levels = s.SparsityParametersT(), []
    nodes: list[tuple[int, ...]] = [()]
    for level, axis in enumerate(order):
        table = s.DimensionMetadataT()
        if axis not in csr:
            table.format, table.denseSize = 0, view.shape[level]
            nodes = [(*node, i) for node in nodes for i in range(view.shape[level])]
        else:
            table.format, ends, indices, children = 1, [0], [], []
            for node in nodes:
                there = [i for i in range(view.shape[level]) if np.any(view[(*node, i)])]
                indices += there
                children += [(*node, i) for i in there]
                ends.append(len(indices))
            for name, values in (("Segments", ends), ("Indices", indices)):
                kind = s.Uint8VectorT() if max(values, default=0) < 256 else s.Uint16VectorT()
                kind.values = np.asarray(values, np.uint8 if max(values, default=0) < 256 else np.uint16)
                setattr(table, f"array{name}", kind)
                setattr(table, f"array{name}Type", 3 if isinstance(kind, s.Uint8VectorT) else 2)
            nodes = children
        levels.append(table)
    found.traversalOrder, found.blockMap, found.dimMetadata = order, blocked, levels
    return found, np.asarray([view[node] for node in nodes], array.dtype)


def sparse_file(array: Array, sparsity: Any, stored: Array) -> bytes:
    """A file of one dense layer whose weight is sparse, and written out by DENSIFY."""
    file = Container()
    outputs, features = array.shape
    x = file.tensor("x", (2, features), "float32")
    weight = file.constant("w", array, "float32")
    dense, y = file.tensor("w_dense", array.shape, "float32"), file.tensor("y", (2, outputs), "float32")
    file.operator("DENSIFY", [weight], [dense], 1, kind="DensifyOptions")
    file.operator("FULLY_CONNECTED", [x, dense, -1], [y], 1, kind="FullyConnectedOptions")
    s = litert.schema()
    model = s.ModelT.InitFromObj(s.Model.GetRootAs(file.build({"x": x}, {"y": y}, "sparse", {}, free=False)))
    tensor = next(t for t in model.subgraphs[0].tensors if t.name == b"w")
    tensor.sparsity, model.buffers[tensor.buffer].data = sparsity, np.frombuffer(stored.tobytes(), np.uint8)
    builder = litert.flatbuffers().Builder(4096)
    builder.Finish(model.Pack(builder), file_identifier=b"TFL3")
    return bytes(builder.Output())


def weight_of(content: bytes, folder: Path) -> Array:
    """The weight that a run with unit vectors shows."""
    path = folder / "m.tflite"
    path.write_bytes(content)
    model = read_tflite(path)
    assert json.loads(model.metadata_props[0].value)["inputs"]
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (port,) = session.get_inputs()
    count = port.shape[-1]
    units = np.eye(count, dtype=np.float32).reshape(-1, 2, count)
    return np.concatenate([session.run(None, {port.name: pair})[0] for pair in units]).T  # type: ignore[no-any-return]


CASES = {
    "rows": ((6, 10), [0, 1], {}, {1}),
    "columns first": ((6, 10), [1, 0], {}, {0}),
    "both axes": ((6, 10), [0, 1], {}, {0, 1}),
    "blocks of 1 x 4": ((6, 16), [0, 1, 2], {1: 4}, {1}),
    "blocks of 2 x 4": ((6, 16), [0, 1, 2, 3], {0: 2, 1: 4}, {1}),
    "more than 255 elements": ((40, 30), [0, 1], {}, {1}),
    "dense": ((4, 6), [0, 1], {}, set()),
}


@pytest.mark.parametrize("name", CASES)
def test_the_weight_is_the_dense_one_and_litert_agrees(name: str, tmp_path: Path) -> None:
    shape, order, block, csr = CASES[name]
    array = thinned(3, shape, block)
    content = sparse_file(array, *described(array, order, block, csr))
    np.testing.assert_array_equal(weight_of(content, tmp_path), array)
    module = litert.interpreter()
    found = module.Interpreter(model_content=content, experimental_op_resolver_type=module.OpResolverType.BUILTIN_REF)
    found.allocate_tensors()
    x = np.random.default_rng(1).normal(0, 1, (2, shape[1])).astype(np.float32)
    found.set_tensor(found.get_input_details()[0]["index"], x)
    found.invoke()
    np.testing.assert_allclose(
        found.get_tensor(found.get_output_details()[0]["index"]), x @ array.T, rtol=1e-4, atol=1e-5
    )


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    sizes=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    blocks=st.dictionaries(st.integers(0, 1), st.integers(1, 3), max_size=2),
    data=st.data(),
)
def test_any_order_of_axes(
    tmp_path_factory: pytest.TempPathFactory,
    seed: int,
    sizes: tuple[int, int],
    blocks: dict[int, int],
    data: st.DataObject,
) -> None:
    shape = (sizes[0] * blocks.get(0, 1), 2 * sizes[1] * blocks.get(1, 1))
    order = list(data.draw(st.permutations([0, 1]))) + [2 + n for n in range(len(blocks))]
    csr = data.draw(st.sets(st.sampled_from([0, 1])))
    array = thinned(seed, shape, blocks)
    content = sparse_file(array, *described(array, order, blocks, csr))
    np.testing.assert_array_equal(weight_of(content, tmp_path_factory.mktemp("sparse")), array)


def _changed(change: Any) -> tuple[Any, Array]:
    found, stored = described(thinned(3, (6, 10), {}), [0, 1], {}, {1})
    return change(found, stored) or (found, stored)


def _put(level: int | None, name: str, value: Any) -> Any:
    def change(found: Any, stored: Array) -> None:
        part = found if level is None else found.dimMetadata[level]
        target, _, field = name.rpartition(".")
        setattr(getattr(part, target) if target else part, field, value)

    return change


WRONG = {
    "order": (_put(None, "traversalOrder", [0, 0]), "order of axes is [0, 0]"),
    "blocks": (_put(None, "blockMap", [5]), "of 2 axes and 1 blocks"),
    "size": (_put(0, "denseSize", 7), "a dense axis of 6 has the size 7"),
    "no indices": (_put(1, "arrayIndicesType", 0), "indices of the type 0"),
    "beyond": (_put(1, "arrayIndices.values", np.full(300, 10, np.uint8)), "places in 6 parts, of 6"),
    "ends": (_put(1, "arraySegments.values", np.asarray([0, 9], np.uint8)), "in 1 parts, of 6"),
    "more": (lambda found, stored: (found, np.append(stored, np.float32(1))), "elements and stores"),
    "empty": (lambda found, stored: (litert.schema().SparsityParametersT(), stored), "order of axes is []"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_contradiction_is_one_paragraph(name: str, tmp_path: Path) -> None:
    change, text = WRONG[name]
    path = tmp_path / "m.tflite"
    path.write_bytes(sparse_file(thinned(3, (6, 10), {}), *_changed(change)))
    with pytest.raises(ModelError) as error:
        read_tflite(path)
    assert text in str(error.value) and "which is sparse" in str(error.value) and "\n" not in str(error.value)


def test_densify_without_an_operand_is_refused(tmp_path: Path) -> None:
    """-1 stands for no tensor, and not for the last one."""
    array = thinned(3, (6, 10), {})
    s = litert.schema()
    content = sparse_file(array, *described(array, [0, 1], {}, {1}))
    model = s.ModelT.InitFromObj(s.Model.GetRootAs(content))
    graph = model.subgraphs[0]
    weight = next(t for t in graph.tensors if t.name == b"w")
    graph.tensors.append(weight)
    graph.operators[0].inputs = [-1]
    builder = litert.flatbuffers().Builder(4096)
    builder.Finish(model.Pack(builder), file_identifier=b"TFL3")
    path = tmp_path / "m.tflite"
    path.write_bytes(bytes(builder.Output()))
    with pytest.raises(ModelError):
        read_tflite(path)


def test_a_place_twice_or_beyond_the_axis(tmp_path: Path) -> None:
    found, stored = described(thinned(3, (6, 10), {}), [0, 1], {}, {1})
    for wrong in (10, int(found.dimMetadata[1].arrayIndices.values[1])):
        values = np.array(found.dimMetadata[1].arrayIndices.values)
        values[0] = wrong
        found.dimMetadata[1].arrayIndices.values = values
        path = tmp_path / f"{wrong}.tflite"
        path.write_bytes(sparse_file(thinned(3, (6, 10), {}), found, stored))
        with pytest.raises(ModelError, match="has places beyond it, or twice"):
            read_tflite(path)
