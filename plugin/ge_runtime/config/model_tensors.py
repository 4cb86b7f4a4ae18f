"""The tensors, rows and instances of a model as config.pbtxt declares them.

The dims of tensors get names. Without `pass` and `prepared`, inputs and outputs are those of the
graph, and hold numbers. Reading does not stop at an error: `ConfigErrors` collects all of them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Final, TypeGuard

from ge_runtime.config import parameter_table as table
from ge_runtime.config.parameters import ConfigErrors, Parameters, read_whole, split_names
from ge_runtime.specs import PAST, ROWS, UNKNOWN, DType, Relation, TensorSpec


@dataclass(frozen=True, slots=True)
class DeclaredTensor:
    """A tensor as `input` or `output` declares it; dims of -1 are UNKNOWN."""

    spec: TensorSpec
    optional: bool
    """True if requests may lack it. Inputs only."""


def read_max_batch_size(model_config: Mapping[str, object], errors: ConfigErrors) -> int:
    """Return the declared max_batch_size, or 0."""
    value = model_config.get("max_batch_size", 0)
    return read_whole("max_batch_size", value, errors, least=0)


def read_instances(model_config: Mapping[str, object], errors: ConfigErrors) -> int:
    """Return how many instances of the model run on this host, at least 1."""
    instances = 0
    for field, group in read_entries(model_config, "instance_group", "groups", errors):
        count = read_whole(f"{field}: count", group.get("count", 1), errors, least=1)
        gpus = group.get("gpus") or []
        if not isinstance(gpus, list):
            errors.add(f"{field}: gpus", repr(gpus), "a list of device ids")
            gpus = []
        instances += count * max(1, len(gpus))  # a group has `count` instances on each device
    return max(1, instances)


def read_tensors(
    model_config: Mapping[str, object], section: str, errors: ConfigErrors
) -> dict[str, DeclaredTensor]:
    """Return the tensors declared in `section` ("input" or "output"), by name."""
    tensors: dict[str, DeclaredTensor] = {}
    for field, entry in read_entries(model_config, section, "tensors", errors):
        name = entry.get("name")
        if not isinstance(name, str) or not name or name in tensors:
            errors.add(f"{field}: name", repr(name), "a name of its own")
            continue
        dtype = read_dtype(f"{section} '{name}'", entry, errors)
        dims = _read_dims(f"{section} '{name}'", entry, errors)
        optional = entry.get("optional") or False
        if not isinstance(optional, bool):
            errors.add(f"{section} '{name}': optional", repr(optional), "true or false")
        tensors[name] = DeclaredTensor(TensorSpec(name, dtype, dims), bool(optional))
    return tensors


def without_rows(
    outputs: Mapping[str, DeclaredTensor], passed: Container[str], errors: ConfigErrors
) -> dict[str, DeclaredTensor]:
    """Remove the leading -1 for rows from the dims of all outputs that are not in `passed`."""
    tensors = dict(outputs)
    for name, output in outputs.items():
        dims = output.spec.dims
        if name not in passed and dims[:1] == (UNKNOWN,):
            tensors[name] = replace(output, spec=replace(output.spec, dims=dims[1:]))
        elif name not in passed:
            errors.add(f"output '{name}': dims", list(dims), "-1 first, for the rows")
    return tensors


def read_entries(
    model_config: Mapping[str, object], section: str, things: str, errors: ConfigErrors
) -> list[tuple[str, Mapping[str, object]]]:
    """Return the mappings listed in `section`, each with its field.

    things: the word for the entries in the error message.
    """
    entries = model_config.get(section) or []
    if not _is_list_of_mappings(entries):
        errors.add(section, repr(entries), f"a list of {things}")
        return []
    return [(f"{section}[{index}]", entry) for index, entry in enumerate(entries)]


def read_dtype(field: str, entry: Mapping[str, object], errors: ConfigErrors) -> DType:
    """Return the `data_type` of an entry; FP32 after an error, so that reading goes on."""
    name = entry.get("data_type")
    try:
        return DType.of_config(str(name))
    except KeyError:
        known = ", ".join(member.config_name for member in DType)
        errors.add(f"{field}: data_type", repr(name), f"one of: {known}")
        return DType.FP32


def _read_dims(field: str, entry: Mapping[str, object], errors: ConfigErrors) -> tuple[int, ...]:
    """Return the dims that the model receives: the shape of `reshape` if there is one."""
    # Triton gives tensors to the model in the shape of `reshape`; `dims` is what clients send.
    reshape = entry.get("reshape")
    dims = reshape.get("shape", []) if isinstance(reshape, Mapping) else entry.get("dims", [])
    if isinstance(dims, list) and all(
        type(dim) is int and (dim > 0 or dim == UNKNOWN) for dim in dims
    ):
        return tuple(dims)
    errors.add(f"{field}: dims", repr(dims), "a list of sizes, each at least 1, or -1")
    return ()


def _is_list_of_mappings(value: object) -> TypeGuard[list[Mapping[str, object]]]:
    return isinstance(value, list) and all(isinstance(entry, Mapping) for entry in value)


@dataclass(frozen=True, slots=True)
class ModelTensors:
    """The tensors of a model, by name. Only meaningful if reading found no errors."""

    inputs: Mapping[str, TensorSpec]
    """Tensors of requests."""
    prepared: Mapping[str, TensorSpec]
    """Tensors that the model's own code computes from the inputs, for the graph."""
    optional: tuple[str, ...]
    """Inputs that a request may lack; they are then filled with their default."""
    outputs: Mapping[str, TensorSpec]
    """Outputs of the graph."""
    derived: tuple[TensorSpec, ...]
    """Outputs that the model's own code computes from the graph's outputs."""
    passthrough: Mapping[str, str]
    """The input that each passthrough output returns unchanged."""
    axes: tuple[str, ...]
    """Axes whose sizes requests determine, and PAST if states of sequences grow.

    Axes of a list with an error are included, so that no other mention of them is an error.
    """
    grows: bool = False
    """True if states of sequences grow along PAST."""

    @property
    def sources(self) -> Mapping[str, TensorSpec]:
        """The tensors that batches consist of: the prepared tensors if there are any, or inputs."""
        return self.prepared or self.inputs

    def knows_axis(self, field: str, axis: str, errors: ConfigErrors) -> bool:
        """Return whether there is such an axis; add an error at `field` if not."""
        known = axis in self.axes
        if not known:
            errors.add_unknown(field, "axis", axis, self.axes)
        return known

    @classmethod
    def read(
        cls,
        model_config: Mapping[str, object],
        parameters: Parameters,
        *,
        derived: Collection[str],
        batched: bool,
        rows_first: bool,
    ) -> ModelTensors:
        """Read the tensors of config.pbtxt.

        Args:
            model_config: The model configuration.
            parameters: Its parameters.
            derived: Names of the outputs that the model's own code computes.
            batched: Executions have a batch dimension.
            rows_first: The dims of outputs begin with the batch dimension.
        """
        errors = parameters.errors
        outputs = read_tensors(model_config, "output", errors)
        # With max_batch_size 0 Triton adds no batch dimension, so config.pbtxt writes it as a -1.
        if rows_first:
            outputs = without_rows(outputs, parameters.texts(table.PASS), errors)
        inputs = read_tensors(model_config, "input", errors)
        for name in derived:
            if name not in outputs:
                errors.add_unknown("derived outputs", "output", name, outputs)
        prepared = read_prepared(parameters, inputs)
        passthrough = read_passthrough(parameters, inputs, outputs, derived)
        names = AxisNames(parameters)
        specs = {name: tensor.spec for name, tensor in inputs.items()}
        # Inputs that the graph does not take may be BYTES and have sizes without a name.
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
            # An output size without a name could depend on the other requests of the batch, so it
            # is only allowed if each request is executed alone.
            outputs={n: names.of_output(spec, needed=batched) for n, spec in results.items()},
            derived=tuple(outputs[name].spec for name in outputs if name in derived),
            passthrough=passthrough,
            axes=mentioned_axes(parameters) if prepared else tuple(dict.fromkeys(chain(*known))),
        )
        _check_axes(tensors, names, errors)
        _check_optional(tensors, errors)
        limited = parameters.texts(table.LIMIT)
        if PAST in limited and PAST not in tensors.axes and parameters.texts(table.STATE):
            return replace(tensors, axes=(*tensors.axes, PAST), grows=True)
        return tensors


