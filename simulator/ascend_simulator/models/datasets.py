"""Data buffers, datasets of them and tensor descriptions: acl's functions, and what they name.

A data buffer names memory and owns none. A dataset lists buffers in the order of a model's inputs
or outputs, and owns none of them either; tensor descriptions set in it, or filled by an execution,
go with it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NoReturn, TypeVar

from ascend_simulator import process
from ascend_simulator.calls import I32, U64, bare, echo, status, value
from ascend_simulator.codes import Code, Refused
from ascend_simulator.enumerations import DATA_TYPE_BYTES
from ascend_simulator.memory.ordering import Flights
from ascend_simulator.models.om import Dims
from ascend_simulator.resources import Handles
from ascend_simulator.violations import declare, violate

DEAD = declare(
    "model.dead-handle",
    "Descriptions, datasets, buffers and configurations are used until destroyed, and not after.",
)
IN_USE = declare(
    "dataset.destroyed-in-use",
    "Datasets and data buffers are destroyed after waiting for the executions that use them.",
)
OWNED = declare(
    "dataset.description-destroyed",
    "A tensor description that get_dataset_tensor_desc gave goes with its dataset alone.",
)

_U32_MASK: Final = (1 << 32) - 1

Thing = TypeVar("Thing")


@dataclass(eq=False)
class DataBuffer:
    """Memory, by address and bytes."""

    ptr: int
    size: int
    flights: Flights = field(default_factory=Flights)


@dataclass(eq=False)
class TensorDesc:
    """Type, dims and format of a tensor."""

    dtype: int
    dims: Dims
    format: int
    is_owned: bool = False
    """Whether a dataset has it, with which it goes."""


@dataclass(eq=False)
class Dataset:
    """Buffers in order."""

    buffers: list[DataBuffer] = field(default_factory=list)
    handles: list[int] = field(default_factory=list)
    """Of the buffers."""
    descs: dict[int, int] = field(default_factory=dict)
    """Place -> handle of the tensor description there, which is the dataset's own."""
    flights: Flights = field(default_factory=Flights)


class Data:
    """All of these by handle: a part of the process."""

    def __init__(self) -> None:
        self.buffers: Final[Handles[DataBuffer]] = Handles("data buffer")
        self.datasets: Final[Handles[Dataset]] = Handles("dataset")
        self.descs: Final[Handles[TensorDesc]] = Handles("tensor description")

    def live(self) -> list[str]:
        """How many of each are left."""
        kinds = (self.datasets, self.buffers, self.descs)
        return [f"{len(kind)} {kind.kind}(s)" for kind in kinds if len(kind)]

    def close(self) -> None:
        """Nothing to let go of but names."""


def data() -> Data:
    """Those of the process."""
    return process.current().part(Data)


def living(things: Handles[Thing], handle: int, what: str) -> Thing:
    """The thing. Violates DEAD. Raises Refused INVALID_PARAM for null, and for what is gone."""
    found = things.get(handle)
    return _missing(things.kind, handle, what) if found is None else found


def remove(things: Handles[Thing], handle: int, what: str) -> Thing:
    """The thing, which is gone from now on. Raises as `living` does."""
    living(things, handle, what)
    return things.remove(handle)


def dataset(handle: int, what: str) -> Dataset:
    """The dataset. Raises as `living` does."""
    return living(data().datasets, handle, what)


def describe(target: Dataset, index: int, desc: TensorDesc) -> None:
    """A copy of `desc` tells what buffer `index` holds from now on; the handle there stays."""
    handle = target.descs.get(index)
    if handle is None:
        own = TensorDesc(desc.dtype, desc.dims, desc.format, is_owned=True)
        target.descs[index] = data().descs.add(own)
    else:
        there = living(data().descs, handle, "dataset")
        there.dtype, there.dims, there.format = desc.dtype, desc.dims, desc.format


def forget(target: Dataset, index: int) -> None:
    """Nothing tells what buffer `index` holds from now on."""
    handle = target.descs.pop(index, None)
    if handle is not None:
        data().descs.remove(handle)


# -- data buffers --------------------------------------------------------------------------------


@bare("create_data_buffer", U64, U64)
def create_data_buffer(ptr: int, size: int) -> int:
    """A buffer over `size` bytes at `ptr`; neither is looked at."""
    return data().buffers.add(DataBuffer(ptr, size))


@status("update_data_buffer", U64, U64, U64)
def update_data_buffer(buffer: int, ptr: int, size: int) -> None:
    """The buffer names other memory. Executions that were submitted keep what they had."""
    found = living(data().buffers, buffer, "update_data_buffer")
    found.ptr, found.size = ptr, size


@status("destroy_data_buffer", U64)
def destroy_data_buffer(buffer: int) -> None:
    """The buffer goes, not its memory. Violates IN_USE."""
    found = living(data().buffers, buffer, "destroy_data_buffer")
    _check_idle(found.flights, "destroy_data_buffer")
    data().buffers.remove(buffer)


@bare("get_data_buffer_addr", U64)
def get_data_buffer_addr(buffer: int) -> int:
    """Its address."""
    return living(data().buffers, buffer, "get_data_buffer_addr").ptr


@bare("get_data_buffer_size", U64)
def get_data_buffer_size(buffer: int) -> int:
    """Its bytes, as far as 32 bits hold them. Deprecated on the device."""
    return living(data().buffers, buffer, "get_data_buffer_size").size & _U32_MASK


