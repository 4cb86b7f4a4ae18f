"""The model descriptions of acl.mdl: created, filled from a model or a file, and destroyed.

`model_desc` has the functions that read them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ascend_simulator import process
from ascend_simulator.calls import STR, U32, U64, bare, status
from ascend_simulator.codes import Code, Refused
from ascend_simulator.enumerations import DataType, Format
from ascend_simulator.memory.blocks import host_view
from ascend_simulator.memory.borrowed import Borrowed
from ascend_simulator.models import om
from ascend_simulator.models.datasets import lookup, remove
from ascend_simulator.models.loaded import models
from ascend_simulator.models.om import Dims, Manifest
from ascend_simulator.resources import Handles

MOST_NAME: Final = 127  # ACL_MAX_TENSOR_NAME_LEN without the terminating null


@dataclass(frozen=True)
class Tensor:
    """An input or output in a model description. The gear input is an input as well."""

    name: str
    real_name: str
    """The full name, if `name` replaces a name that is too long."""
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
    """The id of the loaded model; None if filled from a file."""
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


class Descs:
    """The model descriptions by handle: a `Part` of the process."""

    def __init__(self) -> None:
        self.handles: Final[Handles[Desc]] = Handles("model description")

    def live(self) -> list[str]:
        """Return the number of handles that were not destroyed, as text."""
        count = len(self.handles)
        return [f"{count} {self.handles.kind}(s)"] if count else []

    def close(self) -> None:
        """Do nothing: handles hold no resources."""


def _handles() -> Handles[Desc]:
    return process.current().part(Descs).handles


def described(handle: int, what: str) -> Desc:
    """Return the description of a handle. Raises as `datasets.lookup` does."""
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
    """Parse a model in host memory. Violates the rules of `AddressSpace.locate` and `Borrowed`.

    Raises Refused: INVALID_PARAM for null, and as `om.parse` does.
    """
    if ptr == 0 or size == 0:
        raise Refused(Code.INVALID_PARAM, f"{what}: found {size:,} bytes at {ptr:#x}")
    now = process.current()
    now.memory.locate(ptr, size, want="host", what=what)
    now.part(Borrowed).check(ptr, size, what)
    return om.parse(host_view(ptr, size).data, what)


# -- helpers -------------------------------------------------------------------------------------


def _tensor(
    tensor: om.OmTensor, kind: str, place: int, model: int | None, nbytes: int, slack: int
) -> Tensor:
    name = tensor.name
    if len(name.encode()) > MOST_NAME:
        name = f"acl_modelId_{model or 0}_{kind}_{place}"
    size = nbytes + slack if nbytes else 0
    return Tensor(name, tensor.name, tensor.dtype, tensor.format, tensor.dims, tensor.ranges, size)
