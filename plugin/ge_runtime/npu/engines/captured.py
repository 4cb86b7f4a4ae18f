"""An engine of .om files that profiles or dumps some of its executions.

If capturing fails, a warning is logged once, and the model executes uncaptured. CANN only captures
models that are loaded after capturing was enabled: a profile is initialized before the model is
loaded; for a dump the model is loaded again before the first captured execution and after the last.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from ge_runtime.config import METRICS, Window
from ge_runtime.devices import Device
from ge_runtime.engines.base import Engine, Limited, Shapes, Signature
from ge_runtime.errors import ConfigFault
from ge_runtime.memory.lifetimes import Intermediates
from ge_runtime.npu.driver.cann_values import DriverFault, FailureKind
from ge_runtime.npu.driver.card import Card
from ge_runtime.specs import Array, Tensors

_log = logging.getLogger(__name__)

_EXPORT: Final = "msprof --export=on --output="
"""The command that converts a profile to tables."""
_CONFIG: Final = "acl_dump.json"
"""The configuration file of a dump, in the folder of the dumps."""


class Reloadable(Engine, Protocol):
    """An engine of .om files whose models can be loaded again."""

    @property
    def files(self) -> Sequence[Path]:
        """The files of the models."""

    def reload(self) -> None:
        """Load the models again, into the same memory. The engine must be idle.

        Raises DriverFault; models that could not be loaded are absent until the next call.
        """


class Capture:
    """The capture of one model's executions.

    Not thread-safe, except `serve`; used by the thread of the engine.
    """

    def __init__(self, window: Window, card: Card) -> None:
        """Check the folder. Raises ConfigFault if it is missing or not writable."""
        self._window = window
        self._card = card
        self._driver = card.driver.captures
        self._executed = 0
        self._counting = False
        self._running: int | None = None
        """The configuration of a running profile; 0 for a running dump."""
        self._initialised = False
        self._failed = False
        folder = Path(window.folder)
        try:
            if not folder.is_dir():
                raise NotADirectoryError(20, "found no folder")
            self._config = folder / _CONFIG
            if window.parameter == "dump":
                self._config.touch()
        except OSError as error:
            fault = (
                f"parameter '{window.parameter}': {folder}: {error.strerror}, expected an existing "
                "folder that the server's user may write to"
            )
            raise ConfigFault("", [fault]) from error

    @property
    def cost(self) -> str:
        """A description of the unplanned cost of the capture, for the load log."""
        window = self._window
        cost = f"{window} into {window.folder}: CANN needs additional memory and time"
        if window.parameter == "profile":
            return f"{cost}; then run `{_EXPORT}{window.folder}`"
        return f"{cost}; the model is loaded again before and after it"

    def prepare(self) -> None:
        """Initialize the capture; call before the model is loaded."""
        if self._window.parameter == "profile":
            self._try(self._init)

    def serve(self) -> None:
        """Count executions from now on."""
        self._counting = True

    def before(self, engine: Reloadable) -> None:
        """Start the capture if the next execution is the first in the window."""
        if not self._counting or self._failed:
            return
        self._executed += 1
        if self._executed == self._window.first:
            self._try(self._start, engine)

    def after(self, engine: Reloadable) -> None:
        """Stop the capture if the execution that ended is the last in the window."""
        if self._running is not None and self._executed >= self._window.last:
            self.end(engine)

    def end(self, engine: Reloadable | None) -> None:
        """Stop the capture, and reload `engine`, which is None if it is closing."""
        if self._running is not None:
            self._try(self._stop, engine)
        if self._initialised:
            self._initialised = False
            self._try(self._driver.finalize_profile)

    def _init(self) -> None:
        self._driver.init_profile(self._window.folder)
        self._initialised = True

    def _start(self, engine: Reloadable) -> None:
        window = self._window
        if window.parameter == "profile":
            metrics = METRICS[window.metrics]
            self._running = self._driver.start_profile(self._card.number, metrics)
            return
        entry = {"layer": list(window.layers)} if window.layers else {}
        names = sorted({path.stem for path in engine.files})
        section = {
            "dump_path": window.folder,
            "dump_mode": window.mode,
            "dump_list": [{"model_name": name, **entry} for name in names],
        }
        self._config.write_text(json.dumps({"dump": section}, indent=1))
        self._driver.start_dump(str(self._config))
        self._running = 0
        try:
            engine.reload()
        except DriverFault:
            self._stop(engine)
            raise

    def _stop(self, engine: Reloadable | None) -> None:
        window, running = self._window, self._running
        self._running = None
        if window.parameter == "profile":
            assert running is not None
            self._driver.stop_profile(running)
            _log.info("%s is in %s: `%s%s`", window, window.folder, _EXPORT, window.folder)
            return
        self._driver.stop_dump()
        if engine is not None:
            try:
                engine.reload()
            except DriverFault as fault:
                raise self._card.mark_lost(
                    f"{self._card.name}: recovery failed: {fault}"
                ) from fault
        _log.info("%s is in %s", window, window.folder)

    def _try(self, step: Callable[..., None], *arguments: object) -> None:
        """Call `step`; log the first failure, and raise EngineLost if the device is lost."""
        if self._card.lost is not None:
            return
        try:
            step(*arguments)
        except (DriverFault, OSError, AttributeError) as fault:
            if isinstance(fault, DriverFault) and fault.kind is FailureKind.LOST:
                raise self._card.mark_lost(f"{self._card.name}: {fault}") from fault
            if not self._failed:
                self._failed = True
                text = str(fault)  # not the fault itself, whose frames refer to pinned memory
                _log.warning(
                    "parameter '%s': the model continues without it: %s",
                    self._window.parameter,
                    text,
                )


class CapturedEngine:
    """An engine with a capture of its executions."""

    def __init__(self, engine: Reloadable, capture: Capture) -> None:
        """Wrap an engine, which `close` closes."""
        self._engine = engine
        self._capture = capture

    @property
    def signature(self) -> Signature:
        return self._engine.signature

    @property
    def shapes(self) -> Sequence[Shapes] | None:
        return self._engine.shapes

    @property
    def lost(self) -> bool:
        return self._engine.lost

    @property
    def compiles_each_shape(self) -> bool:
        return False

    @property
    def unplanned(self) -> Sequence[str]:
        own = self._engine.unplanned if isinstance(self._engine, Limited) else ()
        return (*own, self._capture.cost)

    def bind(self, largest: Sequence[Shapes], memory: Device[NDArray[np.uint8]]) -> None:
        self._engine.bind(largest, memory)

    def run(self, inputs: Tensors, outputs: Mapping[str, Array | None]) -> dict[str, Array]:
        self._capture.before(self._engine)
        try:
            return self._engine.run(inputs, outputs)
        finally:
            self._capture.after(self._engine)

    def weights_bytes(self) -> int:
        return self._engine.weights_bytes()

    def device_io_bytes(self) -> int | None:
        return self._engine.device_io_bytes()

    def intermediates(self, shapes: Shapes) -> Intermediates | None:
        return self._engine.intermediates(shapes)

    def close(self) -> None:
        self._capture.end(None)
        self._engine.close()
