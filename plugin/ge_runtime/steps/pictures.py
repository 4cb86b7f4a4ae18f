"""Converts image files to pixels by the settings in preprocessor_config.json of transformers.

The algorithms are those of the image processors that use Pillow, not of the `Fast` processors.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np

from ge_runtime.devices.jpeg import MOST_SIDE, PillowDecoder
from ge_runtime.errors import ArtifactFault, RequestFault
from ge_runtime.specs import Array, DType, Tensors
from ge_runtime.steps.json_files import check_fields, read_fields

# An image of Pillow.
Picture: TypeAlias = Any

_SQUARES: Final = ("ViT", "DeiT", "Siglip")
"""Processors that read a whole number in `size` as the length of both sides."""
_SHORTEST: Final = ("CLIP", "ConvNext", "Bit", "MobileNetV1", "MobileNetV2", "MobileViT")
"""Processors that read a whole number in `size` as the length of the shortest edge."""
_CROPPED: Final = ("CLIP", "DeiT", "Bit", "MobileNetV1", "MobileNetV2", "MobileViT")
"""Processors that crop unless `do_center_crop` is false."""
_WHOLE_FROM: Final = 384
"""ConvNext: images of this size and above are resized without a crop."""
_HONOURED: Final = (
    *("do_resize", "size", "resample", "do_center_crop", "crop_size", "crop_pct", "do_rescale"),
    *("rescale_factor", "do_normalize", "image_mean", "image_std", "do_flip_channel_order"),
    *("image_processor_type", "feature_extractor_type", "do_convert_rgb"),
)
_WITHOUT_EFFECT: Final = (
    *("processor_class", "_processor_class", "_valid_processor_keys", "use_fast", "device"),
    *("data_format", "input_data_format", "return_tensors", "default_to_square"),
    *("disable_grouping", "image_seq_length"),
)

Size: TypeAlias = tuple[int, int]


@dataclass(frozen=True, slots=True)
class ImageProcessor:
    """The settings in preprocessor_config.json; None for a step that is switched off."""

    resize: Size | int
    """Height and width, or the length of the shortest edge."""
    resample: int
    """Pillow's number of the filter."""
    crop: Size | None
    scale: float | None
    mean: tuple[float, ...] | None
    std: tuple[float, ...] | None
    flip: bool
    """True if the graph expects the channels blue, green, red."""

    @classmethod
    def read(cls, file: Path) -> ImageProcessor:
        """Return the processor of a file.

        Raises:
            ArtifactFault: A field has an unknown name or value, or is missing.
        """
        fields = read_fields(file)
        form = fields.get("image_processor_type") or fields.get("feature_extractor_type") or ""
        kind = str(form).removesuffix("Fast")
        kind = kind.removesuffix("ImageProcessor").removesuffix("FeatureExtractor")
        if kind not in (*_SQUARES, *_SHORTEST):
            known = ", ".join(f"{name}ImageProcessor" for name in (*_SQUARES, *_SHORTEST))
            raise ArtifactFault(f"{file}: found image_processor_type '{form}', expected {known}")
        check_fields(file, fields, _HONOURED, _WITHOUT_EFFECT)
        try:
            return cls._of(kind, fields)
        except (KeyError, TypeError, ValueError) as error:
            found = f"no field {error}" if isinstance(error, KeyError) else str(error)
            raise ArtifactFault(
                f"{file}: found {found}, expected the settings of a {kind}ImageProcessor"
            ) from error

    @classmethod
    def _of(cls, kind: str, fields: Mapping[str, Any]) -> ImageProcessor:
        if not _switch(fields, "do_resize"):
            raise ValueError("do_resize false, so that images have different sizes")
        size = _size(fields["size"], square=kind in _SQUARES)
        crop = None
        if _switch(fields, "do_center_crop", kind in _CROPPED):
            crop = _size(fields["crop_size"], square=True)
        if kind == "ConvNext" and isinstance(size, int):
            crop = (size, size)
            if size < _WHOLE_FROM:
                size = int(size / (fields.get("crop_pct") or 224 / 256))
            else:
                size, crop = crop, None
        if isinstance(crop, int) or (crop is None and isinstance(size, int)):
            raise ValueError(f"size {fields['size']} and no crop to one size")
        sides = size if isinstance(size, tuple) else (size, size)
        if crop and any(inner > outer for inner, outer in zip(crop, sides, strict=True)):
            raise ValueError(f"crop_size {crop} above the size {sides} of resized images")
        mean = std = None
        if _switch(fields, "do_normalize", kind != "MobileViT"):
            mean, std = (tuple(map(float, fields[name])) for name in ("image_mean", "image_std"))
            if not len(mean) == len(std) == 3 or not all(std):
                raise ValueError(f"image_mean {mean} and image_std {std}")
        resample = fields["resample"]
        if resample not in range(6):
            raise ValueError(f"resample {resample!r}")
        scale = float(fields.get("rescale_factor") or 1 / 255)
        return cls(
            size,
            resample,
            crop,
            scale if _switch(fields, "do_rescale") else None,
            mean,
            std,
            _switch(fields, "do_flip_channel_order", False),
        )

    @property
    def size(self) -> Size:
        """Height and width of the result."""
        size = self.crop or self.resize
        assert isinstance(size, tuple)  # ensured by `_of`
        return size

    def __call__(self, picture: Picture) -> Array:
        """Convert a picture in red, green, blue to float32 [height, width, 3].

        Raises:
            RequestFault: The picture is so long that it would take gigabytes when it is resized.
        """
        width, height = picture.size
        if isinstance(self.resize, tuple):
            height, width = self.resize
        else:
            short, long = sorted((width, height))
            long = int(self.resize * long / short)
            if long > MOST_SIDE:
                raise RequestFault(
                    f"found a picture of {width} x {height} pixels, resized to "
                    f"{long} pixels on the longer side, expected at most {MOST_SIDE}"
                )
            width, height = (self.resize, long) if width <= height else (long, self.resize)
        pixels = np.asarray(picture.resize((width, height), self.resample))
        if self.crop:
            top, left = (height - self.crop[0]) // 2, (width - self.crop[1]) // 2
            pixels = pixels[top : top + self.crop[0], left : left + self.crop[1]]
        values: Array = pixels
        if self.scale is not None:
            values = (pixels.astype(np.float64) * self.scale).astype(np.float32)
        if self.mean is not None:
            mean, std = (np.array(own, np.float32) for own in (self.mean, self.std))
            values = (values.astype(np.float32) - mean) / std
        return values[..., ::-1] if self.flip else values


