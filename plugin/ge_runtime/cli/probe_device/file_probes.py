"""Probes of files: compiled files with AIPP or ranges of sizes, JPEG, dumps and profiles."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ge_runtime.cli.dump_files import read_dump
from ge_runtime.cli.probe_device.exact_graphs import (
    exact_input,
    rolled,
    rolling_conv,
    rolling_matmul,
)
from ge_runtime.cli.probe_device.session import (
    SMALL_GRAPH,
    Answer,
    ProbeModel,
    ProbeSession,
    Unavailable,
    right_or_wrong,
)
from ge_runtime.errors import RuntimeFault
from ge_runtime.npu.driver.cann_values import ReturnCodeChecker
from ge_runtime.npu.driver.driver import JPEG_ALIGNMENT, RESIZE_ALIGNMENT, Address, Picture, Stream
from ge_runtime.npu.driver.pyacl_models import PyAclMedia

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
"""Brightness of the left and the right half of the JPEG image."""
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
    model, text, evidence = _load(session, "static", fields)
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
    model, text, evidence = _load(session, "yuv", fields)
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
    model, text, evidence = _load(session, "dynamic", fields)
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
        f"{text}; results right with parameters set once: {right}", {**evidence, "right": right}
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
        """Return the graph's input that AIPP computes from the image: [1, 3, height, width]."""
        session = self._session
        session.copy_in(self._first, np.ascontiguousarray(image))
        session.call("mdl.execute", self._model.number, self.inputs, self._outputs)
        y = np.empty(self._model.graph.shape(), np.float32)
        session.copy_out(y, self._output)
        return rolled(y, -1)


