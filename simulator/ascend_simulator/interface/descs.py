"""The model descriptions of acl.mdl: created, filled from a model or file, read, and destroyed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from ascend_simulator import process
from ascend_simulator.calls import I32, STR, U32, U64, bare, dictionary, listing, status, value
from ascend_simulator.codes import Code, DataType, Format, Refused
from ascend_simulator.memory.addresses import Borrowed
from ascend_simulator.models import om
from ascend_simulator.models.datasets import lookup, remove
from ascend_simulator.models.loaded import models
from ascend_simulator.models.om import Dims, Family, Manifest
from ascend_simulator.resources import Handles, HandleTables

MOST_NAME: Final = 127  # ACL_MAX_TENSOR_NAME_LEN without the terminating null


@dataclass(frozen=True)
class Tensor:
    """An input or output in a model description. The gear input is an input as well."""

    name: str
    real_name: str
    """The full name, which `name` replaces if it is too long."""
    dtype: int
    format: int
    dims: Dims
    ranges: tuple[tuple[int, int], ...]
    nbytes: int


@dataclass
class Desc:
    """A model description, empty until it is filled."""

    manifest: Manifest | None = None
    model: int | None = None
    """The id of the loaded model; None if the description is filled from a file."""
    inputs: tuple[Tensor, ...] = ()
    outputs: tuple[Tensor, ...] = ()

    def fill(self, manifest: Manifest, model: int | None, slack: int) -> None:
        """Describe `manifest`. `slack` is added to each size, in bytes."""
        self.manifest, self.model = manifest, model
        self.inputs = tuple(
            _tensor(tensor, "input", place, model, manifest.input_bytes(place), slack)
            for place, tensor in enumerate(manifest.inputs)
        )
        count = manifest.gear_values
        if count:
            int64, nd = int(DataType.ACL_INT64), int(Format.ACL_FORMAT_ND)
            name = om.GEAR_INPUT
            self.inputs += (Tensor(name, name, int64, nd, (count,), (), 8 * count),)
        self.outputs = tuple(
            _tensor(tensor, "output", place, model, manifest.output_bytes(place), slack)
            for place, tensor in enumerate(manifest.outputs)
        )

    def clear(self) -> None:
        """Make the description empty."""
        self.manifest = self.model = None
        self.inputs = self.outputs = ()


class Descs(HandleTables):
    """The model descriptions by handle: a `Part` of the process."""

    def __init__(self) -> None:
        self.handles: Final[Handles[Desc]] = Handles("model description")


def _handles() -> Handles[Desc]:
    return process.current().part(Descs).handles


def described(handle: int, what: str) -> Desc:
    """Return the description of a handle. Raises like `datasets.lookup`."""
    return lookup(_handles(), handle, what)


# -- create, fill and destroy --------------------------------------------------------------------


@bare("mdl.create_desc")
def create_desc() -> int:
    """Create an empty description."""
    return _handles().add(Desc())


@status("mdl.destroy_desc", U64)
def destroy_desc(handle: int) -> None:
    """Destroy the description; the model stays loaded."""
    remove(_handles(), handle, "destroy_desc")


@status("mdl.get_desc", U64, U32)
def get_desc(handle: int, model: int) -> None:
    """Describe a loaded model. An unknown model id empties the description."""
    desc = described(handle, "get_desc")
    desc.clear()
    manifest = models().get(model, "get_desc").manifest
    desc.fill(manifest, model, process.current().settings.size_slack)


@status("mdl.get_desc_from_file", U64, STR)
def get_desc_from_file(handle: int, path: str) -> None:
    """Describe a model file without loading it."""
    desc = described(handle, "get_desc_from_file")
    desc.clear()
    desc.fill(om.read(path).manifest, None, process.current().settings.size_slack)


@status("mdl.get_desc_from_mem", U64, U64, U64)
def get_desc_from_mem(handle: int, ptr: int, size: int) -> None:
    """Describe a model in host memory without loading it."""
    desc = described(handle, "get_desc_from_mem")
    desc.clear()
    manifest = from_memory(ptr, size, "get_desc_from_mem").manifest
    desc.fill(manifest, None, process.current().settings.size_slack)


def at(tensors: tuple[Tensor, ...], index: int) -> Tensor:
    """Return the tensor at `index`. Raises Refused INVALID_PARAM."""
    if index >= len(tensors):
        raise Refused(Code.INVALID_PARAM, f"index: found {index}, expected below {len(tensors)}")
    return tensors[index]


def from_memory(ptr: int, size: int, what: str) -> om.Om:
    """Parse a model in host memory. Raises like `host_bytes` and `om.parse`."""
    return om.parse(host_bytes(ptr, size, what), what)


def host_bytes(ptr: int, size: int, what: str) -> memoryview:
    """Return bytes of host memory. Checks the rules of `AddressSpace.locate` and `Borrowed`.

    Raises Refused INVALID_PARAM for null.
    """
    if ptr == 0 or size == 0:
        raise Refused(Code.INVALID_PARAM, f"{what}: found {size:,} bytes at {ptr:#x}")
    now = process.current()
    view = now.memory.resolve(ptr, size, want="host", write=False, what=what)
    now.part(Borrowed).check(ptr, size, what)
    return view.data


# -- helpers -------------------------------------------------------------------------------------


def _tensor(
    tensor: om.OmTensor, kind: str, place: int, model: int | None, nbytes: int, slack: int
) -> Tensor:
    name = tensor.name
    if len(name.encode()) > MOST_NAME:
        name = f"acl_modelId_{model or 0}_{kind}_{place}"
    size = nbytes + slack if nbytes else 0
    return Tensor(name, tensor.name, tensor.dtype, tensor.format, tensor.dims, tensor.ranges, size)


MOST_DIMS: Final = 128  # ACL_MAX_DIM_CNT
MOST_GEARS: Final = 128  # ACL_MAX_BATCH_NUM and ACL_MAX_HW_NUM
MOST_DYNAMIC_DIMS: Final = 4096

DimsDict: TypeAlias = dict[str, Any]

# -- tensors -------------------------------------------------------------------------------------


@bare("mdl.get_num_inputs", U64)
def get_num_inputs(handle: int) -> int:
    """Return the number of inputs, including the gear input."""
    return len(described(handle, "get_num_inputs").inputs)


@bare("mdl.get_num_outputs", U64)
def get_num_outputs(handle: int) -> int:
    """Return the number of outputs."""
    return len(described(handle, "get_num_outputs").outputs)


_TENSOR_GETTERS: Final = (
    ("size_by_index", "nbytes", 0),
    ("data_type", "dtype", -1),
    ("format", "format", -1),
    ("name_by_index", "name", ""),
)
"""For each getter: its suffix, the returned attribute of `Tensor`, the result after a refusal.

