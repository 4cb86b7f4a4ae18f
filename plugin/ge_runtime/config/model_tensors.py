"""The tensors of a model as config.pbtxt declares them, with names for their dims.

- `axes.<input or output>`: a name for each -1 in the tensor's dims, in order, e.g. `height, width`;
  for outputs also a relation between axes, e.g. `(height + 1) // 2, width * 2`.
- `pass.<output>`: passthrough: the input, of any type, that is returned as this output.
- `prepared.<tensor>`: the type and dims of an input that the model's own code makes of those of
  the request, e.g. `INT64[tokens]`.

Without `pass` and `prepared`, inputs and outputs are those of the graph, and hold numbers.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Final

from ge_runtime.config.triton_config import (
    ConfigErrors,
    DeclaredTensor,
    Parameters,
    read_tensors,
    split_names,
    without_rows,
)
from ge_runtime.relations import Relation
from ge_runtime.specs import ROWS, UNKNOWN, DType, TensorSpec


@dataclass(frozen=True, slots=True)
class ModelTensors:
    """The tensors of a model, by name. Counts only if reading it found no errors."""

    inputs: Mapping[str, TensorSpec]
    """What requests bring."""
    prepared: Mapping[str, TensorSpec]
    """What the model's own code makes of the inputs."""
    optional: tuple[str, ...]
    """The inputs that a request may lack and that are then made up."""
    outputs: Mapping[str, TensorSpec]
    """What the graph gives."""
    derived: tuple[TensorSpec, ...]
    """What the model's own code makes of the graph's outputs."""
    passthrough: Mapping[str, str]
    """Output: the input that it is."""
    axes: tuple[str, ...]
    """Those whose sizes requests bring.

    Those in a list with an error count too: one slip is one error, not one at every mention.
    """

    @property
    def sources(self) -> Mapping[str, TensorSpec]:
        """What batches are made of: the prepared tensors if there are any, else the inputs."""
        return self.prepared or self.inputs

    def knows_axis(self, field: str, axis: str, errors: ConfigErrors) -> bool:
        """Whether there is such an axis; an error at `field` if not."""
        known = axis in self.axes
        if not known:
            errors.add_unknown(field, "axis", axis, self.axes)
        return known

    @classmethod
    def read(
        cls,
        model_config: Mapping[str, object],
        parameters: Parameters,
        errors: ConfigErrors,
        *,
        derived: Collection[str],
        batched: bool,
        rows_first: bool,
    ) -> ModelTensors:
        """What config.pbtxt says of tensors.

        derived: the outputs that the model's own code makes. batched: executions have a batch
        dimension. rows_first: the dims of outputs begin with it.
        """
        outputs = read_tensors(model_config, "output", errors)
        # With max_batch_size 0 Triton adds no batch dimension, so config.pbtxt writes it as a -1.
        if rows_first:
            outputs = without_rows(outputs, parameters.families["pass"], errors)
        inputs = read_tensors(model_config, "input", errors)
        for name in derived:
            if name not in outputs:
                errors.add_unknown("derived outputs", "output", name, outputs)
        prepared = read_prepared(parameters, inputs, errors)
        passthrough = read_passthrough(parameters, inputs, outputs, derived, errors)
        names = AxisNames(parameters, errors)
        specs = {name: tensor.spec for name, tensor in inputs.items()}
        # What the graph need not take may be BYTES and have sizes without a name.
        taken = {name for name in specs if not prepared and name not in passthrough.values()}
        results = {
            name: output.spec
            for name, output in outputs.items()
            if name not in derived and name not in passthrough
        }
        _refuse_bytes("input", [specs[name] for name in specs if name in taken], errors)
        _refuse_bytes("output", results.values(), errors)
        known = [names.mentioned(name) for name in inputs]
        if not prepared:
            specs = {n: names.of_input(spec, needed=n in taken) for n, spec in specs.items()}
        tensors = cls(
            inputs=specs,
            prepared=prepared,
            optional=tuple(n for n, own in inputs.items() if own.optional and not prepared),
            # A size of an output that nobody names could depend on who shared the batch, so only
            # requests that run alone may leave one open.
            outputs={n: names.of_output(spec, needed=batched) for n, spec in results.items()},
            derived=tuple(outputs[name].spec for name in outputs if name in derived),
            passthrough=passthrough,
            axes=mentioned_axes(parameters) if prepared else tuple(dict.fromkeys(chain(*known))),
        )
        _check_axes(tensors, names, errors)
        _check_optional(tensors, errors)
        return tensors


