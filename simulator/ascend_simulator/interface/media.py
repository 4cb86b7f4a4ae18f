"""acl.media: memory for pictures, channels, and the descriptions of pictures and areas.

What is done with them: `media_tasks`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ascend_simulator import process
from ascend_simulator.calls import I32, U32, U64, bare, status, value
from ascend_simulator.codes import Code, Refused
from ascend_simulator.media import pixels
from ascend_simulator.media.pictures import Picture
from ascend_simulator.models.datasets import living, remove
from ascend_simulator.models.regions import allocate
from ascend_simulator.resources import Handles
from ascend_simulator.violations import declare, violate

BAD_FREE = declare("dvpp.bad-free", "dvpp_free gets what dvpp_malloc gave, once.")

HOLDER: Final = "acl.media (dvpp_free gives it back)"


@dataclass
class Channel:
    """A description of a channel, and whether the channel is there."""

    is_open: bool = False
    mode: int = 0


@dataclass
class Area:
    """A part of a picture; right and bottom belong to it."""

    left: int
    right: int
    top: int
    bottom: int


@dataclass
class Scaling:
    """How a picture is resized: a number that makes no difference here."""

    interpolation: int = 0


class Media:
    """All of these by handle: a part of the process."""

    def __init__(self) -> None:
        self.channels: Final[Handles[Channel]] = Handles("DVPP channel description")
        self.pictures: Final[Handles[Picture]] = Handles("picture description")
        self.areas: Final[Handles[Area]] = Handles("area configuration")
        self.scalings: Final[Handles[Scaling]] = Handles("resize configuration")

    def live(self) -> list[str]:
        """How many of each are left."""
        kinds = (self.channels, self.pictures, self.areas, self.scalings)
        names = [f"{len(kind)} {kind.kind}(s)" for kind in kinds if len(kind)]
        is_open = sum(channel.is_open for channel in self.channels)
        return names + ([f"{is_open} DVPP channel(s)"] if is_open else [])

    def close(self) -> None:
        """Nothing to let go of but names."""


def media() -> Media:
    """Those of the process."""
    return process.current().part(Media)


def picture(handle: int, what: str) -> Picture:
    """The description. Raises as `datasets.living` does."""
    return living(media().pictures, handle, what)


def channel(handle: int, what: str) -> Channel:
    """One that is there. Raises Refused INVALID_PARAM, and as `datasets.living` does."""
    found = living(media().channels, handle, what)
    if not found.is_open:
        raise Refused(Code.INVALID_PARAM, f"{what}: found no dvpp_create_channel before")
    return found


# -- memory --------------------------------------------------------------------------------------


@value("media.dvpp_malloc", U64)
def dvpp_malloc(size: int) -> int:
    """Device memory for pictures. Refused as rt.malloc."""
    ptr = allocate(size, 0, tail=True)
    process.current().memory.hold(ptr, size, HOLDER)
    return ptr


@status("media.dvpp_free", U64)
def dvpp_free(ptr: int) -> None:
    """Give it back, at once. Violates BAD_FREE, `claims.FREE_BUSY` and `heaps.HELD`."""
    if ptr == 0:
        raise Refused(Code.INVALID_PARAM, "dvpp_free: found a null pointer")
    now = process.current()
    block = now.memory.find(ptr)
    if block is None or block.start != ptr or not block.holders[HOLDER]:
        text = f"dvpp_free: {ptr:#x}: found {block or 'nothing that was allocated'}"
        violate(BAD_FREE, text)
        raise Refused(Code.RT_PARAM_INVALID, text)
    now.claims.check_idle(block, "dvpp_free")
    now.memory.release(block, HOLDER)
    now.memory.free(ptr)


# -- channels ------------------------------------------------------------------------------------


@bare("media.dvpp_create_channel_desc")
def dvpp_create_channel_desc() -> int:
    """A description of a channel that is not there yet."""
    return media().channels.add(Channel())


@status("media.dvpp_destroy_channel_desc", U64)
def dvpp_destroy_channel_desc(handle: int) -> None:
    """The description goes, after its channel."""
    remove(media().channels, handle, "dvpp_destroy_channel_desc")


@status("media.dvpp_set_channel_desc_mode", U64, U32)
def dvpp_set_channel_desc_mode(handle: int, mode: int) -> None:
    """What the channel is for, in bits; makes no difference here."""
    living(media().channels, handle, "dvpp_set_channel_desc_mode").mode = mode


@status("media.dvpp_create_channel", U64)
def dvpp_create_channel(handle: int) -> None:
    """The channel is there. Refused: RT_CONTEXT_NULL, INVALID_PARAM the second time."""
    process.current().context()
    found = living(media().channels, handle, "dvpp_create_channel")
    if found.is_open:
        raise Refused(Code.INVALID_PARAM, "dvpp_create_channel: found it created")
    pixels.pillow()  # so that whoever lacks it hears so at once
    found.is_open = True


@status("media.dvpp_destroy_channel", U64)
def dvpp_destroy_channel(handle: int) -> None:
    """The channel goes. Refused: INVALID_PARAM for one that is not there."""
    channel(handle, "dvpp_destroy_channel").is_open = False


# -- descriptions --------------------------------------------------------------------------------


@bare("media.dvpp_create_pic_desc")
def dvpp_create_pic_desc() -> int:
    """A description of a picture, all zero."""
    return media().pictures.add(Picture())


@status("media.dvpp_destroy_pic_desc", U64)
def dvpp_destroy_pic_desc(handle: int) -> None:
    """The description goes, not the memory."""
    remove(media().pictures, handle, "dvpp_destroy_pic_desc")


@status("media.dvpp_set_pic_desc_data", U64, U64)
def dvpp_set_pic_desc_data(handle: int, data: int) -> None:
    """Its address."""
    picture(handle, "dvpp_set_pic_desc_data").data = data


@status("media.dvpp_set_pic_desc_size", U64, U32)
def dvpp_set_pic_desc_size(handle: int, size: int) -> None:
    """Its bytes."""
    picture(handle, "dvpp_set_pic_desc_size").size = size


@status("media.dvpp_set_pic_desc_format", U64, I32)
def dvpp_set_pic_desc_format(handle: int, layout: int) -> None:
    """Its acldvppPixelFormat."""
    picture(handle, "dvpp_set_pic_desc_format").format = layout


@status("media.dvpp_set_pic_desc_width", U64, U32)
def dvpp_set_pic_desc_width(handle: int, width: int) -> None:
    """Its width, pixels."""
    picture(handle, "dvpp_set_pic_desc_width").width = width


@status("media.dvpp_set_pic_desc_height", U64, U32)
def dvpp_set_pic_desc_height(handle: int, height: int) -> None:
    """Its height, pixels."""
    picture(handle, "dvpp_set_pic_desc_height").height = height


@status("media.dvpp_set_pic_desc_width_stride", U64, U32)
def dvpp_set_pic_desc_width_stride(handle: int, stride: int) -> None:
    """Bytes from row to row."""
    picture(handle, "dvpp_set_pic_desc_width_stride").width_stride = stride


@status("media.dvpp_set_pic_desc_height_stride", U64, U32)
def dvpp_set_pic_desc_height_stride(handle: int, stride: int) -> None:
    """Rows that its brightness takes."""
    picture(handle, "dvpp_set_pic_desc_height_stride").height_stride = stride


@bare("media.dvpp_get_pic_desc_data", U64)
def dvpp_get_pic_desc_data(handle: int) -> int:
    """Its address."""
    return picture(handle, "dvpp_get_pic_desc_data").data


@bare("media.dvpp_get_pic_desc_size", U64)
def dvpp_get_pic_desc_size(handle: int) -> int:
    """Its bytes."""
    return picture(handle, "dvpp_get_pic_desc_size").size


@bare("media.dvpp_get_pic_desc_format", U64)
def dvpp_get_pic_desc_format(handle: int) -> int:
    """Its acldvppPixelFormat."""
    return picture(handle, "dvpp_get_pic_desc_format").format


@bare("media.dvpp_get_pic_desc_width", U64)
def dvpp_get_pic_desc_width(handle: int) -> int:
    """Its width, which decoding may have made even."""
    return picture(handle, "dvpp_get_pic_desc_width").width


@bare("media.dvpp_get_pic_desc_height", U64)
def dvpp_get_pic_desc_height(handle: int) -> int:
    """Its height, which decoding may have made even."""
    return picture(handle, "dvpp_get_pic_desc_height").height


@bare("media.dvpp_get_pic_desc_width_stride", U64)
def dvpp_get_pic_desc_width_stride(handle: int) -> int:
    """Bytes from row to row."""
    return picture(handle, "dvpp_get_pic_desc_width_stride").width_stride


@bare("media.dvpp_get_pic_desc_height_stride", U64)
def dvpp_get_pic_desc_height_stride(handle: int) -> int:
    """Rows that its brightness takes."""
    return picture(handle, "dvpp_get_pic_desc_height_stride").height_stride


@bare("media.dvpp_get_pic_desc_ret_code", U64)
def dvpp_get_pic_desc_ret_code(handle: int) -> int:
    """0, or why it was not written."""
    return picture(handle, "dvpp_get_pic_desc_ret_code").ret_code


@bare("media.dvpp_create_roi_config", U32, U32, U32, U32)
def dvpp_create_roi_config(left: int, right: int, top: int, bottom: int) -> int:
    """An area; right and bottom belong to it."""
    return media().areas.add(Area(left, right, top, bottom))


@status("media.dvpp_destroy_roi_config", U64)
def dvpp_destroy_roi_config(handle: int) -> None:
    """The area goes."""
    remove(media().areas, handle, "dvpp_destroy_roi_config")


@bare("media.dvpp_create_resize_config")
def dvpp_create_resize_config() -> int:
    """The usual way to resize."""
    return media().scalings.add(Scaling())


@status("media.dvpp_set_resize_config_interpolation", U64, U32)
def dvpp_set_resize_config_interpolation(handle: int, interpolation: int) -> None:
    """Another way; it is bilinear here all the same."""
    what = "dvpp_set_resize_config_interpolation"
    living(media().scalings, handle, what).interpolation = interpolation


@status("media.dvpp_destroy_resize_config", U64)
def dvpp_destroy_resize_config(handle: int) -> None:
    """The configuration goes."""
    remove(media().scalings, handle, "dvpp_destroy_resize_config")
