"""AIPP: the file of --insert_op_conf, and the inputs of a model with images."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NamedTuple

from ascend_simulator.codes import DataType, Format
from ascend_simulator.compiler.flags import CompileFault, Options
from ascend_simulator.compiler.shapes import InputShapes
from ascend_simulator.models import om
from ascend_simulator.models.aipp import (
    CHANNELS,
    LARGEST_HALF,
    MOST_PADDED_WIDTH,
    RGB_TO_YUV,
    YUV_TO_BGR,
    Frame,
    InputFormat,
    Parameters,
    data_bytes,
)


class _Whole(NamedTuple):
    low: int
    high: int


class _Float(NamedTuple):
    low: float
    high: float


_BOOL: Final = ("true", "false")
_FORMATS: Final = ("YUV420SP_U8", "XRGB8888_U8", "RGB888_U8", "YUV400_U8")
_COMMON: Final[Mapping[str, tuple[str, ...] | _Whole | _Float]] = {
    "aipp_mode": ("static", "dynamic"),
    "related_input_rank": _Whole(0, 1 << 16),
}
_DYNAMIC: Final = {"max_src_image_size": _Whole(1, (1 << 32) - 1), "support_rotation": _BOOL}
_SIDES: Final = ("top", "bottom", "left", "right")
_STATIC: Final[Mapping[str, tuple[str, ...] | _Whole | _Float]] = {
    "input_format": _FORMATS,
    **dict.fromkeys(("csc_switch", "rbuv_swap_switch", "ax_swap_switch"), _BOOL),
    **dict.fromkeys(("single_line_mode", "crop", "resize", "padding"), _BOOL),
    "cpadding_value": _Float(-LARGEST_HALF, LARGEST_HALF),
    "padding_value": _Float(-LARGEST_HALF, LARGEST_HALF),
    "src_image_size_w": _Whole(0, 4096),
    "src_image_size_h": _Whole(0, 4096),
    "load_start_pos_w": _Whole(0, 4095),
    "load_start_pos_h": _Whole(0, 4095),
    "crop_size_w": _Whole(0, 4096),
    "crop_size_h": _Whole(0, 4096),
    "resize_output_w": _Whole(0, 1920),
    "resize_output_h": _Whole(0, 4096),
    **{f"{side}_padding_size": _Whole(0, 32) for side in _SIDES},
    **{f"mean_chn_{channel}": _Whole(0, 255) for channel in range(4)},
    **{f"min_chn_{channel}": _Float(0, 255) for channel in range(4)},
    **{f"var_reci_chn_{channel}": _Float(-LARGEST_HALF, LARGEST_HALF) for channel in range(4)},
    **{f"matrix_r{row}c{column}": _Whole(-32677, 32676) for row in range(3) for column in range(3)},
    **{f"output_bias_{row}": _Whole(0, 255) for row in range(3)},
    **{f"input_bias_{row}": _Whole(0, 255) for row in range(3)},
}
_FIELDS: Final = {**_COMMON, **_DYNAMIC, **_STATIC}
_NOT_DONE: Final = ("resize", "single_line_mode")
_TOKEN: Final = re.compile(r"\s*(#[^\n]*|[{}:,;]|[^\s{}:,;#]+)")


@dataclass(frozen=True, slots=True)
class AippOp:
    """The file's entry for one input."""

    rank: int
    """Index of the input, from 0."""
    parameters: Parameters | None
    """None for dynamic AIPP. A size or crop of 0 means the model's size."""
    most_bytes: int = 0
    """For dynamic AIPP: max_src_image_size."""