def _refuse_bytes(section: str, specs: Iterable[TensorSpec], errors: ConfigErrors) -> None:
    for spec in specs:
        if spec.dtype is DType.BYTES:
            field = f"{section} '{spec.name}': data_type"
            expected = "numbers, the only elements a graph executes on"
            errors.add(field, spec.dtype.config_name, expected)


def _check_axes(tensors: ModelTensors, names: AxisNames, errors: ConfigErrors) -> None:
    """Errors for names of no tensor, axes of outputs that no input has, and the reserved name."""
    # Passthrough tensors need no names of sizes. They are told apart from unknown names, whose
    # error would list the wrong tensors.
    passed_by = {*tensors.passthrough, *(tensors.inputs if tensors.prepared else ())}
    known = {*tensors.inputs, *tensors.outputs} - passed_by
    for name in names.tensors:
        field = f"parameter 'axes.{name}'"
        if name in passed_by:
            errors.add(field, "names", f"nothing: '{name}' is neither taken nor given by the graph")
        elif name not in known:
            errors.add_unknown(field, "tensor", name, known)
    for output in tensors.outputs.values():
        for axis in dict.fromkeys(output.axes):
            tensors.knows_axis(f"parameter 'axes.{output.name}'", axis, errors)
    for name, spec in tensors.sources.items():
        if ROWS in spec.axes:
            family = "prepared" if tensors.prepared else "axes"
            expected = "another name: this one stands for the rows of a batch"
            errors.add(f"parameter '{family}.{name}'", f"axis '{ROWS}'", expected)


def _check_optional(tensors: ModelTensors, errors: ConfigErrors) -> None:
    """Errors for optional inputs that cannot be made up for a request that lacks them."""
    always = [spec for name, spec in tensors.sources.items() if name not in tensors.optional]
    if tensors.optional and not always:
        errors.add("input", "only optional ones", "one that every request brings")
        return
    axes = {axis for spec in always for axis in spec.axes}
    for spec in (tensors.inputs[name] for name in tensors.optional):
        for axis in dict.fromkeys(spec.axes):
            if axis not in axes:
                expected = "axes of inputs that every request brings: the input is optional"
                errors.add(f"parameter 'axes.{spec.name}'", f"axis '{axis}'", expected)


_AXIS_NAME: Final = re.compile(r"[A-Za-z_]\w*", re.ASCII)


def is_axis_name(text: str) -> bool:
    """Whether an axis can have this name."""
    return _AXIS_NAME.fullmatch(text) is not None


class AxisNames:
    """What `axes.<tensor>` says, tensor by tensor. For one thread."""

    def __init__(self, parameters: Parameters, errors: ConfigErrors) -> None:
        self._lists = {name: split_names(t) for name, t in parameters.families["axes"].items()}
        self._errors = errors

    @property
    def tensors(self) -> Sequence[str]:
        """The tensors whose dims are given names."""
        return tuple(self._lists)

    def mentioned(self, name: str) -> tuple[str, ...]:
        """What stands in the tensor's list, be it right or wrong."""
        return self._lists.get(name, ())

    def of_input(self, spec: TensorSpec, *, needed: bool) -> TensorSpec:
        """The tensor with each -1 of its dims replaced by the name of an axis.

        needed: a tensor with a -1 must have names.
        """
        names = self._counted(spec, needed=needed)
        if all(map(is_axis_name, names)):
            return _named(spec, names)
        expected = f"{_wanted(spec)}; relations are for outputs"
        self._errors.add(_field_of(spec), f"'{', '.join(names)}'", expected)
        return spec

    def of_output(self, spec: TensorSpec, *, needed: bool) -> TensorSpec:
        """The tensor with each -1 of its dims replaced by the name of an axis or a relation."""
        dims: list[str | Relation] = []
        for text in self._counted(spec, needed=needed):
            try:
                dims.append(_dim(text))
            except ValueError as error:
                self._errors.add(_field_of(spec), f"'{text}'", str(error))
                return spec
        return _named(spec, dims)

    def _counted(self, spec: TensorSpec, *, needed: bool) -> tuple[str, ...]:
        """The names in the tensor's list; none, and an error, if they are too few or too many."""
        names, wanted = self._lists.get(spec.name), spec.dims.count(UNKNOWN)
        if names is None and wanted and needed:
            self._errors.add(_field_of(spec), "nothing", _wanted(spec))
        elif names is not None and len(names) != wanted:
            self._errors.add(_field_of(spec), f"'{', '.join(names)}'", _wanted(spec))
        elif names is not None:
            return names
        return ()


