"""`backend: "onnxruntime"`: an ONNX graph of any shapes, completed and checked as in Triton.

Sessions run without a memory plan, because a plan needs a limit for each size and config.pbtxt has
no limits here. Models of equal content share one session, and all sessions share one arena.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from ge_runtime.engines.onnx_session import PROCESS_SESSIONS, GraphExecution, SharedSession
from ge_runtime.errors import ArtifactFault, EngineFault, OutOfMemory
from ge_runtime.specs import Array, Tensors
from ge_runtime.steps.step_config import StepConfig, StepTensor, format_dims, unknown_tensor

FILENAME: Final = "model.onnx"

_TYPES: Final[Mapping[str, str]] = {
    "tensor(bool)": "TYPE_BOOL",
    "tensor(uint8)": "TYPE_UINT8",
    "tensor(uint16)": "TYPE_UINT16",
    "tensor(uint32)": "TYPE_UINT32",
    "tensor(uint64)": "TYPE_UINT64",
    "tensor(int8)": "TYPE_INT8",
    "tensor(int16)": "TYPE_INT16",
    "tensor(int32)": "TYPE_INT32",
    "tensor(int64)": "TYPE_INT64",
    "tensor(float16)": "TYPE_FP16",
    "tensor(float)": "TYPE_FP32",
    "tensor(double)": "TYPE_FP64",
    "tensor(string)": "TYPE_STRING",
}
"""The types that the backend supports; BF16 is not among them."""
_LEVELS: Final = {-1: "ORT_ENABLE_BASIC", 1: "ORT_ENABLE_EXTENDED", 2: "ORT_DISABLE_ALL"}
_ONE_ARENA: Final = "all sessions of a process execute in one arena"
_NO_GPU: Final = "it is for GPUs, and this is the CPU"
WITHOUT_EFFECT: Final[Mapping[str, str]] = {
    "enable_mem_arena": _ONE_ARENA,
    "memory.enable_memory_arena_shrinkage": _ONE_ARENA,
    "enable_mem_pattern": "patterns are kept for each combination of shapes, and never used again",
    "session.use_device_allocator_for_initializers": "weights are always outside the arena",
    "share_session_between_instances": "instances always share one session",
    "cudnn_conv_algo_search": _NO_GPU,
    "gpu_mem_limit": _NO_GPU,
    "arena_extend_strategy": _NO_GPU,
    "do_copy_in_default_stream": _NO_GPU,
}
_REPORTED: Final = re.compile(r"\[ONNXRuntimeError\] : (\d+) : \w+ : (.*)", re.DOTALL)
"""The form in which the Python package reports the code and the text of an error."""
_NO_MEMORY: Final = re.compile(r"Failed to allocate memory|bad_?\s?alloc", re.IGNORECASE)

_Info = tuple[str, tuple[int, ...]]
"""The type of a graph tensor, as in config.pbtxt, and its dims with the batch dimension."""


class OnnxStep:
    """One open graph. Executions may run concurrently."""

    def __init__(self, config: StepConfig, shared: SharedSession) -> None:
        """Called by `open`."""
        self._config = config
        self._shared = shared
        session = shared.session
        self.inputs = _infos(session.get_inputs())
        self.outputs = _infos(session.get_outputs())
        self.optional = _infos(session.get_overridable_initializers())
        self._wanted: list[str] = []

    @classmethod
    def open(cls, config: StepConfig, folder: Path) -> OnnxStep:
        """Open the graph in a version's folder. Raises ArtifactFault."""
        path = folder / (config.filename or FILENAME)
        if path.is_dir():
            path /= FILENAME
        if not path.exists():
            raise ArtifactFault(f"unable to find '{path}' for model instance '{config.model}'")
        mode = config.whole("execution_mode", 0)
        if mode not in (0, 1):
            raise ArtifactFault(
                "Invalid configuration value provided. Expected values for  execution_mode are 0 "
                f"or 1 but got {mode} ."
            )
        for name in config.accelerators:
            if name not in ("openvino", "tensorrt", "cuda"):
                raise ArtifactFault(f"unknown Execution Accelerator '{name}' is requested")
        execution = GraphExecution(
            config.threads("inter_op_thread_count"),
            mode == 1,
            _LEVELS.get(config.optimization_level, "ORT_ENABLE_ALL"),
            config.operators,
        )
        threads = config.threads("intra_op_thread_count")
        shared = PROCESS_SESSIONS.acquire(path, threads, execution)
        try:
            return cls(config, shared)
        except BaseException:
            shared.release()
            raise

    @property
    def notes(self) -> list[str]:
        """One line for each setting of the configuration that has no effect here."""
        lines = self._config.without_effect(WITHOUT_EFFECT)
        return lines + [
            f"model '{self._config.model}': execution accelerator '{name}' has no effect here: the "
            "graph is executed by ONNX Runtime's own kernels for the CPU"
            for name in self._config.accelerators
        ]

    def complete(self, config: dict[str, Any], default_max_batch_size: int) -> None:
        """Add missing fields to `config`, in Triton's JSON form. Raises ArtifactFault."""
        if (config["input"] or config.get("batch_input")) and config["output"]:
            return
        every = (*self.inputs.values(), *self.outputs.values())
        if all(dims[:1] == (-1,) for _, dims in every):
            if not config["max_batch_size"]:
                config["max_batch_size"] = max(default_max_batch_size, 0)
            schedulers = ("sequence_batching", "dynamic_batching")
            if config["max_batch_size"] > 1 and not any(name in config for name in schedulers):
                config["dynamic_batching"] = {}
        elif config["max_batch_size"]:
            raise ArtifactFault(
                f"autofill failed for model '{self._config.model}': model does not support "
                "batching while non-zero max_batch_size is specified"
            )
        batches = config["max_batch_size"] > 0
        if not config["input"] and not config.get("batch_input"):
            config["input"] = [_completed(*each, batches=batches) for each in self.inputs.items()]
        if not config["output"]:
            config["output"] = [_completed(*each, batches=batches) for each in self.outputs.items()]

    def check(self) -> None:
        """Raise ArtifactFault if the configuration does not match the graph."""
        config = self._config
        states = [state.input for state in config.states]
        targets = [name for entry in config.batch_inputs for name in entry.targets]
        needed = [tensor for tensor in config.inputs if not tensor.optional]
        expected = len(needed) + len(config.batch_inputs) + len(config.controls) + len(states)
        config.check_count(expected, len(self.inputs))
        for control in config.controls:
            self._check_control(control)
        known = {**self.inputs, **self.optional}
        for tensor in config.inputs:
            self._check_input(tensor, known)
        for name in (*(state.name for state in states), *targets):
            if name not in known:
                raise unknown_tensor("input", name, known)
        for tensor in config.results:
            info = self.outputs.get(tensor.name)
            if info is None:
                raise unknown_tensor("output", tensor.name, self.outputs)
            config.check_type("output", tensor, _TYPES.values(), info[0])
        for tensor in config.outputs:
            if tensor.name not in config.scattered:
                self._check_dims(tensor, self.outputs[tensor.name][1], exact=True)
        self._wanted = [tensor.name for tensor in config.results]

    def run(self, inputs: Tensors) -> dict[str, Array]:
        """Return the configured results. `check` must have been called. Raises EngineFault."""
        feeds = {name: self._fed(name, array) for name, array in inputs.items()}
        try:
            with self._shared.arena.execution(0):
                results = self._shared.session.run(self._wanted, feeds)
        except Exception as error:
            reported = _REPORTED.search(str(error))
            text = f"onnx runtime error {reported[1]}: {reported[2]}" if reported else str(error)
            short = isinstance(error, MemoryError) or _NO_MEMORY.search(text)
            raise (OutOfMemory if short else EngineFault)(text) from error
        declared = {tensor.name: tensor.dims for tensor in self._config.outputs}
        return {
            # A scalar is returned in its configured shape, e.g. [1].
            name: _bytes(array) if array.ndim else _bytes(array.reshape(declared.get(name, (1,))))
            for name, array in zip(self._wanted, results, strict=True)
        }

    def close(self) -> None:
        """Release the session."""
        self._shared.release()

    def _fed(self, name: str, array: Array) -> Array:
        info = self.inputs.get(name) or self.optional[name]
        if array.dtype == object:
            # Triton passes C strings, which end at the first zero byte. NumPy's type S keeps bytes
            # that are not UTF-8.
            cut = [_text(element).split(b"\0", 1)[0] for element in array.ravel()]
            # Wider by one, because ONNX Runtime reads up to a zero byte.
            width = 1 + max(map(len, cut), default=0)
            array = np.array(cut, f"S{width}").reshape(array.shape)
        return array if info[1] or array.size != 1 else array.reshape(())

    def _check_control(self, control: StepTensor) -> None:
        info = self.inputs.get(control.name)
        if info is None:
            raise ArtifactFault(
                f"configuration specified sequence control '{control.name}', but model does not "
                "provide that input"
            )
        found = info[1][1:] if self._config.batches else info[1]
        where = f"unable to load model '{self._config.model}', sequence control '{control.name}'"
        if found != (1,):
            raise ArtifactFault(
                f"{where} in model has dims {format_dims(found)} but dims [1] is expected"
            )
        if info[0] != control.data_type:
            raise ArtifactFault(
                f"{where}, the model expects data-type {info[0].removeprefix('TYPE_')} but the "
                f"model configuration specifies data-type {control.data_type}"
            )

    def _check_input(self, tensor: StepTensor, known: Mapping[str, _Info]) -> None:
        where = f"unable to load model '{self._config.model}'"
        if tensor.optional and self._config.batches:
            raise ArtifactFault(
                f"{where}, optional input '{tensor.name}' is not supported for models that support "
                "batching"
            )
        info = known.get(tensor.name)
        if info is None:
            raise unknown_tensor("input", tensor.name, known)
        self._config.check_type("input", tensor, _TYPES.values(), info[0])
        if not tensor.ragged:
            self._check_dims(tensor, info[1], exact=False)
        elif info[1] != (-1,):
            raise ArtifactFault(
                f"{where}, configuration expects model provides input with shape [-1]  for ragged "
                f"input '{tensor.name}', model provides {format_dims(info[1])}"
            )

    def _check_dims(self, tensor: StepTensor, dims: tuple[int, ...], *, exact: bool) -> None:
        if not dims:
            if any(dim != 1 for dim in tensor.dims):
                raise ArtifactFault(
                    f"unable to load model '{self._config.model}', scalar tensor '{tensor.name}', "
                    "should only provide 1 in the model configuration when the model doesn't "
                    f"support batching. Model configuration provided: {format_dims(tensor.dims)}."
                )
            return
        if self._config.batches and dims[0] != -1:
            raise ArtifactFault(
                f"model '{self._config.model}', tensor '{tensor.name}': for the model to support "
                "batching the shape should have at least 1 dimension and the first dimension must "
                f"be -1; but shape expected by the model is {format_dims(dims)}"
            )
        self._config.check_dims(
            tensor, dims, lambda size, dim: size == dim or (size == -1 and not exact)
        )


