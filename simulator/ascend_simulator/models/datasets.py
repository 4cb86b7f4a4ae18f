"""Data buffers, datasets and tensor descriptions: acl's functions and their objects.

A data buffer refers to memory and does not own it. A dataset lists buffers in the order of a
model's inputs or outputs, and does not own them. A dataset owns the tensor descriptions that are
set in it or filled by an execution; they are destroyed with the dataset.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NoReturn, TypeVar

from ascend_simulator import process
from ascend_simulator.calls import I32, U64, bare, echo, status, value
from ascend_simulator.codes import DATA_TYPE_BYTES, Code, Refused
from ascend_simulator.memory.blocks import PendingExecutions
from ascend_simulator.models.om import Dims
from ascend_simulator.resources import Handles
from ascend_simulator.violations import declare, violate

DEAD = declare(
    "model.dead-handle",
    "Descriptions, datasets, buffers and configurations must not be used after they are destroyed.",
)
IN_USE = declare(
    "dataset.destroyed-in-use",
    "Wait for the executions that use a dataset or data buffer before destroying it.",
)
OWNED = declare(
    "dataset.description-destroyed",
    "A tensor description of get_dataset_tensor_desc must be destroyed only with its dataset.",
)

_U32_MASK: Final = (1 << 32) - 1

Thing = TypeVar("Thing")


@dataclass(eq=False)
class DataBuffer:
    """A reference to memory: address and bytes."""

    ptr: int
    size: int
    executions: PendingExecutions = field(default_factory=PendingExecutions)


@dataclass(eq=False)
class TensorDesc:
    """Type, dims and format of a tensor."""

    dtype: int
    dims: Dims
    format: int
    const: bytes = b""
    """The value of an operator's constant input; empty for other tensors."""
    is_owned: bool = False
    """True if a dataset owns the description."""


@dataclass(eq=False)
class Dataset:
    """Buffers in the order of a model's inputs or outputs."""

    buffers: list[DataBuffer] = field(default_factory=list)
    handles: list[int] = field(default_factory=list)
    """The handles of the buffers."""
    descs: dict[int, int] = field(default_factory=dict)
    """Handles of the tensor descriptions that the dataset owns, by index of the buffer."""
    executions: PendingExecutions = field(default_factory=PendingExecutions)


class Data:
    """The buffers, datasets and descriptions by handle: a `Part` of the process."""

    def __init__(self) -> None:
        self.buffers: Final[Handles[DataBuffer]] = Handles("data buffer")
        self.datasets: Final[Handles[Dataset]] = Handles("dataset")
        self.descs: Final[Handles[TensorDesc]] = Handles("tensor description")

    def live(self) -> list[str]:
        """Return the number of handles of each kind that were not destroyed, as text."""
        kinds = (self.datasets, self.buffers, self.descs)
        return [f"{len(kind)} {kind.kind}(s)" for kind in kinds if len(kind)]

    def close(self) -> None:
        """Do nothing: handles hold no resources."""


def data() -> Data:
    """Return the handles of the process."""
    return process.current().part(Data)


def lookup(things: Handles[Thing], handle: int, what: str) -> Thing:
    """Return the object of a handle.

    Checks DEAD. Raises Refused INVALID_PARAM for null and for destroyed objects.
    """
    found = things.get(handle)
    return _missing(things.kind, handle, what) if found is None else found


def remove(things: Handles[Thing], handle: int, what: str) -> Thing:
    """Remove a handle and return its object. Raises like `lookup`."""
    lookup(things, handle, what)
    return things.remove(handle)


def dataset(handle: int, what: str) -> Dataset:
    """Return the dataset of a handle. Raises like `lookup`."""
    return lookup(data().datasets, handle, what)


def describe(target: Dataset, index: int, desc: TensorDesc) -> None:
    """Describe buffer `index` with a copy of `desc`; an existing handle is kept."""
    handle = target.descs.get(index)
    if handle is None:
        own = TensorDesc(desc.dtype, desc.dims, desc.format, is_owned=True)
        target.descs[index] = data().descs.add(own)
    else:
        there = lookup(data().descs, handle, "dataset")
        there.dtype, there.dims, there.format = desc.dtype, desc.dims, desc.format


