"""Whatever is wrong with a call from Python, it raises one of our errors with one paragraph."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import quantpipe
from quantpipe.errors import ConfigError, DataError, HardwareError, ModelError, QuantpipeError, StorageError
from tests.api.nets import images, small_net, two_inputs
from tests.ops.line import Net


def outside() -> onnx.ModelProto:
    model = small_net()
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="weights.bin")
    return model


NET, DATA = small_net(), images()
LABELS = np.zeros(48, np.int64)
CASES: dict[str, tuple[type[QuantpipeError], str, tuple[Any, ...], dict[str, Any]]] = {
    "option": (ConfigError, "serach: is no option (did you mean 'search'", (NET, DATA), {"serach": "greedy"}),
    "name": (ConfigError, "search: has no option 'gredy' (did you mean 'greedy'", (NET, DATA), {"search": "gredy"}),
    "path": (ConfigError, "has no option '../search/greedy'", (NET, DATA), {"search": "../search/greedy"}),
    "kind": (ConfigError, "search: is 3; legal is the name of an option", (NET, DATA), {"search": 3}),
    "key": (ConfigError, "search.max_evals: is no key", (NET, DATA), {"search": {"max_evals": 3}}),
    "deep key": (ConfigError, "threshold.weights.methd: is no key (did you mean 'method'",
                 (NET, DATA), {"threshold": {"weights": {"methd": "mse"}}}),
    "value": (ConfigError, "search.max_evaluations", (NET, DATA), {"search": {"max_evaluations": "many"}}),
    "mapping": (ConfigError, "annotate: is 3; legal is a mapping", (NET, DATA), {"annotate": 3}),
    "list": (ConfigError, "annotate.float_ops: is 'Conv'; legal is a list",
             (NET, DATA), {"annotate": {"float_ops": "Conv"}}),
    "object": (ConfigError, "legal are words, numbers", (NET, DATA), {"annotate": {"min_bits": object()}}),
    "seed": (ConfigError, "seed: is -1", (NET, DATA), {"seed": -1}),
    "stages": (ConfigError, "stages: is no option", (NET, DATA), {"stages": ["search"]}),
    "target": (ConfigError, "is not allowed", (NET, DATA), {"search": {"algorithm": {"_target_": "os.system"}}}),
    "hardware": (ConfigError, "hardware: is 'vtaa' (did you mean 'vta'", (NET, DATA, "vtaa"), {}),
    "hardware kind": (ConfigError, "hardware: is a int", (NET, DATA, 3), {}),
    "hardware file": (ConfigError, "nothing.yaml cannot be read", (NET, DATA, "nothing.yaml"), {}),
    "hardware content": (HardwareError, "is missing", (NET, DATA, {"name": "mine"}), {}),
    "schema": (HardwareError, "cannot run on vta", (NET, DATA, "vta"), {"schema": "asymmetric"}),
    "no model": (ModelError, "there is no such file", ("nothing.onnx", DATA), {}),
    "bytes": (ModelError, "not a readable ONNX model", (b"nothing", DATA), {}),
    "model kind": (ModelError, "it is a int", (3, DATA), {}),
    "outside": (ModelError, "Give the path of the model", (outside(), DATA), {}),
    "shape": (DataError, "takes [N, 3, 8, 8] float32, but a sample is [N, 4, 4, 3]",
              (NET, np.zeros((9, 4, 4, 3), np.float32)), {}),
    "nan": (DataError, "is not finite", (NET, np.full_like(DATA, np.nan)), {}),
    "words": (DataError, "legal are arrays, lists and numbers", (NET, np.array(["a", "b"])), {}),
    "scalar": (DataError, "is a single number", (NET, np.float32(3)), {}),
    "none": (DataError, "gave a NoneType", (NET, None), {}),
    "text": (DataError, "gave a str", (NET, "digits"), {}),
    "empty": (DataError, "holds no samples", (NET, DATA[:0]), {}),
    "few": (DataError, "leaves none to", (NET, DATA[:1]), {}),
    "tuple": (DataError, "a tuple of 3", (NET, (DATA, DATA, DATA)), {}),
    "labels": (DataError, "47 labels", (NET, (DATA, LABELS[1:])), {}),
    "classes": (DataError, "has label 7", (NET, (DATA, LABELS + 7)), {}),
    "fractions": (DataError, "legal are integers", (NET, (DATA, LABELS + 0.5)), {}),
    "input names": (DataError, "is a constant: 'model.fixed={b: 0}'",
                    (two_inputs(), {"a": np.zeros((9, 6), np.float32)}), {}),
    "rows": (DataError, "one row per sample each", (two_inputs(), {"a": np.zeros((9, 6)), "b": np.zeros((8, 4))}), {}),
    "one array": (DataError, "the model has 2 inputs", (two_inputs(), np.zeros((9, 6), np.float32)), {}),
    "same sets": (DataError, "are also in evaluate", (NET, quantpipe.SampleSets(DATA, DATA)), {}),
    "half sets": (DataError, "there are no evaluate samples", (NET, quantpipe.SampleSets(DATA, None)), {}),
    "data option": (ConfigError, "dataset.splits: is no key (did you mean 'split'",
                    (NET, DATA), {"dataset": {"splits": {}}}),
    "data function": (ConfigError, "dataset.target: is no key", (NET, DATA), {"dataset": {"target": "os:listdir"}}),
    "fixed": (ConfigError, "model.fixed", (NET, DATA), {"fixed": [1]}),
}  # fmt: skip


@pytest.mark.program
def test_every_mistake_is_one_paragraph(tmp_path: Path) -> None:
    for name, (kind, said, arguments, options) in CASES.items():
        with pytest.raises(QuantpipeError) as caught:
            quantpipe.quantize(*arguments, **options)
        assert type(caught.value) is kind, (name, caught.value)
        assert said in str(caught.value), (name, str(caught.value))
        assert "\n" not in str(caught.value), name


def test_a_generator_that_fails_is_named() -> None:
    def samples() -> Any:
        yield DATA[0]
        raise ValueError("broken file")

    with pytest.raises(DataError, match="sample 1: ValueError: broken file"):
        quantpipe.quantize(NET, samples())


def test_options_of_a_data_set_object_are_its_own() -> None:
    from quantpipe.data import DigitsDataset

    with pytest.raises(ConfigError, match="which has its own options"):
        quantpipe.quantize(NET, DigitsDataset(), dataset={"shuffle": True})


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError):
        quantpipe.quantize(NET, DATA, folder=tmp_path / "file" / "run")


@pytest.mark.sliced(2)
@pytest.mark.parametrize("axis", [None, 1])
def test_a_model_that_runs_with_one_sample_only_is_run_so(axis: int | None, tmp_path: Path) -> None:
    """Its own shape is that of one sample, as of a net whose state was exported for one."""
    net = Net(seed=2)
    hidden = net.node("Relu", net.dense(net.input(axis, 8), 8, 16))
    net.output(net.dense(net.node("Reshape", hidden, net.constant(np.int64([1, 16]))), 16, 4))
    samples = np.random.default_rng(0).standard_normal((120, 8)).astype(np.float32)
    result = quantpipe.quantize(net.proto(), samples, folder=tmp_path, recover="none")
    assert result.report["agreement"]["differing"] == 0
    assert any("on one sample at a time only" in note for note in result.report["warnings"]) == (axis is None)
