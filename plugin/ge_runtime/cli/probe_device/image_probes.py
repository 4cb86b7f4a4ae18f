"""Probes of image processing: AIPP in a compiled file, and DVPP's decoder."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ge_runtime.cli.probe_device.exact_graphs import rolled, rolling_conv
from ge_runtime.cli.probe_device.session import (
    Answer,
    ProbeModel,
    ProbeSession,
    Unavailable,
)
from ge_runtime.npu.driver.driver import JPEG_ALIGNMENT, RESIZE_ALIGNMENT, Address, Picture, Stream
from ge_runtime.npu.driver.pyacl_models import PyAclMedia
from ge_runtime.npu.driver.return_codes import ReturnCodeChecker

_SIDE: Final = 16
"""Height and width of the test image. Its 256 pixels can have all values of a byte."""
_RGB888: Final = 3
_LOW: Final = (123.675, 116.28, 103.53)
_FACTOR: Final = (0.0171, 0.0175, 0.0174)
_MEAN: Final = (3, 0, 1)
_MATRIX: Final = ((256, 0, 359), (256, -88, -183), (256, 454, 0))
"""From ATC's guide: converts the YUV of JPEG files."""
_BIAS: Final = (0, 128, 128)
_JPEG_SIDES: Final = (64, 48)
_HALVES: Final = (50, 200)
"""Brightness of the left and right half of the file."""
_JPEG: Final = base64.b64decode(
    "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDAAMCAgMCAgMDAwMEAwMEBQgFBQQEBQoHBwYIDAoMDAsKCwsNDhIQDQ4RDgsL"
    "EBYQERMUFRUVDA8XGBYUGBIUFRT/2wBDAQMEBAUEBQkFBQkUDQsNFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQU"
    "FBQUFBQUFBQUFBQUFBQUFBQUFBT/wAARCAAwAEADASIAAhEBAxEB/8QAFgABAQEAAAAAAAAAAAAAAAAAAAkI/8QAFBAB"
    "AAAAAAAAAAAAAAAAAAAAAP/EABQBAQAAAAAAAAAAAAAAAAAAAAD/xAAUEQEAAAAAAAAAAAAAAAAAAAAA/9oADAMBAAIR"
    "AxEAPwDF4AAALIAAAAjeAAACyAAAAI3gAAAsgAAAD//Z"
)


def static_aipp(session: ProbeSession) -> Answer:
    """Describe a file with static AIPP, and convert an image that has all values of a byte."""
    fields: dict[str, object] = {"aipp_mode": "static", "input_format": "RGB888_U8"}
    for channel in range(3):
        fields[f"mean_chn_{channel}"] = _MEAN[channel]
        fields[f"min_chn_{channel}"] = _LOW[channel]
        fields[f"var_reci_chn_{channel}"] = _FACTOR[channel]
    model, text, evidence = _loaded(session, "static", fields)
    info = {**session.call("mdl.get_first_aipp_info", model.number, 0)}
    kept = all(
        np.float16(info.get(f"{name}{channel}", 0)) == np.float16(values[channel])
        for name, values in (("meanChn", _MEAN), ("minChn", _LOW), ("varReciChn", _FACTOR))
        for channel in range(3)
    )
    image = np.arange(3 * 256, dtype=np.int64).reshape(_SIDE, _SIDE, 3) * 7 % 256
    found = _Buffers(session, model).execute(image.astype(np.uint8))
    rounding = _rounding(image.astype(np.float32), found)
    return Answer(
        f"{text}; parameters are as they were set: {kept}; a pixel is rounded {rounding}",
        {
            **evidence,
            "info": {name: repr(value) for name, value in info.items()},
            "rounded": rounding,
        },
    )


