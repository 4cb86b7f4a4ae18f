"""Which of the machine's devices a number means: each process may have numbers of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

VARIABLES: Final[Mapping[str, str]] = {
    "cuda": "CUDA_VISIBLE_DEVICES",
    "npu": "ASCEND_RT_VISIBLE_DEVICES",
}
"""By the kind of device: what chooses and renumbers them."""


def meant_by(device: str, environment: Mapping[str, str]) -> str:
    """The device of the machine that `device` is, as the environment calls it: "3" or "GPU-8932".

    Empty if it is none, and for the CPU.
    """
    kind, _, number = device.partition(":")
    listed = environment.get(VARIABLES.get(kind, ""))
    if listed is None:
        return number
    there = [one.strip() for one in listed.split(",")]
    return there[int(number)] if int(number) < len(there) else ""
