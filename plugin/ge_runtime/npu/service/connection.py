"""The client's connection to a device service, and the check whether the service is alive."""

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
from ge_runtime.npu.service.launcher import RuntimeFolder, lock_holder, start
from ge_runtime.npu.service.protocol import VERSION, Json, ProtocolError, Timeouts, fault_of
from ge_runtime.npu.service.shared_memory import SharedFile

_RETRY_S: Final = 0.01
"""Delay between two attempts to reach a service that another process starts."""


class NoService(Exception):
    """No device service listens."""


class _Hangs(Exception):
    """A service did not respond within its time limit."""


class Connection:
    """A control connection of a client. Not thread-safe."""

    def __init__(
        self, device: str, timeouts: Timeouts, hello: Json, check_needed: Callable[[], None]
    ) -> None:
        """Connect to the service, see `connect_or_start`.

        Args:
            device: Name of the device.
            timeouts: Time limits.
            hello: The first message.
            check_needed: Called while waiting; raises if the connection is not needed any more.
        """
        self._device = device
        # Opened for each connection, because the folder may have been removed and recreated.
        self._folder = RuntimeFolder.open()
        try:
            reached = connect_or_start(device, self._folder, timeouts, hello, check_needed)
        except BaseException:
            self._folder.close()
            raise
        self.channel, self.heartbeat, self.pid, self._welcome = reached
        self.heartbeat.condition = self._welcome["condition"]
        self.log = self._folder.file(device, "log")
        self._announced: set[int] = set()

    def close(self) -> None:
        """Close the connection. No thread may use it any more."""
        self.channel.close()
        self._folder.close()

    @property
    def kind(self) -> str:
        """The device type."""
        return str(self._welcome["kind"])

    @property
    def hardware(self) -> str:
        """The hardware's name, for people."""
        return str(self._welcome["hardware"])

    def request(self, message: Json, descriptors: Sequence[int] = ()) -> dict[str, Any]:
        """Send a request and return the response, see the function `request`."""
        return request(self.channel, message, self.heartbeat.check, descriptors)

    def notify(self, message: Json, within_s: float) -> None:
        """Send a request and ignore the result. Raises PeerGone without a response in time."""
        until = time.monotonic() + within_s

        def check_time() -> None:
            if time.monotonic() > until:
                raise PeerGone(f"it has not responded for {within_s:g} s")

        with contextlib.suppress(RuntimeFault):
            request(self.channel, message, check_time)

    def announce(self, file: SharedFile) -> None:
        """Let the service map an arena, unless it was announced before."""
        if file.number not in self._announced:
            message = {"do": "arena", "number": file.number, "nbytes": file.nbytes}
            self.request(message, [file.descriptor])
            self._announced.add(file.number)

    def connect_engine(self, number: int) -> Channel:
        """Open another connection, for executions on an engine.

        Raises PeerGone, ServiceFault and NoService.
        """
        channel, _ = connect(self._device, self._folder, self.heartbeat.check)
        token = self._welcome["client"]
        hello = {"role": "run", "version": VERSION, "client": token, "engine": number}
        try:
            request(channel, hello, self.heartbeat.check)
        except BaseException:
            channel.close()
            raise
        return channel


class Heartbeat:
    """Checks periodically whether a service is alive, and kills it if it hangs. Thread-safe."""

    def __init__(
        self,
        device: str,
        folder: RuntimeFolder,
        timeouts: Timeouts,
        pid: int,
        check_needed: Callable[[], None],
    ) -> None:
        """Initialize the heartbeat of a service.

        Args:
            device: Name of the device.
            folder: The runtime folder.
            timeouts: Time limits.
            pid: Process ID of the service.
            check_needed: Called while waiting; raises if the connection is not needed any more.
        """
        self.stopped = False
        """True if the service hung and was killed."""
        self.condition: Json = {"fault": "", "telemetry": {}}
        """The last known condition of the service's device, see `ServiceState.condition`."""
        self._device = device
        self._folder = folder
        self._timeouts = timeouts
        self._pid = pid
        self._check_needed = check_needed
        self._lock = Lock()
        self._next = time.monotonic() + timeouts.probe_s

    def check(self) -> None:
        """Check that the service responds, if the last check is older than `Timeouts.probe_s`.

        Kills a service that hangs, and raises PeerGone. Also raises the errors of `check_needed`.
        """
        self._check_needed()
        if time.monotonic() < self._next or not self._lock.acquire(blocking=False):
            return
        try:
            self._probe_or_kill()
            self._next = time.monotonic() + self._timeouts.probe_s
        finally:
            self._lock.release()

    def _probe_or_kill(self) -> None:
        until = time.monotonic() + self._timeouts.hung_s

        def check_time() -> None:
            self._check_needed()
            if time.monotonic() > until:
                raise _Hangs

        try:
            self._probe(check_time)
        except _Hangs:
            self.stopped = _kill(self._pid)
            raise PeerGone(
                f"it did not respond for {self._timeouts.hung_s:g} s, and "
                + ("was killed" if self.stopped else "could not be killed from here")
            ) from None

    def _probe(self, check_time: Callable[[], None]) -> None:
        """Return when the service has responded, or cannot be reached.

        Uses a separate connection, because on the client's connection a response may take long.
        """
        try:
            channel, pid = connect(self._device, self._folder, check_time)
        except (NoService, ServiceFault):
            return  # if the service has ended, the kernel has closed the client's connection
        try:
            if pid == self._pid:  # otherwise this service has ended, and another service runs
                with contextlib.suppress(PeerGone, RuntimeFault):
                    probe = {"role": "probe", "version": VERSION}
                    self.condition = request(channel, probe, check_time)
        finally:
            channel.close()


