"""Checks of .om files: whether they can be executed, their tensors and images, and load errors.

AIPP converts images on the card. With static AIPP, the parameters are compiled into the file, and
the model's input is the raw image. For dynamic AIPP, parameters are written into a separate input.
It is not documented which dims such a file reports for the image, so config.pbtxt's are used.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from ge_runtime.config import DeclaredImages
from ge_runtime.engines.artifact import graph_name
from ge_runtime.engines.base import GraphTensor
from ge_runtime.errors import ArtifactFault, OutOfMemory, RuntimeFault
from ge_runtime.npu.driver.atc import differences
from ge_runtime.npu.driver.cann_values import (
    ACL_DTYPES,
    AIPP_INPUT,
    GEAR_INPUT,
    PLAIN_FORMATS,
    DriverFault,
    FailureKind,
    ModelDescription,
)
from ge_runtime.npu.driver.card import Card
from ge_runtime.npu.driver.driver import AippKind, ImageBatch
from ge_runtime.npu.driver.om_model import Dims, ModelFile, OmGear, Stage
from ge_runtime.npu.driver.pyacl import PyAclDriver
from ge_runtime.specs import DType


def read_files(paths: Sequence[Path], card: Card) -> list[ModelFile]:
    """Read the files.

    Raises:
        ArtifactFault: Lists all files that cannot be executed.
        OutOfMemory: The card has not enough memory.
        EngineLost: The card is lost.
    """
    files: list[ModelFile] = []
    faults: list[str] = []
    for path in paths:
        try:
            files.append(_read(path, card))
        except ArtifactFault as fault:
            faults.append(str(fault))
    if faults:
        raise ArtifactFault("\n".join(faults))
    return files


def _read(path: Path, card: Card) -> ModelFile:
    try:
        file = ModelFile.read(path, card.driver)
    except DriverFault as fault:
        raise load_fault(path, card, fault) from fault
    except OSError as error:
        raise ArtifactFault(f"{path}: {error.strerror}") from error
    if has_free_shapes(file):
        raise ArtifactFault(
            f"{path}: found a model with free shapes, whose memory cannot be planned, expected "
            "gears: name them in config.pbtxt (gears.<axes>) and run `ge-runtime build`; or, for a "
            "model of one file without a device service, set the parameter 'unplanned_memory' to "
            "'allowed'"
        )
    return file


def has_free_shapes(file: ModelFile) -> bool:
    """Return whether the file was compiled for ranges of sizes."""
    return file.workspace_bytes == 0  # query_size returns 0 for such files


def read_free_shapes(path: Path, card: Card) -> ModelFile | None:
    """Return the file if it has free shapes; None if it has none, or cannot be read."""
    try:
        with card.current():
            file = ModelFile.read(path, card.driver)
    except (DriverFault, OSError):  # reported by `read_files`, which is called next
        return None
    return file if has_free_shapes(file) else None


def load_fault(path: Path, card: Card, fault: DriverFault) -> RuntimeFault:
    """Return the fault of a failed load."""
    if fault.kind is FailureKind.LOST:
        return card.mark_lost(f"{path}: {fault}")
    if fault.kind is FailureKind.MEMORY:
        return OutOfMemory(f"{path}: {fault}")
    card.log_errors()
    return ArtifactFault(
        f"{path}: {card.name}, {card.soc_name}, cannot execute it: {fault}; `ge-runtime build` "
        f"compiles it from {graph_name(path, card.soc_name)}.onnx for this chip"
    )


def check_tensors(path: Path, model: ExecutableModel) -> None:
    """Raise ArtifactFault if a tensor has a type, format or size that is not supported."""
    description = model.description
    faults = [*tensor_faults(description), *_too_large(model)]
    # `LoadedModel.set_gear` writes the gear into the last input.
    if description.family is not None and description.inputs[-1].name != GEAR_INPUT:
        names = ", ".join(tensor.name for tensor in description.inputs)
        faults.append(f"found the inputs {names}, expected {GEAR_INPUT} as the last of them")
    if faults:
        raise ArtifactFault("\n".join(f"{path}: {fault}" for fault in faults))


def tensor_faults(description: ModelDescription) -> Iterator[str]:
    """Yield the faults of tensors with unsupported types or formats."""
    for tensor in (*description.data_inputs, *description.outputs):
        if tensor.name == AIPP_INPUT:
            yield "found dynamic AIPP, expected static or none: `atc --insert_op_conf`"
        elif tensor.dtype not in ACL_DTYPES:
            yield f"'{tensor.name}': found aclDataType {tensor.dtype}, expected a type of Triton"
        elif tensor.format not in PLAIN_FORMATS:
            expected = "ND, NCHW or NHWC, with elements in C order: `atc --input_format`"
            yield f"'{tensor.name}': found aclFormat {tensor.format}, expected {expected}"


def _too_large(model: ExecutableModel) -> Iterator[str]:
    """Yield a fault for a tensor whose elements exceed its buffer, e.g. a YUV image."""
    description = model.description
    for gear in model.gears.values():
        for tensors, shapes in (
            (description.data_inputs, gear.inputs),
            (description.outputs, gear.outputs),
        ):
            for tensor, dims in zip(tensors, shapes, strict=True):
                if tensor.dtype not in ACL_DTYPES:
                    continue
                nbytes = math.prod(dims) * ACL_DTYPES[tensor.dtype].numpy.itemsize
                if nbytes > tensor.nbytes:
                    yield (
                        f"'{tensor.name}': found {list(dims)}, of {nbytes:,} bytes, expected at "
                        f"most {tensor.nbytes:,}, the model's buffer: use an AIPP format with all "
                        "values for each pixel, e.g. RGB888_U8"
                    )
                    return


_RANK = 4
_UINT8, _NHWC = 4, 1


class ExecutableModel(Protocol):
    """The description and gears of a model."""

    @property
    def description(self) -> ModelDescription: ...

    @property
    def gears(self) -> Mapping[tuple[Dims, ...], OmGear]: ...


@dataclass(frozen=True, slots=True)
class ImageModel:
    """A model as its callers see it: with images, and without inputs for AIPP's parameters."""

    description: ModelDescription
    gears: Mapping[tuple[Dims, ...], OmGear]
    images: Collection[str] = ()
    """The inputs that are images."""
    batch: ImageBatch | None = None
    """The parameters of dynamic AIPP; None if the model has no dynamic AIPP."""


