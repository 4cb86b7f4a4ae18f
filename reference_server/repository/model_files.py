"""Reads the files of a model's folder other than its configuration: code, labels, states."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from math import prod
from pathlib import Path

from tritonclient.grpc.model_config_pb2 import ModelConfig as ConfigProto
from tritonclient.grpc.model_config_pb2 import ModelInstanceGroup

from reference_server.backends.environments import PARAMETER, expanded
from reference_server.config.complete import PYTHON_FILE
from reference_server.config.scheduler_settings import SequenceBatching, SequenceState
from reference_server.config.schema import ModelConfig, parameter
from reference_server.core import byte_strings
from reference_server.core.errors import NotHere, internal, invalid_arg, unsupported
from reference_server.core.paths import is_within, within
from reference_server.repository.versions import ServedModel

log = logging.getLogger(__name__)

_PYTHON = "python"
#: The code that executes models of the Triton backends in `_SHIPPED_FOR`.
SHIPPED = Path(__file__).parent.parent / "backends" / "shipped" / PYTHON_FILE
#: The code that executes models that are replaced by a function (`--stub-model`).
_STUB = SHIPPED.with_name("stub.py")
_STUB_PARAMETER = "STUB_MODEL"
_SHIPPED_FOR = ("onnxruntime", "openvino", "pytorch")
#: Map Python-based backends to the packages that contain them. `--backend-directory` takes
#: precedence.
_PACKAGED = {"ge": "ge_runtime.backend"}
#: Triton backends that the server does not have, each with the advice for its models.
_ADVICE = {
    "dali": "rewrite the pipeline as a model.py",
    "fil": "export the model to ONNX (onnxmltools, skl2onnx)",
    "tensorflow": "convert the model to ONNX (`python -m tf2onnx.convert --saved-model ...`)",
    "tensorrt": "serve the ONNX file that the plan was built from",
    "tensorrtllm": "serve the model by a model.py",
    "vllm": "put vLLM's own Python-based backend into --backend-directory",
}
#: The backends for which the server has or finds an implementation, or has an advice.
KNOWN_BACKENDS = (_PYTHON, *_SHIPPED_FOR, *_PACKAGED, *_ADVICE)
Labels = Mapping[str, tuple[str, ...]]
_INITIAL_STATE_FOLDER = "initial_state"


def locate_code(config: ConfigProto, version_folder: Path, backend_directory: Path) -> Path | None:
    """Return the file with the class TritonPythonModel; None for an ensemble.

    For a Python-based backend, `config.runtime` is set as in Triton. It is not set for a backend
    that replaces one of Triton's libraries. Raises ServerError if no backend can execute the model.
    """
    if config.platform == "ensemble":
        return None
    code = within(
        version_folder.parent,
        version_folder / str(config.default_model_filename),
        "default_model_filename",
    )
    backend = str(config.backend)
    file = backend_directory / backend / PYTHON_FILE
    if backend and not is_within(backend_directory, file):
        raise invalid_arg(f"backend: found '{backend}'; expected a name", "backend")
    if not file.is_file():
        file = _packaged(backend) or file
    if config.runtime == PYTHON_FILE:
        if not file.is_file():
            raise NotHere(
                f"unable to find Python backend based backend library '{config.runtime}' for "
                f"model '{config.name}', searched: '{file}'",
                "runtime",
            )
        return file
    if config.runtime and not _is_own_library(config):
        places = (version_folder, version_folder.parent, backend_directory / backend)
        raise NotHere(
            f"unable to find backend library '{config.runtime}' for model '{config.name}', "
            "searched: " + "".join(f"'{place}' " for place in places),
            "runtime",
        )
    if backend == _PYTHON:
        return code
    if not file.is_file():
        if backend in _SHIPPED_FOR:
            _move_to_cpu(config)
            return SHIPPED
        raise NotHere(
            f"unable to find backend library for backend '{backend}', "
            f"try specifying runtime on the model configuration.{_advice(config)}",
            "backend",
        )
    config.runtime = PYTHON_FILE
    return file


def _packaged(backend: str) -> Path | None:
    """Return the file of a backend that an installed package contains, or None."""
    try:
        spec = find_spec(_PACKAGED[backend]) if backend in _PACKAGED else None
    except ModuleNotFoundError:  # the package is not installed
        return None
    return Path(spec.origin).with_name(PYTHON_FILE) if spec and spec.origin else None


def use_stub(config: ConfigProto, function: str) -> Path:
    """Replace a model by `function` (MODULE:FUNCTION). Return the file that calls it.

    The function is stored in the model's parameters, and all instances are moved to the CPU.
    """
    config.parameters[_STUB_PARAMETER].string_value = function
    _move_to_cpu(config)
    return _STUB


def is_own_code(file: Path) -> bool:
    """Return whether a model's code belongs to the server, whose packages it needs."""
    return file in (SHIPPED, _STUB)


