"""acl.media: decoding of JPEG files, and resizing and cropping of pictures, as stream tasks."""

from __future__ import annotations

from typing import Final

from ascend_simulator import media as dvpp
from ascend_simulator import process
from ascend_simulator.calls import I32, LIST, U32, U64, batch, status, triple, value
from ascend_simulator.codes import Code, Refused
from ascend_simulator.copies import OTHER_DEVICE
from ascend_simulator.interface.media import HOLDER, Area, channel, media, picture
from ascend_simulator.media import Picture
from ascend_simulator.models.datasets import lookup
from ascend_simulator.streams.tasks import Task
from ascend_simulator.violations import declare, violate

MEMORY = declare("dvpp.memory", "DVPP must read and write only memory of dvpp_malloc.")

# -- JPEG ----------------------------------------------------------------------------------------


@triple("media.dvpp_jpeg_get_image_info", U64, U32)
def dvpp_jpeg_get_image_info(data: int, size: int) -> tuple[int, int, int]:
    """Return width, height and components of a file in host memory. Refused: INVALID_PARAM."""
    info = _info(data, size, "dvpp_jpeg_get_image_info")
    return info.width, info.height, info.components


@value("media.dvpp_jpeg_predict_dec_size", U64, U32, I32)
def dvpp_jpeg_predict_dec_size(data: int, size: int, layout: int) -> int:
    """Return the decoded bytes of a file in host memory. Refused: INVALID_PARAM."""
    what = "dvpp_jpeg_predict_dec_size"
    if layout not in tuple(dvpp.PixelFormat):
        raise Refused(Code.API_NOT_SUPPORT, f"{what}: format: found {layout}, expected 1 or 2")
    info = _info(data, size, what)
    return dvpp.predicted_bytes(info.width, info.height)


@status("media.dvpp_jpeg_decode_async", U64, U64, U32, U64, U64)
def dvpp_jpeg_decode_async(handle: int, data: int, size: int, output: int, stream: int) -> None:
    """Queue a decoding on the stream.

    A file that cannot be decoded, e.g. a progressive file, is a failure of the stream.
    """
    what = "dvpp_jpeg_decode_async"
    now = process.current()
    channel(handle, what)
    described = picture(output, what)
    home = now.stream(stream, what)
    across = dvpp.jpeg_stride(now.settings.soc)
    rounded = Picture(**vars(described))
    # The description may have the file's odd dims; the decoder makes them even.
    rounded.width, rounded.height = described.width // 2 * 2, described.height // 2 * 2
    dvpp.check(rounded, what, across=across, down=16)
    source = _memory(data, size, what)
    _memory(rounded.data, rounded.size, what)

    def run() -> None:
        file = now.memory.resolve(*source, want="device", write=False, what=what).tobytes()
        try:
            info = dvpp.jpeg_info(file)
            if info.is_progressive:
                raise ValueError("a progressive file")
            if info.width not in dvpp.JPEG_SIDES or info.height not in dvpp.JPEG_SIDES:
                raise ValueError(f"{info.width} x {info.height} pixels")
            decoded = dvpp.decode_jpeg(file)
            if decoded.size != (rounded.width, rounded.height):
                raise ValueError(
                    f"{info.width} x {info.height} pixels, which differ from the description"
                )
        except ValueError as error:
            described.ret_code = int(Code.RT_AICPU_EXCEPTION)
            raise Refused(Code.RT_AICPU_EXCEPTION, f"{what}: found {error}") from error
        described.width, described.height = decoded.size
        target = now.memory.resolve(rounded.data, rounded.needed, want="device", write=True)
        dvpp.write(rounded, target, decoded)

    home.submit(Task(run, (source,), ((rounded.data, rounded.needed),), what))


# -- VPC -----------------------------------------------------------------------------------------


@status("media.dvpp_vpc_resize_async", U64, U64, U64, U64, U64)
def dvpp_vpc_resize_async(handle: int, given: int, output: int, scaling: int, stream: int) -> None:
    """Queue a resize of a picture to the dims of another picture."""
    what = "dvpp_vpc_resize_async"
    lookup(media().scalings, scaling, what)
    _convert(what, handle, given, output, None, None, stream)


