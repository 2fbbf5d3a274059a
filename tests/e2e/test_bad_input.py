"""Whatever is wrong with what the user gave: exit code 2, one paragraph that says what and what to do, no traceback."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from quantpipe.data.sources.digits import digits_arrays
from tests.e2e.models import DIGITS, SCALED, npz, with_op
from tests.e2e.program import ROOT, Program


def test_model_files(program: Program) -> None:
    """One program, many broken files: each is named, with what is wrong with it."""
    good = DIGITS.read_bytes()
    files = {"text.onnx": b"this is no model\n" * 20, "half.onnx": good[: len(good) // 2]}
    for name, data in files.items():
        (program.cwd / name).write_bytes(data)
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(program.cwd / "picture.png")
    for name in (*files, "picture.png"):
        paragraph = program.run(f"model.path={name}").paragraph
        assert str(program.cwd / name) in paragraph
    assert "there is no such file" in program.run("model.path=missing.onnx").paragraph
    assert "model.path" in program.run("model.path=").paragraph


def test_an_op_that_nothing_can_run(program: Program) -> None:
    paragraph = program.run(with_op(program.cwd / "m.onnx", "my.domain", "Foo")).paragraph
    assert "the op Foo of the domain 'my.domain'" in paragraph
    assert "m.onnx" in paragraph


IMAGES, LABELS = (array[:400] for array in digits_arrays())
FLOATS = IMAGES.transpose(0, 3, 1, 2).astype(np.float32)
HOLED = FLOATS.copy()
HOLED[7, 0, 3, 3] = np.nan


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"images": np.zeros((400, 9, 9, 1), np.uint8)}, "takes [N, 1, 8, 8] float32, but a sample is [N, 1, 9, 9]"),
        ({"images": IMAGES.reshape(400, 64)}, "takes [N, 1, 8, 8] float32, but a sample is [N, 64]"),
        ({"images": np.array(["seven"] * 400)}, "legal are numbers"),
        ({"labels": LABELS + 1}, "legal are 0 to 9"),
        ({"labels": LABELS[:-1]}, "400 images but 399 labels"),
        ({"images": IMAGES[:0], "labels": LABELS[:0]}, "holds no samples"),
        ({"images": IMAGES[:1], "labels": LABELS[:1]}, "leaves none to"),
        ({"images": HOLED}, "sample 7 of"),
        ({"images": None, "labels": LABELS}, "dataset.keys.images"),
    ],
)
def test_data(program: Program, arrays: dict[str, object], said: str) -> None:
    paragraph = program.run(*SCALED, npz(program.cwd / "d.npz", **arrays)).paragraph
    assert said in paragraph
    assert "d.npz" in paragraph


def test_data_files(program: Program) -> None:
    (program.cwd / "text.npz").write_text("x")
    assert "text.npz" in program.run(*SCALED, "dataset.path=text.npz").paragraph
    assert "no such file" in program.run(*SCALED, "dataset.path=none.npz").paragraph
    assert "dataset.path" in program.run(*SCALED).paragraph


HARDWARE = ", ".join(sorted(p.stem for p in (ROOT / "conf" / "hardware").glob("*.yaml")))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["hardware=nope"], f"legal are {HARDWARE}"),
        (["experiments=nope"], "experiments: has no option 'nope'; legal are "),
        (["experiment=vta_digit"], "(did you mean 'vta_digits'"),
        (["experimen=vta_digits"], "did you mean 'experiment' or 'experiments'"),
        (
            ["model.path=${oc.env:NO_SUCH}"],
            "model.path: refers to NO_SUCH, and the environment has no variable of that",
        ),
        (["seed=${no.where}"], "seed: refers to ${no.where}, and there is no such key"),
        (["verbosity=loud"], "verbosity: is 'loud'; legal are quiet, normal, verbose"),
        (
            ["seed=1,2", "-m", "hydra/sweeper=optuna"],
            "hydra/sweeper: optuna is of a package that needs an older optuna",
        ),
        (["nope=1"], "at the top there are annotate, calibrate, check, choices"),
        (["search.max_evals=3"], "search.max_evals: is no key (did you mean 'search.max_evaluations'"),
        (
            ["dataset=npz", "dataset.pth=a"],
            "did you mean 'dataset.path'",
        ),
        (["search=gredy"], "search: has no option 'gredy' (did you mean 'greedy'"),
        (
            ["+objective.zzz=1"],
            "objective.zzz: is no option; legal are metric, target, outputs, all_outputs, form",
        ),
        (["recover=default", "recover.steps={name:rotate}"], "legal is a list, such as ['rotate', 'smooth', 'gptq"),
        (["recover.steps={name:rotate}"], "recover.steps: is {name:rotate}; legal is a list"),
        (["hardware.weights=[1]"], "hardware.weights: is [1]; legal is a mapping of symmetric, granularity"),
        (["threshold=[1]"], "threshold: is '[1]'; legal is the name of an option, such as"),
        (["-m", "threshold=mse,3"], "threshold: is 'mse,3'; legal is the name of an option, such as"),
        (["hardware=null"], "hardware: is 'null'; legal is the name of an option, such as academic, ascend_acl"),
        (["hardware="], "hardware: is ''; legal is the name of an option"),
        (["experiments={a:1}"], "experiments: is '{a:1}'; legal is the name of an option"),
        (["foo"], "Error parsing override 'foo'"),
        (["seed=-1"], "seed: is -1"),
        (["stages=[x]"], "legal are annotate, calibrate, search, realize, evaluate"),
        (["command=x"], "command: is 'x'; legal are run, replay"),
        (["command=replay"], "command=replay needs strategy=FILE"),
        (["verify=x"], "verify: is 'x'; legal are fail, warn"),
        (["strict=maybe"], "strict: is 'maybe'; legal is true or false"),
        (["calibrate.memory_mb=1"], "calibrate.memory_mb: is 1; at least 16 MiB"),
        (["annotate.min_bits=1"], "between 2 and 16"),
        (["annotate.float_nodes=[stem.cnv]"], "did you mean 'stem.conv'"),
        (["choices.freeze=true"], "choices.freeze"),
        (["annotate.float_ops=[Foo]"], "no node is a 'Foo'"),
        (["search.max_evaluations=0"], "search.max_evaluations: is 0; legal is an integer of at least 1"),
        (["objective.metric=x"], "legal are auto, accuracy, kl, mse"),
        (["threshold.weights.method=x"], "threshold.weights.method: is 'x'; legal are max_range, mse"),
        (["realize.backend=x"], "realize.backend: is 'x'; legal are qdq, matmul_nbits, qoperator, integer"),
        (["hardware=vta", "realize=qdq"], "legal is integer"),
        (["dataset.samples.calibrate=0"], "dataset.samples.calibrate"),
        (["dataset._target_=subprocess.run"], "dataset._target_: the target 'subprocess.run' is not allowed"),
        (["search.algorithm._target_=os.system"], "legal are classes of quantpipe"),
        (["search.algorithm._target_=quantpipe.search.Nope"], "search.algorithm"),
        (["tracking=mlflow", "tracking.uri=sqlite:////proc/no/m.db"], "tracking.uri"),
    ],
)
def test_configuration(program: Program, arguments: list[str], said: str) -> None:
    assert said in program.run(*arguments).paragraph


def test_nothing_is_written_for_a_wrong_configuration(program: Program) -> None:
    program.run("seed=-1")
    left = [p for p in Path(program.cwd / "run").rglob("*") if p.is_file() and ".hydra" not in p.parts]
    assert [p.name for p in left if p.suffix != ".log"] == []


@pytest.mark.smoke
def test_an_unknown_key_at_the_top_is_refused(program: Program) -> None:
    assert "sed: is no key (did you mean 'seed'" in program.run("+sed=1").paragraph


def test_a_missed_target_is_an_error_where_strict(program: Program) -> None:
    """Everything is written all the same."""
    done = program.run("hardware=vta", "threshold=max_range", "objective.tolerance=1e-6", "strict=true")
    assert done.code == 3
    assert "objective.tolerance" in done.err
    assert done.report["agreement"]["differing"] == 0


def test_a_mistake_in_a_hardware_file_of_ones_own(program: Program) -> None:
    """On the command line and in the file: the message knows the file's own keys."""
    own = program.cwd / "myconf" / "hardware" / "mine.yaml"
    own.parent.mkdir(parents=True)
    own.write_text((ROOT / "conf" / "hardware" / "vta.yaml").read_text() + "pad: {value: zero, max: 15}\n")
    flags = ("--config-dir", str(own.parents[1]))
    paragraph = program.bare(*flags, "hardware=mine", "hardware.pad.maximum=3").paragraph
    assert "hardware.pad.maximum: is no key (did you mean 'hardware.pad.max'" in paragraph
    own.write_text(own.read_text().replace("max: 15}\n", "maximum: 15}\n"))
    paragraph = program.bare(f"--config-dir={own.parents[1]}", "hardware=mine", "command=check").paragraph
    assert "pad.maximum is not a field (did you mean 'max'?); legal are value, max" in paragraph


