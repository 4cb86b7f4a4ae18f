"""JPEG files in requests: which prepared tensors are decoded from which input.

- `jpeg.<prepared tensor>`: the input, STRING of dims [1], whose JPEG files become this tensor,
  UINT8 [height, width, channels]: decoded, and resized to its sides; of 1 channel their brightness,
  of 3 red, green and blue. Sides that are axes are those of their limits.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from ge_runtime.config.model_tensors import ModelTensors
from ge_runtime.config.triton_config import ConfigErrors, Parameters
from ge_runtime.specs import DType, TensorSpec

_CHANNELS: Final = (1, 3)


class JpegPicture(NamedTuple):
    """What becomes of the files of one input."""

    source: str
    """The input."""
    height: int
    width: int
    channels: int


def read_jpeg(
    parameters: Parameters,
    tensors: ModelTensors,
    limits: Mapping[str, int],
    errors: ConfigErrors,
    *,
    max_batch_size: int,
) -> dict[str, JpegPicture]:
    """Prepared tensor: what it is decoded from. All of them, or none."""
    given = parameters.families["jpeg"]
    found: dict[str, JpegPicture] = {}
    for name, source in given.items():
        field = f"parameter 'jpeg.{name}'"
        spec = tensors.prepared.get(name)
        if spec is None:
            errors.add_unknown(field, "prepared tensor", name, tensors.prepared)
        elif source not in tensors.inputs:
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
    if given and (others := tensors.prepared.keys() - given.keys()):
        field = f"parameter 'prepared.{min(others)}'"
        errors.add(field, "no 'jpeg' of it", "all prepared tensors from JPEG files, or none")
    return found


def _picture(spec: TensorSpec, source: str, limits: Mapping[str, int]) -> JpegPicture | None:
    if spec.dtype is not DType.UINT8 or len(spec.dims) != 3 or spec.dims[2] not in _CHANNELS:
        return None
    sides = [limits.get(dim, 0) if isinstance(dim, str) else dim for dim in spec.dims]
    height, width, channels = (side if isinstance(side, int) else 0 for side in sides)
    return JpegPicture(source, height, width, channels) if height and width else None
