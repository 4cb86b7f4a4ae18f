"""Images in requests: AIPP converts bytes to a graph's input, and JPEG files are decoded.

`aipp.<input>` has the keys of ATC's --insert_op_conf, e.g. `input_format=RGB888_U8, min_chn=123.675
116.28 103.53, var_reci_chn=0.0171 0.0175 0.0174`. Values for several channels are separated by
spaces. Images are cropped or padded if one of the sizes for this is given.

The images are UINT8 [height, width, channels], the graph's input is [channels, height, width]. The
steps: `rbuv_swap_switch` swaps the first and the last channel; the crop is cut out; each pixel
becomes (pixel - mean_chn - min_chn) * var_reci_chn, rounded to FP16; the padding of zeros is added.

`jpeg.<prepared tensor>` names the input that the tensor is decoded from. Images are resized to the
tensor's height and width; the size of an axis is its limit. With 1 channel the tensor holds
brightness, with 3 it holds red, green and blue.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from ge_runtime.config import parameter_table as table
from ge_runtime.config.model_tensors import ModelTensors
from ge_runtime.config.parameters import ConfigErrors, Parameters, split_names
from ge_runtime.specs import Dim, DType, TensorSpec

CHANNELS: Final = {"RGB888_U8": 3, "YUV400_U8": 1}
"""The NHWC formats of AIPP, with the number of bytes of a pixel."""

_OTHER: Final = ("YUV420SP_U8", "XRGB8888_U8")
"""Formats of AIPP whose colour conversion is not documented exactly."""

MOST_PIXELS: Final = 4096
"""Largest height and width."""
LEAST_WIDTH: Final = 2
_MOST_PADDING: Final = 32
_MOST_PADDED_WIDTH: Final = 1080
_LARGEST: Final = 65504.0
"""Largest number of FP16."""

_CROP: Final = ("load_start_pos_w", "load_start_pos_h", "crop_size_w", "crop_size_h")
_PADDING: Final = ("left", "right", "top", "bottom")
_SIDES: Final = tuple(f"{side}_padding_size" for side in _PADDING)
_OF_CHANNELS: Final = {"mean_chn": 0.0, "min_chn": 0.0, "var_reci_chn": 1.0}
"""Keys with a value for each channel, and their defaults."""
_CHOICES: Final = {
    "aipp_mode": ("static", "dynamic"),
    "input_format": tuple(CHANNELS),
    "rbuv_swap_switch": ("false", "true"),
}
_KEYS: Final = (*_CHOICES, *_CROP, *_SIDES, *_OF_CHANNELS)


class Crop(NamedTuple):
    """The part of an image that is used."""

    left: int
    top: int
    width: int
    height: int


class Border(NamedTuple):
    """Widths of the zeros added around the result."""

    left: int = 0
    right: int = 0
    top: int = 0
    bottom: int = 0


@dataclass(frozen=True, slots=True)
class Aipp:
    """The conversion of the images of one input."""

    input_format: str
    is_dynamic: bool
    """True if a card gets the parameters with each execution; otherwise they are in the .om."""
    swaps: bool
    """True if the first and the last channel are swapped before all other steps."""
    mean: tuple[int, ...]
    minimum: tuple[float, ...]
    factor: tuple[float, ...]
    """Three fields, `mean_chn`, `min_chn` and `var_reci_chn`: a value per channel, as FP16."""
    crop: Crop | None
    border: Border

    @property
    def channels(self) -> int:
        """Number of bytes of a pixel."""
        return CHANNELS[self.input_format]

    def output(self, spec: TensorSpec, dtype: DType) -> TensorSpec:
        """Return the graph's tensor that is computed from images of this spec."""
        height, width, channels = spec.dims
        if self.crop is not None:
            height, width = self.crop.height, self.crop.width
        border = self.border
        dims = (
            channels,
            _longer(height, border.top + border.bottom),
            _longer(width, border.left + border.right),
        )
        return TensorSpec(spec.name, dtype, dims)


@dataclass(frozen=True, slots=True)
class DeclaredImages:
    """An input of images as config.pbtxt declares it."""

    spec: TensorSpec
    aipp: Aipp

    @property
    def sides(self) -> tuple[int, int] | None:
        """Height and width; None if they are axes."""
        return self.sides_at({})

    def sides_at(self, sizes: Mapping[str, int]) -> tuple[int, int] | None:
        """Return height and width for these sizes of axes; None if a size is missing."""
        found = [sizes.get(dim) if isinstance(dim, str) else dim for dim in self.spec.dims[:2]]
        height, width = found
        return (height, width) if isinstance(height, int) and isinstance(width, int) else None


def _longer(size: Dim, by: int) -> Dim:
    # `_check_sizes` refuses borders for sizes that are axes.
    return size + by if isinstance(size, int) else size


