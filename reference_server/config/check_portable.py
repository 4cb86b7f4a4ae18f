"""Finds settings of a configuration that tritonserver 2.51 does not serve as this server does."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tritonclient.grpc import model_config_pb2
from tritonclient.grpc.model_config_pb2 import ModelConfig as ConfigProto
from tritonclient.grpc.model_config_pb2 import ModelSequenceBatching

_CORRID = ModelSequenceBatching.Control.CONTROL_SEQUENCE_CORRID


class Finding(NamedTuple):
    """The key of a row in `core.portability`, and the value that it was found for."""

    key: str
    detail: str


#: Characters that bash does not pass on. Triton 2.51 starts `bash -c exec STUB PATH ... INSTANCE`
#: without quotes: seen to fail or never to end for each of them.
_SHELL = re.compile(r"""[\s"'$&();<>`|\\]""")


def findings(config: ConfigProto, folder: Path) -> Iterator[Finding]:
    """Yield the portability rows that apply to a completed configuration.

    Args:
        config: The configuration.
        folder: The model's folder, as in the options of the server.
    """
    if config.platform != "ensemble":
        names = (
            *(str(folder), config.name, config.default_model_filename),
            *(group.name for group in config.instance_group),
        )
        for name in dict.fromkeys(names):
            if _SHELL.search(name):
                yield Finding("shell-name", f"'{name}'")
    batching = config.sequence_batching
    for entry in batching.control_input:
        for control in entry.control:
            if control.kind == _CORRID and control.data_type == model_config_pb2.TYPE_STRING:
                yield Finding("string-correlation", f"'{entry.name}'")
    for state in batching.state:
        if not state.initial_state:
            yield Finding("uninitialized-state", f"'{state.input_name}'")
