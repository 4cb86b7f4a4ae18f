"""The client's connection to a device service: reaching it, and seeing whether it lives."""

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
from ge_runtime.npu.service.channel import Channel, PeerGone, close_in_forks
from ge_runtime.npu.service.launcher import lock_holder, start
from ge_runtime.npu.service.protocol import VERSION, Json, ProtocolError, Timeouts, fault_of
from ge_runtime.npu.service.runtime_folder import RuntimeFolder
from ge_runtime.npu.service.shared_memory import SharedFile

_AGAIN_S: Final = 0.01
"""Between two attempts to reach a service that somebody else starts."""


class NoService(Exception):
    """No device service listens."""


class _Hangs(Exception):
    """A service has given no sign of life for as long as it may."""


class Connection:
    """A connection on which the service knows this client. For one thread at a time."""

    def __init__(
        self, device: str, timeouts: Timeouts, hello: Json, wanted: Callable[[], None]
    ) -> None:
        """Reaches the service, and starts it if there is none. Raises as `connect_or_start` does.

        wanted: raises what ends a wait that nobody wants any more.
        """
        self._device = device
        # Anew for each service: whoever removes the folder takes it only from the last one.
        self._folder = RuntimeFolder.open()
        try:
            reached = connect_or_start(device, self._folder, timeouts, hello, wanted)
        except BaseException:
            self._folder.close()
            raise
        self.channel, self.heartbeat, self.pid, self._welcome = reached
        self.heartbeat.condition = self._welcome["condition"]
        self.log = self._folder.file(device, "log")
        self._announced: set[int] = set()

    def close(self) -> None:
        """Leave, when no thread uses the connection any more."""
        self.channel.close()
        self._folder.close()

    @property
    def kind(self) -> str:
        """Of the device."""
        return str(self._welcome["kind"])

    @property
    def hardware(self) -> str:
        """What the device is, for people."""
        return str(self._welcome["hardware"])

    def ask(self, message: Json, descriptors: Sequence[int] = ()) -> dict[str, Any]:
        """What the service answers. Raises as the function `ask` does."""
        return ask(self.channel, message, self.heartbeat.check, descriptors)

    def tell(self, message: Json, within_s: float) -> None:
        """Say what the service may refuse. Raises PeerGone if it does not answer in time."""
        until = time.monotonic() + within_s

        def patience() -> None:
            if time.monotonic() > until:
                raise PeerGone(f"it has not answered for {within_s:g} s")

        with contextlib.suppress(RuntimeFault):
            ask(self.channel, message, patience)

    def announce(self, file: SharedFile) -> None:
        """Have the service map one more arena, unless it has."""
        if file.number not in self._announced:
            message = {"do": "arena", "number": file.number, "nbytes": file.nbytes}
            self.ask(message, [file.descriptor])
            self._announced.add(file.number)

    def connect_engine(self, number: int) -> Channel:
        """One more connection, for executions on an engine.

        Raises PeerGone, ServiceFault and NoService.
        """
        channel, _ = connect(self._device, self._folder, self.heartbeat.check)
        token = self._welcome["client"]
        hello = {"role": "run", "version": VERSION, "client": token, "engine": number}
        try:
            ask(channel, hello, self.heartbeat.check)
        except BaseException:
            channel.close()
            raise
        return channel


