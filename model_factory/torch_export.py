"""Saves torch modules as `model.pt2`, the artifact of ge_runtime's torch engine. Needs torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch


def save_exported(
    module: torch.nn.Module,
    examples: Mapping[str, torch.Tensor],
    axes: Mapping[int, torch.export.Dim],
    path: Path,
) -> None:
    """Trace `module` with torch.export and write it to `path`, whose suffix must be .pt2.

    examples: a tensor for each argument of `forward`, by name; sizes that shall stay free must be
        2 or more, since torch takes a size of 1 for a constant.
    axes: the axes whose size each call may choose, the same in all arguments, as torch.export.Dim.
    Blocks for seconds.
    """
    shapes = {argument: dict(axes) for argument in examples}
    with torch.no_grad():
        program = torch.export.export(
            module.eval(), (), kwargs=dict(examples), dynamic_shapes=shapes
        )
    torch.export.save(program, path)
