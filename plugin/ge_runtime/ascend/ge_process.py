"""GE-PY, GE's own Python interface, as this process uses it."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from functools import cache
from threading import Lock
from types import SimpleNamespace
from typing import Any, Final, TypeAlias

from ge_runtime.errors import NoDevice

# GE-PY's modules and objects, which come without types.
GePy: TypeAlias = Any
Session: TypeAlias = Any

_MODULES: Final = {
    "global_": "ge.ge_global",
    "session": "ge.session",
    "graph": "ge.graph",
    "types": "ge.graph.types",
    "allocator": "ge.allocator",
}


class GeProcess:
    """GE is begun with the first session and ended after the last. Safe from any thread."""

    def __init__(self, py: GePy) -> None:
        """py: GE-PY's modules by our names for them."""
        self.py = py
        self._lock = Lock()
        self._sessions = 0

    def open_session(self, device: int, options: Mapping[str, str]) -> Session:
        """A session on a card; given back by `leave` once nothing refers to it any more.

        Raises RuntimeError as GE does.
        """
        with self._lock:
            if self._sessions == 0:
                # The device is that of sessions that name none.
                begun = {"ge.graphRunMode": "0", "ge.exec.deviceId": str(device)}
                self.py.global_.GeApi().ge_initialize(begun)
            self._sessions += 1
        try:
            return self.py.session.Session({**options, "ge.session_device_id": str(device)})
        except BaseException:
            self.leave()
            raise

    def leave(self) -> None:
        """A session is gone."""
        with self._lock:
            self._sessions -= 1
            if self._sessions == 0:
                self.py.global_.GeApi().ge_finalize()


@cache
def open_ge() -> GeProcess:
    """GE of this process. Raises NoDevice, with the cure, where there is no GE-PY."""
    modules = {}
    for name, module in _MODULES.items():
        try:
            modules[name] = importlib.import_module(module)
        except (ImportError, OSError) as error:
            raise NoDevice(
                f"found no module `{module}` ({error}), expected GE-PY, which CANN's toolkit has "
                "from 8.5 on: run `source /usr/local/Ascend/cann/set_env.sh` before the server "
                "starts, or build a model.om, which needs no GE-PY: `ge-runtime build`"
            ) from error
    return GeProcess(SimpleNamespace(**modules))
