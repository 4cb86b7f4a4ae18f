"""The functions of pyACL for loaded models and for images.

Models: their descriptions, and executions of free shapes. Images: DVPP (`acl.media`) and AIPP
(`acl.mdl`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeAlias

from ge_runtime.npu.driver.atc import INPUT_FORMATS
from ge_runtime.npu.driver.cann_values import (
    DriverFault,
    ModelDescription,
    ModelTensor,
    ReturnCodeChecker,
)
from ge_runtime.npu.driver.driver import (
    Address,
    AippKind,
    Channel,
    Dataset,
    ImageBatch,
    ModelId,
    Picture,
    Produced,
    Stream,
)

# The module, which has no type stubs.
Acl: TypeAlias = Any

_RESERVED_INDEX: Final = -1
"""The value of the argument `index` of functions for gears."""
_PLACEHOLDER: Final = "acl_modelId_"
"""Prefix of a placeholder for a name that is too long."""
_INPUT, _OUTPUT = "acl.mdl.get_input", "acl.mdl.get_output"
_Size: TypeAlias = Callable[[str, int], int]
"""Checks the size that a function returned, from the function's name and the size."""


class PyAclDescriptions:
    """Descriptions of loaded models."""

    def __init__(self, acl: Acl, checker: ReturnCodeChecker) -> None:
        self._mdl = acl.mdl
        self._status = checker.status
        self._value = checker.value
        self._handle = checker.handle
        self._getter = checker.getter

    def describe(self, model: ModelId, *, free_shapes: bool) -> ModelDescription:
        """Return the description of a model; unknown sizes of free shapes are 0 bytes."""
        with self._described(model) as desc:
            return self._description(desc, self._size if free_shapes else self._getter)

    def output_dims(self, model: ModelId, count: int) -> list[tuple[int, ...]]:
        """Return the dims of the first `count` outputs at the gear that was set last."""
        with self._described(model) as desc:
            answers = [self._mdl.get_cur_output_dims(desc, index) for index in range(count)]
        return [self._dims("acl.mdl.get_cur_output_dims", answer) for answer in answers]

    def ranges(self, model: ModelId, count: int) -> list[tuple[tuple[int, int], ...]]:
        """Return (minimum, maximum) of each dim of the first `count` inputs; -1: unlimited."""
        with self._described(model) as desc:
            answers = [self._mdl.get_input_dims_range(desc, index) for index in range(count)]
        found = [self._value("acl.mdl.get_input_dims_range", answer) for answer in answers]
        return [
            tuple((low, high) for low, high in own["range"][: own["rangeCount"]]) for own in found
        ]

    @contextmanager
    def _described(self, model: ModelId) -> Iterator[int]:
        desc = self._handle("acl.mdl.create_desc", self._mdl.create_desc())
        try:
            self._status("acl.mdl.get_desc", self._mdl.get_desc(desc, model))
        except DriverFault:
            self._mdl.destroy_desc(desc)
            raise
        try:
            yield desc
        finally:
            self._status("acl.mdl.destroy_desc", self._mdl.destroy_desc(desc))

    def _description(self, desc: int, size: _Size) -> ModelDescription:
        mdl, get = self._mdl, self._getter
        # Types and formats need no check: these functions return -1, "undefined", on failure, and
        # the engine rejects tensors of such a type.
        inputs = tuple(
            ModelTensor(
                name=self._real_name(
                    desc, get(f"{_INPUT}_name_by_index", mdl.get_input_name_by_index(desc, index))
                ),
                dtype=int(mdl.get_input_data_type(desc, index)),
                format=int(mdl.get_input_format(desc, index)),
                dims=self._dims("acl.mdl.get_input_dims", mdl.get_input_dims(desc, index)),
                nbytes=size(f"{_INPUT}_size_by_index", mdl.get_input_size_by_index(desc, index)),
            )
            for index in range(get("acl.mdl.get_num_inputs", mdl.get_num_inputs(desc)))
        )
        outputs = tuple(
            ModelTensor(
                name=self._real_name(
                    desc, get(f"{_OUTPUT}_name_by_index", mdl.get_output_name_by_index(desc, index))
                ),
                dtype=int(mdl.get_output_data_type(desc, index)),
                format=int(mdl.get_output_format(desc, index)),
                dims=self._dims("acl.mdl.get_output_dims", mdl.get_output_dims(desc, index)),
                nbytes=size(f"{_OUTPUT}_size_by_index", mdl.get_output_size_by_index(desc, index)),
            )
            for index in range(get("acl.mdl.get_num_outputs", mdl.get_num_outputs(desc)))
        )
        batch = self._value("acl.mdl.get_dynamic_batch", mdl.get_dynamic_batch(desc))
        image = self._value("acl.mdl.get_dynamic_hw", mdl.get_dynamic_hw(desc, _RESERVED_INDEX))
        return ModelDescription(
            inputs,
            outputs,
            batches=tuple(batch["batch"][: batch["batchCount"]]),
            images=tuple((h, w) for h, w in image["hw"][: image["hwCount"]]),
            dims=self._dims_gears(desc),
        )

    def _size(self, function: str, nbytes: int) -> int:
        """Accept any size: 0 is not a failure for tensors whose size is known after execution."""
        return nbytes

    def _real_name(self, desc: int, name: str) -> str:
        """Return the real name of a tensor; `name` may be a placeholder."""
        if name.startswith(_PLACEHOLDER):
            return str(self._mdl.get_tensor_real_name(desc, name) or name)
        return name

    def _dims(self, function: str, answer: tuple[Any, int]) -> tuple[int, ...]:
        return tuple(self._value(function, answer)["dims"])

    def _dims_gears(self, desc: int) -> tuple[tuple[int, ...], ...]:
        answer = self._mdl.get_input_dynamic_gear_count(desc, _RESERVED_INDEX)
        count = self._value("acl.mdl.get_input_dynamic_gear_count", answer)
        if not count:
            return ()
        answer = self._mdl.get_input_dynamic_dims(desc, _RESERVED_INDEX, count)
        return tuple(
            tuple(gear["dims"][: gear["dimCount"]])
            for gear in self._value("acl.mdl.get_input_dynamic_dims", answer)
        )


