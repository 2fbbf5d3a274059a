"""genai_config.json: made of a decoder's graph or carried on, and run by onnxruntime-genai where it is installed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import quantpipe
from quantpipe.errors import ArtifactError, ModelError
from quantpipe.graph.length_limits import LengthLimit
from quantpipe.realize.genai import CONFIG, genai_config, read_config
from tests.decoders import nets
from tests.decoders.lines import decoder
from tests.decoders.stepping import Plain, run, texts

OPTIONS = {"session.x64quantprecision": "1"}


def made(style: str, folder: Path, **other: Any) -> dict[str, Any]:
    found = genai_config(decoder(getattr(nets, style)(), folder), "model.onnx", {}, given=None, **other)
    assert found is not None
    return dict(json.loads(found))


@pytest.mark.parametrize("style", ["standard", "runtime"])
def test_the_sizes_are_those_of_the_graph(style: str, tmp_path: Path) -> None:
    model = made(style, tmp_path)["model"]
    sizes = {"head_size": 16, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}
    sizes |= {"num_hidden_layers": 2, "filename": "model.onnx"}
    assert {key: model["decoder"][key] for key in sizes} == sizes
    assert model["vocab_size"] == nets.WORDS and model["context_length"] == nets.PLACES
    assert model["decoder"]["inputs"]["past_value_names"] == "past_key_values.%d.value"
    assert ("attention_mask" in model["decoder"]["inputs"]) is (style == "runtime")
    assert model["decoder"]["outputs"]["present_key_names"] == "present.%d.key"


def test_the_length_is_that_of_sums_where_it_is_shorter(tmp_path: Path) -> None:
    found = made("standard", tmp_path, limits=[LengthLimit((("input_ids", 1),), 100)])
    assert found["model"]["context_length"] == 100 and found["search"]["past_present_share_buffer"] is False


def test_a_users_configuration_is_carried_on(tmp_path: Path) -> None:
    decoder_part = {"filename": "m.onnx", "session_options": {"log_id": "x"}, "head_size": 16}
    given = {"model": {"eos_token_id": 7, "decoder": decoder_part}, "search": {"past_present_share_buffer": True}}
    (tmp_path / CONFIG).write_text(json.dumps(given))
    assert read_config(tmp_path / "other.onnx") is None and read_config(tmp_path / "m.onnx") == given
    graph = decoder(nets.standard(), tmp_path)
    found = json.loads(genai_config(graph, "model.onnx", OPTIONS, given=given) or b"")
    assert found["model"]["decoder"]["session_options"] == {"log_id": "x", **OPTIONS}
    assert found["model"]["decoder"]["filename"] == "model.onnx" and found["model"]["eos_token_id"] == 7
    assert found["search"]["past_present_share_buffer"] is False
    assert given["model"]["decoder"]["filename"] == "m.onnx"


@pytest.mark.parametrize("text", ["{", "[]", '{"model": 3}', "{}"])
def test_a_file_that_is_no_configuration_is_bad_input(text: str, tmp_path: Path) -> None:
    (tmp_path / CONFIG).write_text(text)
    with pytest.raises(ModelError, match=r"genai_config\.json: it is no configuration.*legal is") as caught:
        read_config(tmp_path / "m.onnx")
    assert "\n" not in str(caught.value) and caught.value.exit_code == 2


def test_other_names_have_no_configuration(tmp_path: Path) -> None:
    graph = decoder(nets.standard(), tmp_path)
    renamed = [port for port in graph.inputs if port.name != "input_ids"]
    object.__setattr__(graph, "inputs", tuple(renamed))
    assert genai_config(graph, "model.onnx", {}, given=None) is None


@pytest.mark.program
@pytest.mark.parametrize("name", ["npu_w8a16", "ort_cpu"])
def test_genai_writes_the_tokens_of_plain_onnxruntime(name: str, tmp_path: Path) -> None:
    """A changed number of layers, a name or a shared buffer ends the run of genai."""
    result = run(nets.standard(), name, tmp_path)
    folder = result.folder / "realize"
    assert CONFIG in (folder / "SHIP.md").read_text(encoding="utf-8")
    assert CONFIG in result.report["deployment"]["files"] and result.report["caches"]
    genai = pytest.importorskip("onnxruntime_genai")
    model = genai.Model(str(folder))
    settings = genai.GeneratorParams(model)
    settings.set_search_options(max_length=20)
    generator = genai.Generator(model, settings)
    prompt = nets.text(1, 4)[0].tolist()
    generator.append_tokens(prompt)
    while not generator.is_done():
        generator.generate_next_token()
    assert generator.get_sequence(0).tolist() == continued(onnx.load(folder / "model.onnx"), prompt, 16)


def continued(model: onnx.ModelProto, prompt: list[int], count: int) -> list[int]:
    plain, tokens = Plain(model), list(prompt)
    logits, cache = plain.run(np.array([tokens]))
    for _ in range(count):
        tokens.append(int(logits[0, -1].argmax()))
        logits, cache = plain.run(np.array([tokens[-1:]]), cache)
    return tokens


@pytest.mark.program
def test_a_folder_has_one_configuration(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(nets.standard(), path)
    options: dict[str, Any] = {
        "evaluate": {"latency_runs": 1, "baseline": "none"},
        "effort": "quick",
        "recover": "none",
    }

    def folder(eos: int) -> Path:
        given = {"model": {"eos_token_id": eos, "decoder": {"filename": "m.onnx"}}}
        (tmp_path / CONFIG).write_text(json.dumps(given))
        return quantpipe.quantize(path, texts(tmp_path), "npu_w8a16", folder=tmp_path / "run", **options).folder

    written = json.loads((folder(3) / "realize" / CONFIG).read_text(encoding="utf-8"))
    assert written["model"]["eos_token_id"] == 3 and written["model"]["decoder"]["filename"] == "model.onnx"
    with pytest.raises(ArtifactError, match="genai_config is "):
        folder(4)
