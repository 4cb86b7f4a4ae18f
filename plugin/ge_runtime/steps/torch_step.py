"""`backend: "pytorch"`: TorchScript and programs of `torch.export`, of any shapes.

As in Triton, configurations are not completed: the files contain neither types nor shapes.
"""

from __future__ import annotations

import contextlib
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias

import numpy as np

from ge_runtime.engines.torch import import_torch, load_program
from ge_runtime.errors import ArtifactFault, EngineFault, OutOfMemory
from ge_runtime.specs import Array, Tensors
from ge_runtime.steps.step_config import StepConfig, StepTensor

# torch and its objects, whose types cannot be named without importing it.
Torch: TypeAlias = Any
Value: TypeAlias = Any

FILENAME: Final = "model.pt"
_SECOND_FILENAME: Final = "model.pt2"
_STRING: Final = "TYPE_STRING"
_TYPES: Final[Mapping[str, str]] = {
    "torch.bool": "TYPE_BOOL",
    "torch.uint8": "TYPE_UINT8",
    "torch.int8": "TYPE_INT8",
    "torch.int16": "TYPE_INT16",
    "torch.int32": "TYPE_INT32",
    "torch.int64": "TYPE_INT64",
    "torch.float16": "TYPE_FP16",
    "torch.float32": "TYPE_FP32",
    "torch.float64": "TYPE_FP64",
}
"""The types that the backend supports, without BF16 and unsigned integers above UINT8."""
_NO_GPU: Final = "it is for GPUs, and this is the CPU"
_NO_SWITCH: Final = "it sets a switch of libtorch, and that switch keeps torch's default here"
WITHOUT_EFFECT: Final[Mapping[str, str]] = {
    "ENABLE_CACHE_CLEANING": _NO_GPU,
    "DISABLE_CUDNN": _NO_GPU,
    "ENABLE_NVFUSER": _NO_GPU,
    "ENABLE_WEIGHT_SHARING": "each instance has its own weights",
    "ENABLE_JIT_EXECUTOR": _NO_SWITCH,
    "ENABLE_JIT_PROFILING": _NO_SWITCH,
    "ENABLE_TENSOR_FUSER": _NO_SWITCH,
    "INTER_OP_THREAD_COUNT": "torch accepts it once in a process, for all models",
    "ENABLE_TORCH_PARALLEL_WEIGHT_LOADING": _NO_SWITCH,
}
_NO_MEMORY: Final = "not enough memory"


class _Graph(Protocol):
    """The common interface of both file formats."""

    arguments: tuple[str, ...]
    """Arguments of `forward`, in order."""
    takes_dict: bool
    """True if the only argument is a dict of tensors by name."""

    def __call__(self, values: Sequence[Value]) -> Value:
        """Call `forward` with these arguments."""


