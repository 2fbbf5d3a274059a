"""What a decoder predicts, counted by hand, and on the embedded decoder with changed weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from quantpipe import assets
from quantpipe.data.sources.ascii_text import ascii_tokens
from quantpipe.data.sources.text import TextDataset
from quantpipe.evaluate.decoded import CONTINUED, PROMPTS, continued, decoded, token_input
from quantpipe.graph.execute import Session
from quantpipe.graph.view import Graph
from quantpipe.intake.load import load_graph
from quantpipe.metrics.next_tokens import first_difference, next_tokens
from quantpipe.oprules.parts import parts_of
from quantpipe.types import Samples, TensorInfo

FOLDER = Path(assets.__file__).parent


def test_perplexity_and_agreement_are_those_of_a_count_by_hand() -> None:
    tokens = [np.int64([0, 1, 0]), np.int64([1, 0, 1])]
    certain = np.log(np.float64([[0.25, 0.75], [0.5, 0.5], [0.9, 0.1]]))
    even = np.zeros((3, 2))
    found = next_tokens(tokens, (certain, even), (even, even))
    assert found is not None and (found.samples, found.tokens) == (2, 4)
    own = -np.log([0.75, 0.5, 0.5, 0.5]).mean()
    np.testing.assert_allclose(found.perplexity, [np.exp(own), 2.0])
    np.testing.assert_allclose(found.difference, np.log(2) - own)
    gaps = [np.log(2) + np.log([0.75, 0.5]).mean(), 0.0]
    np.testing.assert_allclose(found.standard_error, np.std(gaps, ddof=1) / np.sqrt(2))
    assert found.agreement == pytest.approx(5 / 6), "the first of equal scores is the greatest"


def test_single_tokens_and_tokens_without_a_score_count_nothing() -> None:
    scores = np.zeros((1, 1, 3))
    assert next_tokens([np.int64([0])], scores, scores) is None
    longer = np.zeros((1, 3, 3))
    found = next_tokens([np.int64([0, 9, 1])], longer, longer)
    assert found is not None and found.tokens == 1


@pytest.mark.parametrize(("other", "count"), [([1, 2, 3], 3), ([1, 5, 3], 1), ([7], 0), ([1, 2], 2)])
def test_tokens_before_the_first_difference(other: list[int], count: int) -> None:
    assert first_difference(np.int64([1, 2, 3]), np.int64(other)) == count


def decoder() -> tuple[Graph, Samples]:
    path = FOLDER / "tiny_decoder.onnx"
    kinds = {1: "float32", 7: "int64"}
    shapes = {v.name: v.type.tensor_type for v in onnx.load(path).graph.input}
    ports = [
        TensorInfo(name, tuple(d.dim_value or None for d in kind.shape.dim), kinds[kind.elem_type])
        for name, kind in shapes.items()
    ]
    data = TextDataset(path=str(FOLDER / "tiny_decoder.txt"), tokenizer=ascii_tokens, cut=64, samples={"evaluate": 6})
    samples = data.splits(ports, None, 0).evaluate
    batch = next(iter(samples.batches(1)))
    return load_graph(path, lambda raw: dict(batch.inputs), isolate=False), samples


@pytest.mark.program
def test_the_embedded_decoder_next_to_one_of_coarse_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, samples = decoder()
    assert token_input(graph, "logits") == "input_ids" and token_input(graph, "present.0.key") is None
    assert parts_of(graph, "present.0.key") == (), "an empty cache in front is no part"
    coarse = onnx.load(FOLDER / "tiny_decoder.onnx")
    for tensor in coarse.graph.initializer:
        array = numpy_helper.to_array(tensor)
        if array.ndim == 2:
            step = np.abs(array).max() / 3
            tensor.CopyFrom(numpy_helper.from_array((np.rint(array / step) * step).astype(np.float32), tensor.name))
    import onnx_ir as ir

    real, rough = Session(graph.model), Session(ir.from_proto(coarse))
    (batch,) = samples.batches(6)
    logits = [session.run(batch.inputs, ["logits"])["logits"] for session in (real, rough)]

    def compared(session: Session, scores: Any) -> Any:
        own = continued(graph, samples, real, output="logits")
        return decoded(graph, samples, logits[0], scores, output="logits", own=own, session=session)

    same, other = compared(real, logits[0]), compared(rough, logits[1])
    assert same["agreement"] == 1 and same["difference"] == 0
    assert same["perplexity"]["float"] == same["perplexity"]["realized"] < 6
    assert [row["equal"] for row in same["continuations"]] == [CONTINUED] * PROMPTS
    monkeypatch.setattr("quantpipe.evaluate.decoded.WORK", 1)
    assert compared(real, logits[0])["continuations"] == same["continuations"][:1], "of a model of much work"
    assert same["continuations"][0]["prompt"] == "".join(map(chr, batch.inputs["input_ids"][0, :32]))
    assert len(same["continuations"][0]["float"]) == CONTINUED
    assert other["perplexity"]["realized"] > other["perplexity"]["float"] and other["agreement"] < 1
    assert min(row["equal"] for row in other["continuations"]) < CONTINUED
