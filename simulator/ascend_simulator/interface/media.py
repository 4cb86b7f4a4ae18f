"""acl.media: picture memory, channels, and the descriptions of pictures and areas.

The operations on pictures are in `media_tasks`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ascend_simulator import media as dvpp
from ascend_simulator import process
from ascend_simulator.calls import I32, U32, U64, Converter, bare, status, value
from ascend_simulator.codes import Code, Refused
from ascend_simulator.media import Picture
from ascend_simulator.models.datasets import lookup, remove
from ascend_simulator.models.regions import allocate
from ascend_simulator.resources import Handles, HandleTables
from ascend_simulator.violations import declare, violate

BAD_FREE = declare(
    "dvpp.bad-free", "dvpp_free must receive each address of dvpp_malloc exactly once."
)

HOLDER: Final = "acl.media (to be freed with dvpp_free)"


@dataclass
class Channel:
    """A channel description, and whether the channel was created."""

    is_open: bool = False
    mode: int = 0


@dataclass
class Area:
    """A part of a picture; right and bottom are inclusive."""

    left: int
    right: int
    top: int
    bottom: int


@dataclass
class Scaling:
    """The interpolation of a resize, which has no effect in the simulator."""

    interpolation: int = 0


class Media(HandleTables):
    """The open handles of acl.media."""

    def __init__(self) -> None:
        self.channels: Final[Handles[Channel]] = Handles("DVPP channel description")
        self.pictures: Final[Handles[Picture]] = Handles("picture description")
        self.batches: Final[Handles[list[int]]] = Handles("batch of picture descriptions")
        self.areas: Final[Handles[Area]] = Handles("area configuration")
        self.scalings: Final[Handles[Scaling]] = Handles("resize configuration")

    def live(self) -> list[str]:
        """Return the numbers of handles by kind, and of channels, that were not destroyed."""
        is_open = sum(channel.is_open for channel in self.channels)
        return super().live() + ([f"{is_open} DVPP channel(s)"] if is_open else [])


def media() -> Media:
    """Return the handles of the process."""
    return process.current().part(Media)


def picture(handle: int, what: str) -> Picture:
    """Return the picture description of a handle. Raises like `datasets.lookup`."""
    return lookup(media().pictures, handle, what)


def channel(handle: int, what: str) -> Channel:
    """Return a created channel.

    Raises Refused INVALID_PARAM if the channel was not created, and like `datasets.lookup`.
    """
    found = lookup(media().channels, handle, what)
    if not found.is_open:
        raise Refused(Code.INVALID_PARAM, f"{what}: found no earlier dvpp_create_channel")
    return found


# -- memory --------------------------------------------------------------------------------------


@value("media.dvpp_malloc", U64)
def dvpp_malloc(size: int) -> int:
    """Allocate device memory for pictures. Refused: like rt.malloc."""
    ptr = allocate(size, 0, tail=True)
    process.current().memory.hold(ptr, size, HOLDER)
    return ptr


@status("media.dvpp_free", U64)
def dvpp_free(ptr: int) -> None:
    """Free picture memory immediately. Checks BAD_FREE, `claims.FREE_BUSY` and `heaps.HELD`."""
    if ptr == 0:
        raise Refused(Code.INVALID_PARAM, "dvpp_free: found a null pointer")
    now = process.current()
    block = now.memory.find(ptr)
    if block is None or block.start != ptr or not block.holders[HOLDER]:
        text = f"dvpp_free: {ptr:#x}: found {block or 'no allocated memory'}"
        violate(BAD_FREE, text)
        raise Refused(Code.RT_PARAM_INVALID, text)
    now.claims.check_idle(block, "dvpp_free")
    now.memory.release(block, HOLDER)
    now.memory.free(ptr)


# -- channels ------------------------------------------------------------------------------------


@bare("media.dvpp_create_channel_desc")
def dvpp_create_channel_desc() -> int:
    """Create a description of a channel that is not created yet."""
    return media().channels.add(Channel())


@status("media.dvpp_destroy_channel_desc", U64)
def dvpp_destroy_channel_desc(handle: int) -> None:
    """Destroy the description. The channel must have been destroyed before."""
    remove(media().channels, handle, "dvpp_destroy_channel_desc")


@status("media.dvpp_set_channel_desc_mode", U64, U32)
def dvpp_set_channel_desc_mode(handle: int, mode: int) -> None:
    """Set the bits for the channel's purpose, which have no effect in the simulator."""
    lookup(media().channels, handle, "dvpp_set_channel_desc_mode").mode = mode