class TorchStep:
    """One open graph. For one thread at a time."""

    def __init__(self, config: StepConfig, torch: Torch, graph: _Graph) -> None:
        """Called by `open`."""
        self._config = config
        self._torch = torch
        self._graph = graph
        self._optimized = not config.flag("DISABLE_OPTIMIZED_EXECUTION", False)
        self._inference = config.flag("INFERENCE_MODE", True)
        self._threads = config.threads("INTRA_OP_THREAD_COUNT")
        self._input_places: dict[str, int] = {}
        self._output_places: dict[str, int] = {}

    @classmethod
    def open(cls, config: StepConfig, folder: Path) -> TorchStep:
        """Open the graph in a version's folder. Raises ArtifactFault."""
        path = folder / (config.filename or FILENAME)
        if not path.exists() and config.filename in ("", FILENAME):
            second = folder / _SECOND_FILENAME
            path = second if second.exists() else path
        if not path.exists():
            raise ArtifactFault(f"unable to find '{path}' for model instance '{config.model}'")
        try:
            torch = import_torch()
        except ImportError as error:
            raise ArtifactFault(
                f'{path}: found no torch ({error}), which backend: "pytorch" needs: '
                "`pip install 'ge-runtime[torch]'`"
            ) from error
        return cls(config, torch, _open(torch, path, config.model))

    @property
    def notes(self) -> list[str]:
        """One line for each setting of the configuration that has no effect here."""
        return self._config.without_effect(WITHOUT_EFFECT)

    def complete(self, config: dict[str, Any], default_max_batch_size: int) -> None:
        """Do nothing: the backend completes no configuration either."""

    def check(self) -> None:
        """Raise ArtifactFault if the configuration does not match the graph."""
        config = self._config
        for kind, tensors in (("input", config.inputs), ("output", config.outputs)):
            if not tensors:
                raise ArtifactFault(
                    f"model configuration must contain at least one {kind}, none were specified."
                )
        generated = [name for entry in config.batch_inputs for name in entry.targets]
        states = [state.input.name for state in config.states]
        expected = (
            len(config.inputs) + len(config.batch_inputs) + len(config.controls) + len(states)
        )
        allowed = self._graph.arguments
        if not self._graph.takes_dict and allowed:
            config.check_count(expected, len(allowed))
        names = [tensor.name for tensor in config.inputs]
        self._input_places = self._find_places(names, allowed, generated)
        for name in (*states, *(control.name for control in config.controls)):
            self._input_places[name] = self._index_of(name)
        outputs = [tensor.name for tensor in config.outputs]
        self._output_places = self._find_places(outputs)
        for state in config.states:
            self._output_places[state.output.name] = self._index_of(state.output.name)
        for tensor in (*config.inputs, *(state.input for state in config.states)):
            self._check_tensor("input", tensor)
        for tensor in config.results:
            self._check_tensor("output", tensor)

    def run(self, inputs: Tensors) -> dict[str, Array]:
        """Return the configured results. `check` must have been called. Raises EngineFault."""
        torch = self._torch
        try:
            # torch keeps this number per thread, and the thread may execute other models.
            if self._threads > 0:
                torch.set_num_threads(self._threads)
            with (
                torch.jit.optimized_execution(self._optimized),
                torch.inference_mode() if self._inference else torch.no_grad(),
            ):
                results = self._graph(self._arguments(inputs))
        except Exception as error:
            short = isinstance(error, MemoryError) or _NO_MEMORY in str(error)
            text = f"PyTorch execute failure: {error}"
            raise (OutOfMemory if short else EngineFault)(text) from error
        values = _values(results)
        return {tensor.name: self._result(tensor, values) for tensor in self._config.results}

    def close(self) -> None:
        """Do nothing: the graph is freed with its last reference."""

    def _arguments(self, inputs: Tensors) -> list[Value]:
        tensors = {name: self._tensor(array) for name, array in inputs.items()}
        if self._graph.takes_dict:
            return [tensors]
        values: list[Value] = [None] * len(tensors)
        for name, value in tensors.items():
            values[self._input_places[name]] = value
        return values

    def _tensor(self, array: Array) -> Value:
        """Return the array as a tensor in the same memory; strings as a list."""
        if array.dtype == object:
            return [_string(element) for element in array.ravel()]
        # A request's memory must not be written to, and torch warns about read-only memory.
        return self._torch.from_numpy(array if array.flags.writeable else array.copy())

    def _result(self, tensor: StepTensor, values: Sequence[Value]) -> Array:
        place = self._output_places[tensor.name]
        if not 0 <= place < len(values):
            raise EngineFault(
                f"The output {tensor.name} in the model configuration refers to an output index "
                f"which doesn't exist. This model has {len(values)} outputs"
            )
        value = values[place]
        if isinstance(value, list):
            strings = np.empty(len(value), object)
            strings[:] = [own.encode() for own in value]
            return strings
        found = _TYPES.get(str(value.dtype), "TYPE_INVALID")
        if found != tensor.data_type:
            raise EngineFault(
                f"configuration expects datatype {tensor.data_type} for output '{tensor.name}', "
                f"model provides {found}"
            )
        if not value.ndim:
            raise EngineFault(f"output '{tensor.name}' is a scalar which is not supported.")
        array: Array = value.detach().contiguous().numpy()
        return array

    def _find_places(
        self, names: Sequence[str], arguments: Sequence[str] = (), generated: Sequence[str] = ()
    ) -> dict[str, int]:
        """Return the index of each tensor among arguments or results, by the naming rules.

        `generated` are the targets of `batch_input`.
        """
        if arguments and all(name in arguments for name in names):
            if self._config.states:
                raise self._no_index_for_states()
            return {name: arguments.index(name) for name in (*names, *generated)}
        if all(_index(name) is not None for name in names):
            return {name: self._index_of(name) for name in (*names, *generated)}
        if self._config.states:
            raise self._no_index_for_states()
        return {name: place for place, name in enumerate((*names, *generated))}

    def _no_index_for_states(self) -> ArtifactFault:
        return ArtifactFault(
            f"PyTorch model '{self._config.model}' is using sequence batching with state but not "
            "all inputs and outputs follow the <name>__<index> naming convention. "
        )

    def _index_of(self, name: str) -> int:
        index = _index(name)
        if index is None:
            raise ArtifactFault(
                f"input '{name}' does not follow <name>__<index> naming convention."
            )
        return index

    def _check_tensor(self, kind: str, tensor: StepTensor) -> None:
        config = self._config
        config.check_type(kind, tensor, (*_TYPES.values(), _STRING))
        if tensor.data_type == _STRING and len(tensor.dims) + config.batches > 1:
            raise ArtifactFault(
                f"Triton only supports 1 dimensional List of String as {kind} for '{tensor.name}' "
                f"for model '{config.model}'"
            )


