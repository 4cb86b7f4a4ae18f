"""The digit classifier's parameters: its measures, the file they ship in, and what they claim.

The network itself is written twice over these parameters, as an ONNX graph (`digits_onnx`) and as
a torch module (`digits_torch`); `docs/models.md` explains it. NumPy only.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from model_factory.digits_images import Floats

CHANNELS = (8, 16, 32)
"""Output channels of the 3x3 convolutions, one for each level; every level after the first halves
height and width."""

GRID = 6
"""Rows and columns of the grid that every level is pooled to, whatever the image's size."""

HIDDEN = 48
"""Width of the layer between the pooled features and the logits."""

CLASSES = 10

LEAST_TOTAL = 1e-3
"""Floor of the sum that a grid cell's weights are divided by."""

SHIPPED = Path(__file__).parent / "data" / "ge_classifier.npz"
"""Where the trained parameters ship."""


@dataclass(frozen=True, slots=True)
class Claim:
    """What the training measured and how it was done.

    plain, disturbed: accuracy (0..1) on the held-out sources by size bucket, small to large.
    seed, steps: of the training that made the parameters.
    parameters: how many numbers the network learned.
    """

    plain: tuple[float, ...]
    disturbed: tuple[float, ...]
    seed: int
    steps: int
    parameters: int


def shapes() -> dict[str, tuple[int, ...]]:
    """The shape of every parameter by its name in the torch module; all are float32."""
    result: dict[str, tuple[int, ...]] = {}
    for level, (incoming, outgoing) in enumerate(pairwise((1, *CHANNELS))):
        result[f"levels.{level}.weight"] = (outgoing, incoming, 3, 3)
        result[f"levels.{level}.bias"] = (outgoing,)
    result["hidden.weight"] = (HIDDEN, sum(CHANNELS) * GRID * GRID)
    result["hidden.bias"] = (HIDDEN,)
    result["output.weight"] = (CLASSES, HIDDEN)
    result["output.bias"] = (CLASSES,)
    return result


def save(path: Path, parameters: dict[str, Floats], claim: Claim) -> None:
    """Write parameters and claim to an .npz file: equal arguments give equal bytes.

    Raises ValueError if the parameters are not those of `shapes()`.
    """
    _check(parameters, "to save")
    # NumPy stamps every member with 1980-01-01, so that no clock gets into the file.
    arrays: dict[str, Any] = {name: parameters[name] for name in shapes()}
    np.savez(path, claim=np.array(json.dumps(asdict(claim))), **arrays)


def load(path: Path = SHIPPED) -> tuple[dict[str, Floats], Claim]:
    """The parameters and the claim in the .npz file at `path`.

    Raises FileNotFoundError if there is none, ValueError if the parameters in it are not those of
    `shapes()`.
    """
    with np.load(path, allow_pickle=False) as arrays:
        parameters = {name: arrays[name] for name in arrays.files if name != "claim"}
        claim = json.loads(str(arrays["claim"]))
    _check(parameters, f"in {path}")
    return parameters, Claim(
        plain=tuple(claim["plain"]),
        disturbed=tuple(claim["disturbed"]),
        seed=claim["seed"],
        steps=claim["steps"],
        parameters=claim["parameters"],
    )


def _check(parameters: dict[str, Floats], where: str) -> None:
    found = {name: (array.dtype.name, array.shape) for name, array in parameters.items()}
    expected = {name: ("float32", shape) for name, shape in shapes().items()}
    if found != expected:
        raise ValueError(f"digit classifier parameters {where}: found {found}, expected {expected}")
