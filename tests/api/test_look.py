"""`quantpipe.check` and `quantpipe.lint`: the answers of the commands, from models in memory."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra

import quantpipe
from quantpipe.errors import ConfigError
from tests.api.nets import QUICK, images, small_net
from tests.ops.line import CONF, Net, hardware


def test_check_says_what_a_device_refuses() -> None:
    net = Net()
    net.output(net.node("Softmax", net.dense(net.input(None, 6), 6, 4), axis=1))
    fit = quantpipe.check(net.proto(), "vta")
    assert [refused.op for refused in fit.refused] == ["Softmax"]
    assert (fit.verdict, fit.exit_code) == ("falls_back", 3)
    assert "Softmax" in str(fit)
    assert quantpipe.check(small_net()).exit_code == 0
    kept = quantpipe.check(small_net(), annotate={"float_ops": ["Conv"]})
    assert {"Conv", "Add"} <= {refused.op for refused in kept.refused}


def test_shapes_of_free_inputs() -> None:
    net = Net()
    net.output(net.node("Relu", net.conv(net.input(None, 3, None, None), 3, 4, 3, 3)))
    fit = quantpipe.check(net.proto(), shapes={"x": [1, 3, 9, 9]})
    assert fit.integer_nodes > 0
    with pytest.raises(ConfigError, match=r"check\.shapes"):
        quantpipe.check(net.proto(), shapes={"y": [1, 3, 9, 9]})


@pytest.mark.program
def test_lint_of_what_quantize_wrote() -> None:
    result = quantpipe.quantize(small_net(), images(), evaluate=QUICK)
    same, other = quantpipe.lint(result.model), quantpipe.lint(result.model_path, "vta")
    assert (same.exit_code, same.refused) == (0, ())
    assert same.quantized_ops > 3
    assert other.exit_code == 3
    assert "findings that the device would reject" in str(other)


def test_a_hydra_program_keeps_what_is_its_own(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("depth: 3\n")
    with initialize_config_dir(str(tmp_path), version_base="1.3"):
        loader = GlobalHydra.instance().config_loader()
        assert quantpipe.check(small_net(), "vta").nodes > 3
        assert GlobalHydra.instance().config_loader() is loader
        assert compose("mine").depth == 3


@pytest.mark.program
def test_every_form_of_hardware(tmp_path: Path) -> None:
    content = yaml.safe_load((CONF / "hardware" / "vta.yaml").read_text())
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(content))
    answers = [quantpipe.check(small_net(), form) for form in ("vta", path, str(path), content, hardware("vta"))]
    assert all(answer.as_dict() | {"model": ""} == answers[0].as_dict() | {"model": ""} for answer in answers)
    renamed = quantpipe.check(small_net(), {"option": "vta", "name": "mine"})
    assert renamed.hardware == "mine"
    path.write_text("defaults: [vta]\nname: mine\n")
    with pytest.raises(ConfigError, match="defaults list"):
        quantpipe.check(small_net(), path)
    path.write_text("name: [")
    with pytest.raises(ConfigError, match="cannot be read"):
        quantpipe.check(small_net(), path)