def _field_of(spec: TensorSpec) -> str:
    return f"parameter 'axes.{spec.name}'"


def _wanted(spec: TensorSpec) -> str:
    return f"{spec.dims.count(UNKNOWN)} name(s), one per -1 of dims {list(spec.dims)}"


def _dim(text: str) -> str | Relation:
    """An axis or a relation. Raises ValueError with what was expected."""
    if is_axis_name(text):
        return text
    relation = Relation.parse(text)
    return relation.term if isinstance(relation.term, str) else relation


def _named(spec: TensorSpec, names: Sequence[str | Relation]) -> TensorSpec:
    """The tensor with its dims of -1 replaced by names, one each; as it is without names."""
    if not names:
        return spec
    left = iter(names)
    return replace(spec, dims=tuple(next(left) if dim == UNKNOWN else dim for dim in spec.dims))


_WRITTEN: Final = re.compile(r"(\w+)\s*\[(.*)\]", re.ASCII)
_SIZE: Final = re.compile(r"[1-9][0-9]*", re.ASCII)
_NUMBERS: Final = {dtype.value: dtype for dtype in DType if dtype is not DType.BYTES}


def read_prepared(
    parameters: Parameters, inputs: Collection[str], errors: ConfigErrors
) -> dict[str, TensorSpec]:
    """Each prepared tensor by name; none has the name of a declared input."""
    prepared = {}
    for name, text in parameters.families["prepared"].items():
        field = f"parameter 'prepared.{name}'"
        spec = _read_spec(name, text)
        if spec is None:
            expected = "a type of numbers, sizes and axes, e.g. INT64[tokens] or FP32[3,height]"
            errors.add(field, f"'{text}'", expected)
        prepared[name] = spec or TensorSpec(name, DType.FP32, ())
        if name in inputs:
            errors.add(field, f"'{name}' among the inputs", "a name that no input has")
    return prepared


def mentioned_axes(parameters: Parameters) -> tuple[str, ...]:
    """The axes that prepared tensors name, each once, in texts that are right or wrong."""
    words = (
        word
        for text in parameters.families["prepared"].values()
        for word in split_names(text.partition("[")[2].rstrip("] "))
    )
    return tuple(dict.fromkeys(filter(is_axis_name, words)))


def _read_spec(name: str, text: str) -> TensorSpec | None:
    """The tensor that is written as `str` of its spec, or None if none is."""
    match = _WRITTEN.fullmatch(text)
    if match is None or match[1] not in _NUMBERS:
        return None
    words = split_names(match[2]) if match[2].strip() else ()
    if not all(is_axis_name(word) or _SIZE.fullmatch(word) for word in words):
        return None
    dims = (word if is_axis_name(word) else int(word) for word in words)
    return TensorSpec(name, _NUMBERS[match[1]], tuple(dims))


def read_passthrough(
    parameters: Parameters,
    inputs: Mapping[str, DeclaredTensor],
    outputs: Mapping[str, DeclaredTensor],
    derived: Collection[str],
    errors: ConfigErrors,
) -> dict[str, str]:
    """Output: the input of equal type and dims that it is. `derived` outputs are none of these."""
    passthrough = {}
    for name, source in parameters.families["pass"].items():
        field = f"parameter 'pass.{name}'"
        if name in derived:
            errors.add(field, f"'{name}' among the derived outputs", "one of the two")
        if name not in outputs:
            errors.add_unknown(field, "output", name, outputs)
        elif source not in inputs:
            errors.add_unknown(field, "input", source, inputs)
        else:
            passthrough[name] = source
            given, wanted = inputs[source].spec, outputs[name].spec
            if (given.dtype, given.dims) != (wanted.dtype, wanted.dims):
                errors.add(
                    field, f"input '{source}' {given}", f"{wanted} as the output is declared"
                )
            if inputs[source].optional:
                expected = "an input that every request brings"
                errors.add(field, f"optional input '{source}'", expected)
    return passthrough
