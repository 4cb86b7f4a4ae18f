"""All tensors of a model, their dims named, and consistent with each other.

Without parameters that say otherwise, inputs and outputs are those of the graph, and hold numbers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import chain

from ge_runtime.config.beside import mentioned_axes, read_passes, read_prepared
from ge_runtime.config.declared import read_tensors, without_rows
from ge_runtime.config.faults import Faults
from ge_runtime.config.naming import Names
from ge_runtime.config.parameters import Parameters
from ge_runtime.specs import ROWS, DType, TensorSpec


@dataclass(frozen=True, slots=True)
class Tensors:
    """The tensors of a model, by name. Counts only if reading it found no faults."""

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
    passes: Mapping[str, str]
    """Output: the input that it is."""
    axes: tuple[str, ...]
    """Those whose sizes requests bring.

    Those in a faulty list count too: one slip is one fault, not a fault at every mention.
    """

    @property
    def sources(self) -> Mapping[str, TensorSpec]:
        """What batches are made of: the prepared tensors if there are any, else the inputs."""
        return self.prepared or self.inputs

    def knows_axis(self, place: str, axis: str, faults: Faults) -> bool:
        """Whether there is such an axis; a fault at `place` if not."""
        known = axis in self.axes
        if not known:
            faults.add_unknown(place, "axis", axis, self.axes)
        return known

    @classmethod
    def read(
        cls,
        model_config: Mapping[str, object],
        parameters: Parameters,
        faults: Faults,
        *,
        derived: Collection[str],
        batched: bool,
        rows_first: bool,
    ) -> Tensors:
        """What config.pbtxt says of tensors.

        derived: the outputs that the model's own code makes. batched: executions have a batch
        dimension. rows_first: the dims of outputs begin with it.
        """
        outputs = read_tensors(model_config, "output", faults)
        if rows_first:
            outputs = without_rows(outputs, parameters.families["pass"], faults)
        inputs = read_tensors(model_config, "input", faults)
        for name in derived:
            if name not in outputs:
                faults.add_unknown("derived outputs", "output", name, outputs)
        prepared = read_prepared(parameters, inputs, faults)
        passes = read_passes(parameters, inputs, outputs, derived, faults)
        names = Names(parameters, faults)
        specs = {name: tensor.spec for name, tensor in inputs.items()}
        # What the graph need not take may be BYTES and have sizes without a name.
        taken = {name for name in specs if not prepared and name not in passes.values()}
        results = {
            name: output.spec
            for name, output in outputs.items()
            if name not in derived and name not in passes
        }
        _refuse_bytes("input", [specs[name] for name in specs if name in taken], faults)
        _refuse_bytes("output", results.values(), faults)
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
            passes=passes,
            axes=mentioned_axes(parameters) if prepared else tuple(dict.fromkeys(chain(*known))),
        )
        _check_axes(tensors, names, faults)
        _check_optional(tensors, faults)
        return tensors


def _refuse_bytes(section: str, specs: Iterable[TensorSpec], faults: Faults) -> None:
    for spec in specs:
        if spec.dtype is DType.BYTES:
            place = f"{section} '{spec.name}': data_type"
            expected = "numbers, the only elements a graph executes on"
            faults.add(place, spec.dtype.config_name, expected)


def _check_axes(tensors: Tensors, names: Names, faults: Faults) -> None:
    """Faults for names of no tensor, axes of outputs that no input has, and the reserved name."""
    # Tensors whose sizes nobody needs to know; but for the fault below they would be unknown.
    beside = {*tensors.passes, *(tensors.inputs if tensors.prepared else ())}
    known = {*tensors.inputs, *tensors.outputs} - beside
    for name in names.tensors:
        place = f"parameter 'axes.{name}'"
        if name in beside:
            faults.add(place, "names", f"nothing: '{name}' is neither taken nor given by the graph")
        elif name not in known:
            faults.add_unknown(place, "tensor", name, known)
    for output in tensors.outputs.values():
        for axis in dict.fromkeys(output.axes):
            tensors.knows_axis(f"parameter 'axes.{output.name}'", axis, faults)
    for name, spec in tensors.sources.items():
        if ROWS in spec.axes:
            family = "prepared" if tensors.prepared else "axes"
            expected = "another name: this one stands for the rows of a batch"
            faults.add(f"parameter '{family}.{name}'", f"axis '{ROWS}'", expected)


def _check_optional(tensors: Tensors, faults: Faults) -> None:
    """Faults for optional inputs that cannot be made up for a request that lacks them."""
    always = [spec for name, spec in tensors.sources.items() if name not in tensors.optional]
    if tensors.optional and not always:
        faults.add("input", "only optional ones", "one that every request brings")
        return
    axes = {axis for spec in always for axis in spec.axes}
    for spec in (tensors.inputs[name] for name in tensors.optional):
        for axis in dict.fromkeys(spec.axes):
            if axis not in axes:
                expected = "axes of inputs that every request brings: the input is optional"
                faults.add(f"parameter 'axes.{spec.name}'", f"axis '{axis}'", expected)
