"""Which backend is meant where none is named."""

import pytest
from server.support.configs import proto

from reference_server.config.check import check_polled
from reference_server.config.complete import complete
from reference_server.core.errors import ServerError


def completed_folder(tmp_path, name, *files, text=""):
    folder = tmp_path / name
    for file in files:
        (folder / "1").mkdir(parents=True, exist_ok=True)
        (folder / "1" / file).touch()
    folder.mkdir(exist_ok=True)
    config = proto(text)
    complete(config, folder)
    return config.backend, config.default_model_filename


@pytest.mark.parametrize(
    ("files", "backend"),
    [
        (["model.py"], "python"),
        (["model.onnx"], "onnxruntime"),
        (["model.onnx", "model.py"], "onnxruntime"),
        (["model.plan"], "tensorrt"),
        (["model.pt"], "pytorch"),
        (["model.savedmodel"], "tensorflow"),
        (["model.xml", "model.bin"], "openvino"),
        (["other.py"], ""),
        ([], ""),
    ],
)
def test_files_tell_the_backend(tmp_path, files, backend):
    assert completed_folder(tmp_path, "m", *files)[0] == backend


def test_else_the_folders_name_does(tmp_path):
    assert completed_folder(tmp_path, "digits.ge") == ("ge", "model.ge")


def test_files_count_more_than_the_folders_name(tmp_path):
    assert completed_folder(tmp_path, "digits.ge", "model.py") == ("python", "model.py")


def test_what_is_named_stays(tmp_path):
    text = 'backend: "ge"'
    assert completed_folder(tmp_path, "m", "model.py", text=text) == ("ge", "")


def test_a_platform_must_be_known():
    with pytest.raises(ServerError, match="unexpected platform type 'python' for m"):
        check_polled(proto('name: "m" platform: "python"'))


def test_a_platform_beside_a_backend_says_nothing():
    check_polled(proto('name: "m" platform: "whatever" backend: "python"'))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('backend: "python"', "Ensemble model 'm' must have platform type 'ensemble' and empty"),
        ("", "ensemble scheduling must be set for ensemble m whose platform is ensemble"),
        (
            "ensemble_scheduling { } optimization { }",
            "optimization should not be specified for ensemble 'm'",
        ),
        (
            "ensemble_scheduling { } instance_group { }",
            "instance group should not be specified for ensemble 'm'",
        ),
    ],
)
def test_what_an_ensemble_does_not_have(text, said):
    with pytest.raises(ServerError, match=said):
        check_polled(proto(f'name: "m" platform: "ensemble" {text}'))