def forget(target: Dataset, index: int) -> None:
    """Remove the description of buffer `index`."""
    handle = target.descs.pop(index, None)
    if handle is not None:
        data().descs.remove(handle)


# -- data buffers --------------------------------------------------------------------------------


@bare("create_data_buffer", U64, U64)
def create_data_buffer(ptr: int, size: int) -> int:
    """Create a buffer of `size` bytes at `ptr`. Address and size are not checked."""
    return data().buffers.add(DataBuffer(ptr, size))


@status("update_data_buffer", U64, U64, U64)
def update_data_buffer(buffer: int, ptr: int, size: int) -> None:
    """Change the buffer's memory. Submitted executions keep the earlier memory."""
    found = lookup(data().buffers, buffer, "update_data_buffer")
    found.ptr, found.size = ptr, size


@status("destroy_data_buffer", U64)
def destroy_data_buffer(buffer: int) -> None:
    """Destroy the buffer; the memory is not freed. Checks IN_USE."""
    found = lookup(data().buffers, buffer, "destroy_data_buffer")
    _check_idle(found.executions, "destroy_data_buffer")
    data().buffers.remove(buffer)


@bare("get_data_buffer_addr", U64)
def get_data_buffer_addr(buffer: int) -> int:
    """Return the buffer's address."""
    return lookup(data().buffers, buffer, "get_data_buffer_addr").ptr


@bare("get_data_buffer_size", U64)
def get_data_buffer_size(buffer: int) -> int:
    """Return the low 32 bits of the buffer's bytes. Deprecated on the device."""
    return lookup(data().buffers, buffer, "get_data_buffer_size").size & _U32_MASK


@bare("get_data_buffer_size_v2", U64)
def get_data_buffer_size_v2(buffer: int) -> int:
    """Return the buffer's bytes."""
    return lookup(data().buffers, buffer, "get_data_buffer_size_v2").size


# -- datasets ------------------------------------------------------------------------------------


@bare("mdl.create_dataset")
def create_dataset() -> int:
    """Create an empty dataset."""
    return data().datasets.add(Dataset())


@status("mdl.destroy_dataset", U64)
def destroy_dataset(handle: int) -> None:
    """Destroy the dataset and its descriptions, but not the buffers. Checks IN_USE."""
    found = dataset(handle, "destroy_dataset")
    _check_idle(found.executions, "destroy_dataset")
    for desc in found.descs.values():
        data().descs.remove(desc)
    data().datasets.remove(handle)


@echo("mdl.add_dataset_buffer", U64, U64)
def add_dataset_buffer(handle: int, buffer: int) -> None:
    """Append a buffer, which may be in several datasets."""
    found = dataset(handle, "add_dataset_buffer")
    found.buffers.append(lookup(data().buffers, buffer, "add_dataset_buffer"))
    found.handles.append(buffer)


@bare("mdl.get_dataset_num_buffers", U64)
def get_dataset_num_buffers(handle: int) -> int:
    """Return the number of buffers."""
    return len(dataset(handle, "get_dataset_num_buffers").buffers)


@bare("mdl.get_dataset_buffer", U64, U64)
def get_dataset_buffer(handle: int, index: int) -> int:
    """Return the buffer at `index`, or 0."""
    handles = dataset(handle, "get_dataset_buffer").handles
    return handles[index] if index < len(handles) else 0


@echo("mdl.set_dataset_tensor_desc", U64, U64, U64)
def set_dataset_tensor_desc(handle: int, desc: int, index: int) -> None:
    """Describe the buffer at `index`. A model with free shapes uses the dims of the description.

    The dataset stores a copy; the caller still owns `desc` (inferred). With `desc` 0 the
    description is removed.
    """
    found = dataset(handle, "set_dataset_tensor_desc")
    given = lookup(data().descs, desc, "set_dataset_tensor_desc") if desc else None
    if index >= len(found.buffers):
        raise Refused(
            Code.INVALID_PARAM,
            f"set_dataset_tensor_desc: index: found {index}, expected below {len(found.buffers)}",
        )
    if given is None:
        forget(found, index)
    else:
        describe(found, index, given)


