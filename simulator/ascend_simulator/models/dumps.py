"""Dumps: the inputs and outputs of each operator of a model, in CANN's folders and files.

    {dump_path}/{time}/{device}/{model name}/{model id}/{index}/
        {operator's type}.{operator's name}.{task}.{stream}.{time stamp}

A file contains 8 bytes (the length of a DumpData message), the message, and the tensors in order.
Only models that are loaded while a configuration is set are dumped.
"""

from __future__ import annotations

import re
import struct
import time
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np

from ascend_simulator.codes import Code, Refused
from ascend_simulator.models.graph import Array, Bound, Graph, elements

NodeProto: TypeAlias = Any

MODES: Final = ("output", "input", "all")
_ELEMENTS: Final[Mapping[str, int]] = {
    "float32": 1,
    "float16": 2,
    "int8": 3,
    "uint8": 4,
    "int16": 5,
    "uint16": 6,
    "int32": 7,
    "int64": 8,
    "uint32": 9,
    "uint64": 10,
    "bool": 11,
    "float64": 12,
}
"""Values of OutputDataType (dump_data.proto) by NumPy type."""
_FORMAT_ND: Final = 2
_NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9_-]")


@dataclass(frozen=True, slots=True)
class DumpConfig:
    """The section "dump" of a configuration."""

    path: Path
    mode: str
    models: tuple[tuple[str, frozenset[str]], ...]
    """(model name, or "" for any model; names of the operators, empty for all)."""
    began: str
    """The time stamp that names the folder of the files."""

    @classmethod
    def read(cls, config: Mapping[str, Any], what: str) -> DumpConfig | None:
        """Parse the section "dump" of a configuration; return None if it configures no dump.

        Raises Refused INVALID_DUMP_CONFIG, with the key, for an invalid value or a missing folder.
        """
        section = config.get("dump")
        if not section:
            return None
        if not isinstance(section, dict):
            raise _invalid(what, "dump", section, "an object")
        listed = section.get("dump_list")
        if not listed:
            return None
        if not isinstance(listed, list) or not all(isinstance(entry, dict) for entry in listed):
            raise _invalid(what, "dump_list", listed, "a list of objects")
        mode = section.get("dump_mode", "output")
        if mode not in MODES:
            raise _invalid(what, "dump_mode", mode, " or ".join(MODES))
        if section.get("dump_data", "tensor") != "tensor":
            raise _invalid(
                what, "dump_data", section["dump_data"], "tensor, the only simulated value"
            )
        path = section.get("dump_path")
        if not isinstance(path, str) or not Path(path).is_dir():
            raise _invalid(what, "dump_path", path, "an existing folder")
        models = tuple(
            (str(entry.get("model_name", "")), frozenset(entry.get("layer", ())))
            for entry in listed
        )
        return cls(Path(path), mode, models, time.strftime("%Y%m%d%H%M%S"))

    def layers(self, model: str) -> frozenset[str] | None:
        """Return the operators to dump of a model, empty for all; None if it is not dumped."""
        found = [layers for name, layers in self.models if name in ("", model)]
        if not found:
            return None
        return frozenset() if frozenset() in found else frozenset().union(*found)