class PictureStep:
    """Converts the JPEG and PNG files of a request. For one thread.

    The input is `image`, BYTES [n] or [n, 1]. The output is [n, 3, height, width], or
    [n, height, width, 3] if config.pbtxt declares that.
    """

    def __init__(self, processor: ImageProcessor, output: str, dtype: DType, *, last: bool) -> None:
        """Import Pillow; `last` is true if the channels are the last dim of the output.

        Raises ArtifactFault if Pillow is missing.
        """
        self._processor, self._output = processor, output
        self._dtype, self._last = dtype.numpy, last
        self._decoder = PillowDecoder()

    @classmethod
    def open(cls, args: Mapping[str, str]) -> PictureStep:
        """Return the step for the arguments of `initialize`.

        preprocessor_config.json is beside model.py. Raises ArtifactFault.
        """
        (output,) = json.loads(args["model_config"])["output"]
        folder = Path(args["model_repository"], args["model_version"])
        processor = ImageProcessor.read(folder / "preprocessor_config.json")
        dtype = DType.of_config(output["data_type"])
        return cls(processor, output["name"], dtype, last=int(output["dims"][-1]) == 3)

    def __call__(self, inputs: Tensors) -> Tensors:
        """Return the pixels of a request's files. Raises RequestFault."""
        rows = []
        for row, file in enumerate(inputs["image"].reshape(-1)):
            try:
                pixels = self._processor(self._decoder.rgb(file))
            except RequestFault as fault:
                raise RequestFault(f"input 'image', row {row}: {fault}") from fault
            rows.append(pixels if self._last else np.moveaxis(pixels, 2, 0))
        return {self._output: np.stack(rows).astype(self._dtype)}


def _switch(fields: Mapping[str, Any], name: str, default: bool = True) -> bool:
    value = fields.get(name)
    return default if value is None else bool(value)


def _size(value: object, *, square: bool) -> Size | int:
    """Return height and width, or the length of the shortest edge. Raises ValueError."""
    if isinstance(value, Mapping):
        keys = {key for key, side in value.items() if side is not None}
        if keys == {"height", "width"}:
            return _side(value["height"]), _side(value["width"])
        if keys == {"shortest_edge"}:
            return _side(value["shortest_edge"])
        raise ValueError(f"size {dict(value)}")
    if isinstance(value, list) and len(value) == 2:
        return _side(value[0]), _side(value[1])
    side = _side(value)
    return (side, side) if square else side


def _side(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 8192:
        raise ValueError(f"size {value!r}")
    return value