def test_a_hardware_file_that_hydra_cannot_read(program: Program) -> None:
    """Syntax, headers and defaults lists: one paragraph instead of the parser's traceback, and no hanging."""
    own = program.cwd / "myconf" / "hardware" / "mine.yaml"
    own.parent.mkdir(parents=True)
    good = (ROOT / "conf" / "hardware" / "vta.yaml").read_text()
    aliases = "".join(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]\n" for i in range(1, 60))
    for text, said in (
        (good + "pad:\n\tvalue: zero\n", f"{own}: line "),
        (f"{good}a0: &a0 [1]\n{aliases}", "aliases counted"),
        ("# @package _global_\n" + good, "its header puts it into the package '_global_'"),
        ("# @package\n" + good, "Expected header format"),
        ("defaults: 5\n" + good, "its defaults are 5; legal is a list of options"),
        ("defaults: [mine]\n" + good, "it has a defaults list, which hardware files do not take"),
    ):
        own.write_text(text)
        assert said in program.bare("--config-dir", str(own.parents[1]), "hardware=mine", "command=check").paragraph


def test_what_stands_where_a_section_should(program: Program) -> None:
    """Keys taken away and words in the place of sections, here the few that differ; `check_shape` knows them all."""
    for override, said in (
        ("threshold.weights=0", "threshold.weights: is 0; legal is a mapping with method"),
        ("evaluate=x", "evaluate: is 'x'; legal is a mapping"),
        ("calibrate=false", "calibrate: is False; legal is a mapping"),
        ("~tracking", "tracking: is missing from the configuration"),
        ("~search", "search.algorithm: is missing from the configuration"),
        ("~objective.form", "objective.form: is missing"),
        ("dataset.samples=3", "dataset.samples: is 3; legal is a mapping of options"),
        ("hydra=3", "the configuration cannot be composed"),
    ):
        assert said in program.bare(override).paragraph
    assert "dataset.evaluate: is False" in program.run("dataset=npz", "dataset.evaluate=false").paragraph