def read_aipp(parameters: Parameters, tensors: ModelTensors, *, engine: str) -> dict[str, Aipp]:
    """Return the conversion of inputs or prepared tensors that are images."""
    found: dict[str, Aipp] = {}
    errors = parameters.errors
    kind = "prepared tensor" if tensors.prepared else "input"
    packing = parameters.text(table.PACKING)
    for field, name, text in parameters.entries(table.AIPP, kind, tensors.sources):
        spec = tensors.sources[name]
        given = _split(field, text, errors)
        if given is None:
            continue
        aipp = _Reader(field, given, errors).read(spec)
        if aipp is not None:
            found[name] = aipp
        if packing in spec.axes:
            errors.add(field, f"packing along {packing}", "no packing")
        if parameters.texts(table.BATCH_AXIS).get(name) == "none":
            errors.add(field, f"batch_axis.{name}: none", "an image for each row")
    dynamic = [name for name, aipp in found.items() if aipp.is_dynamic]
    if found and engine == "ge_session":
        field = f"parameter 'aipp.{next(iter(found))}'"
        errors.add(field, "engine ge_session", "an .om file on a card, or another device")
    if len(dynamic) > 1:
        errors.add(
            f"parameter 'aipp.{dynamic[1]}'",
            f"aipp_mode=dynamic of {', '.join(dynamic)}",
            "dynamic for one input, static for all other inputs",
        )
    if dynamic and len(found) > len(dynamic):
        others = ", ".join(found.keys() - {*dynamic})
        expected = "one aipp_mode for all inputs, as ATC requires"
        errors.add(f"parameter 'aipp.{dynamic[0]}'", f"dynamic, and static of {others}", expected)
    if dynamic and parameters.text(table.PLACEMENT) == "service":
        field = f"parameter 'aipp.{dynamic[0]}'"
        errors.add(field, "aipp_mode=dynamic", "static with placement: service")
    return found


def _split(field: str, text: str, errors: ConfigErrors) -> dict[str, str] | None:
    """Return the keys with their values; None after an error."""
    given: dict[str, str] = {}
    for part in split_names(text):
        key, equals, value = part.partition("=")
        key, value = key.strip(), value.strip()
        if key not in _KEYS:
            errors.add_unknown(field, "key of AIPP", key, _KEYS)
            return None
        if not equals or not value or key in given:
            found = f"{key} twice" if key in given else f"'{part}'"
            errors.add(field, found, f"{key}=value once")
            return None
        given[key] = value
    return given