class ModelDump:
    """The dump of one loaded model. Used by one execution at a time."""

    def __init__(
        self, config: DumpConfig, graph: bytes, name: str, layers: frozenset[str], threads: int
    ) -> None:
        """Prepare a dump of `graph`, a serialized ModelProto. Raises onnxruntime's exceptions.

        `name` is the name of the model's file. `layers` names the operators to dump; empty for all.
        """
        import onnx

        self._config = config
        self._name = name
        model = onnx.ModelProto.FromString(graph)
        made = {value for node in model.graph.node for value in node.output}
        self._nodes = [
            (task, node.op_type, name, node.input, [_rounded(each, made) for each in node.output])
            for task, node in enumerate(
                node for node in model.graph.node if not _of_the_compiler(node)
            )
            if (name := node.name or f"{node.op_type}_{task}") in layers or not layers
        ]
        fed = {value.name for value in model.graph.input}
        wanted = {name for *_, given, made in self._nodes for name in (*given, *made) if name}
        inner = {name for node in model.graph.node for name in node.output}
        del model.graph.output[:]
        for each in sorted(wanted & inner):
            model.graph.output.append(onnx.ValueInfoProto(name=each))
        self._values = [value.name for value in model.graph.output]
        self._fed = wanted & fed
        self._graph = Graph.open(model.SerializeToString(), threads)
        self._indexes = count()

    def write(self, inputs: Sequence[Bound], device: int, model: int, stream: str) -> None:
        """Write the files of one execution with these inputs. Computes the graph again."""
        computed = self._graph.run_unsized(inputs, self._values) if self._values else []
        values = dict(zip(self._values, computed, strict=True))
        values |= {each.name: elements(each) for each in inputs if each.name in self._fed}
        config = self._config
        folder = config.path / config.began / str(device) / self._name / str(model)
        folder /= str(next(self._indexes))
        folder.mkdir(parents=True)
        number = "".join(filter(str.isdecimal, stream)) or "0"
        for task, kind, name, given, made in self._nodes:
            stamp = time.time_ns() // 1000
            file = f"{kind}.{_NOT_IN_NAMES.sub('_', name)}.{task}.{number}.{stamp}"
            taken = [values[each] for each in given if each in values]
            gave = [values[each] for each in made if each in values]
            (folder / file).write_bytes(
                dump_file(
                    name,
                    taken if config.mode != "output" else (),
                    gave if config.mode != "input" else (),
                    stamp,
                )
            )


def _of_the_compiler(node: NodeProto) -> bool:
    """Return whether `compiler.tensors` added the node for rounding. A card has no such node."""
    return node.op_type == "Cast" and bool(node.name == f"{node.output[0]}/cast")


def _rounded(value: str, made: Set[str]) -> str:
    """Return the name of the value after rounding, if the value is rounded."""
    half = value.removesuffix("/raw") + "/half"
    return half if value.endswith("/raw") and half in made else value


def dump_file(name: str, inputs: Sequence[Array], outputs: Sequence[Array], stamp: int) -> bytes:
    """Return the content of one operator's file."""
    message = _field(1, b"2.0") + _number(2, stamp)
    for array in outputs:
        message += _field(3, _tensor(array) + _number(6, array.nbytes))
    for array in inputs:
        message += _field(4, _tensor(array) + _number(5, array.nbytes))
    message += _field(6, name.encode())
    data = b"".join(np.ascontiguousarray(array).tobytes() for array in (*inputs, *outputs))
    return struct.pack("<Q", len(message)) + message + data


def _tensor(array: Array) -> bytes:
    dims = b"".join(_number(1, dim) for dim in array.shape)
    kind = _ELEMENTS.get(array.dtype.name, 0)
    return _number(1, kind) + _number(2, _FORMAT_ND) + _field(3, dims)


def _number(field: int, number: int) -> bytes:
    """Return a varint field of a message."""
    return bytes(_varint(field << 3)) + bytes(_varint(number))


def _field(field: int, content: bytes) -> bytes:
    """Return a field that contains a message or text."""
    return bytes(_varint(field << 3 | 2)) + bytes(_varint(len(content))) + content


def _varint(number: int) -> Iterator[int]:
    while number > 127:
        yield number & 127 | 128
        number >>= 7
    yield number


def _invalid(what: str, key: str, found: object, expected: str) -> Refused:
    text = f"{what}: {key}: found {found!r}, expected {expected}"
    return Refused(Code.INVALID_DUMP_CONFIG, text)


class Dumps:
    """The dump configuration: a `Part` of the process."""

    def __init__(self) -> None:
        self.initialised = False
        self.config: DumpConfig | None = None
        """The configuration for models that are loaded from now on."""
        self.of_init = False
        """True if acl.init() set the configuration, which lasts until acl.finalize()."""

    def of(self, graph: bytes, name: str, threads: int) -> ModelDump | None:
        """Return the dump of a model that is being loaded; None if it is not dumped."""
        layers = None if self.config is None else self.config.layers(name)
        if self.config is None or layers is None:
            return None
        return ModelDump(self.config, graph, name, layers, threads)

    def live(self) -> list[str]:
        """Name the dump if mdl.finalize_dump was not called."""
        return ["dump"] if self.initialised else []

    def close(self) -> None:
        """Do nothing: files are complete after each execution."""
