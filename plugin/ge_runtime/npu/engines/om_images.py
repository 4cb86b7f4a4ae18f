"""The inputs of .om files that are images: what AIPP makes of them, and whether it is as declared.

Static AIPP is in the file, and its input is the raw image. With dynamic AIPP the parameters are
written before executions, into an input of their own; what the file tells of the image's dims no
document says, so they are those of config.pbtxt.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from ge_runtime.config import DeclaredImages
from ge_runtime.engines.base import GraphTensor
from ge_runtime.errors import ArtifactFault
from ge_runtime.npu.driver.aipp import unlike
from ge_runtime.npu.driver.description import ACL_DTYPES, AIPP_INPUT, ModelDescription
from ge_runtime.npu.driver.driver import AippKind, Driver, ImageBatch
from ge_runtime.npu.driver.om_model import Dims, OmGear, Stage
from ge_runtime.specs import DType

_RANK = 4
_UINT8, _NHWC = 4, 1


class ExecutableModel(Protocol):
    """What executions need to know of a file's tensors."""

    @property
    def description(self) -> ModelDescription: ...

    @property
    def gears(self) -> Mapping[tuple[Dims, ...], OmGear]: ...


@dataclass(frozen=True, slots=True)
class ImageModel:
    """A file as its callers see it."""

    description: ModelDescription
    gears: Mapping[tuple[Dims, ...], OmGear]
    images: Collection[str] = ()
    """Its inputs that are images."""
    batch: ImageBatch | None = None
    """What is to be set before executions; None without dynamic AIPP."""


def image_model(stage: Stage, driver: Driver, declared: Mapping[str, DeclaredImages]) -> ImageModel:
    """The file with its images. Raises ArtifactFault for other images than are declared."""
    model, faults = stage.model, list[str]()
    description = model.description
    images: list[str] = []
    dynamic: list[tuple[int, DeclaredImages | None]] = []
    for index, tensor in enumerate(description.data_inputs):
        own = declared.get(tensor.name)
        is_image = tensor.dtype == _UINT8 and len(tensor.dims) == _RANK
        if tensor.name == AIPP_INPUT or (own is None and not is_image):
            continue
        kind = driver.aipp.kind(model.id, index)
        if kind is AippKind.DYNAMIC:
            dynamic.append((index, own))
        if kind is not AippKind.NONE:
            images.append(tensor.name)
        if own is not None:
            faults += _unlike(tensor.name, own, kind, stage, driver, index)
    names = [tensor.name for tensor in description.inputs]
    if AIPP_INPUT in names and (len(dynamic) != 1 or dynamic[0][1] is None):
        faults.append(
            "found dynamic AIPP, expected static or none: `atc --insert_op_conf`; or aipp.<input> "
            "in config.pbtxt with aipp_mode=dynamic"
        )
    if faults:
        raise ArtifactFault("\n".join(f"{stage.path}: {fault}" for fault in faults))
    if not dynamic:
        return ImageModel(description, model.gears, images)
    index, own = dynamic[0]
    assert own is not None  # else it is a fault
    return _dynamic(stage, index, own, images)


def _unlike(
    name: str, own: DeclaredImages, kind: AippKind, stage: Stage, driver: Driver, index: int
) -> list[str]:
    field = f"'{name}': aipp.{name} of config.pbtxt"
    cure = "run `ge-runtime build`"
    mode = AippKind.DYNAMIC if own.aipp.is_dynamic else AippKind.STATIC
    if kind is not mode:
        return [f"{field}: found {kind.words}, expected {mode.words}: {cure}"]
    if kind is AippKind.DYNAMIC:
        return []
    told = driver.aipp.parameters(stage.model.id, index)
    return [f"{field}: {each}: {cure}" for each in unlike(told, own.aipp, own.sides)]


def _dynamic(stage: Stage, index: int, own: DeclaredImages, images: Sequence[str]) -> ImageModel:
    model = stage.model
    sides = own.sides
    assert sides is not None  # as `read_aipp` has seen to
    at = [tensor.name for tensor in model.description.inputs].index(AIPP_INPUT)

    def seen(dims: Sequence[Dims]) -> tuple[Dims, ...]:
        """Of the data inputs, without that of the parameters."""
        own_dims = list(dims)
        own_dims[index] = (dims[index][0], *sides, own.aipp.channels)
        del own_dims[at]
        return tuple(own_dims)

    inputs = list(model.description.inputs)
    tensor = inputs[index]
    dims = (tensor.dims[0], *sides, own.aipp.channels)
    inputs[index] = replace(tensor, dtype=_UINT8, format=_NHWC, dims=dims)
    del inputs[at]
    gears = {}
    for gear in model.gears.values():
        visible = seen(gear.inputs)
        gears[visible] = replace(gear, inputs=visible)
    rows = max(visible[index][0] for visible in gears)
    nbytes = rows * sides[0] * sides[1] * own.aipp.channels
    if nbytes > tensor.nbytes:
        raise ArtifactFault(
            f"{stage.path}: '{own.spec.name}': found max_src_image_size {tensor.nbytes:,}, "
            f"expected {nbytes:,} for {rows} images: run `ge-runtime build`"
        )
    batch = ImageBatch(rows, *sides, own.aipp)
    description = replace(model.description, inputs=tuple(inputs))
    return ImageModel(description, gears, images, batch)


def graph_inputs(model: ImageModel) -> tuple[GraphTensor, ...]:
    """What a caller feeds; sizes in which gears differ vary."""
    tensors, gears = model.description.data_inputs, model.gears.values()
    return tuple(
        GraphTensor(
            tensor.name,
            ACL_DTYPES.get(tensor.dtype, DType.UINT8),
            common_dims([gear.inputs[index] for gear in gears]),
            aipp=tensor.name in model.images,
        )
        for index, tensor in enumerate(tensors)
    )


def common_dims(dims: Sequence[Dims]) -> tuple[int | None, ...]:
    """The dims, None for those in which gears differ."""
    return tuple(sizes[0] if len({*sizes}) == 1 else None for sizes in zip(*dims, strict=True))