def _refuse_bytes(section: str, specs: Iterable[TensorSpec], errors: ConfigErrors) -> None:
    for spec in specs:
        if spec.dtype is DType.BYTES:
            field = f"{section} '{spec.name}': data_type"
            expected = "numbers, the only elements that a graph takes"
            errors.add(field, spec.dtype.config_name, expected)


def _check_axes(tensors: ModelTensors, names: AxisNames, errors: ConfigErrors) -> None:
    """Add errors for unknown tensors, for axes of outputs that no input has, and for `batch`."""
    # Passthrough tensors need no names of sizes. They have an error of their own, as the error for
    # unknown names would list the wrong tensors.
    passed_by = {*tensors.passthrough, *(tensors.inputs if tensors.prepared else ())}
    known = {*tensors.inputs, *tensors.outputs} - passed_by
    for name in names.tensors:
        field = f"parameter 'axes.{name}'"
        if name in passed_by:
            errors.add(field, "names", f"nothing: '{name}' is not a tensor of the graph")
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
    """Add errors for optional inputs that cannot be filled for a request that lacks them."""
    always = [spec for name, spec in tensors.sources.items() if name not in tensors.optional]
    if tensors.optional and not always:
        errors.add("input", "only optional inputs", "an input that every request has")
        return
    axes = {axis for spec in always for axis in spec.axes}
    for spec in (tensors.inputs[name] for name in tensors.optional):
        for axis in dict.fromkeys(spec.axes):
            if axis not in axes:
                expected = "axes of inputs that every request brings: the input is optional"
                errors.add(f"parameter 'axes.{spec.name}'", f"axis '{axis}'", expected)


