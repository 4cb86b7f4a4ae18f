"""The inputs of an execution in the graph's form: AIPP inputs are computed from images first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ascend_simulator.codes import Code, Refused
from ascend_simulator.enumerations import DataType
from ascend_simulator.memory.blocks import Place
from ascend_simulator.models import aipp
from ascend_simulator.models.aipp import Parameters
from ascend_simulator.models.graph import Bound
from ascend_simulator.models.loaded import Model
from ascend_simulator.models.om import Shapes
from ascend_simulator.violations import declare, violate

NOT_SET = declare(
    "model.aipp-not-set",
    "Set dynamic AIPP parameters in the same buffer before executing the model.",
)


def graph_inputs(
    model: Model, shapes: Shapes, places: Sequence[Place]
) -> tuple[list[Bound], list[NDArray[Any]]]:
    """Return the graph's inputs, and the arrays to keep alive until the graph has run.

    Violates NOT_SET. Raises Refused RT_MODEL_EXECUTE if AIPP parameters are missing.
    """
    manifest = model.manifest
    bound: list[Bound] = []
    arrays: list[NDArray[Any]] = []
    for index, (tensor, dims, place) in enumerate(
        zip(manifest.inputs, shapes.inputs, places, strict=True)
    ):
        if index == manifest.aipp_place:
            continue
        own = manifest.aipp[index] if manifest.aipp else None
        if own is None:
            bound.append(Bound(tensor.graph_name, tensor.dtype, dims, place.address))
            continue
        parameters = own.parameters or _set_parameters(model, places)
        width, height = parameters.width, parameters.height
        if manifest.family == "image":
            height, width = shapes.gear
        rows = shapes.gear[0] if manifest.family == "batch" else tensor.dims[0]
        made = aipp.preprocess(place.content, rows, width, height, parameters)
        halves = own.dtype == DataType.ACL_FLOAT16
        array = np.ascontiguousarray(made if halves else made.astype(np.float32))
        arrays.append(array)
        bound.append(Bound(tensor.graph_name, own.dtype, array.shape, array.ctypes.data))
    return bound, arrays


def _set_parameters(model: Model, places: Sequence[Place]) -> Parameters:
    """Return the parameters that set_input_aipp wrote into this execution's buffer."""
    index = model.manifest.aipp_place
    assert index is not None  # only models with a parameter input have dynamic AIPP
    place = places[index]
    data = place.content.tobytes()
    written = model.aipp_at.get(place.ptr)
    if written is None or data[: len(written)] != written:
        found = "no data of set_input_aipp" if written is None else "changed bytes"
        text = f"execute: {model.name}: found {found} in the AIPP parameter buffer"
        violate(NOT_SET, text)
        raise Refused(Code.RT_MODEL_EXECUTE, text)
    return aipp.unpack(data, model.manifest.aipp_rows)
