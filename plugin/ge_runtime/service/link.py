"""One device service, as its client has it: from reaching it until one of them goes."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Any

from ge_runtime.errors import RuntimeFault
from ge_runtime.service.arenas import Shared
from ge_runtime.service.channel import Channel, PeerGone
from ge_runtime.service.limits import Limits
from ge_runtime.service.paths import RuntimeFolder
from ge_runtime.service.protocol import VERSION, Json
from ge_runtime.service.pulse import ask, connect, reach


class Link:
    """A connection on which the service knows this client. For one thread at a time."""

    def __init__(
        self, device: str, limits: Limits, hello: Json, wanted: Callable[[], None]
    ) -> None:
        """Reaches the service, and starts it if there is none. Raises as `reach` does.

        wanted: raises what ends a wait that nobody wants any more.
        """
        self._device = device
        # Anew for each service: whoever removes the folder takes it only from the last one.
        self._folder = RuntimeFolder.open()
        try:
            reached = reach(device, self._folder, limits, hello, wanted)
        except BaseException:
            self._folder.close()
            raise
        self.channel, self.pulse, self.pid, self._welcome = reached
        self.log = self._folder.file(device, "log")
        self._announced: set[int] = set()

    def close(self) -> None:
        """Leave, when no thread uses the link any more."""
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
        return ask(self.channel, message, self.pulse.check, descriptors)

    def tell(self, message: Json, within_s: float) -> None:
        """Say what the service may refuse. Raises PeerGone if it does not answer in time."""
        until = time.monotonic() + within_s

        def patience() -> None:
            if time.monotonic() > until:
                raise PeerGone(f"it has not answered for {within_s:g} s")

        with contextlib.suppress(RuntimeFault):
            ask(self.channel, message, patience)

    def announce(self, shared: Shared) -> None:
        """Have the service map one more arena, unless it has."""
        if shared.number not in self._announced:
            message = {"do": "arena", "number": shared.number, "nbytes": shared.nbytes}
            self.ask(message, [shared.descriptor])
            self._announced.add(shared.number)

    def join(self, engine: int) -> Channel:
        """A connection for executions on an engine. Raises PeerGone, ServiceFault, NoService."""
        channel, _ = connect(self._device, self._folder, self.pulse.check)
        token = self._welcome["client"]
        hello = {"role": "run", "version": VERSION, "client": token, "engine": engine}
        try:
            ask(channel, hello, self.pulse.check)
        except BaseException:
            channel.close()
            raise
        return channel
