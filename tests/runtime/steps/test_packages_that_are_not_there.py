"""Backends with an optional package: without it the error names the command to install it."""

import sys

import pytest
from runtime.support.steps import step_config

from ge_runtime.errors import ArtifactFault
from ge_runtime.steps.openvino_step import OpenVinoStep
from ge_runtime.steps.torch_step import TorchStep


@pytest.mark.parametrize(
    ("step", "file", "extra", "module"),
    [
        (OpenVinoStep, "model.xml", "openvino", "openvino"),
        (TorchStep, "model.pt", "torch", "torch"),
    ],
)
def test_the_error_names_the_command_that_installs_it(
    tmp_path, monkeypatch, step, file, extra, module
):
    (tmp_path / file).touch()
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ArtifactFault) as raised:
        step.open(step_config(), tmp_path)
    assert str(raised.value).endswith(f"needs: `pip install 'ge-runtime[{extra}]'`")
