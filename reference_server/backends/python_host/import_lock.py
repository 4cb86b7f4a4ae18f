"""Serialization of imports by different models.

Python has one lock per module. If two threads enter a cycle of imports at different modules, each
waits for the other. Python detects the deadlock and lets one thread continue with a partially
initialized module ("cannot import name ... from partially initialized module"). Large packages
that import their parts on first use have such cycles. In Triton each model has its own process,
so that this cannot happen. Here one model imports at a time.
"""

from __future__ import annotations

import importlib
import logging
import sys
import threading
from types import ModuleType
from typing import Any

from reference_server.backends.python_host.shared_names import calling_owner
from reference_server.core import forks

log = logging.getLogger(__name__)

#: The time limit for waiting for another model's imports. Code that runs during an import may wait
#: for a thread of another model that wants to import too.
PATIENCE_S = 60.0


class ImportLock:
    """A reentrant lock that all threads of one owner share. Thread-safe.

    The owner is a model instance, not a thread, because a module may wait for threads that it
    starts during its import.
    """

    def __init__(self, patience_s: float = PATIENCE_S) -> None:
        self._patience_s = patience_s
        self._lock = threading.Lock()
        self._released = threading.Condition(self._lock)
        self._owner: object = None
        self._inside = 0
        self._forking = threading.local()

    def enter(self, owner: object) -> bool:
        """Wait until no other owner holds the lock, and acquire it.

        Returns False after the time limit. Each call that returns True needs a call of `leave`.
        """
        with self._released:
            free = self._released.wait_for(
                lambda: not self._inside or self._owner is owner, self._patience_s
            )
            if free:
                self._owner = owner
                self._inside += 1
            return free

    def leave(self) -> None:
        """Undo one `enter` that returned True."""
        with self._released:
            self._inside -= 1
            if not self._inside:
                self._owner = None
                self._released.notify_all()

    def hold(self) -> None:
        """Acquire the lock before a fork, so that no module is locked in the child."""
        owner = calling_owner()
        self._forking.entered = owner is not None and self.enter(owner)
        self._lock.acquire()

    def release(self) -> None:
        """Release the lock after a fork, in both processes."""
        self._lock.release()
        if self._forking.entered:
            self.leave()


_imports = ImportLock()
_installing = threading.Lock()
_installed = False


def wait_for_import(name: str) -> None:
    """Wait until no other model is importing the module of that name."""
    owner = calling_owner()
    if owner is not None and _is_being_imported(sys.modules.get(name)) and _imports.enter(owner):
        _imports.leave()


def _is_being_imported(module: ModuleType | None) -> bool:
    return getattr(getattr(module, "__spec__", None), "_initializing", False)


def serialize_imports() -> None:
    """Serialize all imports of models and of the libraries that they use, from now on."""
    global _installed
    with _installing:
        if _installed:
            return
        _installed = True
    # Python calls both for each import of a missing or incomplete module: by import statements,
    # `importlib.import_module` and lazy packages.
    bootstrap: Any = importlib._bootstrap
    find, wait = bootstrap._find_and_load, bootstrap._lock_unlock_module

    def find_and_load(name: str, import_: object) -> ModuleType:
        owner = calling_owner()
        if owner is None:  # an import of the server
            return find(name, import_)  # type: ignore[no-any-return]
        entered = _imports.enter(owner)
        if not entered:
            log.warning("import of '%s': no longer waiting for the imports of another model", name)
        try:
            return find(name, import_)  # type: ignore[no-any-return]
        finally:
            if entered:
                _imports.leave()

    def lock_unlock_module(name: str) -> None:
        found = sys.modules.get(name)
        wait(name)
        now = sys.modules.get(name)
        if found is not None and now is not None and now is not found:
            # A lazy package has replaced its module in `sys.modules`. The waiting import statement
            # has the first module, which lacks the attributes of the package.
            vars(found).setdefault("__getattr__", lambda attribute: getattr(now, attribute))

    for function in (find_and_load, lock_unlock_module):
        _hide(function)
    bootstrap._find_and_load, bootstrap._lock_unlock_module = find_and_load, lock_unlock_module
    forks.hold_for_forks(_imports.hold, _imports.release)


def _hide(function: Any) -> None:  # noqa: ANN401 - a function, whose code is to be replaced
    """Hide a function in tracebacks of imports, as Python hides its own functions there."""
    function.__code__ = function.__code__.replace(co_filename="<frozen importlib._bootstrap>")
