"""The calls of `acl.media`, each answer checked."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from ge_runtime.npu.driver.driver import Address, Stream
from ge_runtime.npu.driver.media import Channel, Picture
from ge_runtime.npu.driver.pyacl_description import Acl
from ge_runtime.npu.driver.return_codes import DriverFault, ReturnCodeChecker

_YUV420SP: Final = 1
"""PIXEL_FORMAT_YUV_SEMIPLANAR_420."""
_TIMEOUT_MS: Final = 60_000
"""A picture that takes longer is taken for one that never ends."""


class PyAclMedia:
    """MediaCalls by the functions of `acl.media`."""

    def __init__(self, acl: Acl, checker: ReturnCodeChecker) -> None:
        """acl: the module, or one that keeps its contract. Raises AttributeError without media."""
        self._media = acl.media
        self._rt = acl.rt
        self._status = checker.status
        self._value = checker.value
        self._handle = checker.handle

    def open_channel(self) -> Channel:
        media = self._media
        desc = self._handle("acl.media.dvpp_create_channel_desc", media.dvpp_create_channel_desc())
        try:
            self._status("acl.media.dvpp_create_channel", media.dvpp_create_channel(desc))
        except DriverFault:
            media.dvpp_destroy_channel_desc(desc)
            raise
        return Channel(desc)

    def close_channel(self, channel: Channel) -> None:
        media = self._media
        code = media.dvpp_destroy_channel(channel)
        self._status("acl.media.dvpp_destroy_channel", code)
        code = media.dvpp_destroy_channel_desc(channel)
        self._status("acl.media.dvpp_destroy_channel_desc", code)

    def malloc(self, nbytes: int) -> Address:
        return Address(self._value("acl.media.dvpp_malloc", self._media.dvpp_malloc(nbytes)))

    def free(self, address: Address) -> None:
        self._status("acl.media.dvpp_free", self._media.dvpp_free(address))

    def decoded_bytes(self, host: Address, nbytes: int) -> int:
        answer = self._media.dvpp_jpeg_predict_dec_size(host, nbytes, _YUV420SP)
        return int(self._value("acl.media.dvpp_jpeg_predict_dec_size", answer))

    def decode_and_resize(
        self,
        channel: Channel,
        file: tuple[Address, int],
        decoded: Picture,
        resized: Picture,
        stream: Stream,
    ) -> None:
        media = self._media
        with self._described(decoded) as big, self._described(resized) as small:
            scaling = self._handle(
                "acl.media.dvpp_create_resize_config", media.dvpp_create_resize_config()
            )
            try:
                code = media.dvpp_jpeg_decode_async(channel, *file, big, stream)
                self._status("acl.media.dvpp_jpeg_decode_async", code)
                code = media.dvpp_vpc_resize_async(channel, big, small, scaling, stream)
                self._status("acl.media.dvpp_vpc_resize_async", code)
            finally:
                # Descriptions and configuration are read until the tasks are done.
                code = self._rt.synchronize_stream_with_timeout(stream, _TIMEOUT_MS)
                destroyed = media.dvpp_destroy_resize_config(scaling)
                self._status("acl.media.dvpp_destroy_resize_config", destroyed)
            self._status("acl.rt.synchronize_stream_with_timeout", code)

    @contextmanager
    def _described(self, picture: Picture) -> Iterator[int]:
        media = self._media
        desc = self._handle("acl.media.dvpp_create_pic_desc", media.dvpp_create_pic_desc())
        try:
            code = media.dvpp_set_pic_desc_data(desc, picture.address)
            self._status("acl.media.dvpp_set_pic_desc_data", code)
            code = media.dvpp_set_pic_desc_size(desc, picture.nbytes)
            self._status("acl.media.dvpp_set_pic_desc_size", code)
            code = media.dvpp_set_pic_desc_format(desc, _YUV420SP)
            self._status("acl.media.dvpp_set_pic_desc_format", code)
            code = media.dvpp_set_pic_desc_width(desc, picture.width)
            self._status("acl.media.dvpp_set_pic_desc_width", code)
            code = media.dvpp_set_pic_desc_height(desc, picture.height)
            self._status("acl.media.dvpp_set_pic_desc_height", code)
            code = media.dvpp_set_pic_desc_width_stride(desc, picture.width_stride)
            self._status("acl.media.dvpp_set_pic_desc_width_stride", code)
            code = media.dvpp_set_pic_desc_height_stride(desc, picture.height_stride)
            self._status("acl.media.dvpp_set_pic_desc_height_stride", code)
            yield desc
        finally:
            code = media.dvpp_destroy_pic_desc(desc)
            self._status("acl.media.dvpp_destroy_pic_desc", code)
