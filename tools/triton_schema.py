"""The schema of Triton's protocol in tritonclient: fields, values of enums, and calls.

A wheel's code is read, not run, so any version can be read with any installed protobuf.
"""

from __future__ import annotations

import ast
import zipfile
from collections.abc import Mapping
from pathlib import Path

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
)

PARTS = ("model_config", "service")

#: Facts about a field, a value of an enum or a call, such as its number.
Facts = Mapping[str, str]


class NoSchema(Exception):
    """A wheel without generated code of the protocol."""


def of_wheel(wheel: Path) -> dict[str, Facts]:
    """Return the schema in a wheel of tritonclient. Raise NoSchema."""
    found: dict[str, Facts] = {}
    with zipfile.ZipFile(wheel) as archive:
        for part in PARTS:
            ending = f"tritonclient/grpc/{part}_pb2.py"
            member = next((name for name in archive.namelist() if name.endswith(ending)), None)
            if member is None:
                raise NoSchema(f"{wheel}: no {ending} in it")
            found |= _of_file(FileDescriptorProto.FromString(_serialized(archive.read(member))))
    return found


def installed() -> dict[str, Facts]:
    """Return the schema of the installed tritonclient, which the reference server reads."""
    from tritonclient.grpc import model_config_pb2, service_pb2

    modules = (model_config_pb2, service_pb2)
    files = (FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb) for module in modules)
    return {name: facts for file in files for name, facts in _of_file(file).items()}


def _serialized(source: bytes) -> bytes:
    """Return the descriptor that generated code passes to protobuf: its longest bytes literal."""
    literals = [
        node.value
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Constant) and isinstance(node.value, bytes)
    ]
    return max(literals, key=len)


def _of_file(file: FileDescriptorProto) -> dict[str, Facts]:
    found: dict[str, Facts] = {}
    for message in file.message_type:
        found |= _of_message(message, "")
    for enum in file.enum_type:
        found |= _of_enum(enum, "")
    for service in file.service:
        for method in service.method:
            found[f"{service.name}/{method.name}"] = {
                "takes": "stream " * method.client_streaming + _short(method.input_type),
                "gives": "stream " * method.server_streaming + _short(method.output_type),
            }
    return found


def _of_message(message: DescriptorProto, within: str) -> dict[str, Facts]:
    name = f"{within}{message.name}"
    found: dict[str, Facts] = {}
    for field in message.field:
        facts = {"": _type_of(field), "number": str(field.number)}
        if field.HasField("oneof_index"):
            facts["oneof"] = message.oneof_decl[field.oneof_index].name
        found[f"{name}.{field.name}"] = facts
    for nested in message.nested_type:
        found |= _of_message(nested, f"{name}.")
    for enum in message.enum_type:
        found |= _of_enum(enum, f"{name}.")
    return found


def _of_enum(enum: EnumDescriptorProto, within: str) -> dict[str, Facts]:
    return {
        f"{within}{enum.name}.{value.name}": {"number": str(value.number)} for value in enum.value
    }


def _type_of(field: FieldDescriptorProto) -> str:
    kind = FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_").lower()
    repeated = "repeated " * (field.label == FieldDescriptorProto.LABEL_REPEATED)
    return repeated + (_short(field.type_name) or kind)


def _short(name: str) -> str:
    return name.removeprefix(".inference.")