def _load(
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
    """Return the largest error of a picture's brightness outside its middle."""
    whole = np.empty(picture.nbytes, np.uint8)
    session.copy_out(whole, picture.address)
    rows = whole[: picture.width_stride * picture.height_stride].reshape(-1, picture.width_stride)
    y = rows[: picture.height, : picture.width].astype(int)
    middle, edge = picture.width // 2, 4
    left, right = y[:, : middle - edge], y[:, middle + edge :]
    return int(max(np.abs(left - _HALVES[0]).max(), np.abs(right - _HALVES[1]).max()))


_MAX_NAMES: Final = 20
_API, _TASKS, _METRICS, _PIPE = 1, 2, 4, 1
_RANGED: Final = rolling_matmul(rows=8, width=64, layers=2, least=1)
_ROWS: Final = 5
_FLOAT, _ND = 0, 2


def dump_of_an_execution(session: ProbeSession) -> Answer:
    """Dump all operators of one execution, and read the dump."""
    session.open_device()
    folder = _new_folder(session, "dump")
    config = folder / "acl_dump.json"
    models = [{"model_name": session.compiled(SMALL_GRAPH).stem}]
    section = {"dump_path": str(folder), "dump_mode": "all", "dump_list": models}
    config.write_text(json.dumps({"dump": section}))
    session.call("mdl.init_dump")
    session.call("mdl.set_dump", str(config))
    slot = session.load(SMALL_GRAPH).slot()
    slot.execute()
    session.call("mdl.finalize_dump")
    paths = [path for path in _files(folder) if path != config.name]
    try:
        operators = read_dump(folder)
    except RuntimeFault as fault:
        return Answer(f"{len(paths)} files, which cannot be read", {"why": str(fault)})
    names = {f"to_moved_{layer}" for layer in range(1, SMALL_GRAPH.layers)} | {"to_y"}
    x = exact_input(SMALL_GRAPH.shape())
    last = [each for each in operators if each.name == "to_y"]
    expected = rolled(x, SMALL_GRAPH.layers)
    found = last[0].outputs[0].shaped(x.shape) if last and last[0].outputs else None
    right = found is not None and np.array_equal(found.astype(np.float32), expected)
    layers = [each.name for each in operators if each.name in names]
    depth = paths[0].count("/") if paths else 0
    return Answer(
        f"{len(paths)} files, {depth} folders deep; {len(layers)} of {len(names)} layers by their "
        f"names, {len(operators) - len(layers)} operators of other names; the last layer is "
        f"{'right' if right else 'absent or wrong'}",
        {
            "files": paths[:_MAX_NAMES],
            "operators": [each.name for each in operators][:_MAX_NAMES],
            "tensors": [
                [list(tensor.dims), tensor.format, tensor.original]
                for each in operators[:_MAX_NAMES]
                for tensor in each.outputs
            ],
        },
    )


def profile_of_an_execution(session: ProbeSession) -> Answer:
    """Profile one execution, and list the files of the profile."""
    session.open_device()
    folder = _new_folder(session, "profile")
    session.call("prof.init", str(folder))
    slot = session.load(SMALL_GRAPH).slot()
    data = _API | _TASKS | _METRICS
    config = session.handle("prof.create_config", [session.device], _PIPE, 0, data)
    session.call("prof.start", config)
    slot.execute()
    session.call("prof.stop", config)
    session.call("prof.destroy_config", config)
    session.call("prof.finalize")
    paths = _files(folder)
    folders = sorted({"/".join(path.split("/")[1:2]) for path in paths if "/" in path})
    tops = sorted({path.split("/")[0].split("_")[0] for path in paths})
    return Answer(
        f"{len(paths)} file(s) in {', '.join(tops)}_...: {', '.join(folders)}",
        {"files": paths[:_MAX_NAMES]},
    )


def ranges_of_sizes(session: ProbeSession) -> Answer:
    """Describe a file that is compiled for ranges, and execute it with output address 0."""
    session.open_device()
    number = session.call("mdl.load_from_file", str(session.compiled(_RANGED)))
    desc = session.handle("mdl.create_desc")
    session.call("mdl.get_desc", desc, number)
    sizes = [
        int(session.raw(f"mdl.get_{side}_size_by_index", desc, 0)) for side in ("input", "output")
    ]
    ranges = session.call("mdl.get_input_dims_range", desc, 0)
    dims = session.call("mdl.get_input_dims", desc, 0)["dims"]
    session.call("mdl.destroy_desc", desc)
    x = exact_input(_RANGED.shape(_ROWS))
    address = session.malloc(x.nbytes)
    session.copy_in(address, x)
    inputs = session.dataset([address], [x.nbytes])
    outputs = session.handle("mdl.create_dataset")
    buffer = session.handle("create_data_buffer", 0, 0)
    session.call("mdl.add_dataset_buffer", outputs, buffer)
    input_desc = session.handle("create_tensor_desc", _FLOAT, list(x.shape), _ND)
    session.call("mdl.set_dataset_tensor_desc", inputs, input_desc, 0)
    session.raw("destroy_tensor_desc", input_desc)
    session.call("mdl.execute", number, inputs, outputs)
    output_desc = session.raw("mdl.get_dataset_tensor_desc", outputs, 0)
    count = int(session.raw("get_tensor_desc_num_dims", output_desc)) if output_desc else 0
    output_dims = [
        int(session.call("get_tensor_desc_dim_v2", output_desc, place)) for place in range(count)
    ]
    found = int(session.raw("get_data_buffer_addr", buffer))
    right = False
    if found:
        y = np.empty_like(x)
        session.copy_out(y, found)
        right = bool(np.array_equal(y, rolled(x, _RANGED.layers)))
        session.call("rt.free", found)
    session.call("mdl.destroy_dataset", outputs)
    session.call("destroy_data_buffer", buffer)
    session.call("mdl.unload", number)
    return Answer(
        f"dims {dims}, ranges {ranges['range']}, input {sizes[0]} and output {sizes[1]} bytes; an "
        f"output of address 0 gets {'memory' if found else 'none'}, its dims {output_dims}, "
        f"{right_or_wrong(right)}",
        {
            "dims": dims,
            "ranges": ranges,
            "sizes": sizes,
            "output_dims": output_dims,
            "right": right,
        },
    )


def _new_folder(session: ProbeSession, name: str) -> Path:
    folder = session.folder / name
    folder.mkdir(exist_ok=True)
    return folder


def _files(folder: Path) -> list[str]:
    """Return the relative paths of all files below the folder, sorted."""
    paths = (path for path in folder.rglob("*") if path.is_file())
    return sorted(path.relative_to(folder).as_posix() for path in paths)