class PyAclFreeShapes:
    """Models with free shapes, whose memory the driver allocates during executions."""

    def __init__(
        self, acl: Acl, checker: ReturnCodeChecker, descriptions: PyAclDescriptions
    ) -> None:
        self._acl = acl
        self._mdl = acl.mdl
        self._status = checker.status
        self._value = checker.value
        self._handle = checker.handle
        self._descriptions = descriptions

    def load(self, path: str) -> ModelId:
        """Load a model into memory that the driver allocates; see `PyAclDriver.load`."""
        return ModelId(self._value("acl.mdl.load_from_file", self._mdl.load_from_file(path)))

    def ranges(self, model: ModelId, count: int) -> list[tuple[tuple[int, int], ...]]:
        """Return (minimum, maximum) of each dim of the first `count` inputs; -1: unlimited."""
        return self._descriptions.ranges(model, count)

    def set_dims(
        self, inputs: Dataset, index: int, tensor: ModelTensor, dims: Sequence[int]
    ) -> None:
        """Set the dims of input `index`, described by `tensor`, for the next execution."""
        # Only the dims of the description are used, and the dataset copies it.
        desc = self._acl.create_tensor_desc(tensor.dtype, list(dims), tensor.format)
        desc = self._handle("acl.create_tensor_desc", desc)
        try:
            answer = self._mdl.set_dataset_tensor_desc(inputs.handle, desc, index)
            self._value("acl.mdl.set_dataset_tensor_desc", answer)
        finally:
            self._acl.destroy_tensor_desc(desc)  # has no return code

    def execute(self, model: ModelId, inputs: Dataset, outputs: Dataset) -> None:
        """Execute and wait; allocates missing outputs. Blocks all Python threads."""
        code = self._mdl.execute(model, inputs.handle, outputs.handle)
        self._status("acl.mdl.execute", code)

    def output(self, outputs: Dataset, index: int) -> Produced:
        """Return output `index` of the last execution."""
        acl = self._acl
        desc = self._mdl.get_dataset_tensor_desc(outputs.handle, index)
        desc = self._handle("acl.mdl.get_dataset_tensor_desc", desc)
        dims = (
            acl.get_tensor_desc_dim_v2(desc, place)
            for place in range(acl.get_tensor_desc_num_dims(desc))
        )
        name = "acl.get_tensor_desc_dim_v2"
        found = tuple(int(self._value(name, answer)) for answer in dims)
        return Produced(found, self.address(outputs, index))

    def address(self, outputs: Dataset, index: int) -> Address:
        """Return the current address of output `index`; 0: it has no memory."""
        return Address(self._acl.get_data_buffer_addr(outputs.buffers[index]))

    def clear(self, outputs: Dataset, index: int) -> None:
        """Detach the memory of output `index`; the next execution allocates it."""
        code = self._acl.update_data_buffer(outputs.buffers[index], 0, 0)
        self._status("acl.update_data_buffer", code)