def read(path: str) -> list[AippOp]:
    """Return the file's entries in order. Raises CompileFault."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise CompileFault("E10410", f"--insert_op_conf={path}: {error}") from error
    found = [_op(fields) for fields in _parsed(text)]
    if not found:
        raise wrong("no aipp_op", "an aipp_op for each image input")
    ranks = [op.rank for op in found]
    if len({*ranks}) < len(ranks):
        raise wrong(f"related_input_rank {ranks}", "each input once")
    if len({op.parameters is None for op in found}) > 1:
        raise wrong("static and dynamic", "the same aipp_mode for all inputs")
    return found


def wrong(found: str, expected: str) -> CompileFault:
    """Return the error for an invalid file."""
    return CompileFault("E10001", f"--insert_op_conf: found {found}, expected {expected}")


def _tokens(text: str) -> Iterator[str]:
    for match in _TOKEN.finditer(text):
        if not match[1].startswith("#") and match[1] not in (",", ";"):
            yield match[1]


def _parsed(text: str) -> list[dict[str, str]]:
    """Return the fields of each `aipp_op { name : value ... }` of the file."""
    ops: list[dict[str, str]] = []
    tokens = _tokens(text)
    for token in tokens:
        begins = next(tokens, "")
        if begins == ":":  # Protobuf text allows a colon before a message
            begins = next(tokens, "")
        if token != "aipp_op" or begins != "{":
            raise wrong(f"'{token} {begins}'", "aipp_op {")
        fields: dict[str, str] = {}
        while (name := next(tokens, "")) != "}":
            colon, value = next(tokens, ""), next(tokens, "")
            if colon != ":" or value in ("", ":", "{", "}"):
                raise wrong(f"'{name} {colon} {value}'".rstrip(), "name : value")
            if name not in _FIELDS:
                raise wrong(f"field '{name}'", "a field of AIPP")
            if name in fields:
                raise wrong(f"'{name}' twice", "one value")
            fields[name] = value
        ops.append(fields)
    return ops


def _op(fields: Mapping[str, str]) -> AippOp:
    mode = fields.get("aipp_mode")
    if mode not in ("static", "dynamic"):
        raise wrong(f"aipp_mode '{mode}'", "static or dynamic")
    values = {name: _value(name, text) for name, text in fields.items()}
    rank = _whole(values, "related_input_rank")
    if mode == "dynamic":
        if "max_src_image_size" not in values:
            raise wrong("no max_src_image_size", "a value, as aipp_mode is dynamic")
        if values.get("support_rotation"):
            raise CompileFault("E10055", "--insert_op_conf: support_rotation is reserved")
        return AippOp(rank, None, _whole(values, "max_src_image_size"))
    if "input_format" not in values:
        raise wrong("no input_format", f"one of {', '.join(_FORMATS)}")
    for name in _NOT_DONE:
        if values.get(name):
            raise CompileFault("E10055", f"--insert_op_conf: {name} is reserved")
    if fields["input_format"] not in InputFormat.__members__ or values.get("padding_value"):
        found = f"{fields['input_format']}, padding_value {values.get('padding_value', 0)}"
        raise CompileFault("E10055", f"--insert_op_conf: {found}: not simulated")
    return AippOp(rank, _parameters(fields, values))


def _value(name: str, text: str) -> object:
    """Return a field's value. Raises CompileFault for a wrong type or a value out of bounds."""
    kind = _FIELDS[name]
    if isinstance(kind, _Whole | _Float):
        try:
            number = int(text) if isinstance(kind, _Whole) else float(text)
        except ValueError:
            number = float("nan")
        if not kind.low <= number <= kind.high:
            raise wrong(f"{name} '{text}'", f"{kind.low:g} to {kind.high:g}")
        return number
    if text not in kind:
        raise wrong(f"{name} '{text}'", f"one of {', '.join(map(str, kind))}")
    return text == "true" if kind is _BOOL else text


def _whole(values: Mapping[str, object], name: str) -> int:
    value = values.get(name, 0)
    assert isinstance(value, int)  # ensured by `_value`
    return value


def _float(values: Mapping[str, object], name: str, default: float) -> float:
    value = values.get(name, default)
    assert isinstance(value, int | float)
    return float(value)


