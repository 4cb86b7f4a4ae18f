"""Dumps: what each operator of a model took and gave, in folders and files as CANN lays them out.

    {dump_path}/{time}/{device}/{model name}/{model id}/{index}/
        {operator's type}.{operator's name}.{task}.{stream}.{time stamp}

A file is 8 bytes, the length of a message DumpData, the message, and the tensors one after another.
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
"""OutputDataType of dump_data.proto."""
_FORMAT_ND: Final = 2
_NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9_-]")


@dataclass(frozen=True, slots=True)
class DumpConfig:
    """The section "dump" of a configuration."""

    path: Path
    mode: str
    models: tuple[tuple[str, frozenset[str]], ...]
    """Model's name, "" for any, and its operators, none for all."""
    began: str
    """The folder of its files."""

    @classmethod
    def read(cls, config: Mapping[str, Any], what: str) -> DumpConfig | None:
        """The section; None where it asks for nothing.

        Raises Refused INVALID_DUMP_CONFIG, with the key, and for a folder that is not there.
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
            raise _invalid(what, "dump_data", section["dump_data"], "tensor: no other is simulated")
        path = section.get("dump_path")
        if not isinstance(path, str) or not Path(path).is_dir():
            raise _invalid(what, "dump_path", path, "a folder that is there")
        models = tuple(
            (str(entry.get("model_name", "")), frozenset(entry.get("layer", ())))
            for entry in listed
        )
        return cls(Path(path), mode, models, time.strftime("%Y%m%d%H%M%S"))

    def layers(self, model: str) -> frozenset[str] | None:
        """The operators of this model to dump, none for all; None where it is not dumped."""
        found = [layers for name, layers in self.models if name in ("", model)]
        if not found:
            return None
        return frozenset() if frozenset() in found else frozenset().union(*found)


class ModelDump:
    """What is dumped of one loaded model. Used by one execution at a time."""

    def __init__(
        self, config: DumpConfig, graph: bytes, name: str, layers: frozenset[str], threads: int
    ) -> None:
        """graph: a serialized ModelProto. name: of the model's file. Raises what onnxruntime does.

        layers: the operators, by name; none for all.
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
        """Files of one execution on these inputs. Computes the graph once more."""
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
    """Whether it only rounds, for `compiler.half`: to a card it is no operator."""
    return node.op_type == "Cast" and bool(node.name == f"{node.output[0]}/cast")


def _rounded(value: str, made: Set[str]) -> str:
    """What an operator gives on a card in the place of a value that is rounded behind it."""
    half = value.removesuffix("/raw") + "/half"
    return half if value.endswith("/raw") and half in made else value


def dump_file(name: str, inputs: Sequence[Array], outputs: Sequence[Array], stamp: int) -> bytes:
    """The content of one operator's file."""
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
    """A varint of a message."""
    return bytes(_varint(field << 3)) + bytes(_varint(number))


def _field(field: int, content: bytes) -> bytes:
    """A message or text within a message."""
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
    """Whether and what is dumped: a part of the process."""

    def __init__(self) -> None:
        self.initialised = False
        self.config: DumpConfig | None = None
        """What models that are loaded now are dumped by."""
        self.of_init = False
        """Whether acl.init() was given it: then it stays until acl.finalize()."""

    def of(self, graph: bytes, name: str, threads: int) -> ModelDump | None:
        """The dump of a model that is loaded now; None where it has none."""
        layers = None if self.config is None else self.config.layers(name)
        if self.config is None or layers is None:
            return None
        return ModelDump(self.config, graph, name, layers, threads)

    def live(self) -> list[str]:
        """Named where nobody called mdl.finalize_dump."""
        return ["dump"] if self.initialised else []

    def close(self) -> None:
        """Files are whole after each execution."""
