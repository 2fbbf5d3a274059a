"""Mistyped names are answered before anything heavy is imported, in the words of the whole program."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from quantpipe.app.early_names import CHECKED, FLAGS, INTEGERS, NUMBERS, WORDS, wrong_name
from quantpipe.app.start import missing_file
from quantpipe.errors import ConfigError, ModelError
from quantpipe.foreign_formats import FORMATS, foreign_format
from quantpipe.intake.read_model import read_model
from tests.app.configured import settings_of

ROOT = Path(__file__).resolve().parents[2]
HEAVY = ("numpy", "onnx", "onnxruntime", "scipy", "mlflow", "rich", "jinja2", "quantpipe.pipeline")

WRONG = {
    ("hardware=vtb",): "hardware: has no option 'vtb' (did you mean 'vta'?)",
    ("search.max_evaluation=3",): "search.max_evaluation: is no key (did you mean 'search.max_evaluations'",
    ("hardwre=vta",): "hardwre: is no key (did you mean 'hardware'",
    ("command=chek",): "command: is 'chek' (did you mean 'check'?)",
    ("-m", "hardware=vta,vtb"): "hardware: has no option 'vtb'",
    ("experiment=vta_digit",): "experiments: has no option 'vta_digit' (did you mean 'vta_digits'",
    ("search=1",): "search: is '1'; legal is the name of an option",
    ("search.max_evaluations=[3",): "no viable alternative",
    ("search.max_evaluations=many",): "search.max_evaluations: is 'many'; legal is an integer of at least 1, or null",
    ("evaluate.warn_sqnr_db=abc",): "evaluate.warn_sqnr_db: is 'abc'; legal is a number, or null",
    ("verify=wran",): "verify: is 'wran' (did you mean 'warn'?)",
    ("strict=yess",): "strict: is 'yess'; legal is true or false",
}
RIGHT = (
    ("hardware=vta", "search=greedy"),
    ("-m", "hardware=ort_cpu,vta", "search=greedy,random"),
    ("experiment=vta_digits",),
    ("hardware.weights.bits=4",),
    ("realize=[qdq,c]",),
    ("~tracking",),
    ("--config-dir", "elsewhere", "hardware=mine"),
    ("model.path=a.onnx", "dataset=npz", "dataset.path=b.npz", "dataset.preprocess.mean=[1,2,3]"),
    ("+model.fixed.rate=16000",),
    ("tracking.uri=http://user:secret@host",),
)


@pytest.mark.sliced(5)
@pytest.mark.parametrize("arguments", list(WRONG))
def test_a_mistyped_name_is_answered(arguments: tuple[str, ...]) -> None:
    found = wrong_name(arguments)
    assert found is not None and found.startswith(WRONG[arguments])


@pytest.mark.sliced(8)
@pytest.mark.parametrize("arguments", RIGHT)
def test_right_and_doubtful_names_go_on(arguments: tuple[str, ...]) -> None:
    assert wrong_name(arguments) is None


@pytest.mark.sliced(5)
@pytest.mark.parametrize("key", CHECKED)
def test_the_same_values_are_rejected_early_as_by_the_whole_program(key: str) -> None:
    """A wrong word, numbers out of bounds, null, and legal values; the early answer may name more of what is legal."""
    search = ("search=greedy",) if key.startswith("search.") else ()
    for value in ("wrnog", "-1", "0", "1.5", "null", "true", *WORDS.get(key, ())):
        given = (*search, f"{key}={value}")
        try:
            settings_of(*given)
            late = None
        except ConfigError as error:
            late = str(error)
        if key in WORDS and value in ("-1", "0", "1.5", "null", "true"):
            late = None  # what is no word is left to the program
        early = wrong_name(given)
        assert (early is None) is (late is None), value
        if early is not None and late is not None:
            assert early.partition(";")[0] == late.partition(";")[0] and early.startswith(f"{key}: is ")
    assert wrong_name((*search, f"{key}=wrnog")) is not None


def test_every_key_of_the_selection_is_of_one_kind() -> None:
    assert len({*WORDS} | {*FLAGS} | {*INTEGERS} | {*NUMBERS}) == len(CHECKED)


def started(*arguments: str, heavy: Sequence[str] = HEAVY) -> tuple[int, str, list[str]]:
    """Exit code, output and which of the modules `heavy` were imported."""
    code = (
        "import sys, json, atexit\n"
        f"atexit.register(lambda: sys.stdout.write('\\n' + json.dumps([m for m in {heavy} if m in sys.modules])))\n"
        f"sys.argv = ['run.py', *{list(arguments)}]\n"
        "from quantpipe.app.start import main\nmain()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    out, _, modules = done.stdout.rpartition("\n")
    return done.returncode, out + done.stderr, json.loads(modules)


@pytest.mark.parametrize(
    "arguments", [("hardware=vtb",), ("search.max_evaluation=3",), ("command=chek",), ("seed=1.5",)]
)
def test_nothing_heavy_is_imported_for_a_typo(arguments: tuple[str, ...]) -> None:
    """A second is the aim; what is imported does not depend on how busy the machine is."""
    code, text, heavy = started(*arguments)
    assert code == 2 and text.count("error: ") == 1 and heavy == []


UNUSED = (
    "mlflow",
    "scipy.cluster",
    "quantpipe.pipeline.conform",
    "quantpipe.explain.explain",
    "quantpipe.verify.check",
)
"""What a run up to its first stage has no use for: libraries, and the commands that look and do not run."""


@pytest.mark.program
def test_a_run_imports_no_other_command(tmp_path: Path) -> None:
    arguments = ("tracking=none", "stages=[annotate]", f"hydra.run.dir={tmp_path / 'run'}")
    code, text, unused = started(*arguments, heavy=UNUSED)
    assert code == 0 and "annotate" in text and unused == []


def test_version_is_that_of_quantpipe() -> None:
    code, text, heavy = started("--version")
    assert code == 0 and text.startswith("quantpipe ") and heavy == []


@pytest.mark.parametrize("suffix", list(FORMATS))
def test_a_model_of_another_format_is_named_with_the_command_that_exports_it(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"m{suffix}"
    path.write_bytes(b"some bytes")
    what, _ = FORMATS[suffix]
    said = missing_file([f"model.path={path}"], tmp_path)
    assert said is not None and f"this is {what}, not an ONNX model" in said and "export it first: " in said
    with pytest.raises(ModelError, match="not an ONNX model"):
        read_model(path)


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"\x89HDF\r\n\x1a\n", "a Keras model"),
        (b"PK\x03\x04archive/data.pkl", "a PyTorch file"),
        (b"PK\x03\x04other", "a zip archive"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git lfs pull"),
        (b"\n<!DOCTYPE html><html>", "a web page"),
        (b"", "empty"),
        (b"a letter to a friend", "not a readable ONNX model (its byte 9 begins no field of a protobuf)"),
        (b"\x08\x08\x3a\x64abc", "the file ends 97 bytes early: its graph has 100 bytes"),
        (b"\x08\x08\x3a", "the file ends inside of a field"),
    ],
)
def test_the_content_decides_where_the_suffix_does_not(content: bytes, what: str, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(content)
    assert what in str(foreign_format(path))


def test_a_cut_model_is_named_wherever_it_is_cut(tmp_path: Path) -> None:
    """Nothing is loaded for it; whole models, and text that onnx.load reads by its suffix, are left to the reader."""
    whole = (ROOT / "quantpipe" / "assets" / "digits.onnx").read_bytes()
    path = tmp_path / "m.onnx"
    path.write_bytes(whole)
    assert foreign_format(path) is None
    for share in (0.1, 0.5, 0.9, 0.999):
        path.write_bytes(whole[: int(share * len(whole))])
        assert "the file ends" in str(missing_file([f"model.path={path}"], tmp_path))
    (tmp_path / "m.onnxtxt").write_text("<ir_version: 8>")
    assert foreign_format(tmp_path / "m.onnxtxt") is None


def test_a_tflite_file_is_read_under_any_suffix(tmp_path: Path) -> None:
    path = tmp_path / "m.h5"
    path.write_bytes(b"\x1c\0\0\0TFL3abcd")
    assert foreign_format(path) is None and missing_file([f"model.path={path}"], tmp_path) is None
    path.write_bytes(b"\x1c\0\0\0TFX3abcd")
    assert "a Keras model" in str(foreign_format(path))


def test_folders_are_named_as_what_they_are(tmp_path: Path) -> None:
    assert foreign_format(tmp_path) == "this is a folder; give the .onnx file"
    (tmp_path / "net.onnx").write_bytes(b"")
    assert "it has net.onnx" in str(foreign_format(tmp_path))
    (tmp_path / "config.json").write_text("{}")
    assert "Hugging Face" in str(foreign_format(tmp_path))
    (tmp_path / "saved_model.pb").write_bytes(b"")
    assert "SavedModel" in str(foreign_format(tmp_path))
    assert "empty" in str(foreign_format(tmp_path / "net.onnx"))
