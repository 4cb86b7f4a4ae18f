"""The inputs of a graph that ATC is to make images: --insert_op_conf, and what it excludes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ge_runtime.config import RuntimeConfig
from ge_runtime.engines.base import Signature
from ge_runtime.errors import ArtifactFault
from ge_runtime.npu.driver.aipp import ImageInput, insert_op_conf

_FORMAT = "--input_format="


def image_conf(config: RuntimeConfig, signature: Signature, rows: int) -> str:
    """The file's content for this stage; "" if none of its inputs is an image.

    rows: the most that an execution takes.
    """
    geared = {axis for axes in config.gears for axis in axes}
    only = {axis: limit for axis, limit in config.limits.items() if axis not in geared}
    inputs = [
        ImageInput(place, own.aipp, own.sides_at(only), rows)
        for place, tensor in enumerate(signature.inputs)
        if (own := config.images.get(tensor.name)) is not None
    ]
    return insert_op_conf(inputs) if inputs else ""


def with_images(source: Path, flags: Sequence[str]) -> list[str]:
    """ATC's flags for a stage that has images. Raises ArtifactFault where it takes none so."""
    if any(flag.startswith("--dynamic_dims=") for flag in flags):
        raise ArtifactFault(
            f"{source}: found gears of several axes, expected those of batch alone, of height and "
            "width alone, or none: ATC makes no images beside others (aipp.<input>)"
        )
    # AIPP takes NCHW alone, whatever the ranks of other inputs are.
    return [*(flag for flag in flags if not flag.startswith(_FORMAT)), f"{_FORMAT}NCHW"]


def write_conf(om: Path, content: str) -> Path:
    """Put the file beside the .om. Raises OSError."""
    path = om.with_suffix(".aipp.cfg")
    path.write_text(content, encoding="utf-8")
    return path
