"""Configuration and batches of models of Triton's `onnxruntime`, `openvino` and `pytorch`.

As in Triton's backends, the requests of a batch are concatenated, and the results are split. The
server ensures that requests of one batch have equal shapes except for the batch dimension. Inputs
with `allow_ragged_batch` may have different shapes; the graph gets all their elements in one
dimension.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from ge_runtime.config.parameters import MOST_THREADS
from ge_runtime.errors import ArtifactFault, EngineFault
from ge_runtime.specs import Array, DType, Tensors

_TRUE: Final = ("true", "1")
_FALSE: Final = ("false", "0")
_CORRELATION_ID: Final = "CONTROL_SEQUENCE_CORRID"


@dataclass(frozen=True, slots=True)
class StepTensor:
    """An input or output as configured."""

    name: str
    data_type: str
    """The name in config.pbtxt, e.g. TYPE_FP32."""
    dims: tuple[int, ...]
    """Dims of the graph's tensor: after `reshape`, without the batch dimension; -1 for any size."""
    ragged: bool = False
    optional: bool = False


@dataclass(frozen=True, slots=True)
class StepState:
    """A result that becomes an input of the sequence's next request."""

    input: StepTensor
    output: StepTensor


@dataclass(frozen=True, slots=True)
class BatchInput:
    """Inputs that are computed from the sizes of a batch's requests."""

    kind: str
    targets: tuple[str, ...]
    data_type: str
    source: str


