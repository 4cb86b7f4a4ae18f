"""A connection between a client and the device service, for messages with file descriptors.

Every wait has a time limit. While receiving, a channel calls a function at each tick, so that the
caller can check whether the peer is alive.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import socket
import struct
from array import array
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol
from weakref import WeakSet

from ge_runtime.npu.service.protocol import (
    MOST_BYTES,
    Json,
    Kind,
    ProtocolError,
    framed,
    pack_json,
    unframed,
    unpack_json,
)
from ge_runtime.npu.service.shared_memory import message_file, read_message_file

_TICK_S: Final = 0.05
"""Time limit of one attempt to receive."""

_SEND_S: Final = 10.0
"""Time limit of sending. Packets are small, and the peer reads each packet before it sends the
next, so only a peer that hangs makes a sender wait."""
_ROOM: Final = 4 * MOST_BYTES
_DESCRIPTOR_BYTES: Final = array("i").itemsize
_ANCILLARY_BYTES: Final = socket.CMSG_SPACE(2 * _DESCRIPTOR_BYTES)
"""Space for the descriptors of one message, of which there are at most two."""
_CREDENTIALS: Final = struct.Struct("3i")


class PeerGone(Exception):
    """The peer has closed the connection, ended, or does not read."""


class DescriptorsExhausted(ProtocolError):
    """A message whose descriptors could not be received. Only this message is lost."""


class Channel:
    """One end of a connection. Not thread-safe, except `shut_down` and `shut_down_reading`."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        # Mapped, because only the pages that messages have used take memory: mostly one page.
        self._room = memoryview(mmap.mmap(-1, _ROOM, flags=mmap.MAP_PRIVATE))
        connection.settimeout(None)
        # Socket options: Python's timeouts would need one more system call for each message.
        _set_time_limit(connection, socket.SO_SNDTIMEO, _SEND_S)
        self.set_receive_timeout(_TICK_S)

    def connect(self, address: str, while_waiting: Callable[[], None]) -> tuple[int, int]:
        """Connect a new socket.

        Args:
            address: The address of the listener.
            while_waiting: Called at each tick while the listener's backlog is full; an exception
                ends the wait.

        Returns:
            The process ID and the user ID of the listener.

        Raises:
            OSError: The connection failed.
        """
        # The send timeout also limits connecting while the listener's backlog is full.
        _set_time_limit(self._socket, socket.SO_SNDTIMEO, _TICK_S)
        while True:
            try:
                self._socket.connect(address)
                break
            except BlockingIOError:
                while_waiting()
        _set_time_limit(self._socket, socket.SO_SNDTIMEO, _SEND_S)
        return peer_of(self._socket)

    def set_receive_timeout(self, seconds: float) -> None:
        """Set the time limit of one attempt to receive; 0 means unlimited, until `shut_down`."""
        _set_time_limit(self._socket, socket.SO_RCVTIMEO, seconds)

    def fileno(self) -> int:
        """Return the descriptor, for polling."""
        return self._socket.fileno()

    def send(self, packet: bytes, descriptors: Sequence[int] = ()) -> None:
        """Send one packet. Raises PeerGone."""
        # MSG_NOSIGNAL: if the peer has ended, raise an error instead of SIGPIPE.
        try:
            if descriptors:
                socket.send_fds(self._socket, [packet], list(descriptors), socket.MSG_NOSIGNAL)
            else:
                self._socket.send(packet, socket.MSG_NOSIGNAL)
        except OSError as error:
            raise PeerGone(_reason(error)) from None

    def send_json(self, message: Json, descriptors: Sequence[int] = ()) -> None:
        """Send a control message of any size. Raises PeerGone and OutOfMemory."""
        body = pack_json(message)
        if len(body) <= MOST_BYTES:
            self.send(framed(Kind.CONTROL, body), descriptors)
            return
        large = message_file(body)
        try:
            self.send(framed(Kind.LARGE, b""), [large, *descriptors])
        finally:
            os.close(large)

    def receive(self, while_waiting: Callable[[], None] = lambda: None) -> tuple[Kind, bytes]:
        """Receive a packet without descriptors; descriptors that come with it are closed.

        Args:
            while_waiting: Called at each tick; an exception ends the wait.

        Returns:
            The type and the body of the packet.

        Raises:
            PeerGone: The connection has ended.
            ProtocolError: The packet is malformed.
        """
        while True:
            try:
                # Cheaper than recvmsg; the kernel closes descriptors that are not read (unix(7)).
                length = self._socket.recv_into(self._room)
            except BlockingIOError:
                while_waiting()
                continue
            except OSError as error:
                raise PeerGone(_reason(error)) from None
            if not length:  # end of the connection: packets are never empty
                raise PeerGone("it closed the connection")
            return unframed(self._room[:length])

    def receive_with(
        self, while_waiting: Callable[[], None] = lambda: None
    ) -> tuple[Kind, bytes, list[int]]:
        """Receive a packet and its descriptors, which the caller closes.

        Raises like `receive`, and DescriptorsExhausted. After an error no descriptor stays open.
        """
        while True:
            try:
                length, ancillary, flags, _ = self._socket.recvmsg_into(
                    [self._room], _ANCILLARY_BYTES, socket.MSG_CMSG_CLOEXEC
                )
            except BlockingIOError:
                while_waiting()
                continue
            except OSError as error:
                raise PeerGone(_reason(error)) from None
            descriptors = _descriptors_in(ancillary)
            if not length:
                close_all(descriptors)
                raise PeerGone("it closed the connection")
            # The flags are checked first, because they show why a packet is incomplete.
            try:
                if flags & socket.MSG_TRUNC:
                    raise ProtocolError(
                        f"found a message of more than {_ROOM} bytes, expected a packet"
                    )
                if flags & socket.MSG_CTRUNC:
                    raise DescriptorsExhausted(
                        "found more descriptors than a message may have, or than this process may "
                        "have open (ulimit -n)"
                    )
                return *unframed(self._room[:length]), descriptors
            except ProtocolError:
                close_all(descriptors)
                raise

    def receive_json(
        self, while_waiting: Callable[[], None] = lambda: None
    ) -> tuple[dict[str, Any], list[int]]:
        """Receive a control message and its descriptors, which the caller closes.

        Raises like `receive_with`. After an error no descriptor stays open.
        """
        kind, body, descriptors = self.receive_with(while_waiting)
        try:
            if kind is Kind.LARGE and descriptors:
                large = descriptors.pop(0)  # sent before the message's own descriptors
                try:
                    body = read_message_file(large)
                finally:
                    os.close(large)
            elif kind is not Kind.CONTROL:
                raise ProtocolError(f"found a message of kind {kind.name}, expected CONTROL")
            return unpack_json(body), descriptors
        except BaseException:
            close_all(descriptors)
            raise

    def shut_down_reading(self) -> None:
        """End receiving; sending continues. Thread-safe."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RD)

    def shut_down(self) -> None:
        """End the connection for both sides. Thread-safe."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the descriptor. No thread may use the channel any more."""
        self._socket.close()

    def close_in_fork(self) -> None:
        self.close()


