"""Reads examples of a graph's inputs: an .npz file, or a JSON inference request."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

from ge_runtime.discovery.graph import Port
from ge_runtime.errors import ArtifactFault
from ge_runtime.specs import Array


def read_sample(file: Path, ports: Sequence[Port]) -> dict[str, Array]:
    """Return a sample's tensors by graph input, in the graph's types; inputs may be missing.

    The file is an .npz file with an array for each input, or a JSON request for
    `POST /v2/models/NAME/infer`. Tensors must have shapes that the graph accepts.

    Raises:
        ArtifactFault: The file cannot be read, or a tensor does not fit its input.
    """
    given = _npz(file) if file.suffix == ".npz" else _request(file)
    by_name = {port.name: port for port in ports}
    unknown = given.keys() - by_name.keys()
    if unknown or not given:
        raise ArtifactFault(
            f"sample {file}: found {_names(unknown or given)}, expected inputs of the graph: "
            f"{_names(by_name)}"
        )
    return {name: _fitted(file, by_name[name], array) for name, array in given.items()}


def _npz(file: Path) -> dict[str, Array]:
    try:
        with np.load(file, allow_pickle=False) as arrays:
            return dict(arrays)
    except (OSError, ValueError, BadZipFile) as error:
        raise ArtifactFault(
            f"sample {file}: NumPy cannot read it ({error}); expected numpy.savez(FILE, input=...)"
        ) from error


def _request(file: Path) -> dict[str, Array]:
    try:
        tensors = json.loads(file.read_bytes())["inputs"]
        return {own["name"]: np.array(own["data"]).reshape(own["shape"]) for own in tensors}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ArtifactFault(
            f"sample {file}: found {type(error).__name__} ({error}), expected an .npz file or a "
            'JSON request: {"inputs": [{"name": ..., "shape": [...], "data": [...]}]}'
        ) from error


def _fitted(file: Path, port: Port, array: Array) -> Array:
    sizes: Mapping[int, int] = {at: dim for at, dim in enumerate(port.dims) if isinstance(dim, int)}
    if (
        array.ndim != len(port.dims)
        or any(array.shape[at] != dim for at, dim in sizes.items())
        or 0 in array.shape
        or not np.can_cast(array.dtype, port.dtype.numpy, "same_kind")
    ):
        raise ArtifactFault(
            f"sample {file}: found '{port.name}' {array.dtype}{list(array.shape)}, expected "
            f"{port.dtype.value}{list(port.dims)} without empty dims"
        )
    return array.astype(port.dtype.numpy)


def _names(names: object) -> str:
    return ", ".join(f"'{name}'" for name in sorted(names)) or "nothing"  # type: ignore[call-overload]