def test_a_run_folder_that_rich_would_read_as_markup(program: Program) -> None:
    """The path is printed as it is, and nothing fails behind the run."""
    for name in ("[x]", "a[/b]", ":smile:", "[bold]"):
        done = program.bare("tracking=none", "stages=[annotate]", f"hydra.run.dir='{program.cwd / name}'")
        assert done.code == 0, done.err
        assert f"files   {program.cwd / name}" in done.out.splitlines()
        assert f"run folder {program.cwd / name}" in done.err.splitlines()


def test_paths_that_are_no_text(program: Program) -> None:
    odd = os.fsdecode(b"od\xffd")
    (program.cwd / odd).mkdir()
    for arguments in ([f"model.path={odd}/m.onnx"], [f"hydra.run.dir={odd}"]):
        done = program.bare("tracking=none", *arguments)
        assert "is no UTF-8 text" in done.paragraph
    pictures = program.cwd / "pictures" / odd
    pictures.mkdir(parents=True)
    for number in range(8):
        name = pictures / os.fsdecode(b"\xfe%d.png" % number)
        Image.fromarray(np.zeros((8, 8), np.uint8)).save(name)
    (pictures / os.fsdecode(b"\xfe9.png")).write_bytes(b"no picture")
    data = ("dataset=image_folder", "dataset.preprocess.scale=1/16", "dataset.path=pictures")
    assert program.run(*data).code in (0, 2)
    assert "Traceback" not in program.run(*data, "dataset.on_error=skip", folder="second").err
