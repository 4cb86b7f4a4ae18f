"""What a machine is, as plain values: what `probe` reads and what the checks judge.

Nothing here is judged. A value is None or empty where there is nothing to read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum


class Outcome(Enum):
    """How it ended when a module was imported, or a command was run, in a process of its own."""

    DONE = "done"
    ABSENT = "absent"
    """There is no such module or command."""
    FAILED = "failed"
    """An exception, or an exit code other than 0."""
    DIED = "died"
    """Of a signal, as when a shared library crashes."""
    HUNG = "hung"
    """It was ended when its time was up."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One such process."""

    outcome: Outcome
    facts: Mapping[str, str] = field(default_factory=dict)
    """What it found out, if it is DONE."""
    error: str = ""
    """The line of what it complained of that says most, otherwise."""


@dataclass(frozen=True, slots=True)
class DeviceFile:
    """A file below /dev."""

    path: str
    group: str
    usable: bool
    """Whether this process may read and write it."""


@dataclass(frozen=True, slots=True)
class Cann:
    """An installation of CANN."""

    home: str
    version: str | None
    """As in its version.cfg or ascend_toolkit_install.info, e.g. 8.3.RC1."""
    set_env: str
    """The script that sets its environment."""
    sourced: bool
    """Whether the environment looks as if that script had set it."""


@dataclass(frozen=True, slots=True)
class SharedMemory:
    """The file system /dev/shm, in bytes."""

    total_bytes: int
    free_bytes: int


@dataclass(frozen=True, slots=True)
class Machine:
    """Everything that is read of a machine and of the Python that reads it."""

    python: tuple[int, int, int]
    user: str
    groups: frozenset[str]
    """The names of the process's groups."""
    environment: Mapping[str, str]
    """Of the variables that matter, those that are set."""
    packages: Mapping[str, str]
    """Distribution, in lower case and with hyphens: its version. Installed, perhaps broken."""
    imports: Mapping[str, Trial]
    """Of each module in `imports.MODULES`."""
    npu_driver: str | None
    """The version of Ascend's driver; empty if it has a version.info that names none."""
    npu_smi: Trial
    device_files: tuple[DeviceFile, ...]
    """Ascend's."""
    cann: Cann | None
    atc: str | None
    """The path of Ascend's compiler."""
    acl_folders: tuple[str, ...]
    """Of the folders in LD_LIBRARY_PATH, in order, those that hold a library of ACL."""
    shared_memory: SharedMemory | None
    service_folder: str
    """Where the device services of this user are found."""
    service_fault: str
    """Why no service can be started there; empty if one can."""
    nvidia_driver: str | None
    nvidia_smi: Trial
    """Its facts are the GPUs, by number."""


@dataclass(frozen=True, slots=True)
class Model:
    """A model of the repository whose graph ge_runtime executes."""

    name: str
    needs: frozenset[str]
    """Of `findings.NEEDS`."""
    instances: int
    engines: int
    """Of all instances, one for each device."""
    inspected: Trial
    """`ge-runtime inspect`; its facts are `engine`, and `io_bytes` of one engine."""