_AXIS_NAME: Final = re.compile(r"[A-Za-z_]\w*", re.ASCII)


def is_axis_name(text: str) -> bool:
    """Return whether an axis can have this name."""
    return _AXIS_NAME.fullmatch(text) is not None


class AxisNames:
    """The names of dims that `axes.<tensor>` lists. For one thread."""

    def __init__(self, parameters: Parameters) -> None:
        self._lists = {name: names for _, name, names in parameters.entries(table.AXES)}
        self._errors = parameters.errors

    @property
    def tensors(self) -> Sequence[str]:
        """The tensors whose dims have names."""
        return tuple(self._lists)

    def mentioned(self, name: str) -> tuple[str, ...]:
        """Return the names in the tensor's list, valid or not."""
        return self._lists.get(name, ())

    def of_input(self, spec: TensorSpec, *, needed: bool) -> TensorSpec:
        """Return the tensor with each -1 of its dims replaced by the name of an axis.

        needed: True if a tensor with a -1 must have names.
        """
        names = self._names_for(spec, needed=needed)
        if all(map(is_axis_name, names)):
            return _with_names(spec, names)
        expected = f"{_expected_names(spec)}; relations are for outputs"
        self._errors.add(_field_of(spec), f"'{', '.join(names)}'", expected)
        return spec

    def of_output(self, spec: TensorSpec, *, needed: bool) -> TensorSpec:
        """Return the tensor with each -1 of its dims replaced by an axis or a relation."""
        dims: list[str | Relation] = []
        for text in self._names_for(spec, needed=needed):
            try:
                dims.append(read_dim(text))
            except ValueError as error:
                self._errors.add(_field_of(spec), f"'{text}'", str(error))
                return spec
        return _with_names(spec, dims)

    def _names_for(self, spec: TensorSpec, *, needed: bool) -> tuple[str, ...]:
        """Return the tensor's names. If their number is wrong, add an error and return none."""
        names, wanted = self._lists.get(spec.name), spec.dims.count(UNKNOWN)
        if names is None and wanted and needed:
            self._errors.add(_field_of(spec), "nothing", _expected_names(spec))
        elif names is not None and len(names) != wanted:
            self._errors.add(_field_of(spec), f"'{', '.join(names)}'", _expected_names(spec))
        elif names is not None:
            return names
        return ()


def _field_of(spec: TensorSpec) -> str:
    return f"parameter 'axes.{spec.name}'"


def _expected_names(spec: TensorSpec) -> str:
    return f"{spec.dims.count(UNKNOWN)} name(s), one per -1 of dims {list(spec.dims)}"


def read_dim(text: str) -> str | Relation:
    """Return an axis or a relation. Raises ValueError with the expected form."""
    if is_axis_name(text):
        return text
    relation = Relation.parse(text)
    return relation.term if isinstance(relation.term, str) else relation


def _with_names(spec: TensorSpec, names: Sequence[str | Relation]) -> TensorSpec:
    if not names:
        return spec
    left = iter(names)
    return replace(spec, dims=tuple(next(left) if dim == UNKNOWN else dim for dim in spec.dims))


_WRITTEN: Final = re.compile(r"(\w+)\s*\[(.*)\]", re.ASCII)
_SIZE: Final = re.compile(r"[1-9][0-9]*", re.ASCII)
_NUMBERS: Final = {dtype.value: dtype for dtype in DType if dtype is not DType.BYTES}


def read_prepared(parameters: Parameters, inputs: Collection[str]) -> dict[str, TensorSpec]:
    """Return each prepared tensor by name; none may have the name of a declared input."""
    prepared = {}
    errors = parameters.errors
    for field, name, text in parameters.entries(table.PREPARED):
        spec = read_written(name, text)
        if spec is None:
            expected = "a type of numbers, sizes and axes, e.g. INT64[tokens] or FP32[3,height]"
            errors.add(field, f"'{text}'", expected)
        prepared[name] = spec or TensorSpec(name, DType.FP32, ())
        if name in inputs:
            errors.add(field, f"'{name}' among the inputs", "a name that no input has")
    return prepared


def mentioned_axes(parameters: Parameters) -> tuple[str, ...]:
    """Return the axes that the texts of prepared tensors name, each once, valid or not."""
    words = (
        word
        for text in parameters.texts(table.PREPARED).values()
        for word in split_names(text.partition("[")[2].rstrip("] "))
    )
    return tuple(dict.fromkeys(filter(is_axis_name, words)))


def read_written(name: str, text: str) -> TensorSpec | None:
    """Return the tensor that `text` describes, e.g. INT64[tokens], or None if it is invalid."""
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
) -> dict[str, str]:
    """Return each passthrough output with its input. A `derived` output among them is an error."""
    passthrough = {}
    errors = parameters.errors
    for field, name, source in parameters.entries(table.PASS):
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
