"""The calls of pyACL that are about AIPP, each answer checked."""

from __future__ import annotations

from collections.abc import Mapping

from ge_runtime.npu.driver.aipp import INPUT_FORMATS
from ge_runtime.npu.driver.driver import AippKind, Dataset, ImageBatch, ModelId
from ge_runtime.npu.driver.pyacl_description import Acl
from ge_runtime.npu.driver.return_codes import ReturnCodeChecker


class PyAclAipp:
    """AippCalls by the functions of `acl.mdl`."""

    def __init__(self, acl: Acl, checker: ReturnCodeChecker) -> None:
        """acl: the module, or one that keeps its contract."""
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
        told: Mapping[str, float] = self._value("acl.mdl.get_first_aipp_info", answer)
        return told

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
        # Of four channels each; those that an image lacks do nothing.
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
