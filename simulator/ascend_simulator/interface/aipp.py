"""acl.mdl: a model's AIPP, and the parameters of dynamic AIPP, which programs assign to models."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Final, SupportsFloat

from ascend_simulator import process
from ascend_simulator.calls import I32, U32, U64, bare, pair, status, value
from ascend_simulator.codes import DATA_TYPE_BYTES, Code, Format, MemcpyKind, Refused
from ascend_simulator.models.aipp import (
    LARGEST_HALF,
    MOST_PADDED_WIDTH,
    Frame,
    InputFormat,
    InputType,
    Parameters,
    data_bytes,
    pack,
)
from ascend_simulator.models.datasets import dataset, lookup, remove
from ascend_simulator.models.loaded import Model, check_context, models
from ascend_simulator.models.om import OmAipp
from ascend_simulator.resources import Handles, HandleTables

_MOST_ROWS: Final = 1 << 16


@dataclass
class Setting:
    """The object that create_aipp makes: the parameters of a batch of images."""

    head: Parameters
    frames: list[Frame]

    @property
    def parameters(self) -> Parameters:
        """The head and the parameters of every image."""
        return replace(self.head, frames=tuple(self.frames))


class Settings(HandleTables):
    """The AIPP settings by handle."""

    def __init__(self) -> None:
        self.alive: Final[Handles[Setting]] = Handles("AIPP configuration")


def aipp_settings() -> Handles[Setting]:
    """Return the AIPP settings of the process, by handle."""
    return process.current().part(Settings).alive


def REAL(given: SupportsFloat) -> float:
    """Convert any number to float. Raises TypeError for other types, like pyACL."""
    if isinstance(given, str):
        raise TypeError("must be real number, not str")
    return float(given)


# -- parameters ----------------------------------------------------------------------------------


@bare("mdl.create_aipp", U64)
def create_aipp(rows: int) -> int:
    """Create parameters for `rows` images. Refused: a number out of range, which returns 0."""
    if not 0 < rows <= _MOST_ROWS:
        raise Refused(
            Code.INVALID_PARAM, f"create_aipp: found a batch of {rows}, expected 1 or more"
        )
    return aipp_settings().add(Setting(Parameters(), [Frame()] * rows))


@status("mdl.destroy_aipp", U64)
def destroy_aipp(handle: int) -> None:
    """Destroy the parameters. Models to which they were assigned keep a copy."""
    remove(aipp_settings(), handle, "destroy_aipp")


@value("mdl.get_aipp_data_size", U64)
def get_aipp_data_size(rows: int) -> int:
    """Return the bytes of the parameters of a batch of `rows` images."""
    if not rows:
        raise Refused(Code.INVALID_PARAM, "get_aipp_data_size: found 0, expected 1 or more")
    return data_bytes(rows)


@status("mdl.set_aipp_input_format", U64, U32)
def set_aipp_input_format(handle: int, layout: int) -> None:
    """Set an aclAippInputFormat. Formats that are not simulated are refused on assignment."""
    own = lookup(aipp_settings(), handle, "set_aipp_input_format")
    own.head = replace(own.head, input_format=layout)


@status("mdl.set_aipp_csc_params", U64, I32, *[I32] * 9, *[I32] * 6)
def set_aipp_csc_params(handle: int, switch: int, *values: int) -> None:
    """Set the color matrix by rows, then output and input biases; ignored if switched off."""
    what = "set_aipp_csc_params"
    own = lookup(aipp_settings(), handle, what)
    own.head = replace(own.head, csc=_switch(what, switch))
    if switch:
        _check(what, values[:9], -32677, 32676)
        _check(what, values[9:], 0, 255)
        own.head = replace(
            own.head, matrix=values[:9], output_bias=values[9:12], input_bias=values[12:]
        )


@status("mdl.set_aipp_rbuv_swap_switch", U64, I32)
def set_aipp_rbuv_swap_switch(handle: int, switch: int) -> None:
    """Set whether the first and the last channel are swapped."""
    own = lookup(aipp_settings(), handle, "set_aipp_rbuv_swap_switch")
    own.head = replace(own.head, swaps=_switch("set_aipp_rbuv_swap_switch", switch))


@status("mdl.set_aipp_ax_swap_switch", U64, I32)
def set_aipp_ax_swap_switch(handle: int, switch: int) -> None:
    """Set the swap for images with four channels, which are not simulated."""
    own = lookup(aipp_settings(), handle, "set_aipp_ax_swap_switch")
    own.head = replace(own.head, swaps_x=_switch("set_aipp_ax_swap_switch", switch))


@status("mdl.set_aipp_src_image_size", U64, I32, I32)
def set_aipp_src_image_size(handle: int, width: int, height: int) -> None:
    """Set the width and height of all images of a batch; required."""
    what = "set_aipp_src_image_size"
    own = lookup(aipp_settings(), handle, what)
    _check(what, [width], 2, 4096)
    _check(what, [height], 1, 4096)
    own.head = replace(own.head, width=width, height=height)


@status("mdl.set_aipp_scf_params", U64, I32, I32, I32, I32, I32, U64)
def set_aipp_scf_params(handle: int, switch: int, *values: int) -> None:
    """Set resizing, which is refused on assignment to a model."""
    *sizes, index = values
    what = "set_aipp_scf_params"
    scales = _switch(what, switch)
    if scales:
        _check(what, sizes, 16, 4096)
    _change(what, handle, index, scales=scales)


@status("mdl.set_aipp_crop_params", U64, I32, I32, I32, I32, I32, U64)
def set_aipp_crop_params(handle: int, switch: int, *values: int) -> None:
    """Set left, top, width and height of the crop of one image."""
    *crop, index = values
    what = "set_aipp_crop_params"
    if _switch(what, switch):
        _check(what, crop[:2], 0, 4095)
        _check(what, crop[2:], 1, 4096)
    _change(what, handle, index, crop=tuple(crop) if switch else None)


@status("mdl.set_aipp_padding_params", U64, I32, I32, I32, I32, I32, U64)
def set_aipp_padding_params(handle: int, switch: int, *values: int) -> None:
    """Set the zero padding at top, bottom, left and right of one image."""
    *padding, index = values
    what = "set_aipp_padding_params"
    if _switch(what, switch):
        _check(what, padding, 0, 32)
    _change(what, handle, index, padding=tuple(padding) if switch else None)


@status("mdl.set_aipp_dtc_pixel_mean", U64, I32, I32, I32, I32, U64)
def set_aipp_dtc_pixel_mean(handle: int, *values: int) -> None:
    """Set mean_chn of the four channels of one image."""
    *mean, index = values
    _check("set_aipp_dtc_pixel_mean", mean, 0, 255)
    _change("set_aipp_dtc_pixel_mean", handle, index, mean=tuple(mean))


@status("mdl.set_aipp_dtc_pixel_min", U64, REAL, REAL, REAL, REAL, U64)
def set_aipp_dtc_pixel_min(handle: int, *values: float) -> None:
    """Set min_chn of the four channels of one image."""
    *low, index = values
    _check("set_aipp_dtc_pixel_min", low, 0, 255)
    _change("set_aipp_dtc_pixel_min", handle, int(index), low=tuple(low))


@status("mdl.set_aipp_pixel_var_reci", U64, REAL, REAL, REAL, REAL, U64)
def set_aipp_pixel_var_reci(
    handle: int, a: float, b: float, c: float, d: float, index: int
) -> None:
    """Set var_reci_chn of the four channels of one image."""
    _check("set_aipp_pixel_var_reci", (a, b, c, d), -LARGEST_HALF, LARGEST_HALF)
    _change("set_aipp_pixel_var_reci", handle, index, factor=(a, b, c, d))


def _change(what: str, handle: int, index: int, **values: object) -> None:
    frames = lookup(aipp_settings(), handle, what).frames
    if index >= len(frames):
        text = f"{what}: batch_index: found {index}, expected below {len(frames)}"
        raise Refused(Code.INVALID_PARAM, text)
    frames[index] = replace(frames[index], **values)  # type: ignore[arg-type]


def _switch(what: str, given: int) -> bool:
    _check(what, [given], 0, 1)
    return bool(given)


def _check(what: str, values: Iterable[float], low: float, high: float) -> None:
    for number in values:
        if not low <= number <= high:
            text = f"{what}: found {number:g}, expected {low:g} to {high:g}"
            raise Refused(Code.INVALID_PARAM, text)


_NOWHERE: Final = 0xFFFFFFFF


@pair("mdl.get_aipp_type", U32, U64)
def get_aipp_type(number: int, index: int) -> tuple[int, int]:
    """Return an aclmdlInputAippType and, for dynamic AIPP, the index of the parameter input."""
    model = models().get(number, "get_aipp_type")
    manifest = model.manifest
    if index >= len(manifest.inputs) + bool(manifest.gear_values):
        text = f"get_aipp_type: {model.name}: no input {index}"
        raise Refused(Code.GE_PARAM_INVALID, text)
    if index == manifest.aipp_place:
        return InputType.ACL_DYNAMIC_AIPP_NODE.value, _NOWHERE
    own = _aipp_of(model, index)
    if own is None:
        return InputType.ACL_DATA_WITHOUT_AIPP.value, _NOWHERE
    if own.parameters is not None:
        return InputType.ACL_DATA_WITH_STATIC_AIPP.value, _NOWHERE
    assert manifest.aipp_place is not None  # dynamic AIPP has one
    return InputType.ACL_DATA_WITH_DYNAMIC_AIPP.value, manifest.aipp_place


@value("mdl.get_first_aipp_info", U32, U64, failed=None)
def get_first_aipp_info(number: int, index: int) -> dict[str, Any]:
    """Return the static AIPP parameters; for dynamic AIPP, the graph's input and zeros."""
    model = models().get(number, "get_first_aipp_info")
    own = _aipp_of(model, index)
    if own is None:
        text = f"get_first_aipp_info: {model.name}: input {index} has no AIPP"
        raise Refused(Code.GE_AIPP_NOT_EXIST, text)
    parameters = own.parameters or Parameters()
    frame = parameters.frames[0]
    left, top, width, height = frame.crop or (0, 0, 0, 0)
    pads = frame.padding or (0, 0, 0, 0)
    channels = [f"Chn{channel}" for channel in range(4)]
    places = [f"matrixR{row}C{column}" for row in range(3) for column in range(3)]
    return {
        "inputFormat": parameters.input_format,
        "srcImageSizeW": parameters.width,
        "srcImageSizeH": parameters.height,
        "cropSwitch": int(frame.crop is not None),
        "loadStartPosW": left,
        "loadStartPosH": top,
        "cropSizeW": width,
        "cropSizeH": height,
        "resizeSwitch": 0,
        "resizeOutputW": 0,
        "resizeOutputH": 0,
        "paddingSwitch": int(frame.padding is not None),
        "topPaddingSize": pads[0],
        "bottomPaddingSize": pads[1],
        "leftPaddingSize": pads[2],
        "rightPaddingSize": pads[3],
        "cscSwitch": int(parameters.csc),
        "rbuvSwapSwitch": int(parameters.swaps),
        "axSwapSwitch": int(parameters.swaps_x),
        "singleLineMode": 0,
        **dict(zip(places, parameters.matrix, strict=True)),
        **{f"outputBias{row}": bias for row, bias in enumerate(parameters.output_bias)},
        **{f"inputBias{row}": bias for row, bias in enumerate(parameters.input_bias)},
        **{f"mean{name}": own for name, own in zip(channels, frame.mean, strict=True)},
        **{f"min{name}": own for name, own in zip(channels, frame.low, strict=True)},
        **{f"varReci{name}": own for name, own in zip(channels, frame.factor, strict=True)},
        **_dims_info(model, index, own),
    }