A size is that of the largest gear or, for free shapes, of the upper bounds; 0 without bounds.
"""


def _export_getter(side: str, suffix: str, attribute: str, failed: object) -> None:
    what = f"get_{side}_{suffix}"

    def get(handle: int, index: int) -> object:
        """Return a property of an input or output, by its index."""
        tensors = getattr(described(handle, what), f"{side}s")
        return getattr(at(tensors, index), attribute)

    bare(f"mdl.{what}", U64, U64, failed=failed)(get)


for _side in ("input", "output"):
    for _getter in _TENSOR_GETTERS:
        _export_getter(_side, *_getter)


@value("mdl.get_input_index_by_name", U64, STR)
def get_input_index_by_name(handle: int, name: str) -> int:
    """Return the index of the input with this name."""
    return _index(described(handle, "get_input_index_by_name").inputs, name)


@value("mdl.get_output_index_by_name", U64, STR)
def get_output_index_by_name(handle: int, name: str) -> int:
    """Return the index of the output with this name."""
    return _index(described(handle, "get_output_index_by_name").outputs, name)


@bare("mdl.get_tensor_real_name", U64, STR, failed=None)
def get_tensor_real_name(handle: int, name: str) -> str:
    """Return the full name that `name` replaces, or `name`; None for an unknown name."""
    desc = described(handle, "get_tensor_real_name")
    tensors = (*desc.inputs, *desc.outputs)
    return tensors[_index(tensors, name)].real_name


@bare("mdl.get_op_attr", U64, STR, STR, failed=None)
def get_op_attr(handle: int, operator: str, attribute: str) -> None:
    """Return None: a simulated model has no operators with attributes."""
    described(handle, "get_op_attr")


# -- dims ----------------------------------------------------------------------------------------


@dictionary("mdl.get_input_dims", U64, U64)
def get_input_dims(handle: int, index: int) -> DimsDict:
    """Return the input's dims; a dim that gears or ranges change is -1."""
    tensor = at(described(handle, "get_input_dims").inputs, index)
    return _dims(tensor.name, tensor.dims)


@dictionary("mdl.get_input_dims_v2", U64, U64)
def get_input_dims_v2(handle: int, index: int) -> DimsDict:
    """Return the same dims as get_input_dims: for static AIPP, the dims of the image.

    Older documents describe other dims.
    """
    tensor = at(described(handle, "get_input_dims_v2").inputs, index)
    return _dims(tensor.name, tensor.dims)


@dictionary("mdl.get_output_dims", U64, U64)
def get_output_dims(handle: int, index: int) -> DimsDict:
    """Return the output's dims at the largest gear."""
    tensor = at(described(handle, "get_output_dims").outputs, index)
    return _dims(tensor.name, tensor.dims)