_YUV420SP: Final = 1
"""PIXEL_FORMAT_YUV_SEMIPLANAR_420."""
_TIMEOUT_MS: Final = 60_000
"""Time limit of one picture; a DVPP that takes longer is assumed to hang."""


class PyAclMedia:
    """DVPP (`acl.media`), a card's unit for pictures: decoding JPEG files and resizing.

    The calling thread must have a context of the card.
    """

    def __init__(self, acl: Acl, checker: ReturnCodeChecker) -> None:
        """Initialize the calls. Raises AttributeError if `acl` has no `media`."""
        self._media = acl.media
        self._rt = acl.rt
        self._status = checker.status
        self._value = checker.value
        self._handle = checker.handle

    def open_channel(self) -> Channel:
        """Open a channel for tasks of DVPP."""
        media = self._media
        desc = self._handle("acl.media.dvpp_create_channel_desc", media.dvpp_create_channel_desc())
        try:
            self._status("acl.media.dvpp_create_channel", media.dvpp_create_channel(desc))
        except DriverFault:
            media.dvpp_destroy_channel_desc(desc)
            raise
        return Channel(desc)

    def close_channel(self, channel: Channel) -> None:
        """Close a channel. It must not have tasks any more."""
        media = self._media
        code = media.dvpp_destroy_channel(channel)
        self._status("acl.media.dvpp_destroy_channel", code)
        code = media.dvpp_destroy_channel_desc(channel)
        self._status("acl.media.dvpp_destroy_channel_desc", code)

    def malloc(self, nbytes: int) -> Address:
        """Allocate device memory for files and pictures."""
        return Address(self._value("acl.media.dvpp_malloc", self._media.dvpp_malloc(nbytes)))

    def free(self, address: Address) -> None:
        """Free memory immediately."""
        self._status("acl.media.dvpp_free", self._media.dvpp_free(address))

    def decoded_bytes(self, host: Address, nbytes: int) -> int:
        """Return the size in bytes of the picture after decoding the file at `host`."""
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
        """Decode a file in device memory and resize the picture; wait for both.

        Args:
            channel: The channel.
            file: Address and bytes of the file.
            decoded: The target of decoding.
            resized: The target of resizing.
            stream: The stream for both tasks.
        """
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
    """Models whose inputs are images, with `acl.mdl`."""

    def __init__(self, acl: Acl, checker: ReturnCodeChecker) -> None:
        self._mdl = acl.mdl
        self._status = checker.status
        self._value = checker.value
        self._handle = checker.handle

    def kind(self, model: ModelId, index: int) -> AippKind:
        """Return the AIPP mode of input `index`."""
        try:
            kind, _, code = self._mdl.get_aipp_type(model, index)
        except AttributeError:  # a release without AIPP
            return AippKind.NONE
        self._status("acl.mdl.get_aipp_type", code)
        return AippKind(kind)

    def parameters(self, model: ModelId, index: int) -> Mapping[str, float]:
        """Return the parameters of static AIPP, by their names in aclAippInfo."""
        answer = self._mdl.get_first_aipp_info(model, index)
        parameters: Mapping[str, float] = self._value("acl.mdl.get_first_aipp_info", answer)
        return parameters

    def set_images(self, model: ModelId, inputs: Dataset, index: int, images: ImageBatch) -> None:
        """Write the parameters of dynamic AIPP into the buffer of input `index`."""
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