def _parameters(fields: Mapping[str, str], values: Mapping[str, object]) -> Parameters:
    image = InputFormat[fields["input_format"]]
    is_yuv = image is InputFormat.YUV420SP_U8
    csc = bool(values.get("csc_switch"))
    if csc and image is InputFormat.YUV400_U8:
        raise wrong("csc_switch on for YUV400_U8", "off, as it has no colors")
    width, height = (_whole(values, f"src_image_size_{side}") for side in "wh")
    if width == 1:
        raise wrong("src_image_size_w 1", "0, or 2 to 4096")
    frame = _frame(values)
    if (frame.crop or frame.padding) and not (width and height):
        raise wrong("crop or padding without src_image_size", "src_image_size as well")
    even = [width, height, *(frame.crop or ())]
    if is_yuv and any(number % 2 for number in even):
        raise wrong(f"{even} of YUV420SP_U8", "even numbers")
    default = YUV_TO_BGR if is_yuv else RGB_TO_YUV
    matrix = [f"matrix_r{place // 3}c{place % 3}" for place in range(9)]
    biases = {
        kind: tuple(
            _whole({f"{kind}_bias_{row}": bias, **values}, f"{kind}_bias_{row}")
            for row, bias in enumerate((16, 128, 128))
        )
        for kind in ("output", "input")
    }
    return Parameters(
        input_format=int(image),
        width=width,
        height=height,
        csc=csc,
        swaps=bool(values.get("rbuv_swap_switch")),
        swaps_x=bool(values.get("ax_swap_switch")),
        matrix=tuple(
            _whole({name: own, **values}, name) for name, own in zip(matrix, default, strict=True)
        ),
        output_bias=biases["output"],
        input_bias=biases["input"],
        frames=(frame,),
    )


def _frame(values: Mapping[str, object]) -> Frame:
    crop = padding = None
    if values.get("crop"):
        left, top, width, height = (
            _whole(values, name)
            for name in ("load_start_pos_w", "load_start_pos_h", "crop_size_w", "crop_size_h")
        )
        crop = (left, top, width, height)
    if values.get("padding"):
        top, bottom, left, right = (_whole(values, f"{side}_padding_size") for side in _SIDES)
        padding = (top, bottom, left, right)
    return Frame(
        crop,
        padding,
        tuple(_whole(values, f"mean_chn_{channel}") for channel in range(4)),
        tuple(_float(values, f"min_chn_{channel}", 0.0) for channel in range(4)),
        tuple(_float(values, f"var_reci_chn_{channel}", 1.0) for channel in range(4)),
    )


_RANK: Final = 4


@dataclass(frozen=True, slots=True)
class Inserted:
    """A model's inputs in the form in which callers pass them."""

    inputs: tuple[om.OmTensor, ...]
    """All inputs; the input for dynamic AIPP parameters is the last."""
    aipp: tuple[om.OmAipp | None, ...] = ()
    """The AIPP of each graph input; () if none has AIPP."""

    def shapes(self, dims: Sequence[om.Dims]) -> tuple[om.Dims, ...]:
        """Return the dims of the caller's inputs, from the dims of the graph's inputs."""
        if not self.aipp:
            return tuple(dims)
        given = [
            own if aipp is None else _given(aipp, own)
            for own, aipp in zip(dims, self.aipp, strict=True)
        ]
        return (*given, *(tensor.dims for tensor in self.inputs[len(dims) :]))


def insert(options: Options, inputs: tuple[om.OmTensor, ...], requested: InputShapes) -> Inserted:
    """Apply --insert_op_conf to the inputs. Raises CompileFault."""
    if not options.insert_op_conf:
        return Inserted(inputs)
    if requested.family in ("dims", "dynamic"):
        found = "--dynamic_dims" if requested.family == "dims" else "free shapes"
        raise CompileFault(
            "E10001", f"--insert_op_conf: found {found}, which cannot be combined with AIPP"
        )
    if options.input_format != "NCHW":
        found = f"--input_format={options.input_format}"
        raise CompileFault("E10001", f"--insert_op_conf: found {found}, expected NCHW")
    ops = {op.rank: op for op in read(options.insert_op_conf)}
    if beyond := [rank for rank in ops if rank >= len(inputs)]:
        raise wrong(f"related_input_rank {beyond[0]}", f"below {len(inputs)}, the number of inputs")
    aipp: list[om.OmAipp | None] = []
    given: list[om.OmTensor] = []
    hidden: list[om.OmTensor] = []
    for index, tensor in enumerate(inputs):
        op = ops.get(index)
        dims = [gear.inputs[index] for gear in requested.gears]
        own = None if op is None else _aipp(op, tensor, dims, requested.family)
        if own is not None and own.parameters is None:
            if hidden:
                raise CompileFault("E10055", "dynamic AIPP is only simulated for one input")
            hidden.append(_data_input(max(each[0] for each in dims)))
        aipp.append(own)
        given.append(tensor if own is None else _image(tensor, own))
    return Inserted((*given, *hidden), tuple(aipp))


