"""The files that the states of sequences begin with."""

from __future__ import annotations

from math import prod
from pathlib import Path

from reference_server.config.scheduler_settings import SequenceBatching, SequenceState
from reference_server.core import byte_strings
from reference_server.core.errors import internal, invalid_arg

FOLDER = "initial_state"


def read_initial_states(batching: SequenceBatching, model_folder: Path) -> dict[str, bytes]:
    """The wire form of each state that begins with a file's content, by input name.

    Bytes beyond those needed are left out. Raises ServerError if a file is missing or too short.
    """
    return {
        state.input_name: _read(state, model_folder / FOLDER / state.initial_file)
        for state in batching.states
        if state.initial_file is not None
    }


def _read(state: SequenceState, path: Path) -> bytes:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise internal(f"failed to open text file for read {path}: {error.strerror}") from error
    elements = prod(state.initial_dims)
    if state.datatype.is_bytes:
        try:
            strings = byte_strings.split(memoryview(data))
        except byte_strings.Malformed as error:
            raise invalid_arg(f"initial_state file {path} is not a list of strings") from error
        if len(strings) != elements:
            raise invalid_arg(
                f"initial_state setting expects {elements} strings, but the data provided from "
                f"{path.name} has {len(strings)}."
            )
        return data
    size = elements * state.datatype.byte_size
    if len(data) < size:
        raise invalid_arg(  # the real text has no blank there either
            f"initial_state setting expects {size} bytes, but the data provided from "
            f"{path.name}only has {len(data)} bytes."
        )
    return data[:size]
