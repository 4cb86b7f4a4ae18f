"""Where the Python code of a model lies: in its own folder, or in that of a Python-based backend.

A Python-based backend is a folder below the backend directory, named like the backend, with a
`model.py` in it. The models that name it bring their artifacts and no code.
"""

from __future__ import annotations

from pathlib import Path

from tritonclient.grpc.model_config_pb2 import ModelConfig as ConfigProto

from reference_server.config.complete import PYTHON_FILE, backend_of_platform
from reference_server.core.errors import invalid_arg

_PYTHON = "python"
_LIBRARY = "libtriton_python.so"


def locate(config: ConfigProto, version_folder: Path, backend_directory: Path) -> Path | None:
    """The file with the class TritonPythonModel; None for an ensemble.

    Of a Python-based backend the runtime is named in `config`, as Triton does. Raises ServerError
    if nothing here can run the model.
    """
    if config.platform == "ensemble":
        return None
    backend = config.backend or backend_of_platform(config.platform, config.name)
    file = backend_directory / backend / PYTHON_FILE
    if config.runtime == PYTHON_FILE:
        if not file.is_file():
            raise invalid_arg(
                f"unable to find Python backend based backend library '{config.runtime}' for "
                f"model '{config.name}', searched: '{file}'"
            )
        return file
    if config.runtime and (backend, config.runtime) != (_PYTHON, _LIBRARY):
        places = (version_folder, version_folder.parent, backend_directory / backend)
        raise invalid_arg(
            f"unable to find backend library '{config.runtime}' for model '{config.name}', "
            "searched: " + "".join(f"'{place}' " for place in places)
        )
    if backend == _PYTHON:
        return version_folder / str(config.default_model_filename)
    if not file.is_file():
        raise invalid_arg(
            f"unable to find backend library for backend '{backend}', "
            "try specifying runtime on the model configuration."
        )
    config.runtime = PYTHON_FILE
    return file