@status("media.dvpp_vpc_crop_async", U64, U64, U64, U64, U64)
def dvpp_vpc_crop_async(handle: int, given: int, output: int, area: int, stream: int) -> None:
    """Queue a crop: resize an area of a picture to the dims of another picture."""
    what = "dvpp_vpc_crop_async"
    _convert(what, handle, given, output, lookup(media().areas, area, what), None, stream)


@status("media.dvpp_vpc_crop_and_paste_async", U64, U64, U64, U64, U64, U64)
def dvpp_vpc_crop_and_paste_async(
    handle: int, given: int, output: int, area: int, paste: int, stream: int
) -> None:
    """Queue a paste: resize an area of a picture to an area of another picture.

    The rest of the other picture is unchanged.
    """
    what = "dvpp_vpc_crop_and_paste_async"
    cut, place = (lookup(media().areas, one, what) for one in (area, paste))
    _convert(what, handle, given, output, cut, place, stream)


@status("media.dvpp_vpc_crop_resize_async", U64, U64, U64, U64, U64, U64)
def dvpp_vpc_crop_resize_async(
    handle: int, given: int, output: int, area: int, scaling: int, stream: int
) -> None:
    """Queue a crop with a resize configuration, which has no effect in the simulator."""
    what = "dvpp_vpc_crop_resize_async"
    lookup(media().scalings, scaling, what)
    _convert(what, handle, given, output, lookup(media().areas, area, what), None, stream)


@status("media.dvpp_vpc_crop_resize_paste_async", U64, U64, U64, U64, U64, U64, U64)
def dvpp_vpc_crop_resize_paste_async(
    handle: int, given: int, output: int, area: int, paste: int, scaling: int, stream: int
) -> None:
    """Queue a paste with a resize configuration, which has no effect in the simulator."""
    what = "dvpp_vpc_crop_resize_paste_async"
    lookup(media().scalings, scaling, what)
    cut, place = (lookup(media().areas, one, what) for one in (area, paste))
    _convert(what, handle, given, output, cut, place, stream)


# -- batches of pictures -------------------------------------------------------------------------

_MOST_AREAS: Final = 256


@batch("media.dvpp_vpc_batch_crop_async", U64, U64, LIST, U64, LIST, U64)
def dvpp_vpc_batch_crop_async(
    handle: int, given: int, counts: list[int], output: int, areas: list[int], stream: int
) -> None:
    """Queue crops: `counts[i]` areas of picture i, each to its own output picture."""
    what = "dvpp_vpc_batch_crop_async"
    _convert_batch(what, handle, given, counts, output, areas, None, stream)


@status("media.dvpp_vpc_batch_crop_resize_async", U64, U64, LIST, U64, LIST, U64, U64)
def dvpp_vpc_batch_crop_resize_async(
    handle: int,
    given: int,
    counts: list[int],
    output: int,
    areas: list[int],
    scaling: int,
    stream: int,
) -> None:
    """Queue crops like dvpp_vpc_batch_crop_async, with a resize configuration."""
    what = "dvpp_vpc_batch_crop_resize_async"
    lookup(media().scalings, scaling, what)
    _convert_batch(what, handle, given, counts, output, areas, None, stream)


@batch("media.dvpp_vpc_batch_crop_and_paste_async", U64, U64, LIST, U64, LIST, LIST, U64)
def dvpp_vpc_batch_crop_and_paste_async(
    handle: int,
    given: int,
    counts: list[int],
    output: int,
    areas: list[int],
    pastes: list[int],
    stream: int,
) -> None:
    """Queue pastes: `counts[i]` areas of picture i, each to its own output picture."""
    what = "dvpp_vpc_batch_crop_and_paste_async"
    _convert_batch(what, handle, given, counts, output, areas, pastes, stream)


@status(
    "media.dvpp_vpc_batch_crop_resize_paste_async",
    *(U64, U64, LIST, U64, LIST, LIST, U64, U64),
)
def dvpp_vpc_batch_crop_resize_paste_async(
    handle: int,
    given: int,
    counts: list[int],
    output: int,
    areas: list[int],
    pastes: list[int],
    scaling: int,
    stream: int,
) -> None:
    """Queue pastes like dvpp_vpc_batch_crop_and_paste_async, with a resize configuration."""
    what = "dvpp_vpc_batch_crop_resize_paste_async"
    lookup(media().scalings, scaling, what)
    _convert_batch(what, handle, given, counts, output, areas, pastes, stream)


