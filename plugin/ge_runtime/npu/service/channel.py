"""One connection between a client and the device service: whole messages, descriptors with them.

Every wait has an end. Receiving looks up at each tick, so that whoever waits can ask whether the
other side is still there.
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
"""How long one attempt to receive waits."""

_SEND_S: Final = 10.0
"""Packets are small, and the peer reads each before the next: only one that hangs makes it wait."""
_ROOM: Final = 4 * MOST_BYTES
_DESCRIPTOR_BYTES: Final = array("i").itemsize
_ANCILLARY_BYTES: Final = socket.CMSG_SPACE(2 * _DESCRIPTOR_BYTES)
"""For the descriptors of one message, of which each brings two at most."""
_CREDENTIALS: Final = struct.Struct("3i")


class PeerGone(Exception):
    """The other side has closed the connection, died, or does not read."""


class DescriptorsExhausted(ProtocolError):
    """A message whose descriptors this process could not have. It is lost; the next is not."""


class Channel:
    """One end of a connection. For one thread at a time, but for the two `shut_down`s."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        # Of its pages those are there that messages have reached: one, for most connections.
        self._room = memoryview(mmap.mmap(-1, _ROOM, flags=mmap.MAP_PRIVATE))
        connection.settimeout(None)
        # The kernel's own limits: no call more for each message, as with Python's timeouts.
        _limit(connection, socket.SO_SNDTIMEO, _SEND_S)
        self.set_receive_timeout(_TICK_S)

    def connect(self, address: str, while_waiting: Callable[[], None]) -> tuple[int, int]:
        """Connect a new socket; the process and the user that listen there.

        while_waiting: called at each tick while they let nobody in; what it raises ends the
        waiting. Raises OSError.
        """
        # What bounds sending also bounds connecting while the listener's backlog is full.
        _limit(self._socket, socket.SO_SNDTIMEO, _TICK_S)
        while True:
            try:
                self._socket.connect(address)
                break
            except BlockingIOError:
                while_waiting()
        _limit(self._socket, socket.SO_SNDTIMEO, _SEND_S)
        return peer_of(self._socket)

    def set_receive_timeout(self, seconds: float) -> None:
        """How long one attempt to receive waits; 0: as long as it takes, or until `shut_down`."""
        _limit(self._socket, socket.SO_RCVTIMEO, seconds)

    def fileno(self) -> int:
        """The descriptor, to wait for."""
        return self._socket.fileno()

    def send(self, packet: bytes, descriptors: Sequence[int] = ()) -> None:
        """Send one packet. Raises PeerGone."""
        # MSG_NOSIGNAL: a peer that has gone is an error here, and no SIGPIPE for the process.
        try:
            if descriptors:
                socket.send_fds(self._socket, [packet], list(descriptors), socket.MSG_NOSIGNAL)
            else:
                self._socket.send(packet, socket.MSG_NOSIGNAL)
        except OSError as error:
            raise PeerGone(_said(error)) from None

    def send_json(self, message: Json, descriptors: Sequence[int] = ()) -> None:
        """Send a control message, however large. Raises PeerGone, and OutOfMemory."""
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
        """The next packet, which must bring no descriptor: one that does loses it.

        while_waiting: called at each tick; what it raises ends the waiting. Raises PeerGone, and
        ProtocolError for what is no packet.
        """
        while True:
            try:
                # Cheaper than recvmsg; the kernel closes descriptors that nobody takes (unix(7)).
                length = self._socket.recv_into(self._room)
            except BlockingIOError:
                while_waiting()
                continue
            except OSError as error:
                raise PeerGone(_said(error)) from None
            if not length:  # the end: a packet has a header at least
                raise PeerGone("it closed the connection")
            return unframed(self._room[:length])

    def receive_with(
        self, while_waiting: Callable[[], None] = lambda: None
    ) -> tuple[Kind, bytes, list[int]]:
        """The next packet and the descriptors that it brings, the caller's to close.

        Raises as `receive` does, and DescriptorsExhausted; then no descriptor stays open.
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
                raise PeerGone(_said(error)) from None
            descriptors = _descriptors_in(ancillary)
            if not length:
                close_all(descriptors)
                raise PeerGone("it closed the connection")
            # The flags first: they say why a packet is not whole, which its length does not.
            try:
                if flags & socket.MSG_TRUNC:
                    raise ProtocolError(
                        f"found a message of more than {_ROOM} bytes, expected a packet"
                    )
                if flags & socket.MSG_CTRUNC:
                    raise DescriptorsExhausted(
                        "found more descriptors than any message brings, or than this process may "
                        "have open beside its others (ulimit -n)"
                    )
                return *unframed(self._room[:length]), descriptors
            except ProtocolError:
                close_all(descriptors)
                raise

    def receive_json(
        self, while_waiting: Callable[[], None] = lambda: None
    ) -> tuple[dict[str, Any], list[int]]:
        """The next message, which must be a control message, and the descriptors it brings.

        Raises as `receive_with` does; then no descriptor stays open.
        """
        kind, body, descriptors = self.receive_with(while_waiting)
        try:
            if kind is Kind.LARGE and descriptors:
                large = descriptors.pop(0)  # as it was sent: before the message's own
                try:
                    body = read_message_file(large)
                finally:
                    os.close(large)
            elif kind is not Kind.CONTROL:
                raise ProtocolError(f"found a message of kind {kind.name}, expected one of control")
            return unpack_json(body), descriptors
        except BaseException:
            close_all(descriptors)
            raise

    def shut_down_reading(self) -> None:
        """Receive nothing more; what is being sent still goes out. From any thread."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RD)

    def shut_down(self) -> None:
        """Let both sides find the other gone. From any thread."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Give the descriptor back, when nobody uses the channel any more."""
        self._socket.close()

    def close_in_fork(self) -> None:
        self.close()