class _Script:
    """A module of TorchScript."""

    def __init__(self, module: Value) -> None:
        self._module = module
        arguments = [
            (own.name, own.type.kind(), str(own.type))
            for own in module._c._get_method("forward").schema.arguments
        ]
        if arguments and arguments[0][1] == "ClassType":  # self
            del arguments[0]
        self.takes_dict = [kind for _, kind, _ in arguments] == ["DictType"]
        for _, kind, _ in arguments[1:]:
            if kind == "DictType":
                raise ArtifactFault(
                    "Multiple inputs of kind DictType were detected. Only a single input of type "
                    "Dict(str, Tensor) is supported."
                )
        for _, kind, text in () if self.takes_dict else arguments:
            if kind not in ("TensorType", "ListType"):
                raise ArtifactFault(
                    f"An input of type '{text}' was detected in the model. Only a single input of "
                    "type Dict(str, Tensor) or input(s) of type Tensor are supported."
                )
        self.arguments = () if self.takes_dict else tuple(name for name, _, _ in arguments)

    def __call__(self, values: Sequence[Value]) -> Value:
        return self._module(*values)


class _Program:
    """A program written by `torch.export.save`."""

    takes_dict = False

    def __init__(self, program: Value) -> None:
        self.arguments = tuple(map(str, program.graph_signature.user_inputs))
        self._spec = program.call_spec.in_spec
        self._module = program.module()

    def __call__(self, values: Sequence[Value]) -> Value:
        positional, named = self._spec.unflatten(values)
        return self._module(*positional, **named)


def _open(torch: Torch, path: Path, model: str) -> _Graph:
    with contextlib.suppress(OSError, zipfile.BadZipFile), zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        if any(name.endswith(".wrapper.so") or "/aotinductor/" in name for name in names):
            raise ArtifactFault(
                f"{path}: found a package of AOTInductor, machine code for one torch and one "
                "processor; expected TorchScript (`torch.jit.save`) or a program "
                "(`torch.export.save`)"
            )
        if not any(name.endswith(("/constants.pkl", "constants.pkl")) for name in names):
            return _Program(load_program(torch, path))
    try:
        module = torch.jit.load(str(path), map_location="cpu")
        module.eval()
    except Exception as error:
        raise ArtifactFault(f"failed to load model '{model}': {error}") from error
    return _Script(module)


def _values(results: Value) -> list[Value]:
    """Return the results in order: tensors and lists of strings. Raises EngineFault."""
    if isinstance(results, dict):  # the results of a program; the backend uses this order too
        results = tuple(results.values())
    values = list(results) if isinstance(results, tuple) else [results]
    for place, value in enumerate(values):
        strings = isinstance(value, list) and all(isinstance(own, str) for own in value)
        if strings or hasattr(value, "dtype"):
            continue
        where = f"output at index {place}" if isinstance(results, tuple) else "output"
        raise EngineFault(
            f"PyTorch execute failure: {where} must be of type Tensor, List[str] or Tuple "
            "containing one of these two types. It should not be a List / Dictionary of Tensors or "
            "a Scalar"
        )
    return values


def _index(name: str) -> int | None:
    """Return the index in a name such as INPUT__0, or None."""
    _, mark, text = name.partition("__")
    return int(text or 0) if mark and (text.isdecimal() or not text) else None


def _string(element: object) -> str:
    return element.decode(errors="replace") if isinstance(element, bytes) else str(element)