class _Reader:
    """Reads the keys of one input. For one thread."""

    def __init__(self, field: str, given: Mapping[str, str], errors: ConfigErrors) -> None:
        self._field = field
        self._given = given
        self._errors = errors
        self._valid = True

    def read(self, spec: TensorSpec) -> Aipp | None:
        """Return the conversion; None after an error."""
        if "input_format" not in self._given:
            self._fault("no input_format", f"one of: {', '.join(CHANNELS)}")
            return None
        mode, input_format, swaps = (self._choice(key) for key in _CHOICES)
        if not self._valid:
            return None
        channels = CHANNELS[input_format]
        if (
            spec.dtype is not DType.UINT8
            or len(spec.dims) != 3
            or spec.dims[2] != channels
            or not all(isinstance(dim, int | str) for dim in spec.dims)
        ):
            expected = f"UINT8[height,width,{channels}] for input_format={input_format}"
            self._fault(f"'{spec.name}' {spec}", expected)
            return None
        mean, minimum, factor = (self._values(key, channels) for key in _OF_CHANNELS)
        sizes = [dim if isinstance(dim, int) else None for dim in spec.dims[:2]]
        crop = self._crop(*sizes)
        border = Border(*(self._number(key, 0, _MOST_PADDING) for key in _SIDES))
        aipp = Aipp(
            input_format,
            is_dynamic=mode == "dynamic",
            swaps=swaps == "true",
            mean=tuple(map(int, mean)),
            minimum=minimum,
            factor=factor,
            crop=crop,
            border=border,
        )
        if aipp.is_dynamic and None in sizes:
            self._fault("aipp_mode=dynamic of axes", "sides in numbers, or aipp_mode=static")
        if self._valid:
            self._check_values(aipp)
            self._check_sizes(aipp, spec)
        return aipp if self._valid else None

    def _fault(self, found: str, expected: str) -> None:
        self._errors.add(self._field, found, expected)
        self._valid = False

    def _choice(self, key: str) -> str:
        choices = _CHOICES[key]
        value = self._given.get(key, choices[0])
        if value not in choices:
            more = (
                "; the colours of other formats are not documented to the bit"
                if value in _OTHER
                else ""
            )
            self._fault(f"{key}={value}", f"one of: {', '.join(choices)}{more}")
        return value

    def _number(self, key: str, least: int, most: int) -> int:
        text = self._given.get(key, str(least))
        number = int(text) if text.isascii() and text.isdecimal() else -1
        if not least <= number <= most:
            self._fault(f"{key}={text}", f"a whole number from {least} to {most}")
            return least
        return number

    def _values(self, key: str, channels: int) -> tuple[float, ...]:
        """Return a value for each channel, rounded to FP16; a single value applies to all."""
        words = self._given.get(key, str(_OF_CHANNELS[key])).split()
        try:
            values = [float(word) for word in words]
        except ValueError:
            values = []
        whole = key == "mean_chn"
        low, high = (-_LARGEST, _LARGEST) if key == "var_reci_chn" else (0.0, 255.0)
        if len(values) not in (1, channels) or not all(
            low <= value <= high and (not whole or value.is_integer()) for value in values
        ):
            kind = "whole numbers" if whole else "numbers"
            expected = f"{channels} {kind} from {low:g} to {high:g}, one for each channel"
            self._fault(f"{key}={' '.join(words)}", expected)
            return (0.0,) * channels
        halves = tuple(float(np.float16(value)) for value in values)
        return halves * (channels // len(halves))

    def _crop(self, height: int | None, width: int | None) -> Crop | None:
        if not any(key in self._given for key in _CROP):
            return None
        for key in _CROP[2:]:
            if key not in self._given:
                self._fault(f"no {key}", "the size of what is cut out: crop_size_w, crop_size_h")
        crop = Crop(
            self._number("load_start_pos_w", 0, MOST_PIXELS - 1),
            self._number("load_start_pos_h", 0, MOST_PIXELS - 1),
            self._number("crop_size_w", 1, MOST_PIXELS),
            self._number("crop_size_h", 1, MOST_PIXELS),
        )
        if height is None or width is None:
            self._fault("crop_size_w", "none for images of any size")
        elif crop.left + crop.width > width or crop.top + crop.height > height:
            part = f"{crop.width} x {crop.height} from {crop.left}, {crop.top} on"
            self._fault(part, f"a part of {width} x {height} pixels")
        return crop

    def _check_sizes(self, aipp: Aipp, spec: TensorSpec) -> None:
        for dim, least in zip(spec.dims, (1, LEAST_WIDTH), strict=False):
            if isinstance(dim, int) and not least <= dim <= MOST_PIXELS:
                self._fault(f"'{spec.name}' {spec}", f"sides from {least} to {MOST_PIXELS}")
        if not any(aipp.border):
            return
        width = aipp.output(spec, DType.FP32).dims[2]
        if not all(isinstance(dim, int) for dim in spec.dims):
            self._fault(next(key for key in _SIDES if key in self._given), "none for any size")
        elif isinstance(width, int) and width > _MOST_PADDED_WIDTH:
            self._fault(f"a width of {width} with padding", f"at most {_MOST_PADDED_WIDTH}")

    def _check_values(self, aipp: Aipp) -> None:
        for mean, low, factor in zip(aipp.mean, aipp.minimum, aipp.factor, strict=True):
            largest = max(abs((pixel - mean - low) * factor) for pixel in (0, 255))
            if not largest <= _LARGEST or math.isnan(largest):
                found = f"(255 - {mean} - {low:g}) * {factor:g}"
                self._fault(found, f"what FP16 holds, at most {_LARGEST:g}")


_JPEG_CHANNELS: Final = (1, 3)


class JpegPicture(NamedTuple):
    """The images decoded from the files of one input."""

    source: str
    """The input."""
    height: int
    width: int
    channels: int


def read_jpeg(
    parameters: Parameters, tensors: ModelTensors, limits: Mapping[str, int], *, max_batch_size: int
) -> dict[str, JpegPicture]:
    """Return the JPEG source of each prepared tensor; empty if none has one."""
    found: dict[str, JpegPicture] = {}
    errors = parameters.errors
    for field, name, source in parameters.entries(table.JPEG, "prepared tensor", tensors.prepared):
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
    given = parameters.texts(table.JPEG)
    if given and (others := tensors.prepared.keys() - given.keys()):
        field = f"parameter 'prepared.{min(others)}'"
        expected = "all prepared tensors from JPEG files, or none"
        errors.add(field, f"no 'jpeg.{min(others)}'", expected)
    return found


def _picture(spec: TensorSpec, source: str, limits: Mapping[str, int]) -> JpegPicture | None:
    if spec.dtype is not DType.UINT8 or len(spec.dims) != 3 or spec.dims[2] not in _JPEG_CHANNELS:
        return None
    sides = [limits.get(dim, 0) if isinstance(dim, str) else dim for dim in spec.dims]
    height, width, channels = (side if isinstance(side, int) else 0 for side in sides)
    return JpegPicture(source, height, width, channels) if height and width else None