def peer_of(connection: socket.socket) -> tuple[int, int]:
    """The other side's process and user, as the kernel knows them."""
    packed = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(packed)
    return pid, uid


def close_all(descriptors: Sequence[int]) -> None:
    """Close them."""
    for descriptor in descriptors:
        os.close(descriptor)


def _descriptors_in(ancillary: Sequence[tuple[int, int, bytes]]) -> list[int]:
    """The descriptors that came with a message."""
    found = array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            found.frombytes(data[: len(data) // _DESCRIPTOR_BYTES * _DESCRIPTOR_BYTES])
    return found.tolist()


def _limit(connection: socket.socket, option: int, seconds: float) -> None:
    whole = int(seconds)
    value = struct.pack("@ll", whole, int((seconds - whole) * 1e6))
    connection.setsockopt(socket.SOL_SOCKET, option, value)


def _said(error: OSError) -> str:
    if error.errno in (errno.ECONNRESET, errno.EPIPE):
        return "it closed the connection"
    if error.errno == errno.EAGAIN:
        return f"it has read nothing for {_SEND_S:g} s"
    return error.strerror or str(error)


# ------------------------------------------------------------------------------------- forks


class ForkAware(Protocol):
    """Something with descriptors that forks of this process must not keep."""

    def close_in_fork(self) -> None:
        """Close the descriptors, in the fork, without a word to the other side.

        No other thread is there, and locks may be held by those that were: none is of use.
        """


_CLOSED_IN_FORKS: Final[WeakSet[ForkAware]] = WeakSet()


def close_in_forks(connected: ForkAware) -> None:
    """Have it closed in all forks of this process to come, as long as it is there.

    A fork that kept it open would hide the client's death from the service, and what it said there
    would be taken for the client's.
    """
    _CLOSED_IN_FORKS.add(connected)


def _close_all_in_fork() -> None:
    for connected in _CLOSED_IN_FORKS:
        connected.close_in_fork()


os.register_at_fork(after_in_child=_close_all_in_fork)
