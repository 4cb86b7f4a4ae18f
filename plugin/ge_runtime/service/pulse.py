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

from ge_runtime.errors import RuntimeFault, ServiceFault
from ge_runtime.service.channel import Channel, PeerGone
from ge_runtime.service.forks import not_inherited
from ge_runtime.service.launcher import holder, start
from ge_runtime.service.limits import Limits
from ge_runtime.service.paths import RuntimeFolder
from ge_runtime.service.protocol import VERSION, Broken, Json, fault_of

_AGAIN_S: Final = 0.01
"""Between two attempts to reach a service that somebody else starts."""


class NoService(Exception):
    """Nobody listens."""


class _Hangs(Exception):
    """A service has given no sign of life for as long as it may."""


def connect(device: str, folder: RuntimeFolder, check: Callable[[], None]) -> tuple[Channel, int]:
    """A connection to the device's service, and its process.

    check: called now and then while the service lets nobody in, since it hangs, or more knock than
    it can greet; what it raises ends the waiting. Raises NoService, and ServiceFault for what is
    wrong here.
    """
    try:
        channel = Channel(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
    except OSError as error:
        raise _unreachable(device, error) from error
    not_inherited(channel)
    try:
        pid, uid = channel.connect(folder.address(device), check)
        if uid != os.geteuid():
            raise ServiceFault(f"found a device service of user {uid}, expected one of this user")
    except BaseException as error:
        channel.close()
        if isinstance(error, FileNotFoundError | ConnectionRefusedError):
            raise NoService from None
        if isinstance(error, OSError):
            raise _unreachable(device, error) from error
        raise
    return channel, pid


def _unreachable(device: str, error: OSError) -> ServiceFault:
    return ServiceFault(f"the device service of {device} cannot be reached: {error}")


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

    def __init__(
        self,
        device: str,
        folder: RuntimeFolder,
        limits: Limits,
        pid: int,
        wanted: Callable[[], None],
    ) -> None:
        """wanted: raises what ends a wait that nobody wants any more."""
        self.stopped = False
        """Whether the service hung, and was ended for it."""
        self._device = device
        self._folder = folder
        self._limits = limits
        self._pid = pid
        self._wanted = wanted
        self._lock = Lock()
        self._next = time.monotonic() + limits.probe_s

    def check(self) -> None:
        """Look, if it is time. Raises PeerGone if it hung, which then is no more; as `wanted`."""
        self._wanted()
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
            self._wanted()
            if time.monotonic() > until:
                raise _Hangs

        try:
            self._probe(patience)
        except _Hangs:
            self.stopped = kill(self._pid)
            raise PeerGone(
                f"it gave no sign of life for {self._limits.hung_s:g} s, and "
                + ("was ended" if self.stopped else "cannot be ended from here")
            ) from None

    def _probe(self, patience: Callable[[], None]) -> None:
        """Return when the service has answered, or there is nothing to be learnt from asking."""
        try:
            channel, pid = connect(self._device, self._folder, patience)
        except (NoService, ServiceFault):
            return  # if it has gone, whoever is connected is told by the kernel
        try:
            if pid == self._pid:
                with contextlib.suppress(PeerGone, RuntimeFault):
                    ask(channel, {"role": "probe", "version": VERSION}, patience)
        finally:
            channel.close()


def kill(pid: int) -> bool:
    """End a process of this user; whether it is no more. One of another container is out of reach.

    pid: as this process's container has it, 0 for one outside.
    """
    try:
        process = os.pidfd_open(pid)
        try:
            signal.pidfd_send_signal(process, signal.SIGKILL)
        finally:
            os.close(process)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return True


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
    has_stopped_one = False

    def patience() -> None:
        wanted()
        if time.monotonic() > until:
            raise ServiceFault(
                f"found no device service of {device} that answers within {limits.start_s:g} s"
                f"{holder(device, folder)}; its log is {folder.file(device, 'log')}"
            )

    while True:
        patience()
        try:
            channel, pid = connect(device, folder, patience)
        except NoService:
            if not start(device, folder, limits, wanted):
                time.sleep(_AGAIN_S)
            continue
        pulse = Pulse(device, folder, limits, pid, wanted)
        try:
            return channel, pulse, pid, ask(channel, hello, pulse.check)
        except PeerGone:  # it was just leaving, or hung
            channel.close()
            if pulse.stopped and not has_stopped_one:  # which took all the time there was
                has_stopped_one, until = True, time.monotonic() + limits.start_s
            time.sleep(_AGAIN_S)
        except BaseException:
            channel.close()
            raise
