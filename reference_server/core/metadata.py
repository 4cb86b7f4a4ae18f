"""Metadata of the server, of models and their tensors, and of registered shared memory."""

from __future__ import annotations

from dataclasses import dataclass, replace

from reference_server.core.dtypes import DataType

Dims = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TensorConfig:
    """An input or output; `dims` without the batch dimension, -1 where the size is free.

    `reshape` is the shape that the model sees instead of `dims`, where the two differ.
    """

    name: str
    datatype: DataType
    dims: Dims
    reshape: Dims | None = None
    ragged: bool = False
    optional: bool = False
    labels_file: str = ""

    @property
    def inner(self) -> TensorConfig:
        """The same as the model sees it, or makes it: the `reshape`, if there is one, done."""
        return self if self.reshape is None else replace(self, dims=self.reshape, reshape=None)

    @property
    def has_free_dims(self) -> bool:
        """True if a size is decided by the request."""
        return -1 in self.dims


@dataclass(frozen=True, slots=True)
class Signature:
    """A model's name and tensors. `max_batch_size` 0 means that no dimension is the batch's."""

    name: str
    max_batch_size: int
    inputs: tuple[TensorConfig, ...]
    outputs: tuple[TensorConfig, ...]

    @property
    def batches(self) -> bool:
        """True if the first dimension of every tensor is the batch's."""
        return self.max_batch_size > 0

    def full_dims(self, tensor: TensorConfig) -> Dims:
        """The dims of `tensor` as a request carries them: with the batch dimension, if any."""
        return (-1, *tensor.dims) if self.batches else tensor.dims


@dataclass(frozen=True, slots=True)
class ModelMetadata:
    """What a client is told of a model before it sends anything."""

    signature: Signature
    versions: tuple[int, ...]
    platform: str


@dataclass(frozen=True, slots=True)
class ServerMetadata:
    """What a client is told of the server."""

    name: str
    version: str
    extensions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SystemRegion:
    """`byte_size` bytes from `offset` on of the POSIX shared memory object `key`.

    The key stands as the client gave it, with or without its slash.
    """

    name: str
    key: str
    offset: int
    byte_size: int


@dataclass(frozen=True, slots=True)
class CudaRegion:
    """The first `byte_size` bytes of an allocation that another process has on a GPU."""

    name: str
    device_id: int
    byte_size: int
