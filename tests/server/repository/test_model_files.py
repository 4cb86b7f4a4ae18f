"""The file of a model's code, and the files of initial states."""

import sys

import pytest
from server.support.configs import model_config, proto

from ge_runtime.cli.backend import MODEL
from reference_server.core.errors import Code, ServerError
from reference_server.repository.model_files import SHIPPED, locate_code, read_initial_states


@pytest.fixture
def backends(tmp_path):
    """The backends `ge`, with code, and `hollow`, without code."""
    (tmp_path / "ge").mkdir()
    (tmp_path / "ge" / "model.py").touch()
    (tmp_path / "hollow").mkdir()
    return tmp_path


def found(text, backends):
    config = proto(f'name: "m" {text}')
    return locate_code(config, backends / "m" / "1", backends), config.runtime


@pytest.mark.parametrize("runtime", ["", 'runtime: "libtriton_python.so"'])
def test_python_model_uses_the_file_in_its_version_folder(backends, runtime):
    file, _ = found(f'backend: "python" default_model_filename: "x.py" {runtime}', backends)
    assert file == backends / "m" / "1" / "x.py"


@pytest.mark.parametrize("runtime", ["", 'runtime: "model.py"'])
def test_model_of_a_python_based_backend_uses_its_file(backends, runtime):
    expected = backends / "ge" / "model.py", "model.py"
    assert found(f'backend: "ge" default_model_filename: "x.py" {runtime}', backends) == expected


@pytest.mark.parametrize("runtime", ["", 'runtime: "model.py"'])
def test_the_backend_ge_is_that_of_the_installed_package(tmp_path, runtime):
    file, shown = found(f'backend: "ge" {runtime}', tmp_path)
    assert (file.read_text(), shown) == (MODEL, "model.py")


def test_a_missing_package_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ge_runtime", None)
    monkeypatch.delitem(sys.modules, "ge_runtime.backend")
    with pytest.raises(ServerError, match="`pip install ge-runtime` installs the backend ge"):
        found('backend: "ge"', tmp_path)


@pytest.mark.parametrize("backend", ["onnxruntime", "pytorch"])
@pytest.mark.parametrize("runtime", ["", 'runtime: "libtriton_{}.so"'])
def test_model_of_a_triton_backend_uses_the_shipped_file(backends, backend, runtime):
    text = f'backend: "{backend}" {runtime.format(backend)}'
    file, shown = found(text, backends)
    assert (file, shown) == (SHIPPED, runtime and f"libtriton_{backend}.so")
    assert file.is_file()


def test_shipped_backend_moves_instances_to_the_cpu(backends, caplog):
    text = """
        name: "m" backend: "pytorch"
        instance_group { name: "g" kind: KIND_GPU gpus: [0, 1] profile: ["1"] }
    """
    config = proto(text)
    locate_code(config, backends / "m" / "1", backends)
    (group,) = config.instance_group
    assert (group.kind, list(group.gpus), list(group.profile)) == (group.KIND_CPU, [], [])
    assert "instance group g of model m runs on the CPU" in caplog.text


def test_own_backend_takes_precedence_over_the_shipped_one(backends):
    own = backends / "onnxruntime" / "model.py"
    own.parent.mkdir()
    own.touch()
    assert found('backend: "onnxruntime"', backends) == (own, "model.py")


def test_an_ensemble_has_none(backends):
    assert found('platform: "ensemble"', backends) == (None, "")


LIBRARY = "unable to find backend library for backend '{}', try specifying runtime on the "


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('backend: "hollow"', LIBRARY.format("hollow")),
        ('backend: "missing"', LIBRARY.format("missing")),
        (
            'backend: "tensorrt"',
            LIBRARY.format("tensorrt") + "model configuration. The reference server has the "
            "backends python, onnxruntime, openvino, pytorch and all in --backend-directory; "
            "serve the ONNX file that the plan was built from, or replace the model by a "
            "function: --stub-model=m=MODULE:FUNCTION",
        ),
        (
            'backend: "python" runtime: "model.py"',
            "unable to find Python backend based backend library 'model.py' for model 'm', "
            "searched: '{folder}/python/model.py'",
        ),
        (
            'backend: "ge" runtime: "x.so"',
            "unable to find backend library 'x.so' for model 'm', searched: '{folder}/m/1' "
            "'{folder}/m' '{folder}/ge' ",
        ),
    ],
)
def test_unknown_backend_is_refused(backends, text, said):
    with pytest.raises(ServerError) as caught:
        found(text, backends)
    assert caught.value.message.startswith(said.format(folder=backends))


STATE = """
    sequence_batching { state {
        input_name: "I" output_name: "O" data_type: TYPE_%s dims: [2]
        initial_state { name: "i" data_type: TYPE_%s dims: [2] data_file: "first" }
    } }
"""


def read(folder, datatype, data):
    (folder / "initial_state").mkdir()
    if data is not None:
        (folder / "initial_state" / "first").write_bytes(data)
    batching = model_config(STATE % (datatype, datatype)).sequence_batching
    return read_initial_states(batching, folder)


@pytest.mark.parametrize(
    ("datatype", "data", "kept"),
    [
        ("INT32", b"abcdefgh", b"abcdefgh"),
        ("INT32", b"abcdefgh and more", b"abcdefgh"),
        ("STRING", b"\1\0\0\0a\0\0\0\0", b"\1\0\0\0a\0\0\0\0"),
    ],
)
def test_initial_state_uses_the_required_bytes(tmp_path, datatype, data, kept):
    assert read(tmp_path, datatype, data) == {"I": kept}


REFUSED = {
    "no file": (
        "INT32",
        None,
        Code.INTERNAL,
        "failed to open text file for read {}/initial_state/first: No such file or directory",
    ),
    "too few bytes": (
        "INT32",
        b"abc",
        Code.INVALID_ARG,
        "initial_state setting expects 8 bytes, but the data provided from firstonly has 3 bytes.",
    ),
    "one string": (
        "STRING",
        b"\1\0\0\0a",
        Code.INVALID_ARG,
        "initial_state setting expects 2 strings, but the data provided from first has 1.",
    ),
    "no strings": (
        "STRING",
        b"\1\0",
        Code.INVALID_ARG,
        "initial_state file {}/initial_state/first: found malformed data; expected strings, each "
        "after its length in 4 bytes",
    ),
}


@pytest.mark.parametrize(("datatype", "data", "code", "text"), REFUSED.values(), ids=REFUSED)
def test_invalid_initial_state_file(tmp_path, datatype, data, code, text):
    with pytest.raises(ServerError) as caught:
        read(tmp_path, datatype, data)
    assert (caught.value.code, caught.value.message) == (code, text.format(tmp_path))
