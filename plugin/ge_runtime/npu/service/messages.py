"""Content of messages that client and service convert: identities, resident tensors, handles.

Models of equal content share their weights, even if their paths differ. In different containers
equal paths may be different files, and in different processes equal device numbers may be
different devices.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ge_runtime.config import HANDLE_DIMS, HANDLE_DTYPE, MOST_ROWS, Resident, ResidentTensor
from ge_runtime.engines.content import ContentHashes, stat_identity
from ge_runtime.errors import ArtifactFault
from ge_runtime.npu.service.protocol import Json, ProtocolError
from ge_runtime.specs import DType

FileIdentity: TypeAlias = tuple[str, list[int] | None]
"""The path of a file, and the file's `stat_identity`, or None if the file is missing."""

VISIBLE_DEVICES_VARIABLES: Final[Mapping[str, str]] = {
    "cuda": "CUDA_VISIBLE_DEVICES",
    "npu": "ASCEND_RT_VISIBLE_DEVICES",
}
"""The environment variables that select and renumber devices, by device type."""


def file_identity(path: Path) -> FileIdentity:
    """Return the path of a file, and the file's identity, or None if the file is missing.

    The result is equal in all processes that see the same file. Raises ArtifactFault if the file
    cannot be accessed.
    """
    try:
        return str(path), list(stat_identity(path))
    except FileNotFoundError:
        return str(path), None
    except (OSError, ValueError) as error:
        raise ArtifactFault(f"{path}: cannot be read: {error}") from error


def ensure_same_files(
    paths: Sequence[Path], seen: Sequence[Sequence[FileIdentity]], content: str
) -> None:
    """Raise ArtifactFault if another process sees other files at these paths.

    Files with equal content are accepted.

    Args:
        paths: The files.
        seen: The identities, in the other process, of each file and of its external files.
        content: The files' hashes in the other process, joined by "-".
    """
    # `ModelCache` joins the hashes.
    for path, files, digest in zip(paths, seen, content.split("-"), strict=True):
        same = all(file_identity(Path(name)) == (name, identity) for name, identity in files)
        # The content is only read if the identities differ, because reading may take seconds.
        if not same and ContentHashes().of(path) != digest:
            raise ArtifactFault(
                f"{path}: found a file that differs from the device service's, expected the same; "
                "a service in another container sees other folders: set XDG_RUNTIME_DIR so that "
                "each container has its own service"
            )


def physical_device(device: str, environment: Mapping[str, str]) -> str:
    """Return the name of a device on the machine: its number, or a name such as "GPU-8932".

    Empty for the CPU, and for a device that is not visible.
    """
    kind, _, number = device.partition(":")
    listed = environment.get(VISIBLE_DEVICES_VARIABLES.get(kind, ""))
    if listed is None:
        return number
    visible = [one.strip() for one in listed.split(",")]
    if kind == "npu":
        # CANN reads up to the first invalid character, and only accepts ascending numbers.
        first = re.split(r"\s", listed, maxsplit=1)[0]
        numbers = [*map(int, takewhile(str.isdecimal, first.split(",")))]
        is_ascending = all(a < b for a, b in pairwise(numbers))
        visible = [*map(str, numbers)] if is_ascending else []
    return visible[int(number)] if int(number) < len(visible) else ""


MOST_HANDLES: Final = 256
"""Maximum number of handles in one message."""
_HANDLE_DIGITS: Final = 64
_MOST_NAME: Final = 256
_MOST_DIM: Final = 2**31
_MOST_DIMS: Final = 8
_MOST_LEASE_S: Final = 86_400


def resident_as_json(resident: Resident) -> Json:
    """Convert a declaration of resident tensors to JSON."""
    return {
        "inputs": _tensors_as_json(resident.inputs),
        "outputs": _tensors_as_json(resident.outputs),
        "rows": resident.rows,
        "reads": resident.reads,
        "lease_s": resident.lease_s,
        "spare_s": resident.spare_s,
    }


def _tensors_as_json(tensors: Mapping[str, ResidentTensor]) -> Json:
    return {name: [t.model, t.dtype.value, list(t.dims)] for name, t in tensors.items()}


def resident_of(message: object) -> Resident:
    """Convert JSON to a declaration, None to an empty declaration. Raises ProtocolError."""
    if message is None:
        return Resident()
    if not isinstance(message, dict):
        raise ProtocolError(f"found resident {message!r}, expected an object")
    return Resident(
        _tensors_of(message.get("inputs")),
        _tensors_of(message.get("outputs")),
        _whole(message, "rows", 0, MOST_ROWS),
        _whole(message, "reads", 1, MOST_ROWS),
        _whole(message, "lease_s", 1, _MOST_LEASE_S),
        _whole(message, "spare_s", 1, _MOST_LEASE_S),
    )


def handles_as_json(handles: NDArray[np.uint64]) -> list[str]:
    """Convert handles to strings, one for each message."""
    text = np.ascontiguousarray(handles).tobytes().hex()
    part = MOST_HANDLES * _HANDLE_DIGITS
    return [text[at : at + part] for at in range(0, len(text), part)]


def handles_of(text: object) -> NDArray[np.uint64]:
    """Convert one string of `handles_as_json` to handles, [rows, 4]. Raises ProtocolError."""
    most = MOST_HANDLES * _HANDLE_DIGITS
    if isinstance(text, str) and len(text) <= most and len(text) % _HANDLE_DIGITS == 0:
        with suppress(ValueError):  # not hexadecimal
            return np.frombuffer(bytes.fromhex(text), HANDLE_DTYPE.numpy).reshape(-1, *HANDLE_DIMS)
    raise ProtocolError(
        f"found handles {text!s:.80}, expected up to {MOST_HANDLES} handles of {_HANDLE_DIGITS} "
        "hexadecimal digits each"
    )


def _tensors_of(message: object) -> dict[str, ResidentTensor]:
    if not isinstance(message, dict):
        raise ProtocolError(f"found resident tensors {message!r}, expected an object")
    return {name: _tensor_of(name, value) for name, value in message.items()}


def _tensor_of(name: str, value: Any) -> ResidentTensor:  # noqa: ANN401 - unchecked JSON
    match value:
        case [str(model), str(dtype), [*dims]] if (
            len(model) <= _MOST_NAME
            and dtype in DType.__members__
            and dtype != DType.BYTES.value
            and 0 < len(dims) <= _MOST_DIMS
            and all(type(dim) is int and 0 < dim < _MOST_DIM for dim in dims)
        ):
            return ResidentTensor(model, DType(dtype), tuple(dims))
    raise ProtocolError(
        f"found {value!r} for resident tensor '{name}', expected its model, type and dims"
    )


def _whole(message: Json, name: str, least: int, most: int) -> int:
    value = message.get(name)
    if type(value) is not int or not least <= value <= most:
        raise ProtocolError(f"found {name} {value!r} of resident rows, expected {least} to {most}")
    return value