@bare("mdl.get_dataset_tensor_desc", U64, U64)
def get_dataset_tensor_desc(handle: int, index: int) -> int:
    """Return the description at `index`, which the dataset owns, or 0."""
    return dataset(handle, "get_dataset_tensor_desc").descs.get(index, 0)


# -- tensor descriptions -------------------------------------------------------------------------


def dims_list(given: object) -> Dims:
    """Convert a list or tuple of integers. Raises TypeError for other types."""
    if not isinstance(given, (list, tuple)):
        raise TypeError(f"a list is required (found {type(given).__name__})")
    return tuple(each.__index__() for each in given)


@bare("create_tensor_desc", I32, dims_list, I32)
def create_tensor_desc(dtype: int, dims: Dims, layout: int) -> int:
    """Create a description; return null for dims below -2, which are invalid."""
    if any(dim < -2 for dim in dims):
        raise Refused(Code.INVALID_PARAM, f"create_tensor_desc: found dims {dims}")
    return data().descs.add(TensorDesc(dtype, dims, layout))


@status("set_tensor_const", U64, U64, U64)
def set_tensor_const(desc: int, ptr: int, size: int) -> None:
    """Set the value of an operator's constant input, from host memory."""
    found = lookup(data().descs, desc, "set_tensor_const")
    memory = process.current().memory
    view = memory.resolve(ptr, size, want="host", write=False, what="set_tensor_const")
    found.const = view.tobytes()


@bare("destroy_tensor_desc", U64, failed=None)
def destroy_tensor_desc(desc: int) -> None:
    """Destroy the description.

    Checks OWNED; in lenient mode the dataset keeps an owned description.
    """
    what = "destroy_tensor_desc"
    if lookup(data().descs, desc, what).is_owned:
        text = f"{what}: {desc:#x}: owned by a dataset"
        violate(OWNED, text)
        raise Refused(Code.INVALID_PARAM, text)
    remove(data().descs, desc, what)


@bare("get_tensor_desc_num_dims", U64)
def get_tensor_desc_num_dims(desc: int) -> int:
    """Return the number of dims."""
    return len(lookup(data().descs, desc, "get_tensor_desc_num_dims").dims)


@value("get_tensor_desc_dim_v2", U64, U64)
def get_tensor_desc_dim_v2(desc: int, index: int) -> int:
    """Return the dim at `index`."""
    dims = lookup(data().descs, desc, "get_tensor_desc_dim_v2").dims
    if index >= len(dims):
        raise Refused(
            Code.INVALID_PARAM,
            f"get_tensor_desc_dim_v2: index: found {index}, expected below {len(dims)}",
        )
    return dims[index]


@bare("get_tensor_desc_size", U64)
def get_tensor_desc_size(desc: int) -> int:
    """Return the bytes of the elements; 0 if a dim is negative, i.e. unknown."""
    found = lookup(data().descs, desc, "get_tensor_desc_size")
    count = 1
    for dim in found.dims:
        count *= max(dim, 0)
    return count * DATA_TYPE_BYTES.get(found.dtype, 0)


@bare("get_tensor_desc_type", U64)
def get_tensor_desc_type(desc: int) -> int:
    """Return the aclDataType."""
    return lookup(data().descs, desc, "get_tensor_desc_type").dtype


@bare("get_tensor_desc_format", U64)
def get_tensor_desc_format(desc: int) -> int:
    """Return the aclFormat."""
    return lookup(data().descs, desc, "get_tensor_desc_format").format


# -- helpers -------------------------------------------------------------------------------------


def _missing(kind: str, handle: int, what: str) -> NoReturn:
    if handle == 0:
        raise Refused(Code.INVALID_PARAM, f"{what}: found a null {kind}")
    text = f"{what}: {handle:#x}: not a {kind}, or destroyed"
    violate(DEAD, text)
    raise Refused(Code.INVALID_PARAM, text)


def _check_idle(executions: PendingExecutions, what: str) -> None:
    now = process.current()
    with now.lock:
        pending = executions.pending(now.streams.ordering)
    if pending:
        violate(IN_USE, f"{what}: found an unfinished execution that uses it; wait for the stream")
