"""The process of a device service, from its first line to its last."""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import json
import logging
import os
import resource
import signal
import sys
from pathlib import Path
from typing import Final

from ge_runtime.clock import SystemClock
from ge_runtime.engines.backend import open_backend
from ge_runtime.service.launcher import READY
from ge_runtime.service.limits import Limits
from ge_runtime.service.log import LogFile
from ge_runtime.service.paths import RuntimeFolder
from ge_runtime.service.server import Server

_LEAVE_S: Final = 30.0
"""From the end of its service to that of the process, whatever hangs then."""

_DESCRIPTORS: Final = 65_536
"""Enough for all connections and arenas of many clients."""


def main(device: str, path: str, limits: str, descriptor: int, lock: int, ready: int) -> None:
    """Own the device until nobody needs it, then exit.

    path, descriptor: the runtime folder. limits: as JSON. lock: the device's, held until the
    process ends. ready: where to say that it listens. All descriptors are inherited.
    """
    folder = RuntimeFolder(Path(path), descriptor)
    for inherited in (descriptor, lock, ready):
        os.set_inheritable(inherited, False)  # a child of a library would keep the lock
    faulthandler.enable()
    log = LogFile(device, folder)
    log.begin()
    with contextlib.suppress(OSError):
        Path("/proc/self/comm").write_text(f"ge_runtime {device}")
    _forget_the_starter(folder)
    try:
        server = Server(
            device,
            folder,
            clock=SystemClock(),
            limits=Limits(**json.loads(limits)),
            open_place=open_backend,
            cores=len(os.sched_getaffinity(0)),
            now_and_then=log.look,
        )
    except Exception as error:
        logging.exception("it cannot start")
        _tell(ready, f"{type(error).__name__}: {error}".encode())
        sys.exit(1)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: server.end(signal.Signals(number).name))
    logging.info("the device service of %s, pid %d", device, os.getpid())
    faulthandler.cancel_dump_traceback_later()  # which the launcher has set
    _tell(ready, READY)
    server.run()
    faulthandler.dump_traceback_later(_LEAVE_S, exit=True)
    ended = server.close()
    logging.shutdown()
    if not ended:  # an execution hangs, and would hold the process
        os._exit(1)


def _forget_the_starter(folder: RuntimeFolder) -> None:
    """What a process inherits, and what must not depend on which client was the first."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.umask(0o077)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    enough = _DESCRIPTORS if most == resource.RLIM_INFINITY else min(most, _DESCRIPTORS)
    resource.setrlimit(resource.RLIMIT_NOFILE, (enough, most))
    # Cleaners of /tmp leave a folder alone that is locked, and with it socket and lock file.
    with contextlib.suppress(OSError):
        fcntl.flock(folder.descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)


def _tell(ready: int, text: bytes) -> None:
    with contextlib.suppress(OSError):
        os.write(ready, text)
    os.close(ready)