@status("media.dvpp_create_channel", U64)
def dvpp_create_channel(handle: int) -> None:
    """Create the channel. Refused: RT_CONTEXT_NULL, INVALID_PARAM if already created."""
    process.current().context()
    found = lookup(media().channels, handle, "dvpp_create_channel")
    if found.is_open:
        raise Refused(Code.INVALID_PARAM, "dvpp_create_channel: already created")
    dvpp.pillow()  # report a missing Pillow early
    found.is_open = True


@status("media.dvpp_destroy_channel", U64)
def dvpp_destroy_channel(handle: int) -> None:
    """Destroy the channel. Refused: INVALID_PARAM for a channel that is not created."""
    channel(handle, "dvpp_destroy_channel").is_open = False


# -- descriptions --------------------------------------------------------------------------------


@bare("media.dvpp_create_pic_desc")
def dvpp_create_pic_desc() -> int:
    """Create a picture description with all fields zero."""
    return media().pictures.add(Picture())


@status("media.dvpp_destroy_pic_desc", U64)
def dvpp_destroy_pic_desc(handle: int) -> None:
    """Destroy the description; the picture's memory is not freed."""
    remove(media().pictures, handle, "dvpp_destroy_pic_desc")


@bare("media.dvpp_create_batch_pic_desc", U32)
def dvpp_create_batch_pic_desc(count: int) -> int:
    """Create a batch of picture descriptions with all fields zero."""
    pictures = [media().pictures.add(Picture()) for _ in range(count)]
    return media().batches.add(pictures)


@bare("media.dvpp_get_pic_desc", U64, U32)
def dvpp_get_pic_desc(batch: int, index: int) -> int:
    """Return a picture description of a batch, or 0."""
    pictures = lookup(media().batches, batch, "dvpp_get_pic_desc")
    return pictures[index] if index < len(pictures) else 0


@status("media.dvpp_destroy_batch_pic_desc", U64)
def dvpp_destroy_batch_pic_desc(batch: int) -> None:
    """Destroy a batch and its descriptions."""
    for each in remove(media().batches, batch, "dvpp_destroy_batch_pic_desc"):
        media().pictures.remove(each)


_PICTURE_FIELDS: Final[Mapping[str, Converter]] = {
    "data": U64,
    "size": U32,
    "format": I32,  # an acldvppPixelFormat
    "width": U32,
    "height": U32,
    "width_stride": U32,  # bytes from the start of a row to the start of the next one
    "height_stride": U32,  # rows that the luma plane has in memory
}
"""The fields of a picture description that programs set and read."""


def _export_picture_field(field: str, convert: Converter) -> None:
    setter, getter = f"dvpp_set_pic_desc_{field}", f"dvpp_get_pic_desc_{field}"

    def set_field(handle: int, given: int) -> None:
        """Set a field of a picture description."""
        setattr(picture(handle, setter), field, given)

    def get_field(handle: int) -> int:
        """Return a field of a picture description. Decoding makes odd sides even."""
        return int(getattr(picture(handle, getter), field))

    status(f"media.{setter}", U64, convert)(set_field)
    bare(f"media.{getter}", U64)(get_field)


for _field, _convert in _PICTURE_FIELDS.items():
    _export_picture_field(_field, _convert)


@bare("media.dvpp_get_pic_desc_ret_code", U64)
def dvpp_get_pic_desc_ret_code(handle: int) -> int:
    """Return 0, or the code of the failed task that should have written the picture."""
    return picture(handle, "dvpp_get_pic_desc_ret_code").ret_code


@bare("media.dvpp_create_roi_config", U32, U32, U32, U32)
def dvpp_create_roi_config(left: int, right: int, top: int, bottom: int) -> int:
    """Create an area; right and bottom are inclusive."""
    return media().areas.add(Area(left, right, top, bottom))


@status("media.dvpp_destroy_roi_config", U64)
def dvpp_destroy_roi_config(handle: int) -> None:
    """Destroy the area."""
    remove(media().areas, handle, "dvpp_destroy_roi_config")


@bare("media.dvpp_create_resize_config")
def dvpp_create_resize_config() -> int:
    """Create a resize configuration with the default interpolation."""
    return media().scalings.add(Scaling())


@status("media.dvpp_set_resize_config_interpolation", U64, U32)
def dvpp_set_resize_config_interpolation(handle: int, interpolation: int) -> None:
    """Set the interpolation. The simulator always resizes bilinearly."""
    what = "dvpp_set_resize_config_interpolation"
    lookup(media().scalings, handle, what).interpolation = interpolation


@status("media.dvpp_destroy_resize_config", U64)
def dvpp_destroy_resize_config(handle: int) -> None:
    """Destroy the configuration."""
    remove(media().scalings, handle, "dvpp_destroy_resize_config")
