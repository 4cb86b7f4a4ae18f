"""One connection between a client and the device service: whole messages, descriptors with them.

Every wait has an end. Receiving looks up at each tick, so that whoever waits can ask whether the
other side is still there.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import socket
import struct
from collections.abc import Callable, Sequence
from typing import Any, Final

from ge_runtime.service.protocol import (
    MOST_BYTES,
    MOST_LARGE_BYTES,
    Broken,
    Json,
    Kind,
    framed,
    pack_json,
    unframed,
    unpack_json,
)

TICK_S: Final = 0.05
"""How long one attempt to receive waits."""

_SEND_S: Final = 10.0
"""Packets are small, and the peer reads each before the next: only one that hangs makes it wait."""
_ROOM: Final = 4 * MOST_BYTES
_DESCRIPTORS: Final = 2
_CREDENTIALS: Final = struct.Struct("3i")
SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW


class PeerGone(Exception):
    """The other side has closed the connection, died, or does not read."""


class Channel:
    """One end of a connection. For one thread at a time, but for `shut`."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._buffer = bytearray(_ROOM)
        connection.settimeout(None)
        # The kernel's own limits: no call more for each message, as with Python's timeouts.
        _limit(connection, socket.SO_SNDTIMEO, _SEND_S)
        self.tick(TICK_S)

    def tick(self, seconds: float) -> None:
        """How long one attempt to receive waits; 0 for as long as it takes, or until `shut`."""
        _limit(self._socket, socket.SO_RCVTIMEO, seconds)

    def fileno(self) -> int:
        """The descriptor, to wait for."""
        return self._socket.fileno()

    def send(self, packet: bytes, descriptors: Sequence[int] = ()) -> None:
        """Send one packet. Raises PeerGone."""
        try:
            if descriptors:
                socket.send_fds(self._socket, [packet], list(descriptors), socket.MSG_NOSIGNAL)
            else:
                self._socket.send(packet, socket.MSG_NOSIGNAL)
        except OSError as error:
            raise PeerGone(_said(error)) from None

    def send_json(self, message: Json, descriptors: Sequence[int] = ()) -> None:
        """Send a control message, however large. Raises PeerGone."""
        body = pack_json(message)
        if len(body) <= MOST_BYTES:
            self.send(framed(Kind.CONTROL, body), descriptors)
            return
        large = sealed_file("message", len(body))
        try:
            os.pwrite(large, body, 0)
            self.send(framed(Kind.LARGE, b""), [large, *descriptors])
        finally:
            os.close(large)

    def receive(self, while_waiting: Callable[[], None] = lambda: None) -> tuple[Kind, bytes]:
        """The next packet, which must bring no descriptor: one that does loses it.

        while_waiting: called at each tick; what it raises ends the waiting. Raises PeerGone, and
        Broken for what is no packet.
        """
        while True:
            try:
                length = self._socket.recv_into(self._buffer)
            except BlockingIOError:
                while_waiting()
                continue
            except OSError as error:
                raise PeerGone(_said(error)) from None
            if not length:
                raise PeerGone("it closed the connection")
            return unframed(self._buffer[:length])

    def receive_with(
        self, while_waiting: Callable[[], None] = lambda: None
    ) -> tuple[Kind, bytes, list[int]]:
        """The next packet and the descriptors that it brings, the caller's to close.

        Raises as `receive` does; then no descriptor stays open.
        """
        while True:
            try:
                packet, descriptors, flags, _ = socket.recv_fds(
                    self._socket, _ROOM, _DESCRIPTORS, socket.MSG_CMSG_CLOEXEC
                )
            except BlockingIOError:
                while_waiting()
                continue
            except OSError as error:
                raise PeerGone(_said(error)) from None
            if not packet:
                close_all(descriptors)
                raise PeerGone("it closed the connection")
            try:
                if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
                    raise Broken("found a message too large, or with too many descriptors")
                return *unframed(packet), descriptors
            except Broken:
                close_all(descriptors)
                raise

    def receive_json(
        self, while_waiting: Callable[[], None] = lambda: None
    ) -> tuple[dict[str, Any], list[int]]:
        """The next message, which must be a control message, and the descriptors it brings.

        Raises as `receive` does; then no descriptor stays open.
        """
        kind, body, descriptors = self.receive_with(while_waiting)
        try:
            if kind is Kind.LARGE and descriptors:
                large = descriptors.pop(0)
                try:
                    body = _read(large)
                finally:
                    os.close(large)
            elif kind is not Kind.CONTROL:
                raise Broken(f"found a message of kind {kind.name}, expected one of control")
            return unpack_json(body), descriptors
        except Broken:
            close_all(descriptors)
            raise

    def hush(self) -> None:
        """Receive nothing more; what is being sent still goes out. From any thread."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RD)

    def shut(self) -> None:
        """Let both sides find the other gone. From any thread."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Give the descriptor back, when nobody uses the channel any more."""
        self._socket.close()


def peer_of(connection: socket.socket) -> tuple[int, int]:
    """The other side's process and user, as the kernel knows them."""
    packed = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(packed)
    return pid, uid


def close_all(descriptors: Sequence[int]) -> None:
    """Close them."""
    for descriptor in descriptors:
        os.close(descriptor)


def sealed_file(name: str, nbytes: int) -> int:
    """The descriptor of a new file in memory that keeps this size for ever. Raises OSError.

    It has no name anywhere, and is gone with the last process that has it. `name` is for people
    who look into /proc. The kernel gives pages as they are written.
    """
    descriptor = os.memfd_create(f"ge_runtime {name}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, nbytes)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, SEALS | fcntl.F_SEAL_SEAL)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def map_sealed(descriptor: int, nbytes: int) -> mmap.mmap:
    """The first `nbytes` (at least 1) of a file that somebody else made; the descriptor stays open.

    Raises Broken unless its size is sealed: otherwise its maker could take pages away from under
    whoever reads them, who would be killed for it.
    """
    try:
        seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
        size = os.fstat(descriptor).st_size
        if seals & SEALS != SEALS or not 0 < nbytes <= size:
            raise Broken(f"found a file of {size} bytes with seals {seals}, expected {nbytes}")
        return mmap.mmap(descriptor, nbytes)
    except (OSError, OverflowError) as error:  # no file in memory, or sealed against writing
        raise Broken(f"found a descriptor that cannot be mapped: {error}") from None


def _read(descriptor: int) -> bytes:
    try:
        size = os.fstat(descriptor).st_size
    except OSError as error:
        raise Broken(f"found a message that cannot be read: {error}") from None
    if size > MOST_LARGE_BYTES:
        raise Broken(f"found a message of {size} bytes, expected at most {MOST_LARGE_BYTES}")
    with map_sealed(descriptor, size) as data:
        return data[:]


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