def image_model(
    stage: Stage, driver: PyAclDriver, declared: Mapping[str, DeclaredImages]
) -> ImageModel:
    """Return the model with its image inputs, checked against config.pbtxt.

    Args:
        stage: The loaded model.
        driver: The driver.
        declared: Image declarations in config.pbtxt, by input name.

    Raises:
        ArtifactFault: The images of the file differ from those in config.pbtxt.
    """
    model, faults = stage.model, list[str]()
    description = model.description
    images: list[str] = []
    dynamic: list[tuple[int, DeclaredImages | None]] = []
    for index, tensor in enumerate(description.data_inputs):
        declaration = declared.get(tensor.name)
        is_image = tensor.dtype == _UINT8 and len(tensor.dims) == _RANK
        if tensor.name == AIPP_INPUT or (declaration is None and not is_image):
            continue
        kind = driver.aipp.kind(model.id, index)
        if kind is AippKind.DYNAMIC:
            dynamic.append((index, declaration))
        if kind is not AippKind.NONE:
            images.append(tensor.name)
        if declaration is not None:
            faults += _differences(tensor.name, declaration, kind, stage, driver, index)
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
    index, declaration = dynamic[0]
    assert declaration is not None, "a missing declaration was reported as a fault"
    return _dynamic(stage, index, declaration, images)


def _differences(
    name: str,
    declaration: DeclaredImages,
    kind: AippKind,
    stage: Stage,
    driver: PyAclDriver,
    index: int,
) -> list[str]:
    field = f"'{name}': aipp.{name} of config.pbtxt"
    cure = "run `ge-runtime build`"
    mode = AippKind.DYNAMIC if declaration.aipp.is_dynamic else AippKind.STATIC
    if kind is not mode:
        return [f"{field}: found {kind.words}, expected {mode.words}: {cure}"]
    if kind is AippKind.DYNAMIC:
        return []
    found = driver.aipp.parameters(stage.model.id, index)
    faults = differences(found, declaration.aipp, declaration.sides)
    return [f"{field}: {each}: {cure}" for each in faults]


def _dynamic(
    stage: Stage, index: int, declaration: DeclaredImages, images: Sequence[str]
) -> ImageModel:
    model, aipp = stage.model, declaration.aipp
    sides = declaration.sides
    assert sides is not None, "`read_aipp` requires the sides"
    parameters_index = [tensor.name for tensor in model.description.inputs].index(AIPP_INPUT)

    def visible_dims(dims: Sequence[Dims]) -> tuple[Dims, ...]:
        """Replace the dims of the image input, and remove the dims of AIPP's parameters."""
        result = list(dims)
        result[index] = (dims[index][0], *sides, aipp.channels)
        del result[parameters_index]
        return tuple(result)

    inputs = list(model.description.inputs)
    tensor = inputs[index]
    dims = (tensor.dims[0], *sides, aipp.channels)
    inputs[index] = replace(tensor, dtype=_UINT8, format=_NHWC, dims=dims)
    del inputs[parameters_index]
    gears = {}
    for gear in model.gears.values():
        visible = visible_dims(gear.inputs)
        gears[visible] = replace(gear, inputs=visible)
    rows = max(visible[index][0] for visible in gears)
    nbytes = rows * sides[0] * sides[1] * aipp.channels
    if nbytes > tensor.nbytes:
        raise ArtifactFault(
            f"{stage.path}: '{declaration.spec.name}': found max_src_image_size {tensor.nbytes:,}, "
            f"expected {nbytes:,} for {rows} images: run `ge-runtime build`"
        )
    batch = ImageBatch(rows, *sides, aipp)
    description = replace(model.description, inputs=tuple(inputs))
    return ImageModel(description, gears, images, batch)


def graph_inputs(model: ImageModel) -> tuple[GraphTensor, ...]:
    """Return the inputs that a caller provides. A size that differs between gears is None."""
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
    """Return the dims, with None for each size that is not the same in all of `dims`."""
    return tuple(sizes[0] if len({*sizes}) == 1 else None for sizes in zip(*dims, strict=True))