@dataclass(frozen=True, slots=True)
class StepConfig:
    """The part of a model's configuration that concerns its graph."""

    model: str
    max_batch_size: int
    filename: str
    """`default_model_filename`, or ""."""
    inputs: tuple[StepTensor, ...]
    outputs: tuple[StepTensor, ...]
    controls: tuple[StepTensor, ...]
    """Inputs that the server adds to requests of sequences, of shape [1]."""
    states: tuple[StepState, ...]
    batch_inputs: tuple[BatchInput, ...]
    scattered: Mapping[str, str]
    """For each output of `batch_output`, the input whose shapes it has."""
    parameters: Mapping[str, str]
    optimization_level: int
    accelerators: tuple[str, ...]
    """Names in `optimization.execution_accelerators`."""
    operators: tuple[str, ...]
    """Libraries of `model_operations.op_library_filename`."""

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> StepConfig:
        """Read the configuration in Triton's JSON form."""
        optimization = config.get("optimization") or {}
        accelerators = optimization.get("execution_accelerators") or {}
        sequences = config.get("sequence_batching") or {}
        return cls(
            model=config["name"],
            max_batch_size=int(config.get("max_batch_size") or 0),
            filename=config.get("default_model_filename") or "",
            inputs=tuple(map(_tensor, config.get("input") or ())),
            outputs=tuple(map(_tensor, config.get("output") or ())),
            controls=tuple(
                StepTensor(control["name"], _control_type(control), (1,))
                for control in sequences.get("control_input") or ()
            ),
            states=tuple(map(_state, sequences.get("state") or ())),
            batch_inputs=tuple(map(_batch_input, config.get("batch_input") or ())),
            scattered={
                target: entry["source_input"][0]
                for entry in config.get("batch_output") or ()
                for target in entry["target_name"]
            },
            parameters={
                name: str(value.get("string_value", ""))
                for name, value in (config.get("parameters") or {}).items()
            },
            # Triton's JSON writes 64-bit numbers as strings.
            optimization_level=int((optimization.get("graph") or {}).get("level") or 0),
            accelerators=tuple(
                entry["name"]
                for kind in ("cpu_execution_accelerator", "gpu_execution_accelerator")
                for entry in accelerators.get(kind) or ()
            ),
            operators=tuple(
                (config.get("model_operations") or {}).get("op_library_filename") or ()
            ),
        )

    @property
    def batches(self) -> bool:
        """True if tensors have a batch dimension."""
        return self.max_batch_size > 0

    @property
    def results(self) -> tuple[StepTensor, ...]:
        """The results requested from the graph: outputs, and states that are not outputs."""
        declared = {output.name for output in self.outputs}
        states = (state.output for state in self.states if state.output.name not in declared)
        return (*self.outputs, *states)

    def whole(self, name: str, default: int) -> int:
        """Return a parameter that is a whole number. Raises ArtifactFault."""
        text = self.parameters.get(name, "")
        try:
            return int(text) if text else default
        except ValueError:
            raise self._wrong(name, text, "a whole number") from None

    def threads(self, name: str) -> int:
        """Return a parameter with a number of threads, 0 for the default. Raises ArtifactFault."""
        count = self.whole(name, 0)
        if count > MOST_THREADS:
            raise self._wrong(name, self.parameters[name], f"at most {MOST_THREADS} threads")
        return max(count, 0)

    def flag(self, name: str, default: bool) -> bool:
        """Return a parameter that is true or false. Raises ArtifactFault."""
        text = self.parameters.get(name, "")
        if text.lower() not in (*_TRUE, *_FALSE, ""):
            raise self._wrong(name, text, "true or false")
        return text.lower() in _TRUE if text else default

    def without_effect(self, reasons: Mapping[str, str]) -> list[str]:
        """Return a line for each configured parameter in `reasons`, which say why it is ignored."""
        return [
            f"model '{self.model}': parameter '{name}' has no effect here: {reasons[name]}"
            for name in self.parameters
            if name in reasons
        ]

    def _wrong(self, name: str, found: str, expected: str) -> ArtifactFault:
        return ArtifactFault(
            f"model '{self.model}': parameter '{name}': found '{found}', expected {expected}"
        )

    # The texts of these checks are Triton's. All raise ArtifactFault.

    def check_count(self, expected: int, provided: int) -> None:
        """Check the number of the graph's inputs."""
        if provided != expected:
            raise ArtifactFault(
                f"unable to load model '{self.model}', configuration expects {expected} inputs, "
                f"model provides {provided}"
            )

    def check_type(
        self, kind: str, tensor: StepTensor, supported: Collection[str], provided: str = ""
    ) -> None:
        """Check that the backend supports a tensor's type; it must equal `provided` if given."""
        if tensor.data_type not in supported:
            raise ArtifactFault(
                f"unsupported datatype {tensor.data_type} for {kind} '{tensor.name}' for model "
                f"'{self.model}'"
            )
        if provided not in ("", tensor.data_type):
            raise ArtifactFault(
                f"unable to load model '{self.model}', configuration expects datatype "
                f"{tensor.data_type} for {kind} '{tensor.name}', model provides "
                f"{provided.replace('STRING', 'BYTES')}"
            )

    def check_dims(
        self, tensor: StepTensor, dims: Sequence[int], agree: Callable[[int, int], bool]
    ) -> None:
        """Check the graph's dims; `agree` compares one dim with its configured size."""
        expected, extra = tensor.dims, f"dimensions (shape {format_dims(tensor.dims)})"
        if self.batches:
            expected = (-1, *expected)
            extra = (
                "dimensions (an initial batch dimension because max_batch_size > 0 followed by the "
                f"explicit tensor shape, making complete shape {format_dims(expected)})"
            )
        if len(dims) != len(expected) or not all(map(agree, dims, expected)):
            raise ArtifactFault(
                f"model '{self.model}', tensor '{tensor.name}': the model expects {len(dims)} "
                f"dimensions (shape {format_dims(dims)}) but the model configuration specifies "
                f"{len(expected)} {extra}"
            )


def unknown_tensor(kind: str, name: str, known: Iterable[str]) -> ArtifactFault:
    """Return the fault of a tensor that the graph does not have, in Triton's words."""
    allowed = ", ".join(sorted(known))
    return ArtifactFault(f"unexpected inference {kind} '{name}', allowed {kind}s are: {allowed}")


def format_dims(dims: Sequence[int]) -> str:
    """Format dims as Triton's texts do: [-1,3]."""
    return f"[{','.join(map(str, dims))}]"


def _tensor(entry: Mapping[str, Any]) -> StepTensor:
    reshape = entry.get("reshape")
    dims = entry.get("dims") or () if reshape is None else reshape.get("shape") or ()
    return StepTensor(
        entry["name"],
        entry["data_type"],
        tuple(map(int, dims)),
        bool(entry.get("allow_ragged_batch")),
        bool(entry.get("optional")),
    )