def _dims_info(model: Model, index: int, own: OmAipp) -> dict[str, Any]:
    manifest = model.manifest
    tensor, shapes = manifest.inputs[index], manifest.shapes[manifest.largest]
    rows = shapes.gear[0] if manifest.family == "batch" else tensor.dims[0]
    made = (rows, *own.dims)

    def listed(dims: tuple[int, ...]) -> dict[str, Any]:
        return {"name": tensor.name, "dimCount": len(dims), "dims": list(dims)}

    dims = {
        "srcDims": listed(tensor.dims),
        "srcSize": manifest.input_bytes(index),
        "aippOutdims": listed(made),
        "aippOutSize": math.prod(made) * DATA_TYPE_BYTES[own.dtype],
    }
    return {
        "srcFormat": int(Format.ACL_FORMAT_NCHW),
        "srcDatatype": own.dtype,
        "srcDimNum": len(made),
        "shapeCount": 1,
        "outDims": [dims],
        "aippExtend": 0,
    }


@status("mdl.set_aipp_by_input_index", U32, U64, U64, U64)
def set_aipp_by_input_index(number: int, handle: int, index: int, setting: int) -> None:
    """Assign parameters like set_input_aipp, by the index of the image input."""
    what = "set_aipp_by_input_index"
    lookup(aipp_settings(), setting, what)
    found = dataset(handle, what)
    if index >= len(found.buffers):
        raise Refused(Code.INVALID_PARAM, f"{what}: the dataset has no input {index}")
    model = models().get(number, what)
    own = _aipp_of(model, index)
    place = model.manifest.aipp_place
    if own is None or own.parameters is not None or place is None:
        raise Refused(Code.FAILURE, f"{what}: {model.name}: input {index} has no dynamic AIPP")
    _set(what, model, handle, place, setting)


