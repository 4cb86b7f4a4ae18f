"""JPEG files in requests: `jpeg.<prepared tensor>` names the input that the tensor is decoded from.

The images are decoded and resized to the tensor's height and width; an axis stands for its limit.
With 1 channel the tensor holds brightness, with 3 it holds red, green and blue.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from ge_runtime.config.model_tensors import ModelTensors
from ge_runtime.config.parameter_table import JPEG
from ge_runtime.config.parameters import Parameters
from ge_runtime.specs import DType, TensorSpec

_CHANNELS: Final = (1, 3)


class JpegPicture(NamedTuple):
    """The images decoded from the files of one input."""

    source: str
    """The input."""
    height: int
    width: int
    channels: int


def read_jpeg(
    parameters: Parameters,
    tensors: ModelTensors,
    limits: Mapping[str, int],
    *,
    max_batch_size: int,
) -> dict[str, JpegPicture]:
    """Return the source of prepared tensors: of all of them, or of none."""
    found: dict[str, JpegPicture] = {}
    errors = parameters.errors
    for field, name, source in parameters.entries(JPEG, "prepared tensor", tensors.prepared):
        spec = tensors.prepared[name]
        if source not in tensors.inputs:
            errors.add_unknown(field, "input", source, tensors.inputs)
        elif tensors.inputs[source].dtype is not DType.BYTES or tensors.inputs[source].dims != (1,):
            errors.add(field, f"input '{source}' {tensors.inputs[source]}", "BYTES[1]: one file")
        elif (picture := _picture(spec, source, limits)) is None:
            expected = "UINT8[height,width,1], or of 3 channels"
            errors.add(field, f"'{name}' {spec}", expected)
        elif not max_batch_size:
            errors.add(field, "max_batch_size 0", "1 or more: an image for each row")
        else:
            found[name] = picture
    given = parameters.texts(JPEG)
    if given and (others := tensors.prepared.keys() - given.keys()):
        field = f"parameter 'prepared.{min(others)}'"
        expected = "all prepared tensors from JPEG files, or none"
        errors.add(field, f"no 'jpeg.{min(others)}'", expected)
    return found


def _picture(spec: TensorSpec, source: str, limits: Mapping[str, int]) -> JpegPicture | None:
    if spec.dtype is not DType.UINT8 or len(spec.dims) != 3 or spec.dims[2] not in _CHANNELS:
        return None
    sides = [limits.get(dim, 0) if isinstance(dim, str) else dim for dim in spec.dims]
    height, width, channels = (side if isinstance(side, int) else 0 for side in sides)
    return JpegPicture(source, height, width, channels) if height and width else None
