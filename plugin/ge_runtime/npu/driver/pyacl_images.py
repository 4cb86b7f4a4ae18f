"""The functions of pyACL for images: DVPP (`acl.media`) and AIPP (`acl.mdl`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from ge_runtime.npu.driver.aipp import INPUT_FORMATS
from ge_runtime.npu.driver.driver import (
    Address,
    AippKind,
    Channel,
    Dataset,
    ImageBatch,
    ModelId,
    Picture,
    Stream,
)
from ge_runtime.npu.driver.pyacl_models import Acl
from ge_runtime.npu.driver.return_codes import DriverFault, ReturnCodeChecker

_YUV420SP: Final = 1
"""PIXEL_FORMAT_YUV_SEMIPLANAR_420."""
_TIMEOUT_MS: Final = 60_000
"""Time limit of one picture; after it DVPP is assumed to hang."""


class PyAclMedia:
    """An implementation of `MediaCalls` with `acl.media`."""

    def __init__(self, acl: Acl, checker: ReturnCodeChecker) -> None:
        """Initialize the calls. Raises AttributeError if `acl` has no `media`."""
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
                # Descriptions and configuration are in use until the tasks are done.
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


class PyAclAipp:
    """An implementation of `AippCalls` with `acl.mdl`."""

    def __init__(self, acl: Acl, checker: ReturnCodeChecker) -> None:
        self._mdl = acl.mdl
        self._status = checker.status
        self._value = checker.value
        self._handle = checker.handle

    def kind(self, model: ModelId, index: int) -> AippKind:
        try:
            kind, _, code = self._mdl.get_aipp_type(model, index)
        except AttributeError:  # a release without AIPP
            return AippKind.NONE
        self._status("acl.mdl.get_aipp_type", code)
        return AippKind(kind)

    def parameters(self, model: ModelId, index: int) -> Mapping[str, float]:
        answer = self._mdl.get_first_aipp_info(model, index)
        parameters: Mapping[str, float] = self._value("acl.mdl.get_first_aipp_info", answer)
        return parameters

    def set_images(self, model: ModelId, inputs: Dataset, index: int, images: ImageBatch) -> None:
        mdl = self._mdl
        setting = self._handle("acl.mdl.create_aipp", mdl.create_aipp(images.rows))
        try:
            self._fill(setting, images)
            code = mdl.set_input_aipp(model, inputs.handle, index, setting)
            self._status("acl.mdl.set_input_aipp", code)
        finally:
            self._status("acl.mdl.destroy_aipp", mdl.destroy_aipp(setting))

    def _fill(self, setting: int, images: ImageBatch) -> None:
        mdl, aipp = self._mdl, images.aipp
        code = mdl.set_aipp_input_format(setting, INPUT_FORMATS[aipp.input_format])
        self._status("acl.mdl.set_aipp_input_format", code)
        code = mdl.set_aipp_src_image_size(setting, images.width, images.height)
        self._status("acl.mdl.set_aipp_src_image_size", code)
        code = mdl.set_aipp_rbuv_swap_switch(setting, int(aipp.swaps))
        self._status("acl.mdl.set_aipp_rbuv_swap_switch", code)
        # The functions take four channels; unused ones have neutral values.
        more = 4 - aipp.channels
        mean = (*aipp.mean, *[0] * more)
        low = (*aipp.minimum, *[0.0] * more)
        factor = (*aipp.factor, *[1.0] * more)
        border = aipp.border
        for row in range(images.rows):
            if aipp.crop is not None:
                crop = (aipp.crop.left, aipp.crop.top, aipp.crop.width, aipp.crop.height)
                code = mdl.set_aipp_crop_params(setting, 1, *crop, row)
                self._status("acl.mdl.set_aipp_crop_params", code)
            if any(border):
                sizes = (border.top, border.bottom, border.left, border.right)
                code = mdl.set_aipp_padding_params(setting, 1, *sizes, row)
                self._status("acl.mdl.set_aipp_padding_params", code)
            code = mdl.set_aipp_dtc_pixel_mean(setting, *mean, row)
            self._status("acl.mdl.set_aipp_dtc_pixel_mean", code)
            code = mdl.set_aipp_dtc_pixel_min(setting, *low, row)
            self._status("acl.mdl.set_aipp_dtc_pixel_min", code)
            code = mdl.set_aipp_pixel_var_reci(setting, *factor, row)
            self._status("acl.mdl.set_aipp_pixel_var_reci", code)
