"""Where a model's code is found: in its version, or in a backend's folder."""

import pytest
from server.support.configs import proto

from reference_server.core.errors import ServerError
from reference_server.repository.model_files import locate_code


@pytest.fixture
def backends(tmp_path):
    """Backends `ge`, with code, and `hollow`, without."""
    (tmp_path / "ge").mkdir()
    (tmp_path / "ge" / "model.py").touch()
    (tmp_path / "hollow").mkdir()
    return tmp_path


def found(text, backends):
    config = proto(f'name: "m" {text}')
    return locate_code(config, backends / "m" / "1", backends), config.runtime


@pytest.mark.parametrize("runtime", ["", 'runtime: "libtriton_python.so"'])
def test_a_python_model_has_its_code_in_its_version(backends, runtime):
    file, _ = found(f'backend: "python" default_model_filename: "x.py" {runtime}', backends)
    assert file == backends / "m" / "1" / "x.py"


@pytest.mark.parametrize("runtime", ["", 'runtime: "model.py"'])
def test_a_model_of_a_backend_has_the_backends(backends, runtime):
    expected = backends / "ge" / "model.py", "model.py"
    assert found(f'backend: "ge" default_model_filename: "x.py" {runtime}', backends) == expected


def test_an_ensemble_has_none(backends):
    assert found('platform: "ensemble"', backends) == (None, "")


LIBRARY = "unable to find backend library for backend '{}', try specifying runtime on the "


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('backend: "hollow"', LIBRARY.format("hollow")),
        ('backend: "nobody"', LIBRARY.format("nobody")),
        ('platform: "tensorrt_plan"', LIBRARY.format("tensorrt")),
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
def test_what_cannot_be_run_is_refused(backends, text, said):
    with pytest.raises(ServerError) as caught:
        found(text, backends)
    assert caught.value.message.startswith(said.format(folder=backends))