def peer_of(connection: socket.socket) -> tuple[int, int]:
    """Return the peer's process ID and user ID, from the kernel."""
    packed = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(packed)
    return pid, uid


def close_all(descriptors: Sequence[int]) -> None:
    """Close the descriptors."""
    for descriptor in descriptors:
        os.close(descriptor)


def _descriptors_in(ancillary: Sequence[tuple[int, int, bytes]]) -> list[int]:
    """Return the descriptors in a message's ancillary data."""
    found = array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            found.frombytes(data[: len(data) // _DESCRIPTOR_BYTES * _DESCRIPTOR_BYTES])
    return found.tolist()


def _set_time_limit(connection: socket.socket, option: int, seconds: float) -> None:
    whole = int(seconds)
    value = struct.pack("@ll", whole, int((seconds - whole) * 1e6))
    connection.setsockopt(socket.SOL_SOCKET, option, value)


def _reason(error: OSError) -> str:
    if error.errno in (errno.ECONNRESET, errno.EPIPE):
        return "it closed the connection"
    if error.errno == errno.EAGAIN:
        return f"it has not read for {_SEND_S:g} s"
    return error.strerror or str(error)


# ------------------------------------------------------------------------------------- forks


class ForkAware(Protocol):
    """An object with descriptors that forks of this process must close."""

    def close_in_fork(self) -> None:
        """Close the descriptors in a fork, without sending anything.

        The fork has only the calling thread. Locks must not be acquired, because threads that do
        not exist in the fork may have held them.
        """


_CLOSED_IN_FORKS: Final[WeakSet[ForkAware]] = WeakSet()


def close_in_forks(connected: ForkAware) -> None:
    """Call `close_in_fork` in all later forks of this process, as long as the object exists.

    If a fork kept a connection open, the service would not notice the end of the client, and the
    fork could send messages in the client's name.
    """
    _CLOSED_IN_FORKS.add(connected)


def _close_all_in_fork() -> None:
    for connected in _CLOSED_IN_FORKS:
        connected.close_in_fork()


os.register_at_fork(after_in_child=_close_all_in_fork)
