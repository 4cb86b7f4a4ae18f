"""`backend: "openvino"`: a graph in a format of OpenVINO, completed and checked as in Triton."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np

from ge_runtime.engines.content import ContentHashes
from ge_runtime.errors import ArtifactFault, EngineFault, OutOfMemory
from ge_runtime.specs import Array, Tensors
from ge_runtime.steps.step_config import StepConfig, StepTensor, unknown_tensor

FILENAME: Final = "model.xml"

# The package may not be installed, so its types are unknown.
OpenVino: TypeAlias = Any

_TYPES: Final = {
    "boolean": "TYPE_BOOL",
    "u8": "TYPE_UINT8",
    "u16": "TYPE_UINT16",
    "u32": "TYPE_UINT32",
    "u64": "TYPE_UINT64",
    "i8": "TYPE_INT8",
    "i16": "TYPE_INT16",
    "i32": "TYPE_INT32",
    "i64": "TYPE_INT64",
    "f16": "TYPE_FP16",
    "f32": "TYPE_FP32",
}
"""The types that the backend supports; BF16, FP64 and strings are not among them."""
_NUMBERS: Final = ("INFERENCE_NUM_THREADS", "COMPILATION_NUM_THREADS")
_HINTS: Final = ("LATENCY", "THROUGHPUT")
_OLD: Final = "a name of OpenVINO before 2022, which the backend no longer supports"
WITHOUT_EFFECT: Final = {
    "CPU_THREADS_NUM": f"{_OLD}; use INFERENCE_NUM_THREADS",
    "CPU_THROUGHPUT_STREAMS": f"{_OLD}; use NUM_STREAMS",
    "CPU_BIND_THREAD": _OLD,
    "ENFORCE_BF16": f"{_OLD}; use HINT_BF16",
    "TARGET_DEVICE": "graphs run on the CPU",
}
_NO_MEMORY: Final = ("bad_alloc", "Failed to allocate", "bad allocation")

_COMPILED: Final[weakref.WeakValueDictionary[object, Any]] = weakref.WeakValueDictionary()
"""Compiled models by path, content and settings: instances of one model share its weights."""
_CONTENTS: Final = ContentHashes()
_COMPILING: Final = threading.Lock()


class OpenVinoStep:
    """One open graph. For one thread at a time."""

    def __init__(self, config: StepConfig, openvino: OpenVino, path: Path) -> None:
        """Called by `open`."""
        self._config = config
        self._openvino = openvino
        self._path = path
        self._pads = self._is_yes("ENABLE_BATCH_PADDING")
        self._keeps_batch = self._is_yes("SKIP_OV_DYNAMIC_BATCHSIZE")
        self._core = openvino.Core()
        extension = config.parameters.get("CPU_EXTENSION_PATH")
        self._files = _files_of(path, extension)
        self._content = _CONTENTS.of(*self._files)  # before the files are read
        if extension:
            self._try("loading custom CPU extensions", self._core.add_extension, extension)
        self._graph = self._try("reading network", self._core.read_model, str(path))
        self._model: Any = None  # compiled; `_COMPILED` has only a weak reference
        self._request: Any = None
        self._batch: int | None = None
        """The only batch size that the graph accepts, or None."""

    @classmethod
    def open(cls, config: StepConfig, folder: Path) -> OpenVinoStep:
        """Open the graph in a version's folder. Raises ArtifactFault."""
        path = folder / (config.filename or FILENAME)
        if not path.exists():
            raise ArtifactFault(f"unable to find '{path}' for model '{config.model}'")
        try:
            import openvino
        except ImportError as error:
            raise ArtifactFault(
                f'{path}: found no openvino ({error}), which backend: "openvino" needs: '
                "`pip install 'ge-runtime[openvino]'`"
            ) from error
        return cls(config, openvino, path)

    @property
    def notes(self) -> list[str]:
        """One line for each setting of the configuration that has no effect here."""
        return self._config.without_effect(WITHOUT_EFFECT)

    def complete(self, config: dict[str, Any], default_max_batch_size: int) -> None:
        """Add missing fields to `config`, in Triton's JSON form."""
        if config["input"] and config["output"]:
            return
        if self._can_batch() and not config["max_batch_size"]:
            config["max_batch_size"] = max(default_max_batch_size, 0)
        schedulers = ("sequence_batching", "dynamic_batching")
        if config["max_batch_size"] > 1 and not any(own in config for own in schedulers):
            config["dynamic_batching"] = {}
        first = 1 if config["max_batch_size"] else 0
        for kind, ports in (("input", self._graph.inputs), ("output", self._graph.outputs)):
            if not config[kind]:
                config[kind] = [
                    {"name": _name(port), "data_type": _type(port), "dims": _dims(port)[first:]}
                    for port in ports
                ]

    def check(self) -> None:
        """Compile the graph. Raises ArtifactFault if the configuration does not match it."""
        config = self._config
        expected = (*config.inputs, *config.controls, *(state.input for state in config.states))
        config.check_count(len(expected), len(self._graph.inputs))
        inputs = {tensor.name: self._port("input", tensor) for tensor in expected}
        self._reshape(expected, inputs)
        for tensor in expected:
            self._check_tensor("input", tensor)
        for tensor in config.results:
            self._check_tensor("output", tensor)
        self._model = self._compile()
        self._request = self._try("creating infer request object", self._model.create_infer_request)

    def run(self, inputs: Tensors) -> dict[str, Array]:
        """Return the configured results. `check` must have been called. Raises EngineFault."""
        rows = len(next(iter(inputs.values()))) if self._batch is not None else 0
        if self._batch is not None and rows != self._batch:
            inputs = self._padded(inputs, rows)
        try:
            results = self._request.infer(dict(inputs))
            found = {own.name: np.array(results[own.name]) for own in self._config.results}
        except Exception as error:
            short = isinstance(error, MemoryError) or any(own in str(error) for own in _NO_MEMORY)
            text = f"openvino error in running inference : {str(error).strip()}"
            raise (OutOfMemory if short else EngineFault)(text) from error
        if self._batch is not None and rows != self._batch:
            found = {name: array[:rows] for name, array in found.items()}
        return found

    def close(self) -> None:
        """Release the graph."""
        self._request = self._model = None

    def _padded(self, inputs: Tensors, rows: int) -> dict[str, Array]:
        """Add rows of zeros at the end. Raises EngineFault if padding is not enabled."""
        batch = self._batch
        assert batch is not None
        if not self._pads or rows > batch:
            raise EngineFault(
                f"expected requests with batch size '{batch}', got '{rows}'... this error can be "
                "avoided by setting 'ENABLE_BATCH_PADDING' parameter in model configuration to "
                "'YES' at a performance cost."
            )
        return {
            name: np.concatenate([own, np.zeros((batch - rows, *own.shape[1:]), own.dtype)])
            for name, own in inputs.items()
        }

    def _can_batch(self) -> bool:
        """Return whether the layouts of all inputs and outputs begin with the batch, N."""
        ports = (*self._graph.inputs, *self._graph.outputs)
        layouts = [str(self._openvino.layout_helpers.get_layout(port)) for port in ports]
        return bool(ports) and all(own.startswith("[N") for own in layouts)

    def _reshape(self, tensors: Sequence[StepTensor], ports: dict[str, Any]) -> None:
        """Give the graph the configured batch sizes, and if requested the configured shapes."""
        config, dims = self._config, {}
        for tensor in tensors:
            own = _dims(ports[tensor.name])
            if self._is_yes("RESHAPE_IO_LAYERS"):
                own = [*own[: config.batches], *tensor.dims]
            if config.batches and not own:
                raise ArtifactFault(
                    f"model '{config.model}', tensor '{tensor.name}': for the model to support "
                    "batching the shape should have at least 1 dimension"
                )
            if config.batches and not self._keeps_batch:
                own = [-1, *own[1:]]
            dims[ports[tensor.name]] = self._openvino.PartialShape(own)
        self._try("reshaping network", self._graph.reshape, dims)
        batches = {_dims(port)[0] for port in ports.values()} if config.batches else set()
        self._batch = batches.pop() if len(batches) == 1 and -1 not in batches else None

    def _port(self, kind: str, tensor: StepTensor) -> Any:  # noqa: ANN401 - openvino.Output
        ports = self._graph.inputs if kind == "input" else self._graph.outputs
        for port in ports:
            if tensor.name in port.get_names():
                return port
        raise unknown_tensor(kind, tensor.name, map(_name, ports))

    def _check_tensor(self, kind: str, tensor: StepTensor) -> None:
        port = self._port(kind, tensor)
        self._config.check_type(kind, tensor, _TYPES.values(), _type(port))
        self._config.check_dims(
            tensor, _dims(port), lambda size, dim: size == dim or -1 in (size, dim)
        )

    def _compile(self) -> Any:  # noqa: ANN401 - openvino.CompiledModel
        settings = self._settings()
        shapes = tuple(str(port.get_partial_shape()) for port in self._graph.inputs)
        key = (str(self._path), self._content, shapes, *sorted(settings.items()))
        with _COMPILING:
            # A file may have been replaced after its hash was computed.
            changed = _CONTENTS.of(*self._files) != self._content
            compiled = None if changed else _COMPILED.get(key)
            if compiled is None:
                compiled = self._try(
                    "loading network", self._core.compile_model, self._graph, "CPU", settings
                )
                if not changed:
                    _COMPILED[key] = compiled
            return compiled

    def _settings(self) -> dict[str, str]:
        """Return OpenVINO's properties for the CPU. Raises ArtifactFault."""
        given, settings = self._config.parameters, {}
        for name in _NUMBERS:
            if given.get(name):
                if not given[name].isdecimal():
                    raise self._wrong(name, "a non-negative number")
                settings[name] = str(self._config.threads(name))
        if hint := given.get("PERFORMANCE_HINT", "").upper():
            if hint not in _HINTS:
                raise self._wrong("PERFORMANCE_HINT", " or ".join(_HINTS))
            settings["PERFORMANCE_HINT"] = hint
        if streams := given.get("NUM_STREAMS", "").upper():
            if not (streams in ("AUTO", "NUMA") or streams.isdecimal()):
                raise self._wrong("NUM_STREAMS", "a non-negative number or AUTO/NUMA")
            if streams.isdecimal():  # each stream has threads
                streams = str(self._config.threads("NUM_STREAMS"))
            settings["NUM_STREAMS"] = streams
        if bf16 := given.get("HINT_BF16", "").upper():
            if bf16 != "YES":
                raise self._wrong("HINT_BF16", "YES")
            settings["INFERENCE_PRECISION_HINT"] = "bf16"
        return settings

    def _wrong(self, name: str, expected: str) -> ArtifactFault:
        found = self._config.parameters[name]
        return ArtifactFault(f"expected the parameter '{name}' to be {expected}, got {found}")

    def _is_yes(self, name: str) -> bool:
        return self._config.parameters.get(name, "").lower() == "yes"

    def _try(self, doing: str, function: Any, *arguments: Any) -> Any:  # noqa: ANN401 - OpenVINO's
        try:
            return function(*arguments)
        except Exception as error:
            raise ArtifactFault(f"openvino error in {doing} : {str(error).strip()}") from error


def _files_of(path: Path, extension: str | None) -> list[Path]:
    """Return the files that OpenVINO reads: the graph, weights beside it, and an extension."""
    if path.is_dir():  # a SavedModel of TensorFlow
        files = sorted(file for file in path.rglob("*") if file.is_file())
    else:
        files = [path, *filter(Path.is_file, (path.with_suffix(".bin"),))]
    return files + [file for file in (Path(extension or ""),) if file.is_file()]


def _name(port: Any) -> str:  # noqa: ANN401 - openvino.Output
    return str(port.any_name) if port.get_names() else str(port.get_node().get_friendly_name())


def _type(port: Any) -> str:  # noqa: ANN401 - openvino.Output
    return _TYPES.get(port.get_element_type().get_type_name(), "TYPE_INVALID")


def _dims(port: Any) -> list[int]:  # noqa: ANN401 - openvino.Output
    shape = port.get_partial_shape()
    if shape.rank.is_dynamic:
        raise ArtifactFault(f"tensor '{_name(port)}': found a shape of unknown rank")
    return [dim.get_length() if dim.is_static else -1 for dim in shape]
