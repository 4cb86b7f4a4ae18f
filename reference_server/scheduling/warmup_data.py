"""The requests that a model is warmed up with."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from reference_server.config.schema import Filling, WarmupInput
from reference_server.core import byte_strings
from reference_server.core.dtypes import DataType
from reference_server.core.errors import internal, invalid_arg
from reference_server.core.metadata import Signature
from reference_server.core.tensor import Tensor

#: Where the files of samples lie in a model's folder.
FOLDER = "warmup"
# What Triton's texts put in front: these requests have no id.
_LABEL = "[request id: <id_unknown>]"
_SEED = 0


def tensor(given: WarmupInput, signature: Signature, model_folder: Path) -> Tensor:
    """One row of an input of a sample.

    Reads the sample's file, if it has one. Raises ServerError if there is no data, or too little.
    """
    if min(given.dims, default=0) < 0:
        raise invalid_arg(
            "warmup setting expects all variable-size dimensions are specified for input "
            f"'{given.name}'"
        )
    shape = (1, *given.dims) if signature.batches else given.dims
    data = memoryview(_data(given, math.prod(shape), model_folder))
    return Tensor(given.name, given.datatype, shape, raw=data)


def _data(given: WarmupInput, elements: int, model_folder: Path) -> bytes:
    """The wire form of so many elements."""
    if given.datatype is DataType.BYTES:
        if given.filling is Filling.FILE:
            return _read(model_folder / FOLDER / given.file)
        # Random texts are empty, too.
        return byte_strings.serialize(np.full(elements, b"", dtype=np.object_))
    size = elements * (given.datatype.byte_size if given.datatype else 0)
    if given.filling is Filling.ZEROS:
        return bytes(size)
    if given.filling is Filling.RANDOM:
        random = np.random.default_rng(_SEED).bytes(size)
        # There are two truth values only.
        return bytes(byte & 1 for byte in random) if given.datatype is DataType.BOOL else random
    if given.filling is Filling.FILE:
        data = _read(model_folder / FOLDER / given.file)
        if len(data) < size:
            raise invalid_arg(
                f"{_LABEL} warmup setting expects {size} bytes, but the data provided from "
                f"{given.file}only has {len(data)} bytes"
            )
        return data[:size]
    raise invalid_arg(
        f"{_LABEL} warmup setting expects input '{given.name}' to have input_data_type set"
    )


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise internal(f"failed to open text file for read {path}: {error.strerror}") from error
