"""Tensor descriptions: type, dims and format, which models with free shapes are told."""

from __future__ import annotations

from ascend_simulator.calls import I32, U64, bare, value
from ascend_simulator.codes import Code, Refused
from ascend_simulator.datasets import TensorDesc, data, living, remove
from ascend_simulator.enumerations import DATA_TYPE_BYTES
from ascend_simulator.om import Dims
from ascend_simulator.violations import declare, violate

OWNED = declare(
    "dataset.description-destroyed",
    "A tensor description that get_dataset_tensor_desc gave goes with its dataset alone.",
)


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