@bare("get_data_buffer_size_v2", U64)
def get_data_buffer_size_v2(buffer: int) -> int:
    """Its bytes."""
    return living(data().buffers, buffer, "get_data_buffer_size_v2").size


# -- datasets ------------------------------------------------------------------------------------


@bare("mdl.create_dataset")
def create_dataset() -> int:
    """An empty dataset."""
    return data().datasets.add(Dataset())


@status("mdl.destroy_dataset", U64)
def destroy_dataset(handle: int) -> None:
    """The dataset and the descriptions in it go, not the buffers. Violates IN_USE."""
    found = dataset(handle, "destroy_dataset")
    _check_idle(found.flights, "destroy_dataset")
    for desc in found.descs.values():
        data().descs.remove(desc)
    data().datasets.remove(handle)


@echo("mdl.add_dataset_buffer", U64, U64)
def add_dataset_buffer(handle: int, buffer: int) -> None:
    """Append; one buffer may be in several datasets."""
    found = dataset(handle, "add_dataset_buffer")
    found.buffers.append(living(data().buffers, buffer, "add_dataset_buffer"))
    found.handles.append(buffer)


@bare("mdl.get_dataset_num_buffers", U64)
def get_dataset_num_buffers(handle: int) -> int:
    """How many buffers it has."""
    return len(dataset(handle, "get_dataset_num_buffers").buffers)


@bare("mdl.get_dataset_buffer", U64, U64)
def get_dataset_buffer(handle: int, index: int) -> int:
    """The buffer at `index`; 0 if there is none."""
    handles = dataset(handle, "get_dataset_buffer").handles
    return handles[index] if index < len(handles) else 0


@echo("mdl.set_dataset_tensor_desc", U64, U64, U64)
def set_dataset_tensor_desc(handle: int, desc: int, index: int) -> None:
    """What the buffer at `index` holds, for a model whose shapes are free: its dims count.

    The dataset keeps a copy, and the caller's stays the caller's (an inference). 0 takes the
    description away.
    """
    found = dataset(handle, "set_dataset_tensor_desc")
    given = living(data().descs, desc, "set_dataset_tensor_desc") if desc else None
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
    """The description at `index`, which the dataset owns; 0 if there is none."""
    return dataset(handle, "get_dataset_tensor_desc").descs.get(index, 0)


# -- tensor descriptions -------------------------------------------------------------------------


def dims_list(given: object) -> Dims:
    """A list or tuple of integers. Raises TypeError for others."""
    if not isinstance(given, (list, tuple)):
        raise TypeError(f"a list is required (found {type(given).__name__})")
    return tuple(each.__index__() for each in given)


@bare("create_tensor_desc", I32, dims_list, I32)
def create_tensor_desc(dtype: int, dims: Dims, layout: int) -> int:
    """A description. Null for dims below -2, which mean nothing."""
    if any(dim < -2 for dim in dims):
        raise Refused(Code.INVALID_PARAM, f"create_tensor_desc: found dims {dims}")
    return data().descs.add(TensorDesc(dtype, dims, layout))


@bare("destroy_tensor_desc", U64, failed=None)
def destroy_tensor_desc(desc: int) -> None:
    """The description goes. Violates OWNED; lenient mode leaves such a one to its dataset."""
    what = "destroy_tensor_desc"
    if living(data().descs, desc, what).is_owned:
        text = f"{what}: {desc:#x}: found one that a dataset has"
        violate(OWNED, text)
        raise Refused(Code.INVALID_PARAM, text)
    remove(data().descs, desc, what)


@bare("get_tensor_desc_num_dims", U64)
def get_tensor_desc_num_dims(desc: int) -> int:
    """How many dims it has."""
    return len(living(data().descs, desc, "get_tensor_desc_num_dims").dims)


@value("get_tensor_desc_dim_v2", U64, U64)
def get_tensor_desc_dim_v2(desc: int, index: int) -> int:
    """Dim `index`."""
    dims = living(data().descs, desc, "get_tensor_desc_dim_v2").dims
    if index >= len(dims):
        raise Refused(
            Code.INVALID_PARAM,
            f"get_tensor_desc_dim_v2: index: found {index}, expected below {len(dims)}",
        )
    return dims[index]


@bare("get_tensor_desc_size", U64)
def get_tensor_desc_size(desc: int) -> int:
    """Bytes of its elements; 0 where a dim is open."""
    found = living(data().descs, desc, "get_tensor_desc_size")
    count = 1
    for dim in found.dims:
        count *= max(dim, 0)
    return count * DATA_TYPE_BYTES.get(found.dtype, 0)


@bare("get_tensor_desc_type", U64)
def get_tensor_desc_type(desc: int) -> int:
    """Its aclDataType."""
    return living(data().descs, desc, "get_tensor_desc_type").dtype


@bare("get_tensor_desc_format", U64)
def get_tensor_desc_format(desc: int) -> int:
    """Its aclFormat."""
    return living(data().descs, desc, "get_tensor_desc_format").format


# -- inside --------------------------------------------------------------------------------------


def _missing(kind: str, handle: int, what: str) -> NoReturn:
    if handle == 0:
        raise Refused(Code.INVALID_PARAM, f"{what}: found a null {kind}")
    text = f"{what}: {handle:#x}: found no living {kind}"
    violate(DEAD, text)
    raise Refused(Code.INVALID_PARAM, text)


def _check_idle(flights: Flights, what: str) -> None:
    now = process.current()
    with now.lock:
        pending = flights.pending(now.streams.ordering)
    if pending:
        violate(IN_USE, f"{what}: found an execution that uses it, and nobody has waited")
