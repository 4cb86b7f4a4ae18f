"""Metadata of the server, models, tensors and registered shared memory."""

from __future__ import annotations

from dataclasses import dataclass, replace

from reference_server.core.tensor import DataType

Dims = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TensorConfig:
    """An input or output of a model.

    Attributes:
        dims: The shape in requests, without the batch dimension; -1 for free sizes.
        reshape: The shape that the model receives; None: `dims`.
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
        """The tensor as the model receives or returns it, with `reshape` applied."""
        return self if self.reshape is None else replace(self, dims=self.reshape, reshape=None)

    @property
    def has_free_dims(self) -> bool:
        """True if the size of a dimension depends on the request."""
        return -1 in self.dims


@dataclass(frozen=True, slots=True)
class Signature:
    """A model's name and tensors. With `max_batch_size` 0 there is no batch dimension."""

    name: str
    max_batch_size: int
    inputs: tuple[TensorConfig, ...]
    outputs: tuple[TensorConfig, ...]

    @property
    def batches(self) -> bool:
        """True if the first dimension of every tensor is the batch dimension."""
        return self.max_batch_size > 0

    def full_dims(self, tensor: TensorConfig) -> Dims:
        """Return the dims of `tensor` in requests, with the batch dimension if there is one."""
        return (-1, *tensor.dims) if self.batches else tensor.dims


@dataclass(frozen=True, slots=True)
class ModelMetadata:
    """The metadata of a model."""

    signature: Signature
    versions: tuple[int, ...]
    platform: str


@dataclass(frozen=True, slots=True)
class ServerMetadata:
    """The metadata of the server."""

    name: str
    version: str
    extensions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SystemRegion:
    """A registered part of a POSIX shared memory object.

    `key` is the object's name as the client sent it, with or without the leading slash.
    """

    name: str
    key: str
    offset: int
    byte_size: int


@dataclass(frozen=True, slots=True)
class CudaRegion:
    """The first `byte_size` bytes of another process's allocation on a GPU."""

    name: str
    device_id: int
    byte_size: int
