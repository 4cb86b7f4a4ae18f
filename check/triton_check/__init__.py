"""`triton-check`: the command `reference-server check` without the server's requirements."""

import importlib
import sys
from pathlib import Path
from types import ModuleType

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.internal import enum_type_wrapper

_FOLDER = Path(__file__).parent
#: The module of tritonclient that the server's modules import.
_MESSAGES = "tritonclient.grpc.model_config_pb2"


def main() -> int:
    """Run the command line and return its exit code."""
    sys.path.insert(0, str(_FOLDER / "packages"))
    _add_messages()
    command = importlib.import_module("reference_server.checking.command")
    return int(command.main(sys.argv[1:], "triton-check"))


def _add_messages() -> None:
    """Make the messages of config.pbtxt importable without tritonclient and gRPC's library."""
    schema = descriptor_pb2.FileDescriptorProto.FromString(
        (_FOLDER / "model_config.binpb").read_bytes()
    )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(schema)
    file = pool.FindFileByName(schema.name)
    module = ModuleType(_MESSAGES)
    for name, message in file.message_types_by_name.items():
        setattr(module, name, message_factory.GetMessageClass(message))
    for name, enum in file.enum_types_by_name.items():
        setattr(module, name, enum_type_wrapper.EnumTypeWrapper(enum))
    package, _, _ = _MESSAGES.rpartition(".")
    for name in ("tritonclient", package):
        sys.modules[name] = ModuleType(name)
    sys.modules[_MESSAGES] = module
