"""Reaching a device service, and seeing whether it lives. The client's side."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any, Final

from ge_runtime.errors import ServiceFault
from ge_runtime.service.channel import Channel, PeerGone, peer_of
from ge_runtime.service.launcher import start
from ge_runtime.service.limits import Limits
from ge_runtime.service.paths import RuntimeFolder
from ge_runtime.service.protocol import VERSION, Broken, Json, fault_of

_AGAIN_S: Final = 0.01
"""Between two attempts to reach a service that somebody else starts."""


class NoService(Exception):
    """Nobody listens."""


def connect(device: str, folder: RuntimeFolder) -> tuple[Channel, int]:
    """A connection to the device's service, and its process. Raises NoService, ServiceFault."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        channel = Channel(connection)  # whose limits hold for connecting as well
        connection.connect(folder.address(device))
        pid, uid = peer_of(connection)
    except (FileNotFoundError, ConnectionRefusedError):
        connection.close()
        raise NoService from None
    except OSError as error:
        connection.close()
        raise ServiceFault(f"the device service of {device} cannot be reached: {error}") from error
    if uid != os.geteuid():
        connection.close()
        raise ServiceFault(f"found a device service of user {uid}, expected one of this user")
    return channel, pid


def ask(
    channel: Channel,
    message: Json,
    check: Callable[[], None],
    descriptors: Sequence[int] = (),
) -> dict[str, Any]:
    """What the service answers to a control message.

    check: see `Channel.receive`. descriptors: for the service. Raises what went wrong there,
    ServiceFault if it refuses or is not understood, PeerGone.
    """
    channel.send_json(message, descriptors)
    try:
        answer, _ = channel.receive_json(check)
        if "fault" in answer:
            raise fault_of(answer["fault"])
        if "refused" in answer:
            raise ServiceFault(f"the device service refuses: {answer['refused']}")
        result: dict[str, Any] = answer["ok"]
        return result
    except (Broken, KeyError, TypeError, ValueError) as error:
        raise ServiceFault(f"the device service is not understood: {error}") from error


class Pulse:
    """Looks now and then whether a service lives, and ends one that hangs. From any thread."""

    def __init__(self, device: str, folder: RuntimeFolder, limits: Limits, pid: int) -> None:
        self._device = device
        self._folder = folder
        self._limits = limits
        self._pid = pid
        self._lock = Lock()
        self._next = time.monotonic() + limits.probe_s

    def check(self) -> None:
        """Look, if it is time. Raises PeerGone if it hung; then it is no more."""
        if time.monotonic() < self._next or not self._lock.acquire(blocking=False):
            return
        try:
            self._look()
            self._next = time.monotonic() + self._limits.probe_s
        finally:
            self._lock.release()

    def _look(self) -> None:
        until = time.monotonic() + self._limits.hung_s

        def patience() -> None:
            if time.monotonic() > until:
                raise TimeoutError

        try:
            channel, pid = connect(self._device, self._folder)
        except NoService:
            return  # it has gone, or goes: whoever is connected is told by the kernel
        except ServiceFault:  # its backlog is full
            channel, pid = None, self._pid
        try:
            if channel is not None and pid == self._pid:
                ask(channel, {"role": "probe", "version": VERSION}, patience)
            if channel is not None:
                return
        except TimeoutError:
            pass
        except PeerGone:
            return
        finally:
            if channel is not None:
                channel.close()
        kill(self._pid)
        raise PeerGone(f"it gave no sign of life for {self._limits.hung_s:g} s, and was ended")


def kill(pid: int) -> None:
    """End a process of this user, if it is there."""
    with contextlib.suppress(OSError):
        process = os.pidfd_open(pid)
        try:
            signal.pidfd_send_signal(process, signal.SIGKILL)
        finally:
            os.close(process)


def reach(
    device: str,
    folder: RuntimeFolder,
    limits: Limits,
    hello: Json,
    wanted: Callable[[], None],
) -> tuple[Channel, Pulse, int, dict[str, Any]]:
    """A connection on which the service has answered `hello`; started if there was none.

    wanted: asked now and then; what it raises ends the attempt. Returns the connection, the
    service's pulse and process, and its answer. Raises ServiceFault, and what the service says is
    wrong.
    """
    until = time.monotonic() + limits.start_s
    while True:
        wanted()
        try:
            channel, pid = connect(device, folder)
        except NoService:
            if not start(device, folder, limits):
                time.sleep(_AGAIN_S)
        else:
            pulse = Pulse(device, folder, limits, pid)
            try:
                return channel, pulse, pid, ask(channel, hello, pulse.check)
            except PeerGone:  # it was just leaving, or hung
                channel.close()
                time.sleep(_AGAIN_S)
            except BaseException:
                channel.close()
                raise
        if time.monotonic() > until:
            raise ServiceFault(
                f"found no device service of {device} that answers within {limits.start_s:g} s; "
                f"its log is {folder.file(device, 'log')}"
            )
