"""Which .om files can be executed here: what they need, what nobody can feed, why a load failed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from ge_runtime.engines.artifact import graph_name
from ge_runtime.errors import ArtifactFault, OutOfMemory, RuntimeFault
from ge_runtime.npu.driver.card import Card
from ge_runtime.npu.driver.description import (
    ACL_DTYPES,
    AIPP_INPUT,
    GEAR_INPUT,
    PLAIN_FORMATS,
    ModelDescription,
)
from ge_runtime.npu.driver.om_model import ModelFile
from ge_runtime.npu.driver.return_codes import DriverFault, FailureKind
from ge_runtime.npu.engines.om_images import ExecutableModel


def read_files(paths: Sequence[Path], card: Card) -> list[ModelFile]:
    """The files. Raises ArtifactFault with all that cannot be executed, OutOfMemory, EngineLost."""
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
            f"{path}: found a model whose sizes only an execution tells, so that its memory cannot "
            "be planned; expected gears: name them in config.pbtxt (gears.<axes>) and run "
            "`ge-runtime build`; or, for one file in this process, the parameter "
            "'unplanned_memory': allowed"
        )
    return file


def has_free_shapes(file: ModelFile) -> bool:
    """Whether it was compiled for ranges of sizes: GE schedules such models on the host."""
    return file.workspace_bytes == 0  # as query_size has it


def read_free_shapes(path: Path, card: Card) -> ModelFile | None:
    """The file, if it has free shapes; None if it has a plan, or cannot be read as a model."""
    try:
        card.enter()
        file = ModelFile.read(path, card.driver)
    except (DriverFault, OSError):  # told by `read_files`, which is asked next
        return None
    return file if has_free_shapes(file) else None


def load_fault(path: Path, card: Card, fault: DriverFault) -> RuntimeFault:
    """What a failed load means."""
    if fault.kind is FailureKind.LOST:
        return card.lose(f"{path}: {fault}")
    if fault.kind is FailureKind.MEMORY:
        return OutOfMemory(f"{path}: {fault}")
    return ArtifactFault(
        f"{path}: {card.name}, {card.soc_name}, cannot execute it: {fault}; `ge-runtime build` "
        f"makes it anew from {graph_name(path, card.soc_name)}.onnx, for this chip"
    )


def refuse_what_nobody_can_feed(path: Path, model: ExecutableModel) -> None:
    """Raises ArtifactFault for tensors that Triton, or we, have no form of."""
    description = model.description
    faults = [*tensor_faults(description), *_too_large(model)]
    # The driver writes a gear into the input of an index: `Slot.submit` takes the last.
    if description.family is not None and description.inputs[-1].name != GEAR_INPUT:
        names = ", ".join(tensor.name for tensor in description.inputs)
        faults.append(f"found the inputs {names}, expected {GEAR_INPUT} as the last of them")
    if faults:
        raise ArtifactFault("\n".join(f"{path}: {fault}" for fault in faults))


def tensor_faults(description: ModelDescription) -> Iterator[str]:
    """Of tensors that Triton, or we, have no form of."""
    for tensor in (*description.data_inputs, *description.outputs):
        if tensor.name == AIPP_INPUT:
            yield "found dynamic AIPP, expected static or none: `atc --insert_op_conf`"
        elif tensor.dtype not in ACL_DTYPES:
            yield f"'{tensor.name}': found aclDataType {tensor.dtype}, which Triton lacks"
        elif tensor.format not in PLAIN_FORMATS:
            expected = "ND, NCHW or NHWC, whose elements lie in order: `atc --input_format`"
            yield f"'{tensor.name}': found aclFormat {tensor.format}, expected {expected}"


def _too_large(model: ExecutableModel) -> Iterator[str]:
    """Tensors with more elements than the model has bytes for, as YUV images of static AIPP."""
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
                        f"'{tensor.name}': found {list(dims)}, of {nbytes:,} bytes, expected "
                        f"{tensor.nbytes:,} as the model tells: of AIPP's formats those with all "
                        "values of each pixel, e.g. RGB888_U8"
                    )
                    return
