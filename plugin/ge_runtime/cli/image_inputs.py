"""ATC's --insert_op_conf for image inputs, and the flags that it excludes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ge_runtime.config import RuntimeConfig
from ge_runtime.engines.base import Signature
from ge_runtime.errors import ArtifactFault
from ge_runtime.npu.driver.atc import ImageInput, insert_op_conf

_FORMAT = "--input_format="


def image_conf(config: RuntimeConfig, signature: Signature, rows: int) -> str:
    """Return the content of --insert_op_conf for a stage; "" without image inputs.

    `rows`: the largest number of rows of an execution.
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
    """Return ATC's flags for a stage with images. Raises ArtifactFault if ATC refuses them."""
    if any(flag.startswith("--dynamic_dims=") for flag in flags):
        raise ArtifactFault(
            f"{source}: found gears of several axes, expected gears of batch only, of height and "
            "width only, or none, because ATC converts images (aipp.<input>) with no others"
        )
    # AIPP requires NCHW, independent of the ranks of other inputs.
    return [*(flag for flag in flags if not flag.startswith(_FORMAT)), f"{_FORMAT}NCHW"]


def write_conf(om: Path, content: str) -> Path:
    """Write the file next to the .om. Raises OSError."""
    path = om.with_suffix(".aipp.cfg")
    path.write_text(content, encoding="utf-8")
    return path
