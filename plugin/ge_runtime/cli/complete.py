"""Derives the missing parts of a configuration, in the process that executes the graph.

`ge_runtime.adapters.completion` starts this process; both exchange JSON on standard input and
output.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from ge_runtime.adapters.completion import Completion, Json, dims_of, texts
from ge_runtime.cli.command import EXIT_NO
from ge_runtime.cli.config_pbtxt import parse
from ge_runtime.cli.proving import Unproven, proven
from ge_runtime.discovery.configuration import (
    MARKS,
    Configuration,
    Parameter,
    Tensor,
    written_dims,
)
from ge_runtime.discovery.discover import Discovery
from ge_runtime.discovery.graph import Graph, Port
from ge_runtime.discovery.proof import Proof
from ge_runtime.errors import ArtifactFault, RuntimeFault
from ge_runtime.scheduling.kept_costs import cores_of_process
from ge_runtime.specs import UNKNOWN

_MAX_BATCH: Final = 16
_TENSOR_FAMILIES: Final = ("axes", "batch_axis", "range", "pad", "default")
_AXIS_FAMILIES: Final = ("limit", "min", "align", "padding")
_SUPPLIED: Final = ("positions", "offsets")
"""Families of inputs that ge_runtime generates, although experiments cannot confirm them."""
_PROVEN: Final = (
    *(*_TENSOR_FAMILIES, *_AXIS_FAMILIES, *MARKS, *_SUPPLIED),
    *("constant", "gears"),
)
"""Written parameters of these families take part in the proof; others choose devices and memory."""
_SCHEDULERS: Final = ("dynamic_batching", "sequence_batching", "ensemble_scheduling")
_NAME: Final = re.compile(r"[A-Za-z_]\w*")
_WRITTEN: Final = "Written in config.pbtxt."


def main(_: Sequence[str] = ()) -> int:
    """Read a request, write a Completion or an error, and return the exit code."""
    request = json.load(sys.stdin)
    try:
        print(json.dumps(derive(Path(request["graph"]), request["config"]).as_json()))
    except RuntimeFault as fault:
        print(json.dumps({"error": str(fault)}))
        return EXIT_NO
    return 0


def derive(file: Path, config: Json) -> Completion:
    """Derive the missing parts of a configuration for the graph `file`, and prove the result.

    Raises ArtifactFault if experiments find no configuration, or contradict a written line.
    """
    graph = Graph(file, threads=cores_of_process())
    discovery = PartialDiscovery(graph, config)
    with TemporaryDirectory(prefix="ge_runtime_complete_") as scratch:
        model = Path(scratch, str(config.get("name") or "model"))
        model.mkdir(parents=True)
        (model / "1").symlink_to(file.parent, target_is_directory=True)
        try:
            found, proof = proven(discovery, model, file.name)
        except Unproven as fault:
            written = ", ".join(_proven_parameters(config))
            if not written:
                raise
            raise ArtifactFault(f"{fault} (config.pbtxt gives {written})") from fault
    for own in found.parameters:
        if (written := texts(config).get(own.key, own.value)) != own.value:
            raise ArtifactFault(
                f"parameter '{own.key}': found {written} in config.pbtxt, but the proof gives "
                f"{own.value}: {found.notes[-1]}"
            )
    return _completion(config, found, proof)


def _completion(config: Json, found: Configuration, proof: Proof) -> Completion:
    derived: Mapping[str, Any] = parse(found.text(""))
    sections: dict[str, Any] = {"max_batch_size": found.max_batch_size}
    for kind in ("input", "output"):
        written = {tensor["name"]: tensor for tensor in config.get(kind) or ()}
        sections[kind] = [
            *(
                _filled(tensor, next((d for d in derived[kind] if d["name"] == name), {}))
                for name, tensor in written.items()
            ),
            *(tensor for tensor in derived[kind] if tensor["name"] not in written),
        ]
    if not any(key in config for key in _SCHEDULERS):
        sections |= {key: derived[key] for key in _SCHEDULERS if key in derived}
    given = texts(config)
    parameters = {key: text for key, text in texts(derived).items() if key not in given}
    return Completion(sections, parameters, [*_lines(found, given), f"proven: {proof}"])


def _filled(written: Json, derived: Json) -> Json:
    """Add the derived type and dims to a written tensor if it lacks them."""
    lacks_dims = not written.get("dims")
    if written.get("data_type", "TYPE_INVALID") == "TYPE_INVALID" and "data_type" in derived:
        written = {**written, "data_type": derived["data_type"]}
    if lacks_dims and "reshape" not in written:
        keys = ("dims", "reshape", "allow_ragged_batch")
        written = {**written, **{key: derived[key] for key in keys if key in derived}}
    return written


def _lines(found: Configuration, given: Json) -> list[str]:
    """Return the decisions for the log."""
    lines = [f"max_batch_size: {found.max_batch_size}", *found.notes]
    for kind, tensors in (("input", found.inputs), ("output", found.outputs)):
        lines += [f"{kind} {own.name}: {own.dtype.config_name} {[*own.dims]}" for own in tensors]
    lines += [f"question: {own.text} a) {own.current}; b) {own.other}" for own in found.questions]
    return lines + [
        f"{own.key}: {own.value} ({own.evidence})"
        for own in found.parameters
        if own.key not in given
    ]


def _proven_parameters(config: Json) -> dict[str, Parameter]:
    """Return the written parameters that take part in the proof, by key."""
    written = (Parameter(key, text, _WRITTEN) for key, text in texts(config).items())
    return {own.key: own for own in written if own.family in _PROVEN}


class PartialDiscovery(Discovery):
    """A derivation that keeps the written lines of config.pbtxt. For one thread.

    Written sizes are fixed in all experiments. Written names of axes and written parameters replace
    derived ones.
    """

    def __init__(self, graph: Graph, config: Json) -> None:
        """Compare the written tensors with the graph's tensors, and fix written sizes.

        Raises ArtifactFault if a written type or size differs from the graph's.
        """
        self._given = _proven_parameters(config)
        constants = {
            own.name: own.value
            for own in self._given.values()
            if own.family == "constant" and _is_number(own.value)
        }
        self._written_rows = int(config.get("max_batch_size") or 0)
        super().__init__(graph, self._written_rows or _MAX_BATCH, constants)
        given = any(key in config for key in _SCHEDULERS)
        given = given or bool(config.get("input") or config.get("output"))
        # If config.pbtxt has tensors or another scheduler, requests send the states.
        self.keep_states = not given or "sequence_batching" in config
        self._written_inputs = {own["name"]: own for own in config.get("input") or ()}
        self._written_outputs = {own["name"]: own for own in config.get("output") or ()}
        ports = {port.name: port for port in graph.inputs}
        _check_names(config, ports)
        written = {name: own for name, own in self._written_inputs.items() if name in ports}
        firsts = {port.dims[0] for port in graph.inputs if port.dims}
        self._counting_dims = {dim for dim in firsts if isinstance(dim, str)}
        # Without rows, a request has all dims of the graph.
        self._whole = not self._written_rows and any(
            len(dims_of(own)) == len(ports[name].dims) and self._row_place(ports[name]) is not None
            for name, own in written.items()
        )
        for name, own in written.items():
            _check_type("input", ports[name], own)
            self._fix(ports[name], dims_of(own))

    def _fix(self, port: Port, dims: Sequence[int]) -> None:
        """Fix the sizes of the graph's dims for which config.pbtxt has a size."""
        if not dims:
            return
        own = [*port.dims] if self._whole else self._without_rows(port)
        agree = len(own) == len(dims) and all(
            isinstance(dim, str) or dim == size for dim, size in zip(own, dims, strict=True)
        )
        if not agree:
            raise ArtifactFault(
                f"input '{port.name}': found dims {list(dims)} in config.pbtxt, expected "
                f"{[*written_dims(own)]} as in the graph"
            )
        fixed = {
            dim: size
            for dim, size in zip(own, dims, strict=True)
            if isinstance(dim, str) and size != UNKNOWN
        }

        def size_of(dim: int | str) -> int | str:
            return fixed.get(dim, dim) if isinstance(dim, str) else dim

        self.graph.inputs = tuple(
            replace(each, dims=tuple(map(size_of, each.dims))) for each in self.graph.inputs
        )

    def _row_place(self, port: Port) -> int | None:
        """Guess which dim of an input counts rows, without experiments; None if no dim does."""
        given = self._given.get(f"batch_axis.{port.name}")
        if given is not None:
            return int(given.value) if given.value.isdecimal() else None
        if not self._counting_dims:
            return 0
        return next((at for at, dim in enumerate(port.dims) if dim in self._counting_dims), None)

    def _without_rows(self, port: Port) -> list[int | str]:
        place = self._row_place(port)
        return [dim for at, dim in enumerate(port.dims) if at != place]

    def configuration(self, *, batched: bool = True) -> Configuration:
        """Return the configuration with the written lines; see `Discovery.configuration`."""
        found = super().configuration(batched=batched and not self._whole)
        if self._written_rows and not found.max_batch_size:
            why = found.notes[0] if batched else "the load check refused all batches of rows"
            raise ArtifactFault(
                f"max_batch_size: found {self._written_rows} in config.pbtxt, expected 0: {why}"
            )
        # A smaller derived value is a choice, so the written value is kept.
        found.max_batch_size = self._written_rows or found.max_batch_size
        self._rename(found)
        self._inputs_as_written(found)
        self._outputs_as_written(found)
        self._check_parameters(found)
        own = [each for each in found.parameters if each.key not in self._given]
        found.parameters = [*own, *self._given.values()]
        for written in self._given.values():
            high = written.value.rpartition("..")[2].strip()
            if written.family == "range" and high.isdecimal():
                self.study.ids[written.name] = int(high)
        return found

    def _rename(self, found: Configuration) -> None:
        """Give the derived axes their written names."""
        names: dict[str, str] = {}
        origin: dict[str, str] = {}
        for own in found.parameters:
            written = self._given.get(own.key)
            if own.family not in ("axes", *MARKS) or written is None:
                continue
            ours, theirs = (each.value.replace(" ", "").split(",") for each in (own, written))
            for old, new in zip(ours, theirs, strict=False):
                if not (_NAME.fullmatch(old) and _NAME.fullmatch(new)):
                    continue
                if names.setdefault(old, new) != new:
                    raise ArtifactFault(
                        f"parameter '{own.key}': found axis '{new}', expected '{names[old]}' as in "
                        f"'{origin[old]}': the graph executes only if these sizes are equal"
                    )
                origin.setdefault(old, own.key)
        axes = {own.name for own in found.parameters if own.family == "limit"}
        left = {own.name for own in self._given.values() if own.family in _AXIS_FAMILIES}
        left -= {*names.values(), *axes}
        if len(left) == len(axes - names.keys()) == 1:
            names[(axes - names.keys()).pop()] = left.pop()

        def renamed(text: str) -> str:
            return _NAME.sub(lambda match: names.get(match[0], match[0]), text)

        merged: dict[str, Parameter] = {}
        for own in found.parameters:
            if own.family in _AXIS_FAMILIES:
                own = replace(own, key=f"{own.family}.{names.get(own.name, own.name)}")
            if own.family in ("axes", *MARKS):
                own = replace(own, value=renamed(own.value))
            known = merged.setdefault(own.key, own)
            # If two axes get one name, the smaller limit and the larger minimum apply.
            if known is not own and (int(own.value) < int(known.value)) == (own.family == "limit"):
                merged[own.key] = own
        found.parameters = list(merged.values())

    def _inputs_as_written(self, found: Configuration) -> None:
        """Make the written inputs part of requests, and remove generated inputs."""
        ports = {port.name: port for port in self.graph.inputs}
        supplied = {own.name for own in self._given.values() if own.family in _SUPPLIED}
        inputs = {own.name: own for own in found.inputs if own.name not in supplied}
        _drop(found, supplied, ("axes", "range"))
        for own in list(found.parameters):
            if own.family in MARKS and own.name in self._written_inputs:
                found.parameters.remove(own)
                port = ports[own.name]
                dims = written_dims(self._without_rows(port))
                inputs[own.name] = Tensor(own.name, port.dtype, dims, ragged=UNKNOWN in dims)
                if UNKNOWN in dims:
                    found.add(f"axes.{own.name}", own.value, own.evidence)
        for own in self._given.values():
            if own.family in MARKS and own.name in inputs:
                notes = (note for note in found.notes if f"'{own.name}'" in note)
                raise ArtifactFault(
                    f"parameter '{own.key}': found it in config.pbtxt, expected an input of "
                    "requests: " + next(notes, "experiments did not confirm it")
                )
        found.inputs = [
            _as_written(own, self._written_inputs.get(own.name)) for own in inputs.values()
        ]

    def _outputs_as_written(self, found: Configuration) -> None:
        """Keep the written outputs only, if there are any."""
        ports = {port.name: port for port in self.graph.outputs}
        for name, own in self._written_outputs.items():
            if name in ports:
                _check_type("output", ports[name], own)
        if self._written_outputs:
            found.outputs = [own for own in found.outputs if own.name in self._written_outputs]
            _drop(found, ports.keys() - self._written_outputs.keys(), ("axes", "batch_axis"))
        for own in found.outputs:
            dims = dims_of(self._written_outputs.get(own.name, {}))
            agree = len(dims) == len(own.dims) and all(
                size == UNKNOWN or dim in (UNKNOWN, size)
                for dim, size in zip(own.dims, dims, strict=True)
            )
            if dims and not agree:
                raise ArtifactFault(
                    f"output '{own.name}': found dims {dims} in config.pbtxt, expected "
                    f"{[*own.dims]}, as measured"
                )
        found.outputs = [
            _as_written(own, self._written_outputs.get(own.name)) for own in found.outputs
        ]

    def _check_parameters(self, found: Configuration) -> None:
        """Compare the written parameters with measured parameters. Raises ArtifactFault."""
        for own in found.parameters:
            key = own.key
            if own.family == "min" and key not in self._given:
                key = f"limit.{own.name}"
            written = self._given.get(key)
            if written is not None and _contradicts(own, written.value):
                raise ArtifactFault(
                    f"parameter '{key}': found {written.value} in config.pbtxt, but experiments "
                    f"give {own.key} = {own.value}: {own.evidence}"
                )