@status("mdl.set_input_aipp", U32, U64, U64, U64)
def set_input_aipp(number: int, handle: int, index: int, setting: int) -> None:
    """Write the parameters immediately into the buffer that the model's next execution reads.

    `index` is the index of the parameter input. Checks `claims.BUSY`, `models.OTHER_CONTEXT`.
    Refused: INVALID_PARAM for impossible parameters, GE_EXEC_MODEL_ID_INVALID,
    GE_DYNAMIC_INPUT_LENGTH_INVALID for a short buffer.
    """
    what = "set_input_aipp"
    dataset(handle, what)
    lookup(aipp_settings(), setting, what)
    model = models().get(number, what)
    if index != model.manifest.aipp_place:
        text = f"{what}: {model.name}: input {index} is not the AIPP parameter input"
        raise Refused(Code.INVALID_PARAM, text)
    _set(what, model, handle, index, setting)


def _set(what: str, model: Model, handle: int, index: int, setting: int) -> None:
    now = process.current()
    what = f"{what}: {model.name}"
    parameters = lookup(aipp_settings(), setting, what).parameters
    own = next(each for each in model.manifest.aipp if each and each.parameters is None)
    _check_parameters(what, model, own, parameters)
    buffers = dataset(handle, what).buffers
    if index >= len(buffers) or buffers[index].ptr == 0:
        raise Refused(Code.INVALID_PARAM, f"{what}: the buffer is missing or its address is null")
    data, buffer = pack(parameters), buffers[index]
    if buffer.size < len(data):
        text = f"{what}: found a buffer of {buffer.size} bytes, expected {len(data)} or more"
        raise Refused(Code.GE_DYNAMIC_INPUT_LENGTH_INVALID, text)
    check_context(now, model, what)
    target = now.memory.resolve(buffer.ptr, len(data), want="device", write=True, what=what)
    now.claims.host_access(buffer.ptr, len(data), write=True, what=what)
    target[:] = memoryview(data)
    now.counters.copied(MemcpyKind.ACL_MEMCPY_HOST_TO_DEVICE, len(data))
    with now.lock:
        model.aipp_at[buffer.ptr] = data