def _infos(values: Sequence[Any]) -> dict[str, _Info]:
    """Return types and dims by name. Raises ArtifactFault for values that are not tensors."""
    infos: dict[str, _Info] = {}
    for value in values:
        if not value.type.startswith("tensor("):
            raise ArtifactFault(
                f"Unsupported ONNX Type '{value.type}' for I/O '{value.name}', expected "
                "'ONNX_TYPE_TENSOR'."
            )
        # ONNX Runtime reports an empty shape for scalars and for an unknown rank.
        dims = tuple(dim if isinstance(dim, int) else -1 for dim in value.shape)
        infos[value.name] = (_TYPES.get(value.type, "TYPE_INVALID"), dims)
    return infos


def _completed(name: str, info: _Info, *, batches: bool) -> dict[str, Any]:
    """Return an entry of `input` or `output`."""
    dims = list(info[1][1:] if batches else info[1])
    entry: dict[str, Any] = {"name": name, "data_type": info[0], "dims": dims or [1]}
    if not dims and batches:
        entry["reshape"] = {"shape": []}
    return entry


def _text(element: object) -> bytes:
    return element if isinstance(element, bytes) else str(element).encode()


def _bytes(array: Array) -> Array:
    """Return strings as `bytes`; other arrays unchanged."""
    if array.dtype != object:
        return array
    encoded = np.empty(array.size, object)
    encoded[:] = [_text(element) for element in array.ravel()]
    return encoded.reshape(array.shape)
