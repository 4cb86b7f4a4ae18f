"""torch as engines import it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

from ge_runtime.errors import NoDevice

# The module, whose types cannot be named without importing it.
Torch: TypeAlias = Any

_AUTOLOAD = "TORCH_DEVICE_BACKEND_AUTOLOAD"


def import_torch() -> Torch:
    """torch, without back ends of devices that load themselves. A choice in the environment stands.

    Where torch_npu is installed, `import torch` imports it too, and without CANN's libraries both
    fail, for good: an import of torch that failed cannot be made up for in the same process. Code
    that uses torch.npu says `import torch_npu`. Whoever imports torch before has to set the
    variable himself.
    """
    # torch's OpenMP threads spin while they wait, unless told otherwise before its import.
    # Measured with a small CNN and 2 threads on 2 cores that others use too: 350 ms a batch
    # when they spin, 7 ms when they sleep.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    with _no_autoload():
        import torch
    return torch


def import_torch_for(device: str, cure: str) -> Torch:
    """The same for a device that needs it. cure: the command. Raises NoDevice, with both."""
    try:
        return import_torch()
    except (ImportError, OSError, RuntimeError) as error:  # of its libraries, of its back ends
        raise NoDevice(f"{device}: found no torch ({error}), expected it: `{cure}`") from error


@contextmanager
def _no_autoload() -> Iterator[None]:
    """For the length of a `with`; child processes choose for themselves."""
    given = _AUTOLOAD in os.environ
    os.environ.setdefault(_AUTOLOAD, "0")
    try:
        yield
    finally:
        if not given:
            del os.environ[_AUTOLOAD]