class Heartbeat:
    """Looks now and then whether a service lives, and ends one that hangs. From any thread."""

    def __init__(
        self,
        device: str,
        folder: RuntimeFolder,
        timeouts: Timeouts,
        pid: int,
        wanted: Callable[[], None],
    ) -> None:
        """wanted: raises what ends a wait that nobody wants any more."""
        self.stopped = False
        """Whether the service hung, and was ended for it."""
        self.condition: Json = {"fault": "", "telemetry": {}}
        """What the service's device told of itself last: see `ServiceState.condition`."""
        self._device = device
        self._folder = folder
        self._timeouts = timeouts
        self._pid = pid
        self._wanted = wanted
        self._lock = Lock()
        self._next = time.monotonic() + timeouts.probe_s

    def check(self) -> None:
        """Look, if it is time. Raises PeerGone if it hung, which then is no more; as `wanted`."""
        self._wanted()
        if time.monotonic() < self._next or not self._lock.acquire(blocking=False):
            return
        try:
            self._look()
            self._next = time.monotonic() + self._timeouts.probe_s
        finally:
            self._lock.release()

    def _look(self) -> None:
        until = time.monotonic() + self._timeouts.hung_s

        def patience() -> None:
            self._wanted()
            if time.monotonic() > until:
                raise _Hangs

        try:
            self._probe(patience)
        except _Hangs:
            self.stopped = _kill(self._pid)
            raise PeerGone(
                f"it gave no sign of life for {self._timeouts.hung_s:g} s, and "
                + ("was ended" if self.stopped else "cannot be ended from here")
            ) from None

    def _probe(self, patience: Callable[[], None]) -> None:
        """Return when the service has answered, or there is nothing to be learnt from asking.

        On a connection of its own: on the client's, an answer may take long for good reasons.
        """
        try:
            channel, pid = connect(self._device, self._folder, patience)
        except (NoService, ServiceFault):
            return  # if it has gone, whoever is connected is told by the kernel
        try:
            if pid == self._pid:  # else the next one is there, and the last one's end is known
                with contextlib.suppress(PeerGone, RuntimeFault):
                    self.condition = ask(channel, {"role": "probe", "version": VERSION}, patience)
        finally:
            channel.close()


def connect_or_start(
    device: str,
    folder: RuntimeFolder,
    timeouts: Timeouts,
    hello: Json,
    wanted: Callable[[], None],
) -> tuple[Channel, Heartbeat, int, dict[str, Any]]:
    """A connection on which the service has answered `hello`; started if there was none.

    wanted: asked now and then; what it raises ends the attempt. Returns the connection, the
    service's heartbeat and process, and its answer. Raises ServiceFault, and what the service says
    is wrong.
    """
    until = time.monotonic() + timeouts.start_s
    has_stopped_one = False

    def patience() -> None:
        wanted()
        if time.monotonic() > until:
            raise ServiceFault(
                f"found no device service of {device} that answers within {timeouts.start_s:g} s"
                f"{lock_holder(device, folder)}; its log is {folder.file(device, 'log')}"
            )

    while True:
        patience()
        try:
            channel, pid = connect(device, folder, patience)
        except NoService:
            if not start(device, folder, timeouts, wanted):
                time.sleep(_AGAIN_S)
            continue
        heartbeat = Heartbeat(device, folder, timeouts, pid, wanted)
        try:
            return channel, heartbeat, pid, ask(channel, hello, heartbeat.check)
        except PeerGone:  # it was just leaving, or hung
            channel.close()
            # To find one that hangs took all the time there was: once, it begins again.
            if heartbeat.stopped and not has_stopped_one:
                has_stopped_one, until = True, time.monotonic() + timeouts.start_s
            time.sleep(_AGAIN_S)
        except BaseException:
            channel.close()
            raise


def connect(device: str, folder: RuntimeFolder, check: Callable[[], None]) -> tuple[Channel, int]:
    """A connection to the device's service, and its process.

    check: called now and then while the service accepts nobody, since it hangs, or more connect
    than it can greet; what it raises ends the waiting. Raises NoService, and ServiceFault for what
    is wrong here.
    """
    try:
        channel = Channel(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
    except OSError as error:
        raise _unreachable(device, error) from error
    close_in_forks(channel)
    try:
        pid, uid = channel.connect(folder.address(device), check)  # the kernel's word for both
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
    except (ProtocolError, KeyError, TypeError, ValueError) as error:
        raise ServiceFault(f"the device service is not understood: {error}") from error


def _unreachable(device: str, error: OSError) -> ServiceFault:
    return ServiceFault(f"the device service of {device} cannot be reached: {error}")


def _kill(pid: int) -> bool:
    """End a process of this user; whether it is no more. One of another container is out of reach.

    pid: as this process's container has it, 0 for one outside.
    """
    try:
        process = os.pidfd_open(pid)
        try:
            # SIGKILL: SIGTERM is handled by the thread that may hang.
            signal.pidfd_send_signal(process, signal.SIGKILL)
        finally:
            os.close(process)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return True
