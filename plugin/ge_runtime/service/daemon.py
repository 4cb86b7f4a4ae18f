"""The process of a device service, from its first line to its last."""

from __future__ import annotations

import contextlib
import faulthandler
import json
import logging
import os
import signal
import sys
from pathlib import Path

from ge_runtime.clock import SystemClock
from ge_runtime.engines.places import place_for
from ge_runtime.service.launcher import READY
from ge_runtime.service.limits import Limits
from ge_runtime.service.paths import RuntimeFolder
from ge_runtime.service.server import Server


def main(device: str, folder: str, limits: str, descriptor: int, ready: int) -> None:
    """Own the device until nobody needs it, then exit.

    folder, descriptor: the runtime folder. limits: as JSON. ready: where to say that it listens.
    The device's lock is held by a descriptor that this process has inherited, until its end.
    """
    faulthandler.enable()
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s"
    )
    with contextlib.suppress(OSError):
        Path("/proc/self/comm").write_text(f"ge_runtime {device}")
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        server = Server(
            device,
            RuntimeFolder(Path(folder), descriptor),
            clock=SystemClock(),
            limits=Limits(**json.loads(limits)),
            open_place=place_for,
            cores=len(os.sched_getaffinity(0)),
        )
    except Exception as error:
        logging.exception("it cannot start")
        _tell(ready, f"{type(error).__name__}: {error}".encode())
        sys.exit(1)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: server.end(signal.Signals(number).name))
    logging.info("the device service of %s, pid %d", device, os.getpid())
    _tell(ready, READY)
    ended = server.run()
    logging.shutdown()
    if not ended:  # an execution hangs, and would hold the process
        os._exit(1)


def _tell(ready: int, text: bytes) -> None:
    with contextlib.suppress(OSError):
        os.write(ready, text)
    os.close(ready)
