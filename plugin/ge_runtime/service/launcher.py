"""Starting a device service, where there is none.

One lock decides. It is handed on to the service, which holds it as long as it lives, however it
ends. Whoever gets the lock therefore knows that there is no service, that a socket found is
stale, and that nobody else starts one; whoever does not get it waits for the one who did.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Final

from ge_runtime.errors import ServiceFault
from ge_runtime.service.limits import Limits
from ge_runtime.service.log import open_log
from ge_runtime.service.paths import RuntimeFolder, file_name

READY: Final = b"ready"
"""What the service says once it listens; anything else is why it does not."""

_BOOT: Final = """\
import faulthandler, os, sys
if os.fork():
    os._exit(0)
_, device, folder, limits, within_s, descriptor, lock, ready, *sys.path = sys.argv
faulthandler.dump_traceback_later(float(within_s), exit=True)
sys.argv[:] = ['']
from ge_runtime.service.daemon import main
main(device, folder, limits, int(descriptor), int(lock), int(ready))
"""
"""What its interpreter runs. Modules are found where this process finds them. The fork makes it
nobody's child: it may outlive whoever starts it, and is nobody's to wait for. One that hangs before
it listens ends itself, or it would have the lock for ever; its log then says where it stood."""

_TAIL: Final = 2000
"""Characters of a log that are shown."""


def start(device: str, folder: RuntimeFolder, limits: Limits) -> bool:
    """Start the device's service, unless there is one, or another is being started.

    Blocks until it listens; False if it is somebody else's affair. Raises ServiceFault if it does
    not come to listen.
    """
    try:
        lock = _lock(device, folder)
        if lock is None:
            return False
        try:
            with contextlib.suppress(FileNotFoundError):  # of one that was killed
                os.unlink(f"{file_name(device)}.sock", dir_fd=folder.descriptor)
            said = _spawn(device, folder, limits, lock)
        finally:
            os.close(lock)
    except OSError as error:
        raise ServiceFault(f"the device service of {device} cannot be started: {error}") from error
    if said != READY:
        why = said.decode(errors="replace") or _tail(device, folder)
        raise ServiceFault(
            f"the device service of {device} has not come to listen: {why}\n"
            f"its log is {folder.file(device, 'log')}"
        )
    return True


def _lock(device: str, folder: RuntimeFolder) -> int | None:
    """The locked file; None if somebody else holds it."""
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    lock = os.open(f"{file_name(device)}.lock", flags, 0o600, dir_fd=folder.descriptor)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    return lock


def _spawn(device: str, folder: RuntimeFolder, limits: Limits, lock: int) -> bytes:
    """Start the process; what it says until it listens or ends."""
    output = open_log(device, folder)
    reading = writing = -1
    try:
        reading, writing = os.pipe2(os.O_CLOEXEC)
        given = (device, str(folder.path), json.dumps(asdict(limits)), str(limits.start_s))
        numbers = (str(folder.descriptor), str(lock), str(writing))
        paths = [str(Path(path).absolute()) for path in sys.path]
        process = subprocess.Popen(
            [sys.executable, "-c", _BOOT, *given, *numbers, *paths],
            pass_fds=(lock, folder.descriptor, writing),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd="/",
            start_new_session=True,
        )
        os.close(writing)
        writing = -1
        process.wait(limits.start_s)
        return _said(reading, limits.start_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return b"its interpreter does not start"
    finally:
        for descriptor in (output, reading, writing):
            if descriptor >= 0:
                os.close(descriptor)


def _said(reading: int, within_s: float) -> bytes:
    until = time.monotonic() + within_s
    poll = select.poll()
    poll.register(reading, select.POLLIN)
    said = b""
    while (left_s := until - time.monotonic()) > 0:
        if poll.poll(left_s * 1e3):
            part = os.read(reading, 4096)
            if not part:
                return said
            said += part
    return said or f"found no sign of it within {within_s:g} s".encode()


def _tail(device: str, folder: RuntimeFolder) -> str:
    with contextlib.suppress(OSError):
        text = folder.file(device, "log").read_text(errors="replace").strip()
        return f"it ended with\n{text[-_TAIL:]}" if text else "it ended without a word"
    return "it ended without a word"
