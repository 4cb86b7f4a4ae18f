"""AIPP on a card: the file for ATC that inserts it, and what a compiled file must tell of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from ge_runtime.config import Aipp

INPUT_FORMATS: Final = {"RGB888_U8": 3, "YUV400_U8": 4}
"""Name: aclAippInputFormat."""


class ImageInput(NamedTuple):
    """An input of a graph that is made of images."""

    place: int
    """Among the graph's inputs, from 0."""
    aipp: Aipp
    sides: tuple[int, int] | None
    """Height and width of the images; None where gears say them."""
    rows: int
    """The most images of a batch."""


def insert_op_conf(inputs: Sequence[ImageInput]) -> str:
    """The content of ATC's --insert_op_conf."""
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


def unlike(told: Mapping[str, float], aipp: Aipp, sides: tuple[int, int] | None) -> list[str]:
    """What a file with static AIPP does otherwise than it should, field by field.

    told: of aclAippInfo. sides: of the images; None where gears say them.
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
        f"{name}: found {told.get(name, 0):g}, expected {value:g}"
        for name, value in expected.items()
        # As a card has them: FP16 where they are no whole numbers.
        if np.float16(told.get(name, 0)) != np.float16(value)
    ]
