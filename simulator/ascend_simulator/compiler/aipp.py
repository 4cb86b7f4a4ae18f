"""AIPP at a model's inputs: the images that the caller passes, and the graph's inputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from ascend_simulator.compiler import aipp_conf
from ascend_simulator.compiler.aipp_conf import AippOp, wrong
from ascend_simulator.compiler.flags import CompileFault, Options
from ascend_simulator.compiler.shapes import InputShapes
from ascend_simulator.enumerations import DataType, Format
from ascend_simulator.models import om
from ascend_simulator.models.aipp import (
    CHANNELS,
    MOST_PADDED_WIDTH,
    InputFormat,
    Parameters,
    data_bytes,
)

_RANK: Final = 4


@dataclass(frozen=True, slots=True)
class Inserted:
    """A model's inputs as its caller passes them."""

    inputs: tuple[om.OmTensor, ...]
    """All inputs; the input for dynamic AIPP parameters is the last."""
    aipp: tuple[om.OmAipp | None, ...] = ()
    """The AIPP of each graph input; () if none has AIPP."""

    def shapes(self, dims: Sequence[om.Dims]) -> tuple[om.Dims, ...]:
        """Return the dims that the caller passes, from the dims of the graph's inputs."""
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
    ops = {op.rank: op for op in aipp_conf.read(options.insert_op_conf)}
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
            raise wrong("padding without crop_size", "both")
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
    """Return the dims of the images; one dim if the bytes have another form.

    The usual form is [rows, height, width, channels].
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