@dictionary("mdl.get_cur_output_dims", U64, U64)
def get_cur_output_dims(handle: int, index: int) -> DimsDict:
    """Return dims at the gear that was last set on the model; if none was set, at the largest.

    Refused: API_NOT_SUPPORT for free shapes, GE_EXEC_MODEL_ID_INVALID after the model's unload.
    """
    desc = described(handle, "get_cur_output_dims")
    tensor = at(desc.outputs, index)
    manifest = desc.manifest
    assert manifest is not None  # a description with outputs has a manifest
    if manifest.family == "dynamic":
        raise Refused(Code.API_NOT_SUPPORT, "get_cur_output_dims: not available for free shapes")
    gear = None
    if desc.model is not None:
        gear = models().get(desc.model, "get_cur_output_dims").gear
    shapes = manifest.shapes[manifest.largest if gear is None else gear]
    return _dims(tensor.name, shapes.outputs[index])


@dictionary("mdl.get_input_dims_range", U64, U64, failed={"rangeCount": 0, "range": []})
def get_input_dims_range(handle: int, index: int) -> DimsDict:
    """Return the minimum and maximum of each dim for free shapes; for other models no ranges."""
    ranges = at(described(handle, "get_input_dims_range").inputs, index).ranges
    return {"rangeCount": len(ranges), "range": [list(each) for each in ranges]}


# -- gears ---------------------------------------------------------------------------------------


@dictionary("mdl.get_dynamic_batch", U64)
def get_dynamic_batch(handle: int) -> DimsDict:
    """Return the gears of the first dim, in the order given to the compiler."""
    gears = _gears(described(handle, "get_dynamic_batch"), "batch")
    return {"batchCount": len(gears), "batch": [batch for (batch,) in gears]}


@dictionary("mdl.get_dynamic_hw", U64, I32)
def get_dynamic_hw(handle: int, index: int) -> DimsDict:
    """Return the gears of height and width. `index` is ignored."""
    gears = _gears(described(handle, "get_dynamic_hw"), "image")
    return {"hwCount": len(gears), "hw": [list(gear) for gear in gears]}


@value("mdl.get_input_dynamic_gear_count", U64, I32)
def get_input_dynamic_gear_count(handle: int, index: int) -> int:
    """Return the number of gears of dims. `index` is reserved and must be -1."""
    desc = described(handle, "get_input_dynamic_gear_count")
    _check_reserved(index)
    return len(_gears(desc, "dims"))


@listing("mdl.get_input_dynamic_dims", U64, I32, U64)
def get_input_dynamic_dims(handle: int, index: int, count: int) -> list[DimsDict]:
    """Return for each gear the concatenated dims of all inputs, in the order of --input_shape.

    `index` is reserved and must be -1. `count` is the result of get_input_dynamic_gear_count.
    Refused: INVALID_PARAM if `count` is smaller (an assumption, which is not documented).
    """
    desc = described(handle, "get_input_dynamic_dims")
    _check_reserved(index)
    gears = _gears(desc, "dims")
    if not len(gears) <= count <= MOST_DYNAMIC_DIMS:
        expected = f"{len(gears)} to {MOST_DYNAMIC_DIMS}"
        raise Refused(
            Code.INVALID_PARAM, f"get_input_dynamic_dims: found {count}, expected {expected}"
        )
    assert desc.manifest is not None or not gears
    shapes = desc.manifest.shapes if desc.manifest and gears else ()
    rows = [desc.manifest.listed(each.inputs) for each in shapes] if desc.manifest else []
    if any(len(row) > MOST_DIMS for row in rows):
        raise Refused(Code.FAILURE, f"found {len(rows[0])} dims in a gear, over {MOST_DIMS}")
    return [_dims("", row) for row in rows]


# -- helpers -------------------------------------------------------------------------------------


def _index(tensors: tuple[Tensor, ...], name: str) -> int:
    for index, tensor in enumerate(tensors):
        if tensor.name == name:
            return index
    known = ", ".join(tensor.name for tensor in tensors)
    raise Refused(Code.INVALID_PARAM, f"unknown tensor '{name}', expected one of {known}")


def _dims(name: str, dims: Dims) -> DimsDict:
    if len(dims) > MOST_DIMS:
        raise Refused(Code.STORAGE_OVER_LIMIT, f"'{name}' has {len(dims)} dims, over {MOST_DIMS}")
    return {"name": name, "dimCount": len(dims), "dims": list(dims)}


def _gears(desc: Desc, family: Family) -> list[Dims]:
    """Return the gear values of this family; empty if the model has gears of another family."""
    if desc.manifest is None or desc.manifest.family != family:
        return []
    gears = [shapes.gear for shapes in desc.manifest.shapes]
    if len(gears) > MOST_GEARS:
        raise Refused(Code.STORAGE_OVER_LIMIT, f"found {len(gears)} gears, over {MOST_GEARS}")
    return gears


def _check_reserved(index: int) -> None:
    if index != -1:
        raise Refused(Code.INVALID_PARAM, f"index: found {index}, expected -1")