def _drop(found: Configuration, names: Collection[str], families: Collection[str]) -> None:
    """Remove parameters of tensors."""
    found.parameters = [
        own for own in found.parameters if own.family not in families or own.name not in names
    ]


def _check_names(config: Json, ports: Mapping[str, Port]) -> None:
    """Check that written inputs are inputs of the graph, or that a parameter names them."""
    used = {
        text for key, text in texts(config).items() if key.split(".")[0] in ("axis_length", "pass")
    }
    for own in config.get("input") or ():
        if own["name"] not in ports and own["name"] not in used:
            raise ArtifactFault(
                f"input '{own['name']}': found it in config.pbtxt, expected an input of the graph: "
                f"{', '.join(ports)}"
            )


def _check_type(kind: str, port: Port, written: Json) -> None:
    name = written.get("data_type", "TYPE_INVALID")
    if name not in ("TYPE_INVALID", port.dtype.config_name):
        raise ArtifactFault(
            f"{kind} '{port.name}': found data_type {name} in config.pbtxt, expected "
            f"{port.dtype.config_name} as in the graph"
        )


def _as_written(own: Tensor, written: Json | None) -> Tensor:
    """Return a tensor with the dims and flags of config.pbtxt."""
    if written is None:
        return own
    dims = tuple(dims_of(written)) or own.dims
    ragged = bool(written.get("allow_ragged_batch")) if written.get("dims") else own.ragged
    return replace(own, dims=dims, ragged=ragged, optional=bool(written.get("optional")))


def _contradicts(derived: Parameter, written: str) -> bool:
    """Return whether the graph fails with a written value."""
    last = written.rpartition("..")[2].strip()
    if not last.isdecimal():
        return False
    value = int(last)
    match derived.family:
        case "limit":
            # Other limits are choices.
            return derived.evidence.startswith("The graph fails") and value > int(derived.value)
        case "min":
            return value < int(derived.value)
        case "align":
            return value % int(derived.value) != 0
        case "range" | "gears":
            return value > int(derived.value.rpartition("..")[2])
        case _:
            return False


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