def _check_parameters(what: str, model: Model, own: OmAipp, given: Parameters) -> None:
    """Check parameters in the order of CANN's AippParamsCheck. Raises Refused INVALID_PARAM."""

    def refuse(found: str, expected: str) -> None:
        raise Refused(Code.INVALID_PARAM, f"{what}: found {found}, expected {expected}")

    known = {int(each) for each in InputFormat}
    if given.input_format in known and given.width:
        nbytes = len(given.frames) * given.frame_bytes(given.width, given.height)
        if nbytes > own.most_bytes:
            refuse(f"{nbytes:,} bytes of images", f"at most {own.most_bytes:,}")
    rows = model.manifest.aipp_rows
    if len(given.frames) != rows:
        refuse(f"a batch of {len(given.frames)}", f"{rows}, the model's")
    if given.input_format not in known:
        refuse(f"input format {given.input_format}", "1, 3 or 4, which are simulated")
    if given.csc and given.input_format == InputFormat.YUV400_U8:
        refuse("a color matrix with YUV400_U8", "none")
    if not (given.width and given.height):
        refuse("no source image size", "set_aipp_src_image_size first")
    is_yuv = given.input_format == InputFormat.YUV420SP_U8
    if is_yuv and (given.width % 2 or given.height % 2):
        refuse(f"{given.width} x {given.height} of YUV420SP_U8", "even sides")
    channels, height, width = own.dims
    for frame in given.frames:
        if frame.scales:
            refuse("resizing", "none, as it is not simulated")
        left, top, wide, high = frame.crop or (0, 0, 0, 0)
        if left + wide > given.width or top + high > given.height:
            refuse(f"a crop {frame.crop}", f"a part of {given.width} x {given.height}")
        if is_yuv and (left % 2 or top % 2):
            refuse(f"a crop {frame.crop} of YUV420SP_U8", "an even start")
        made = frame.size(given.width, given.height)
        if frame.padding and made[0] > MOST_PADDED_WIDTH:
            refuse(f"a width of {made[0]}", f"at most {MOST_PADDED_WIDTH} with padding")
        if made != (width, height) or given.channels != channels:
            refuse(
                f"{made[0]} x {made[1]} with {given.channels} channel(s)",
                f"the model's {width} x {height} with {channels}",
            )


def _aipp_of(model: Model, index: int) -> OmAipp | None:
    own = model.manifest.aipp
    return own[index] if index < len(own) else None