def _aipp(op: AippOp, tensor: om.OmTensor, dims: Sequence[om.Dims], family: om.Family) -> om.OmAipp:
    what = f"'{tensor.name}'"
    if len(tensor.dims) != _RANK:
        raise wrong(f"{what} of {len(tensor.dims)} dims", "four dims, NCHW")
    if tensor.dtype not in (DataType.ACL_FLOAT, DataType.ACL_FLOAT16):
        raise wrong(f"{what} of type {tensor.dtype}", "FP32 or FP16, as AIPP produces")
    _, channels, height, width = tensor.dims
    if op.parameters is None:
        return om.OmAipp(tensor.dtype, tensor.dims[1:], None, op.most_bytes)
    own = op.parameters
    frame = own.frames[0]
    if CHANNELS[InputFormat(own.input_format)] != channels:
        expected = CHANNELS[InputFormat(own.input_format)]
        raise wrong(f"{what} of {channels} channels", f"{expected}, as the images have")
    if family == "image":
        if frame.crop or frame.padding or own.width or own.height:
            raise wrong("sides, crop or padding with --dynamic_image_size", "none of them")
        return om.OmAipp(tensor.dtype, tensor.dims[1:], own, 0)
    crop = frame.crop
    if crop is not None and not (crop[2] and crop[3]):
        if frame.padding:
            raise wrong("padding without crop_size", "crop_size as well")
        frame = replace(frame, crop=(crop[0], crop[1], width, height))
    own = replace(own, width=own.width or width, height=own.height or height, frames=(frame,))
    crop = frame.crop
    if crop and (crop[0] + crop[2] > own.width or crop[1] + crop[3] > own.height):
        raise wrong(f"a crop {crop}", f"a part of {own.width} x {own.height}")
    made = frame.size(own.width, own.height)
    if made != (width, height):
        raise wrong(f"{made[0]} x {made[1]} from AIPP", f"{width} x {height}, as {what} has")
    if frame.padding and made[0] > MOST_PADDED_WIDTH:
        raise wrong(f"a width of {made[0]}", f"at most {MOST_PADDED_WIDTH} with padding")
    return om.OmAipp(tensor.dtype, tensor.dims[1:], own, 0)


def _image(tensor: om.OmTensor, aipp: om.OmAipp) -> om.OmTensor:
    """Return the input that the caller passes instead of `tensor`: bytes, channels last."""
    rows = tensor.dims[0]
    dims = (rows, *_sides(aipp.parameters, tensor.dims), tensor.dims[1])
    return replace(
        tensor,
        dtype=int(DataType.ACL_UINT8),
        itemsize=1,
        format=int(Format.ACL_FORMAT_NHWC),
        dims=dims,
    )


def _sides(parameters: Parameters | None, dims: om.Dims) -> tuple[int, int]:
    """Return height and width of images, from the dims of the graph's input."""
    if parameters is None or not parameters.width:
        return dims[2], dims[3]
    return parameters.height, parameters.width


def _given(aipp: om.OmAipp, dims: om.Dims) -> om.Dims:
    """Return the dims of the images, from the dims of the graph's input.

    [rows, height, width, channels]; one dim for dynamic AIPP, or if the bytes have another form.
    """
    own = aipp.parameters
    if own is None:
        return (aipp.most_bytes,)
    height, width = _sides(own, dims)
    nbytes = own.frame_bytes(width, height)
    if nbytes != height * width * dims[1]:
        return (dims[0] * nbytes,)
    return (dims[0], height, width, dims[1])


def _data_input(rows: int) -> om.OmTensor:
    """Return the input for the parameters of dynamic AIPP."""
    dtype, form = int(DataType.ACL_UINT8), int(Format.ACL_FORMAT_ND)
    return om.OmTensor(om.AIPP_INPUT, om.AIPP_INPUT, dtype, 1, form, (data_bytes(rows),))
