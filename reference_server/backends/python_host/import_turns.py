"""Imports of several models take turns, so that none sees a module that another has half imported.

Each module has a lock of its own. Two threads that enter a circle of imports from two sides, as
they do in large packages that import their parts when these are first asked for, would wait for
each other; Python sees it, and lets one go on with a module that is not complete ("cannot import
name ... from partially initialized module"). In Triton each model is alone with its imports.
"""

from __future__ import annotations

import importlib
import logging
import sys
import threading
from types import ModuleType
from typing import Any

from reference_server.backends.python_host.shared_names import asking
from reference_server.core import forks

log = logging.getLogger(__name__)

#: How long an import waits for those of other models. Code that runs while a module is imported
#: may wait for another model's thread, which may want to import something itself.
PATIENCE_S = 60.0


class ImportTurns:
    """Lets in the threads of one owner at a time. Any thread.

    Of an owner, not a thread: a module may wait for threads that it starts when it is imported.
    """

    def __init__(self, patience_s: float = PATIENCE_S) -> None:
        self._patience_s = patience_s
        self._lock = threading.Lock()
        self._left = threading.Condition(self._lock)
        self._owner: object = None
        self._inside = 0
        self._forking = threading.local()

    def enter(self, owner: object) -> bool:
        """Wait until nobody is inside but threads of `owner`; then True, to be followed by `leave`.

        False if that takes too long.
        """
        with self._left:
            free = self._left.wait_for(
                lambda: not self._inside or self._owner is owner, self._patience_s
            )
            if free:
                self._owner = owner
                self._inside += 1
            return free

    def leave(self) -> None:
        """Undo one `enter` that returned True."""
        with self._left:
            self._inside -= 1
            if not self._inside:
                self._owner = None
                self._left.notify_all()

    def hold(self) -> None:
        """Before a fork: no copy must find a module locked by a thread that it does not have."""
        owner = asking()
        self._forking.entered = owner is not None and self.enter(owner)
        self._lock.acquire()

    def release(self) -> None:
        """After a fork, in both processes."""
        self._lock.release()
        if self._forking.entered:
            self.leave()


_turns = ImportTurns()
_installing = threading.Lock()
_installed = False


def wait_for_turn(name: str) -> None:
    """Return when no other model is importing the module of that name."""
    owner = asking()
    if owner is not None and _is_being_imported(sys.modules.get(name)) and _turns.enter(owner):
        _turns.leave()


def _is_being_imported(module: ModuleType | None) -> bool:
    return getattr(getattr(module, "__spec__", None), "_initializing", False)


def take_turns() -> None:
    """From now on what models, and the libraries that they use, import is imported in turns."""
    global _installed
    with _installing:
        if _installed:
            return
        _installed = True
    # Both are looked up at each import that finds no module, or one that is not complete: by import
    # statements, `importlib.import_module` and lazy packages alike.
    bootstrap: Any = importlib._bootstrap
    find, wait = bootstrap._find_and_load, bootstrap._lock_unlock_module

    def find_and_load(name: str, import_: object) -> ModuleType:
        owner = asking()
        if owner is None:  # the server's own
            return find(name, import_)  # type: ignore[no-any-return]
        entered = _turns.enter(owner)
        if not entered:
            log.warning("the import of '%s' has waited for another model's, and goes on", name)
        try:
            return find(name, import_)  # type: ignore[no-any-return]
        finally:
            if entered:
                _turns.leave()

    def lock_unlock_module(name: str) -> None:
        found = sys.modules.get(name)
        wait(name)
        now = sys.modules.get(name)
        if found is not None and now is not None and now is not found:
            # A lazy package has put another module in its place meanwhile. The import statement
            # that waits has the first one, which knows nothing of what the package offers.
            vars(found).setdefault("__getattr__", lambda attribute: getattr(now, attribute))

    for function in (find_and_load, lock_unlock_module):
        _hide(function)
    bootstrap._find_and_load, bootstrap._lock_unlock_module = find_and_load, lock_unlock_module
    forks.hold_for_forks(_turns.hold, _turns.release)


def _hide(function: Any) -> None:  # noqa: ANN401 - a function, whose code is to be replaced
    """Leave it out of the tracebacks of imports, as Python does with its own functions there."""
    function.__code__ = function.__code__.replace(co_filename="<frozen importlib._bootstrap>")
