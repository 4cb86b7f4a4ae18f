"""AIPP on a card: the configuration file for ATC, and the check of a compiled file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from ge_runtime.config import Aipp

INPUT_FORMATS: Final = {"RGB888_U8": 3, "YUV400_U8": 4}
"""Format name: value of aclAippInputFormat."""


class ImageInput(NamedTuple):
    """An input of a graph that is computed from images."""

    place: int
    """Index among the graph's inputs, from 0."""
    aipp: Aipp
    sides: tuple[int, int] | None
    """Height and width of the images; None if gears determine them."""
    rows: int
    """Maximum number of images in a batch."""


def insert_op_conf(inputs: Sequence[ImageInput]) -> str:
    """Return the content of the file for ATC's --insert_op_conf."""
    return "\n".join(line for own in inputs for line in _lines(own)) + "\n"


def _lines(own: ImageInput) -> Iterator[str]:
    yield "aipp_op {"
    for name, value in _fields(own).items():
        yield f"  {name}: {value}"
    yield "}"


def _fields(own: ImageInput) -> dict[str, object]:
    aipp, sides = own.aipp, own.sides
    rank = {"related_input_rank": own.place}
    if aipp.is_dynamic:
        assert sides is not None  # as `read_aipp` has seen to
        size = own.rows * sides[0] * sides[1] * aipp.channels
        return {"aipp_mode": "dynamic", **rank, "max_src_image_size": size}
    fields: dict[str, object] = {
        "aipp_mode": "static",
        **rank,
        "input_format": aipp.input_format,
    }
    if sides is not None:
        fields |= {"src_image_size_w": sides[1], "src_image_size_h": sides[0]}
    if aipp.swaps:
        fields["rbuv_swap_switch"] = "true"
    if aipp.crop is not None:
        crop = aipp.crop
        fields |= {"crop": "true", "load_start_pos_w": crop.left, "load_start_pos_h": crop.top}
        fields |= {"crop_size_w": crop.width, "crop_size_h": crop.height}
    if any(aipp.border):
        fields["padding"] = "true"
        fields |= {f"{side}_padding_size": size for side, size in aipp.border._asdict().items()}
    for channel, (mean, low, factor) in enumerate(
        zip(aipp.mean, aipp.minimum, aipp.factor, strict=True)
    ):
        fields |= {f"mean_chn_{channel}": mean, f"min_chn_{channel}": low}
        fields[f"var_reci_chn_{channel}"] = factor
    return fields


def differences(found: Mapping[str, float], aipp: Aipp, sides: tuple[int, int] | None) -> list[str]:
    """Compare static AIPP of a compiled file with the configuration; return one line per field.

    Args:
        found: The fields of aclAippInfo.
        aipp: The expected settings.
        sides: Height and width of the images; None if gears determine them.
    """
    crop, border = aipp.crop, aipp.border
    expected: dict[str, float] = {
        "inputFormat": INPUT_FORMATS[aipp.input_format],
        "rbuvSwapSwitch": aipp.swaps,
        "cscSwitch": False,
        "cropSwitch": crop is not None,
        "paddingSwitch": any(border),
    }
    if sides is not None:
        expected |= {"srcImageSizeH": sides[0], "srcImageSizeW": sides[1]}
    if crop is not None:
        expected |= {"loadStartPosW": crop.left, "loadStartPosH": crop.top}
        expected |= {"cropSizeW": crop.width, "cropSizeH": crop.height}
    if any(border):
        expected |= {f"{side}PaddingSize": size for side, size in border._asdict().items()}
    for channel in range(aipp.channels):
        expected[f"meanChn{channel}"] = aipp.mean[channel]
        expected[f"minChn{channel}"] = aipp.minimum[channel]
        expected[f"varReciChn{channel}"] = aipp.factor[channel]
    return [
        f"{name}: found {found.get(name, 0):g}, expected {value:g}"
        for name, value in expected.items()
        # A card stores fractions as FP16.
        if np.float16(found.get(name, 0)) != np.float16(value)
    ]