def _convert_batch(
    what: str,
    handle: int,
    given: int,
    counts: list[int],
    output: int,
    areas: list[int],
    pastes: list[int] | None,
    stream: int,
) -> None:
    """Queue the conversions of a batch. Refused: INVALID_PARAM for lists of different lengths."""
    sources, targets = (lookup(media().batches, each, what) for each in (given, output))
    places = areas if pastes is None else pastes
    total = sum(counts)
    if not (
        len(counts) == len(sources)
        and len(targets) == len(areas) == len(places) == total
        and 1 <= total <= _MOST_AREAS
    ):
        found = f"{len(sources)} pictures, areas {counts}, {len(areas)} areas"
        text = f"{what}: found {found}, {len(places)} pastes, {len(targets)} outputs"
        raise Refused(Code.INVALID_PARAM, text)
    repeated = [source for source, count in zip(sources, counts, strict=True) for _ in range(count)]
    for source, target, area, paste in zip(repeated, targets, areas, places, strict=True):
        cut = lookup(media().areas, area, what)
        place = None if pastes is None else lookup(media().areas, paste, what)
        _convert(what, handle, source, target, cut, place, stream)


def _convert(
    what: str,
    handle: int,
    given: int,
    output: int,
    area: Area | None,
    place: Area | None,
    stream: int,
) -> None:
    now = process.current()
    channel(handle, what)
    source, target = (Picture(**vars(picture(one, what))) for one in (given, output))
    home = now.stream(stream, what)
    for one in (source, target):
        dvpp.check_vpc(one, what)
        _memory(one.data, one.size, what)
    left, top, right, bottom = _bounds(what, source, area)
    x, y, end, floor = _bounds(what, target, place)
    dvpp.check_scale(what, (right - left, bottom - top), (end - x, floor - y))

    def run() -> None:
        content = now.memory.resolve(source.data, source.needed, want="device", write=False)
        part = dvpp.cropped(dvpp.read(source, content), left, top, right, bottom)
        result = dvpp.resized(part, end - x, floor - y)
        content = now.memory.resolve(target.data, target.needed, want="device", write=True)
        dvpp.write(target, content, result, x, y)

    reads, writes = ((one.data, one.needed) for one in (source, target))
    home.submit(Task(run, (reads,), (writes,), what))


# -- helpers -------------------------------------------------------------------------------------


def _memory(ptr: int, nbytes: int, what: str) -> tuple[int, int]:
    """Return the range of picture memory.

    Checks MEMORY and `copies.OTHER_DEVICE`. Refused: like `Addresses.locate`.
    """
    now = process.current()
    block = now.memory.locate(ptr, nbytes, want="device", what=what)
    assert block is not None  # only pageable memory has no block
    if not block.holders[HOLDER]:
        violate(
            MEMORY,
            f"{what}: {ptr:#x}: found {block!r} of rt.malloc, expected memory of dvpp_malloc",
        )
    device = now.context().device
    if block.device != device:
        violate(OTHER_DEVICE, f"{what}: {block!r}: the context is of device {device}")
    return ptr, nbytes


def _bounds(what: str, whole: Picture, area: Area | None) -> tuple[int, int, int, int]:
    """Return left, top, and the exclusive right and bottom of an area. Checks `dvpp.PICTURE`."""
    if area is None:
        return 0, 0, whole.width, whole.height
    wrong = []
    for name, first, last, most in (
        ("columns", area.left, area.right, whole.width),
        ("rows", area.top, area.bottom, whole.height),
    ):
        if first % 2 or not last % 2 or not first < last < most:
            wrong.append(
                f"{name} {first} to {last}, expected an even start and an odd end below {most}"
            )
    dvpp.refuse(what, wrong)
    return area.left, area.top, area.right + 1, area.bottom + 1


def _info(data: int, size: int, what: str) -> dvpp.JpegInfo:
    if data == 0 or size == 0:
        raise Refused(Code.INVALID_PARAM, f"{what}: found {size:,} bytes at {data:#x}")
    view = process.current().memory.resolve(data, size, want="host", write=False, what=what)
    try:
        return dvpp.jpeg_info(view.tobytes())
    except ValueError as error:
        raise Refused(Code.INVALID_PARAM, f"{what}: not a JPEG file: {error}") from error