def _control_type(control: Mapping[str, Any]) -> str:
    """Return the type of a control: declared for a correlation ID, else implied by its values."""
    (kind,) = control["control"]
    if kind["kind"] == _CORRELATION_ID:
        return str(kind["data_type"])
    for values, name in (
        ("int32_false_true", "TYPE_INT32"),
        ("fp32_false_true", "TYPE_FP32"),
        ("bool_false_true", "TYPE_BOOL"),
    ):
        if kind.get(values):
            return name
    return "TYPE_INVALID"


def _state(entry: Mapping[str, Any]) -> StepState:
    dims = tuple(map(int, entry.get("dims") or ()))
    return StepState(
        StepTensor(entry["input_name"], entry["data_type"], dims),
        StepTensor(entry["output_name"], entry["data_type"], dims),
    )


def _batch_input(entry: Mapping[str, Any]) -> BatchInput:
    return BatchInput(
        entry["kind"], tuple(entry["target_name"]), entry["data_type"], entry["source_input"][0]
    )


def join(config: StepConfig, requests: Sequence[Tensors]) -> dict[str, Array]:
    """Return the inputs of one execution, in the order of the first request's inputs.

    The arrays of a single request are not copied. With several requests each byte is copied once.
    """
    ragged = {tensor.name for tensor in config.inputs if tensor.ragged}
    joined = {
        name: np.concatenate([request[name].ravel() for request in requests])
        if name in ragged
        else array
        if len(requests) == 1
        else np.concatenate([request[name] for request in requests])
        for name, array in requests[0].items()
    }
    for entry in config.batch_inputs:
        array = _MAKERS[entry.kind]([request[entry.source].shape for request in requests])
        for target in entry.targets:
            joined[target] = array.astype(DType.of_config(entry.data_type).numpy)
    return joined


def part(config: StepConfig, requests: Sequence[Tensors], results: Tensors) -> Sequence[Tensors]:
    """Return each request's part of the results, as views. Raises EngineFault on a mismatch."""
    if not config.batches:
        return [results]
    rows = [len(next(iter(request.values()))) for request in requests]
    parts: list[dict[str, Array]] = [{} for _ in requests]
    for name, array in results.items():
        source = config.scattered.get(name)
        if source is not None:
            shapes = [request[source].shape for request in requests]
            counts = [int(np.prod(shape)) for shape in shapes]
            array = array.ravel()
        else:
            shapes = [(count, *array.shape[1:]) for count in rows]
            counts = rows
        found = len(array) if array.ndim else 0
        if found != sum(counts):
            raise EngineFault(
                f"output '{name}': found shape {list(array.shape)}, expected {sum(counts)} in its "
                f"first dimension: the rows of {len(requests)} request(s)"
            )
        ends = np.cumsum(counts)
        for own, end, count, shape in zip(parts, ends, counts, shapes, strict=True):
            own[name] = array[end - count : end].reshape(shape)
    return parts


_Shapes = Sequence[tuple[int, ...]]


def _counts(shapes: _Shapes) -> Array:
    return np.array([int(np.prod(shape)) for shape in shapes])


def _item_shapes(shapes: _Shapes) -> Array:
    """Return the shape of each row: [all rows, dims]."""
    return np.concatenate([np.tile(np.array(shape[1:]), (shape[0], 1)) for shape in shapes])


_MAKERS: Final[Mapping[str, Callable[[_Shapes], Array]]] = {
    "BATCH_ELEMENT_COUNT": _counts,
    "BATCH_ACCUMULATED_ELEMENT_COUNT": lambda shapes: np.cumsum(_counts(shapes)),
    "BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO": lambda shapes: np.cumsum(
        np.concatenate([[0], _counts(shapes)])
    ),
    "BATCH_MAX_ELEMENT_COUNT_AS_SHAPE": lambda shapes: np.zeros(_counts(shapes).max()),
    "BATCH_ITEM_SHAPE": _item_shapes,
    "BATCH_ITEM_SHAPE_FLATTEN": lambda shapes: _item_shapes(shapes).ravel(),
}
"""For each kind of `batch_input`, a function of the source's shapes with the batch dimension."""
