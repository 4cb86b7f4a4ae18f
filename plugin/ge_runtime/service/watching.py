"""Looking at the device services of a user: nothing is started, and nobody is kept from ending."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any, Final

from ge_runtime.errors import RuntimeFault, ServiceFault
from ge_runtime.service.channel import PeerGone
from ge_runtime.service.paths import RuntimeFolder
from ge_runtime.service.protocol import VERSION
from ge_runtime.service.pulse import NoService, ask, connect

_ANSWER_S: Final = 5.0


def look(folder: RuntimeFolder) -> list[dict[str, Any]]:
    """What each service tells of itself: see `stats.describe`.

    One that does not answer within seconds is there with its device and a `fault`. One that has
    ended meanwhile is not.
    """
    services: list[dict[str, Any]] = []
    for device in folder.devices():
        with suppress(NoService, PeerGone):
            try:
                services.append(_ask(device, folder))
            except RuntimeFault as fault:
                services.append({"device": device, "fault": str(fault)})
    return services


def _ask(device: str, folder: RuntimeFolder) -> dict[str, Any]:
    until = time.monotonic() + _ANSWER_S

    def patience() -> None:
        if time.monotonic() > until:
            raise ServiceFault(f"it does not answer within {_ANSWER_S:g} s")

    channel, _ = connect(device, folder, patience)
    try:
        return ask(channel, {"role": "observer", "version": VERSION}, patience)
    finally:
        channel.close()