def yuv_aipp(session: ProbeSession) -> Answer:
    """Convert YUV420SP to blue, green and red with static AIPP."""
    fields: dict[str, object] = {"aipp_mode": "static", "input_format": "YUV420SP_U8"}
    fields |= {"csc_switch": "true"}
    for row in range(3):
        fields[f"input_bias_{row}"] = _BIAS[row]
        fields |= {f"matrix_r{row}c{column}": _MATRIX[row][column] for column in range(3)}
    model, text, evidence = _loaded(session, "yuv", fields)
    rng = np.random.default_rng(0)
    y = rng.integers(0, 256, (_SIDE, _SIDE, 1), np.uint8)
    uv = rng.integers(0, 256, (_SIDE // 2, _SIDE // 2, 2), np.uint8)
    found = _Buffers(session, model).execute(np.concatenate([y.ravel(), uv.ravel()]))
    whole = np.concatenate([y, uv.repeat(2, 0).repeat(2, 1)], 2).astype(np.int64)
    products = (whole - np.array(_BIAS)) @ np.array(_MATRIX).T
    ways = {"without rounding": products >> 8, "to the nearest": (products + 128) >> 8}
    errors = {
        name: float(np.abs(np.moveaxis(way.clip(0, 255), 2, 0)[None] - found).max())
        for name, way in ways.items()
    }
    texts = ", ".join(f"{name}: {error:g}" for name, error in errors.items())
    return Answer(f"{text}; largest difference, shifted {texts}", {**evidence, "errors": errors})


def dynamic_aipp(session: ProbeSession) -> Answer:
    """Describe a file with dynamic AIPP, set its parameters once, and execute it twice."""
    size = _SIDE * _SIDE * 3
    fields = {"aipp_mode": "dynamic", "max_src_image_size": size}
    model, text, evidence = _loaded(session, "dynamic", fields)
    setting = session.handle("mdl.create_aipp", 1)
    session.call("mdl.set_aipp_input_format", setting, _RGB888)
    session.call("mdl.set_aipp_src_image_size", setting, _SIDE, _SIDE)
    slot = _Buffers(session, model)
    place = int(evidence["attached"])
    session.call("mdl.set_input_aipp", model.number, slot.inputs, place, setting)
    session.call("mdl.destroy_aipp", setting)
    right = []
    for seed in (1, 2):
        image = np.random.default_rng(seed).integers(0, 256, (_SIDE, _SIDE, 3), np.uint8)
        expected = np.moveaxis(image, 2, 0)[None].astype(np.float32)
        right.append(bool(np.array_equal(slot.execute(image), expected)))
    return Answer(
        f"{text}; results right with parameters set once: {right}",
        {**evidence, "right": right},
    )


def jpeg_by_dvpp(session: ProbeSession) -> Answer:
    """Decode a small file, and resize it to half its sides."""
    session.open_device()
    try:
        media = PyAclMedia(session.acl, ReturnCodeChecker(session.acl.get_recent_err_msg))
    except AttributeError as error:
        raise Unavailable(f"{error}: no DVPP") from error
    channel, stream = media.open_channel(), session.stream()
    host = np.frombuffer(_JPEG, np.uint8)
    least = media.decoded_bytes(Address(host.ctypes.data), host.nbytes)
    file = media.malloc(host.nbytes)
    session.copy_in(file, host)
    big = _picture(media, _JPEG_SIDES, JPEG_ALIGNMENT, least)
    small = _picture(media, (_JPEG_SIDES[0] // 2, _JPEG_SIDES[1] // 2), RESIZE_ALIGNMENT, 0)
    media.decode_and_resize(channel, (file, host.nbytes), big, small, Stream(stream))
    errors = [_brightness(session, picture) for picture in (big, small)]
    for address in (file, big.address, small.address):
        media.free(address)
    media.close_channel(channel)
    return Answer(
        f"{least} bytes are predicted for {'x'.join(map(str, _JPEG_SIDES))}; largest error of "
        f"brightness {errors[0]} decoded, {errors[1]} resized",
        {"predicted": least, "decoded": errors[0], "resized": errors[1]},
    )


class _Buffers:
    """Device memory for the inputs and the output of a model."""

    def __init__(self, session: ProbeSession, model: ProbeModel) -> None:
        self._session = session
        self._model = model
        self._first, *more = [session.malloc(nbytes) for nbytes in model.input_bytes]
        self._output = session.malloc(model.output_bytes)
        self.inputs = session.dataset([self._first, *more], model.input_bytes)
        self._outputs = session.dataset([self._output], [model.output_bytes])

    def execute(self, image: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Return the graph's input that AIPP made of the image: [1, 3, height, width]."""
        session = self._session
        session.copy_in(self._first, np.ascontiguousarray(image))
        session.call("mdl.execute", self._model.number, self.inputs, self._outputs)
        y = np.empty(self._model.graph.shape(), np.float32)
        session.copy_out(y, self._output)
        return rolled(y, -1)


def _loaded(
    session: ProbeSession, name: str, fields: Mapping[str, object]
) -> tuple[ProbeModel, str, dict[str, Any]]:
    """Load a graph whose input AIPP computes.

    Returns the model, a text about its image input, and the described properties as values.
    """
    session.open_device()
    path = session.folder / f"{name}.cfg"
    if "input_format" in fields:
        fields = {**fields, "src_image_size_w": _SIDE, "src_image_size_h": _SIDE}
    lines = [f"  {field}: {value}" for field, value in fields.items()]
    path.write_text("\n".join(["aipp_op {", "  related_input_rank: 0", *lines, "}"]) + "\n")
    model = session.load(rolling_conv(3, ((_SIDE, _SIDE),), path))
    desc = session.handle("mdl.create_desc")
    session.call("mdl.get_desc", desc, model.number)
    dims = session.call("mdl.get_input_dims", desc, 0)["dims"]
    aipp_type, attached = session.call("mdl.get_aipp_type", model.number, 0)
    session.call("mdl.destroy_desc", desc)
    text = f"input {dims}, inputs of {model.input_bytes} bytes, AIPP type {aipp_type}"
    return model, text, {"dims": dims, "type": aipp_type, "attached": attached}


def _rounding(image: NDArray[np.float32], found: NDArray[np.float32]) -> str:
    """Return the way of rounding that gives these numbers."""
    low, factor = (np.array(v, np.float16).astype(np.float32) for v in (_LOW, _FACTOR))
    shifted = image - np.array(_MEAN, np.float32) - low
    ways = {
        "once": (shifted * factor).astype(np.float16),
        "after each step": (shifted.astype(np.float16) * factor).astype(np.float16),
    }
    for name, way in ways.items():
        if np.array_equal(np.moveaxis(way, 2, 0)[None].astype(np.float32), found):
            return name
    most = np.abs(np.moveaxis(ways["once"], 2, 0)[None].astype(np.float32) - found).max()
    return f"in another way: largest error {most:.3g}"


def _picture(
    media: PyAclMedia, sides: Sequence[int], alignment: tuple[int, int], least: int
) -> Picture:
    (width, height), (across, down) = sides, alignment
    stride, rows = -(-width // across) * across, -(-height // down) * down
    nbytes = max(stride * rows * 3 // 2, least)
    return Picture(media.malloc(nbytes), nbytes, width, height, stride, rows)


def _brightness(session: ProbeSession, picture: Picture) -> int:
    """Return the largest error of a picture's brightness, except in its middle."""
    whole = np.empty(picture.nbytes, np.uint8)
    session.copy_out(whole, picture.address)
    rows = whole[: picture.width_stride * picture.height_stride].reshape(-1, picture.width_stride)
    y = rows[: picture.height, : picture.width].astype(int)
    middle, edge = picture.width // 2, 4
    left, right = y[:, : middle - edge], y[:, middle + edge :]
    return int(max(np.abs(left - _HALVES[0]).max(), np.abs(right - _HALVES[1]).max()))
