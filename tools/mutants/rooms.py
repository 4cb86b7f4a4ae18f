"""The rooms that mutants are taken from, and the tests that are to notice them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

#: A package's own tests: only these count for its mutants.
PACKAGES = {
    "plugin/ge_runtime": "tests/runtime",
    "reference_server": "tests/server",
    "simulator/ascend_simulator": "tests/simulator",
}


@dataclass(frozen=True)
class Room:
    """A part of the packages."""

    files: tuple[str, ...]
    """Folders, and patterns of files."""
    tests: tuple[str, ...]
    """Where the tests are that may run its lines."""


_GE = "plugin/ge_runtime"
ROOMS = {
    **{package: Room((package,), (tests,)) for package, tests in PACKAGES.items()},
    "ascend": Room(
        (
            f"{_GE}/adapters/jpeg_inputs.py",
            f"{_GE}/batching/images.py",
            f"{_GE}/cli/bench.py",
            f"{_GE}/cli/build.py",
            f"{_GE}/cli/compare",
            f"{_GE}/cli/doctor/ascend_checks.py",
            f"{_GE}/cli/probe_device",
            *(f"{_GE}/config/{name}.py" for name in ("cards", "execution_settings", "images")),
            f"{_GE}/devices/__init__.py",
            f"{_GE}/devices/jpeg.py",
            f"{_GE}/npu/driver",
            f"{_GE}/npu/engines",
            *(f"{_GE}/npu/service/{name}.py" for name in ("messages", "resident")),
            f"{_GE}/planning/ascend_gears.py",
        ),
        (
            *(f"tests/runtime/{name}" for name in ("cli/compare", "config", "devices")),
            *(f"tests/runtime/npu/{name}" for name in ("driver", "engines")),
            *(f"tests/runtime/cli/test_{name}.py" for name in ("bench", "build", "probe_device")),
            "tests/runtime/cli/test_doctor_checks.py",
            *(f"tests/runtime/engines/test_{name}.py" for name in ("artifact", "backend", "fakes")),
            "tests/runtime/adapters/test_jpeg_inputs.py",
            "tests/runtime/batching/test_images.py",
            "tests/runtime/planning/test_ascend_gears.py",
            *(
                f"tests/runtime/npu/service/test_{name}.py"
                for name in ("bad_resident_clients", "card", "resident", "row_pool")
            ),
        ),
    ),
}


def files(tree: Path, room: str) -> Iterator[Path]:
    """All modules of a room."""
    for pattern in ROOMS[room].files:
        found = tree.glob(pattern)
        yield from sorted(
            path for each in found for path in (each.rglob("*.py") if each.is_dir() else [each])
        )


def package_of(file: str) -> str:
    """The package that a module is in."""
    return next(package for package in PACKAGES if file.startswith(package))
