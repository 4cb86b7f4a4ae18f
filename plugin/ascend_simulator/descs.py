"""What a model looks like from outside: acl.mdl's descriptions, and what they answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ascend_simulator import om, process
from ascend_simulator.blocks import host_view
from ascend_simulator.borrowed import Borrowed
from ascend_simulator.calls import STR, U32, U64, bare, status, value
from ascend_simulator.codes import Code, Refused
from ascend_simulator.datasets import living, remove
from ascend_simulator.enumerations import DataType, Format
from ascend_simulator.handles import Handles
from ascend_simulator.models import models
from ascend_simulator.om import Dims, Manifest

MOST_NAME: Final = 127  # ACL_MAX_TENSOR_NAME_LEN without its end


@dataclass(frozen=True)
class Tensor:
    """An input or output as a description tells it, the gear input among them."""

    name: str
    real_name: str
    """Where `name` stands in for one that is too long."""
    dtype: int
    format: int
    dims: Dims
    ranges: tuple[tuple[int, int], ...]
    nbytes: int


@dataclass
class Desc:
    """A description; of nothing until it is filled."""

    manifest: Manifest | None = None
    model: int | None = None
    """The model it was made of; None if of a file."""
    inputs: tuple[Tensor, ...] = ()
    outputs: tuple[Tensor, ...] = ()

    def fill(self, manifest: Manifest, model: int | None, slack: int) -> None:
        """Describe `manifest`; sizes are larger by `slack` bytes than dims need."""
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
        """Describe nothing."""
        self.manifest = self.model = None
        self.inputs = self.outputs = ()


class Descs:
    """The descriptions by handle: a part of the process."""

    def __init__(self) -> None:
        self.handles: Final[Handles[Desc]] = Handles("model description")

    def live(self) -> list[str]:
        """How many are left."""
        count = len(self.handles)
        return [f"{count} {self.handles.kind}(s)"] if count else []

    def close(self) -> None:
        """Nothing to let go of but names."""


def _handles() -> Handles[Desc]:
    return process.current().part(Descs).handles


def described(handle: int, what: str) -> Desc:
    """The description. Raises as `datasets.living` does."""
    return living(_handles(), handle, what)


# -- their life ----------------------------------------------------------------------------------


@bare("mdl.create_desc")
def create_desc() -> int:
    """A description of nothing yet."""
    return _handles().add(Desc())


@status("mdl.destroy_desc", U64)
def destroy_desc(handle: int) -> None:
    """The description goes; the model stays."""
    remove(_handles(), handle, "destroy_desc")


@status("mdl.get_desc", U64, U32)
def get_desc(handle: int, model: int) -> None:
    """Describe a loaded model. Of an unknown one it then describes nothing."""
    desc = described(handle, "get_desc")
    desc.clear()
    manifest = models().get(model, "get_desc").manifest
    desc.fill(manifest, model, process.current().settings.size_slack)


@status("mdl.get_desc_from_file", U64, STR)
def get_desc_from_file(handle: int, path: str) -> None:
    """Describe a file without loading it."""
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
    """The tensor at `index`. Raises Refused INVALID_PARAM."""
    if index >= len(tensors):
        raise Refused(Code.INVALID_PARAM, f"index: found {index}, expected below {len(tensors)}")
    return tensors[index]


def from_memory(ptr: int, size: int, what: str) -> om.Om:
    """A model in host memory. Violates the rules of `AddressSpace.locate` and `Borrowed`.

    Raises Refused: INVALID_PARAM for null, and as `om.parse` does.
    """
    if ptr == 0 or size == 0:
        raise Refused(Code.INVALID_PARAM, f"{what}: found {size:,} bytes at {ptr:#x}")
    now = process.current()
    now.memory.locate(ptr, size, want="host", what=what)
    now.part(Borrowed).check(ptr, what)
    return om.parse(host_view(ptr, size).data, what)


# -- tensors -------------------------------------------------------------------------------------


@bare("mdl.get_num_inputs", U64)
def get_num_inputs(handle: int) -> int:
    """How many inputs, the gear input included."""
    return len(described(handle, "get_num_inputs").inputs)


@bare("mdl.get_num_outputs", U64)
def get_num_outputs(handle: int) -> int:
    """How many outputs."""
    return len(described(handle, "get_num_outputs").outputs)


@bare("mdl.get_input_size_by_index", U64, U64)
def get_input_size_by_index(handle: int, index: int) -> int:
    """Bytes at the largest gear; 0 where shapes are free."""
    return at(described(handle, "get_input_size_by_index").inputs, index).nbytes


@bare("mdl.get_output_size_by_index", U64, U64)
def get_output_size_by_index(handle: int, index: int) -> int:
    """Bytes at the largest gear; 0 where shapes are free."""
    return at(described(handle, "get_output_size_by_index").outputs, index).nbytes


@bare("mdl.get_input_data_type", U64, U64)
def get_input_data_type(handle: int, index: int) -> int:
    """An aclDataType."""
    return at(described(handle, "get_input_data_type").inputs, index).dtype


@bare("mdl.get_output_data_type", U64, U64)
def get_output_data_type(handle: int, index: int) -> int:
    """An aclDataType."""
    return at(described(handle, "get_output_data_type").outputs, index).dtype


@bare("mdl.get_input_format", U64, U64)
def get_input_format(handle: int, index: int) -> int:
    """An aclFormat."""
    return at(described(handle, "get_input_format").inputs, index).format


@bare("mdl.get_output_format", U64, U64)
def get_output_format(handle: int, index: int) -> int:
    """An aclFormat."""
    return at(described(handle, "get_output_format").outputs, index).format


@bare("mdl.get_input_name_by_index", U64, U64, failed="")
def get_input_name_by_index(handle: int, index: int) -> str:
    """Its name."""
    return at(described(handle, "get_input_name_by_index").inputs, index).name


@bare("mdl.get_output_name_by_index", U64, U64, failed="")
def get_output_name_by_index(handle: int, index: int) -> str:
    """Its name, node:port:name."""
    return at(described(handle, "get_output_name_by_index").outputs, index).name


@value("mdl.get_input_index_by_name", U64, STR)
def get_input_index_by_name(handle: int, name: str) -> int:
    """Where the input of this name is."""
    return _index(described(handle, "get_input_index_by_name").inputs, name)


@value("mdl.get_output_index_by_name", U64, STR)
def get_output_index_by_name(handle: int, name: str) -> int:
    """Where the output of this name is."""
    return _index(described(handle, "get_output_index_by_name").outputs, name)


@bare("mdl.get_tensor_real_name", U64, STR, failed="")
def get_tensor_real_name(handle: int, name: str) -> str:
    """The name that `name` stands in for, or itself; '' for an unknown one."""
    desc = described(handle, "get_tensor_real_name")
    tensors = (*desc.inputs, *desc.outputs)
    return tensors[_index(tensors, name)].real_name


@bare("mdl.get_op_attr", U64, STR, STR, failed="")
def get_op_attr(handle: int, operator: str, attribute: str) -> str:
    """Nothing: a simulated model has no operators with attributes."""
    described(handle, "get_op_attr")
    return ""


# -- inside --------------------------------------------------------------------------------------


def _tensor(
    tensor: om.OmTensor, kind: str, place: int, model: int | None, nbytes: int, slack: int
) -> Tensor:
    name = tensor.name
    if len(name.encode()) > MOST_NAME:
        name = f"acl_modelId_{model or 0}_{kind}_{place}"
    size = nbytes + slack if nbytes else 0
    return Tensor(name, tensor.name, tensor.dtype, tensor.format, tensor.dims, tensor.ranges, size)


def _index(tensors: tuple[Tensor, ...], name: str) -> int:
    for index, tensor in enumerate(tensors):
        if tensor.name == name:
            return index
    known = ", ".join(tensor.name for tensor in tensors)
    raise Refused(Code.INVALID_PARAM, f"found no tensor '{name}', expected one of {known}")