def connect_or_start(
    device: str,
    folder: RuntimeFolder,
    timeouts: Timeouts,
    hello: Json,
    check_needed: Callable[[], None],
) -> tuple[Channel, Heartbeat, int, dict[str, Any]]:
    """Connect to the service, which is started if necessary, and exchange `hello`.

    Args:
        device: Name of the device.
        folder: The runtime folder.
        timeouts: Time limits.
        hello: The first message.
        check_needed: Called while waiting; raises if the connection is not needed any more.

    Returns:
        The connection, and the service's heartbeat, process ID and response.

    Raises:
        ServiceFault: The service does not respond.
        RuntimeFault: The fault that the service reports.
    """
    until = time.monotonic() + timeouts.start_s
    is_extended = False

    def check_time() -> None:
        check_needed()
        if time.monotonic() > until:
            raise ServiceFault(
                f"found no device service of {device} that responds within {timeouts.start_s:g} s"
                f"{lock_holder(device, folder)}; its log is {folder.file(device, 'log')}"
            )

    while True:
        check_time()
        try:
            channel, pid = connect(device, folder, check_time)
        except NoService:
            if not start(device, folder, timeouts, check_needed):
                time.sleep(_RETRY_S)
            continue
        heartbeat = Heartbeat(device, folder, timeouts, pid, check_needed)
        try:
            return channel, heartbeat, pid, request(channel, hello, heartbeat.check)
        except PeerGone:  # the service was ending, or hung
            channel.close()
            # Detecting a service that hangs may take the whole time, which is extended once.
            if heartbeat.stopped and not is_extended:
                is_extended, until = True, time.monotonic() + timeouts.start_s
            time.sleep(_RETRY_S)
        except BaseException:
            channel.close()
            raise


def connect(device: str, folder: RuntimeFolder, check: Callable[[], None]) -> tuple[Channel, int]:
    """Connect to the device's service.

    Args:
        device: Name of the device.
        folder: The runtime folder.
        check: Called while the service, which hangs or is overloaded, does not accept the
            connection; an exception ends the wait.

    Returns:
        The connection, and the process ID of the service.

    Raises:
        NoService: There is no service.
        ServiceFault: The connection failed on this side.
    """
    try:
        channel = Channel(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
    except OSError as error:
        raise _unreachable(device, error) from error
    close_in_forks(channel)
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


def request(
    channel: Channel, message: Json, check: Callable[[], None], descriptors: Sequence[int] = ()
) -> dict[str, Any]:
    """Send a control message and return the response.

    Args:
        channel: The connection.
        message: The message.
        check: See `Channel.receive`.
        descriptors: File descriptors for the service.

    Raises:
        ServiceFault: The service rejects the message, or its response is malformed.
        RuntimeFault: The fault that the service reports.
        PeerGone: The connection has ended.
    """
    channel.send_json(message, descriptors)
    try:
        response, _ = channel.receive_json(check)
        if "fault" in response:
            raise fault_of(response["fault"])
        if "refused" in response:
            raise ServiceFault(f"the device service refuses: {response['refused']}")
        result: dict[str, Any] = response["ok"]
        return result
    except (ProtocolError, KeyError, TypeError, ValueError) as error:
        raise ServiceFault(f"malformed response of the device service: {error}") from error


def _unreachable(device: str, error: OSError) -> ServiceFault:
    return ServiceFault(f"the device service of {device} cannot be reached: {error}")


def _kill(pid: int) -> bool:
    """Kill a process of this user; return whether it has ended.

    A process in another container has the process ID 0 here, and cannot be killed.
    """
    try:
        process = os.pidfd_open(pid)
        try:
            # SIGKILL, because the thread that handles SIGTERM may hang.
            signal.pidfd_send_signal(process, signal.SIGKILL)
        finally:
            os.close(process)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return True
