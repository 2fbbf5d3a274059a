"""The whole line on data that are no images: one line of configuration for each kind."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

from tests.e2e.data_models import mlp, recurrent, sound_classifier, sound_to_sound, text_classifier, two_towers
from tests.e2e.program import Program, Result, read

FUNCTIONS = """
import numpy as np

WORDS = {}


def tokens(text):
    ids = [1 + sum(map(ord, word)) % 28 for word in text.split()]
    return {"input_ids": ids, "attention_mask": [1] * len(ids)}


def rows(seed):
    rng = np.random.default_rng(seed)
    for _ in range(120):
        yield rng.standard_normal(6).astype(np.float32), int(rng.integers(3))


def towers(split):
    rng = np.random.default_rng(["calibrate", "search", "evaluate"].index(split))
    while True:
        yield {"a": rng.standard_normal(2), "b": rng.standard_normal(3)}


class Broken:
    def __len__(self):
        return 40

    def __getitem__(self, index):
        if index % 10 == 3:
            raise OSError(f"no file {index}")
        return np.full(6, index / 40, np.float32)


def broken():
    return Broken()


def loudness(wave, sample_rate):
    return wave.reshape(1, -1) * 0.5
"""


@pytest.fixture
def functions(program: Program) -> str:
    (program.cwd / "mydata.py").write_text(FUNCTIONS)
    return "plugins=[mydata]"


def agreed(result: Result) -> Result:
    assert result.code == 0, result.err
    assert result.report["agreement"]["differing"] == 0
    assert result.report["agreement"]["elements"] > 0
    return result


def table(path: Path, header: str, rows: np.ndarray) -> str:
    path.write_text("\n".join([header, *(",".join(f"{v:g}" for v in row) for row in rows)]) + "\n")
    return f"dataset.path={path}"


def test_a_table(program: Program) -> None:
    rng = np.random.default_rng(0)
    rows = np.column_stack([np.arange(200), rng.standard_normal((200, 6)), rng.integers(0, 3, 200)])
    data = table(program.cwd / "d.csv", "id,a,b,c,d,e,f,kind", rows)
    columns = ("dataset=table", data, "dataset.features=[a,b,c,d,e,f]", "dataset.label=kind")
    result = agreed(program.run(mlp(program.cwd / "m.onnx"), *columns))
    session = ort.InferenceSession(str(program.cwd / "m.onnx"), providers=["CPUExecutionProvider"])
    record = read(result.folder / "data.json")
    chosen = [i for first, last in record["evaluate"]["indices"] for i in range(first, last + 1)]
    logits = session.run(
        None, {"x": np.loadtxt(program.cwd / "d.csv", delimiter=",", skiprows=1)[chosen, 1:7].astype("f4")}
    )[0]
    assert len(chosen) == record["evaluate"]["samples"] == 100
    assert result.report["metrics"]["float"]["top1"] == np.mean(logits.argmax(axis=1) == rows[chosen, 7])
    assert result.report["data"]["evaluate"]["digest"] == record["evaluate"]["digest"]


def test_columns_for_several_inputs(program: Program) -> None:
    model = two_towers(program.cwd / "m.onnx")
    data = table(program.cwd / "d.csv", "p,q,r,s,t", np.random.default_rng(0).standard_normal((80, 5)))
    agreed(program.run(model, "dataset=table", data, "dataset.inputs={a: [p,q], b: [r,s,t]}"))
    paragraph = program.run(model, "dataset=table", data, "dataset.inputs={a: [p,q]}", folder="two").paragraph
    assert "no data for model input 'b' ([N, 3] float32)" in paragraph


def test_arrays_for_several_inputs(program: Program) -> None:
    rng = np.random.default_rng(0)
    np.savez(program.cwd / "d.npz", a=rng.standard_normal((80, 2)), other=rng.standard_normal((80, 3)))
    given = (two_towers(program.cwd / "m.onnx"), "dataset=npz", "dataset.path=d.npz")
    agreed(program.run(*given, "dataset.keys.inputs={b: other}"))
    assert "no data for model input 'b' ([N, 3] float32)" in program.run(*given, folder="two").paragraph


def recordings(folder: Path, lengths: list[int], rate: int = 8000) -> str:
    import soundfile

    rng = np.random.default_rng(0)
    for number, length in enumerate(lengths):
        place = folder / "abc"[number % 3]
        place.mkdir(parents=True, exist_ok=True)
        soundfile.write(place / f"{number:03}.wav", np.clip(0.3 * rng.standard_normal(length), -1, 1), rate)
    return f"dataset.path={folder}"


def test_sound_of_one_length(program: Program) -> None:
    data = recordings(program.cwd / "d", [100 + 7 * (i % 5) for i in range(48)])
    model = sound_classifier(program.cwd / "m.onnx", time=112)
    result = agreed(program.run(model, "dataset=wav_folder", data, "dataset.length=112"))
    assert result.report["metrics"]["float"]["top1"] is not None
    assert (
        "takes [N, 1, 112] float32, but a sample is [N, 1, "
        in program.run(model, "dataset=wav_folder", data, folder="b").paragraph
    )


@pytest.mark.parametrize("hardware", ["ort_cpu", pytest.param("vta", marks=pytest.mark.slow)])
def test_sound_of_any_length(program: Program, hardware: str, functions: str) -> None:
    data = recordings(program.cwd / "d", [90 + 13 * (i % 7) for i in range(48)])
    given = ("dataset=wav_folder", data, f"hardware={hardware}", functions)
    result = agreed(program.run(sound_classifier(program.cwd / "m.onnx"), *given, "dataset.feature=mydata:loudness"))
    assert result.report["metrics"]["realized"]["top1"] is not None
    reasons = {node["op"]: node["reason"] for node in result.report["float_nodes"]}
    assert "another number of elements for another sample" in reasons["GlobalAveragePool"]
    result = agreed(program.run(sound_to_sound(program.cwd / "s.onnx"), *given, "recover=default", folder="s"))
    assert 0 < result.report["metrics"]["realized"]["kl"] < 0.1
    assert result.report["metrics"]["realized"]["top1"] is None


@pytest.mark.parametrize("ending", [pytest.param("txt", marks=pytest.mark.slow), "csv"])
def test_text_with_two_inputs(program: Program, functions: str, ending: str) -> None:
    rng = np.random.default_rng(0)
    lines = [" ".join(rng.choice(list("abcdefghijklm"), rng.integers(2, 9))) for _ in range(60)]
    if ending == "csv":
        lines = ["text,label", *(f"{line},{i % 2}" for i, line in enumerate(lines))]
    (program.cwd / f"d.{ending}").write_text("\n".join(lines) + "\n")
    given = ("dataset=text", f"dataset.path=d.{ending}", "dataset.tokenizer=mydata:tokens", functions)
    model = text_classifier(program.cwd / "m.onnx")
    result = agreed(program.run(model, *given))
    assert (result.report["metrics"]["float"]["top1"] is not None) == (ending == "csv")
    padded = agreed(program.run(model, *given, "dataset.max_length=8", "dataset.pad=0", folder="padded"))
    if ending == "csv":  # the mask hides what was filled up
        assert padded.report["metrics"]["float"]["top1"] == result.report["metrics"]["float"]["top1"]


def test_a_callable(program: Program, functions: str) -> None:
    model = mlp(program.cwd / "m.onnx")
    given = (model, "dataset=callable", "dataset.target=mydata:rows")
    paragraph = program.run(*given).paragraph
    assert "'mydata:rows' is not allowed; legal are functions of quantpipe" in paragraph
    assert "plugins=[mydata]" in paragraph
    result = agreed(program.run(*given, functions))
    again = agreed(program.run(*given, functions, folder="again"))
    other = agreed(program.run(*given, functions, "seed=1", folder="other"))
    digests = [r.report["data"]["evaluate"]["digest"] for r in (result, again, other)]
    assert digests[0] == digests[1] != digests[2]
    towers = two_towers(program.cwd / "t.onnx")
    endless = agreed(
        program.run(
            towers, "dataset=callable", "dataset.target=mydata:towers", functions, "dataset.limit=50", folder="e"
        )
    )
    assert endless.report["data"]["search"]["samples"] == 50


def test_a_callable_of_an_announced_plug_in(program: Program) -> None:
    """The command as the documents give it, with a package that announces itself by an entry point."""
    package = program.cwd / "site" / "announced"
    (package / "conf").mkdir(parents=True)
    (package / "__init__.py").write_text(FUNCTIONS)
    (package / "conf" / "__init__.py").write_text("")
    info = program.cwd / "site" / "announced-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: announced\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[quantpipe.conf]\nannounced = announced.conf\n")
    program.env["PYTHONPATH"] = str(program.cwd / "site")
    model = mlp(program.cwd / "m.onnx")
    process = program.start(model, "dataset=callable", "dataset.target=announced:rows")
    _, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert read(program.cwd / "run" / "evaluate" / "report.json")["agreement"]["differing"] == 0


def test_samples_that_cannot_be_used(program: Program, functions: str) -> None:
    given = (mlp(program.cwd / "m.onnx"), "dataset=callable", "dataset.target=mydata:broken", functions)
    assert re.search(r"sample \d?3 of mydata:broken", program.run(*given).paragraph)
    result = agreed(program.run(*given, "dataset.on_error=skip", folder="skip"))
    record = read(result.folder / "data.json")
    skipped = sorted(s["index"] for part in ("calibrate", "search", "evaluate") for s in record[part]["skipped"])
    assert skipped == [3, 13, 23, 33]
    assert sum(record[part]["samples"] for part in ("calibrate", "search", "evaluate")) == 36
    assert "no file" in " ".join(result.report["warnings"])
    assert "cannot be used and are left out (dataset.on_error=skip)" in result.err


@pytest.mark.parametrize("batch", ["N", 2])
def test_skipped_samples_neither_steer_the_search_nor_judge(program: Program, functions: str, batch: Any) -> None:
    model = mlp(program.cwd / "m.onnx", batch=batch)
    data = ("dataset=callable", "dataset.target=mydata:broken", functions, "dataset.on_error=skip")
    search = (
        "hardware=int4_weights",
        "search=random",
        "objective.cost=bits",
        "search.max_evaluations=3",
        "search.weights=recovered",
    )
    result = agreed(program.run(model, *data, *search, "recover=default", "recover.steps=[propagation]"))
    record = read(result.folder / "data.json")
    roles = ("calibrate", "search", "judge", "evaluate")
    used = [i for role in roles for first, last in record[role]["indices"] for i in range(first, last + 1)]
    assert record["judge"]["samples"] > 0 and len(used) == len(set(used))
    whole = 1 if batch == "N" else batch  # what does not fill a batch is left out
    assert all(record[role]["samples"] % whole == 0 for role in roles) and 36 - len(roles) * (whole - 1) <= len(used)
    assert len(used) <= 36
    skipped = {s["index"] for role in roles for s in record[role].get("skipped", ())}
    assert skipped == {3, 13, 23, 33} and skipped.isdisjoint(used)
    assert result.report["recover"][0]["kl_after"] is not None


@pytest.mark.parametrize(
    ("batch", "stacked"),
    [("N", False), (1, True), *(pytest.param(*p, marks=pytest.mark.slow) for p in ((1, False), ("N", True)))],
)
def test_state_is_carried(program: Program, batch: int | str, stacked: bool) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((240, 4)).astype(np.float32)
    np.savez(program.cwd / "d.npz", images=x, labels=rng.integers(0, 3, 240), turn=np.repeat(np.arange(24), 10))
    model = recurrent(program.cwd / "m.onnx", batch, stacked=stacked)
    given = (model, "dataset=npz", "dataset.path=d.npz", "dataset.state={h_next: h}")
    result = agreed(program.run(*given, "dataset.keys.sequence=turn"))
    record = read(result.folder / "data.json")["evaluate"]
    assert (record["sequences"], record["samples"]) == (12, 120)
    session = ort.InferenceSession(str(program.cwd / "m.onnx"), providers=["CPUExecutionProvider"])
    right, h = 0, np.zeros((2, 1, 4) if stacked else (1, 8), np.float32)
    with np.load(program.cwd / "d.npz") as stored:
        for index in (i for first, last in record["indices"] for i in range(first, last + 1)):
            h = np.zeros_like(h) if index % 10 == 0 else h
            y, h = session.run(None, {"x": stored["images"][index : index + 1], "h": h})
            right += int(y.argmax() == stored["labels"][index])
    assert result.report["metrics"]["float"]["top1"] == pytest.approx(right / 120)
    assert 0 < result.report["free_running"]["kl"] < 0.05
    assert "its own states carried" in result.out
    assert result.report["latency"]["realized_ms"] > 0
    assert "dataset.state_reset" in program.run(*given, folder="b").paragraph
    wrong = program.run(*given[:-1], "dataset.state={h_next: g}", "dataset.state_reset=10", folder="c").paragraph
    assert "feeds 'h_next' into 'g', which is no input of the model" in wrong