def _move_to_cpu(config: ConfigProto) -> None:
    """Move GPU instances to the CPU, with a warning in the log."""
    for group in config.instance_group:
        if group.kind == ModelInstanceGroup.KIND_GPU:
            log.warning("instance group %s of model %s runs on the CPU", group.name, config.name)
            group.kind = ModelInstanceGroup.KIND_CPU
            del group.gpus[:]
        del group.profile[:]


def _is_own_library(config: ConfigProto) -> bool:
    """Return whether the runtime is a library of Triton that the server replaces."""
    known = (_PYTHON, *_SHIPPED_FOR)
    return config.backend in known and config.runtime == f"libtriton_{config.backend}.so"


def _advice(config: ConfigProto) -> str:
    """Return the advice for a missing backend of Triton; "" for other backends."""
    if config.backend in _PACKAGED:
        return f" `pip install ge-runtime` installs the backend {config.backend}."
    advice = _ADVICE.get(config.backend)
    if advice is None:
        return ""
    present = ", ".join((_PYTHON, *_SHIPPED_FOR))
    return (
        f" The reference server has the backends {present} and all in --backend-directory; "
        f"{advice}, or replace the model by a function: "
        f"--stub-model={config.name}=MODULE:FUNCTION"
    )


def labels_of(config: ModelConfig, folder: Path, steps: Sequence[ServedModel]) -> Labels:
    """Return the labels by output; `steps` are the models of an ensemble's steps, in order.

    Raises ServerError if a file cannot be read.
    """
    return {**_labels_of_steps(config, steps), **read_labels(config, folder)}


def _labels_of_steps(
    config: ModelConfig, steps: Sequence[ServedModel]
) -> dict[str, tuple[str, ...]]:
    """Return the labels of an ensemble's outputs, taken from the models that produce them."""
    return {
        step.outputs[name]: lines
        for step, model in zip(config.ensemble, steps, strict=True)
        for name, lines in model.labels.items()
        if name in step.outputs
    }


def read_labels(config: ModelConfig, folder: Path) -> dict[str, tuple[str, ...]]:
    """Return the labels of outputs with a label file, by output. Raises ServerError."""
    labels: dict[str, tuple[str, ...]] = {}
    for output in config.signature.outputs:
        if output.labels_file:
            path = folder / output.labels_file
            # Links are resolved first, so that labels cannot reveal other files of the machine.
            if not is_within(folder, path, through_links=True):
                raise unsupported(
                    f"label file path '{path}' for output '{output.name}' in model "
                    f"'{config.name}' is outside model directory"
                )
            try:
                # Not `splitlines`: Triton splits labels at line feeds only.
                labels[output.name] = tuple(path.read_bytes().decode().split("\n"))
            except FileNotFoundError as error:
                raise internal(
                    f"failed to open text file for read {path}: No such file or directory"
                ) from error
            except (OSError, UnicodeDecodeError) as error:
                raise invalid_arg(f"failed to read label file {path}: {error}") from error
    return labels


#: The parameter of OpenVINO models that names a library.
_EXTENSION = "CPU_EXTENSION_PATH"


def check_sent_code(config: ConfigProto, folder: Path) -> None:
    """Check that code named by the configuration of a load request is in the model's folder.

    The code of a library or of an environment runs when the model is loaded. A config.pbtxt may
    name any code, as in Triton, since its author can add code anyway.

    Raises:
        ServerError: INVALID_ARG, with the field and the path.
    """
    for library in config.model_operations.op_library_filename:
        within(folder, folder / library, "model_operations.op_library_filename")
    if _EXTENSION in config.parameters:
        within(folder, folder / config.parameters[_EXTENSION].string_value, _EXTENSION)
    if environment := expanded(parameter(config, PARAMETER), folder):
        within(folder, Path(environment), PARAMETER)


def read_initial_states(batching: SequenceBatching, model_folder: Path) -> dict[str, bytes]:
    """Return the wire form of each initial state that is read from a file, by input name.

    Excess bytes are ignored. Raises ServerError if a file is missing or too short.
    """
    return {
        state.input_name: _read_initial_state(
            state,
            within(
                model_folder,
                model_folder / _INITIAL_STATE_FOLDER / state.initial_file,
                "initial_state.data_file",
            ),
        )
        for state in batching.states
        if state.initial_file is not None
    }


def _read_initial_state(state: SequenceState, path: Path) -> bytes:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise internal(f"failed to open text file for read {path}: {error.strerror}") from error
    elements = prod(state.initial_dims)
    if state.datatype.is_bytes:
        try:
            strings = byte_strings.split(memoryview(data))
        except byte_strings.Malformed as error:
            raise invalid_arg(
                f"initial_state file {path}: found malformed data; expected strings, each after "
                "its length in 4 bytes"
            ) from error
        if len(strings) != elements:
            raise invalid_arg(
                f"initial_state setting expects {elements} strings, but the data provided from "
                f"{path.name} has {len(strings)}."
            )
        return data
    size = elements * state.datatype.byte_size
    if len(data) < size:
        raise invalid_arg(  # Triton's text has no blank before "only" either
            f"initial_state setting expects {size} bytes, but the data provided from "
            f"{path.name}only has {len(data)} bytes."
        )
    return data[:size]
