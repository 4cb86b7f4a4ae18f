"""Finds settings of a configuration that tritonserver 2.51 does not serve as this server does."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tritonclient.grpc import model_config_pb2
from tritonclient.grpc.model_config_pb2 import ModelConfig as ConfigProto
from tritonclient.grpc.model_config_pb2 import ModelSequenceBatching

from reference_server.core.errors import FieldPath

_CORRID = ModelSequenceBatching.Control.CONTROL_SEQUENCE_CORRID


class Finding(NamedTuple):
    """The key of a row in `core.portability`, a value to which it applies, and its field."""

    key: str
    detail: str
    path: FieldPath = ()


#: Characters that bash does not pass on. Triton 2.51 starts `bash -c exec STUB PATH ... INSTANCE`
#: without quotes. With each of these characters this command was seen to fail or never to end.
_SHELL = re.compile(r"""[\s"'$&();<>`|\\]""")


def findings(config: ConfigProto, folder: Path) -> Iterator[Finding]:
    """Yield the portability rows that apply to a completed configuration.

    Args:
        config: The configuration.
        folder: The model's folder, as in the options of the server.
    """
    if config.platform != "ensemble":
        names: dict[str, FieldPath] = {str(folder): (), config.name: ("name",)}
        names.setdefault(config.default_model_filename, ("default_model_filename",))
        for index, group in enumerate(config.instance_group):
            names.setdefault(group.name, ("instance_group", index, "name"))
        for name, path in names.items():
            if _SHELL.search(name):
                yield Finding("shell-name", f"'{name}'", path)
    batching = config.sequence_batching
    for index, entry in enumerate(batching.control_input):
        path = ("sequence_batching", "control_input", index, "control")
        for number, control in enumerate(entry.control):
            if control.kind == _CORRID and control.data_type == model_config_pb2.TYPE_STRING:
                place = (*path, number, "data_type")
                yield Finding("string-correlation", f"'{entry.name}'", place)
    for index, state in enumerate(batching.state):
        if not state.initial_state:
            path = ("sequence_batching", "state", index)
            yield Finding("uninitialized-state", f"'{state.input_name}'", path)
