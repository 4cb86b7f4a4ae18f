"""Entries of `sys.modules` that represent a different module in each model instance.

Libraries look modules up by name: dataclasses and typing read `sys.modules[cls.__module__]`,
pickle imports the module of a class, and models write `sys.modules[__name__]`. Several instances
have modules with the same name, so the entry is a SharedName: it passes each access to the module
of the calling instance. The call stack determines the calling instance: the code of an instance's
modules runs with builtins that refer to the instance (see modules.py). If the stack has no such
frame, as in the threads in which executors and queues pickle, the thread determines the instance: a
thread or a forked process belongs to the instance whose code started it. For other callers a
SharedName is an empty module.
"""

from __future__ import annotations

import functools
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from multiprocessing import spawn
from types import FrameType, ModuleType
from typing import Any, Protocol

from reference_server.core import forks

#: The key of the owner in an instance's builtins.
OWNER = "__model_modules__"
UTILS = "triton_python_backend_utils"


class Owner(Protocol):
    """The modules of one instance."""

    number: int
    report_row: Callable[[str], None]

    @property
    def search_path(self) -> Sequence[str]:
        """The folders in which a process finds the instance's modules."""

    def has(self, name: str) -> bool:
        """Return whether the instance has a module of that name, imported or not."""

    def loaded(self, name: str) -> ModuleType | None:
        """Return the instance's module of that name if it is imported."""

    def find(self, name: str) -> ModuleType | None:
        """Return the instance's module of that name, importing it if necessary, or None."""


def report_row(key: str) -> None:
    """Report a portability row to the calling instance. Raises if the instance is strict."""
    owner = calling_owner()
    if owner is not None:
        owner.report_row(key)


def calling_owner() -> Owner | None:
    """Return the owner of the innermost instance code on the stack, or of the thread."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        owner: Owner | None = frame.f_builtins.get(OWNER)
        if owner is not None:
            return owner
        frame = frame.f_back
    inherited: Callable[[], Owner | None] = getattr(
        threading.current_thread(), _INHERITED, lambda: None
    )
    return inherited()


#: The attribute of a thread that refers to its owner.
_INHERITED = "_model_modules"


def _let_threads_inherit() -> None:
    """Patch `Thread.start`: a thread belongs to the instance that starts it."""
    start = threading.Thread.start

    @functools.wraps(start)
    def start_for_owner(thread: threading.Thread) -> None:
        owner = calling_owner()
        if owner is not None:
            # A weak reference, so that a thread does not keep the modules of a closed instance.
            setattr(thread, _INHERITED, weakref.ref(owner))
        start(thread)

    threading.Thread.start = start_for_owner  # type: ignore[assignment, method-assign]


def _let_spawned_processes_inherit() -> None:
    """Patch `spawn`: a process that an instance spawns finds the instance's modules.

    The process imports the modules again by name, since its target is pickled. As in Triton, it
    imports no main module, which would be the server's.
    """
    prepare = spawn.get_preparation_data

    @functools.wraps(prepare)
    def prepare_for_owner(name: str) -> dict[str, Any]:
        data: dict[str, Any] = prepare(name)
        owner = calling_owner()
        if owner is not None:
            data["sys_path"] = [*data["sys_path"], *owner.search_path]
            for main in ("init_main_from_name", "init_main_from_path"):
                data.pop(main, None)
        return data

    spawn.get_preparation_data = prepare_for_owner


class SharedName(ModuleType):
    """A module that passes each access to the calling instance's module of this name."""

    def __getattribute__(self, attribute: str) -> Any:  # noqa: ANN401 - a module's attribute
        # Code that walks through sys.modules reads dunder names and must not import anything.
        module = _target(self, imports=not attribute.startswith("__"))
        if module is None:
            if attribute == "__spec__" and (owner := calling_owner()) is not None:
                # `importlib.util.find_spec` of a module that only other instances have imported.
                name: str = super().__getattribute__("__name__")
                return finder().find_spec(name) if owner.has(name) else None
            return super().__getattribute__(attribute)
        value = getattr(module, attribute)
        # With a package's folders importlib would load its modules for the whole process.
        return [] if attribute == "__path__" else value

    def __setattr__(self, attribute: str, value: object) -> None:
        if attribute == "__spec__" or isinstance(value, SharedName):
            return  # importlib finishes an import; the instance's module has its own values
        module = _target(self)
        if module is None:
            super().__setattr__(attribute, value)
        else:
            setattr(module, attribute, value)

    def __delattr__(self, attribute: str) -> None:
        module = _target(self)
        if module is None:
            super().__delattr__(attribute)
        else:
            delattr(module, attribute)

    def __dir__(self) -> list[str]:
        module = _target(self)
        return [] if module is None else dir(module)


def _target(shared: SharedName, *, imports: bool = True) -> ModuleType | None:
    owner = calling_owner()
    if owner is None:
        return None
    name: str = ModuleType.__getattribute__(shared, "__name__")
    return owner.find(name) if imports else owner.loaded(name)


def _number_of_caller() -> int | None:
    owner = calling_owner()
    return None if owner is None else owner.number


class Finder(MetaPathFinder, Loader):
    """Keeps the SharedNames, and finds modules that are imported by name for an instance.

    It is the last finder in `sys.meta_path`, so it handles only modules that no other finder finds.
    Thread-safe.
    """

    def __init__(self) -> None:
        #: The folders of the process's own modules, without later additions of models.
        self._path = tuple(sys.path)
        self._lock = threading.Lock()
        self._holders: Counter[str] = Counter()
        sys.meta_path.append(self)
        forks.hold_for_forks(self._lock.acquire, self._lock.release)
        forks.record_children(_number_of_caller)
        _let_threads_inherit()
        _let_spawned_processes_inherit()

    def hold(self, name: str) -> bool:
        """Put a SharedName into `sys.modules` until each `hold` is followed by a `release`.

        Returns False, and does nothing, if the process has its own module of that name.
        """
        with self._lock:
            if name not in self._holders:
                if name in sys.modules:
                    return False
                sys.modules[name] = SharedName(name)
            self._holders[name] += 1
            return True

    def release(self, name: str) -> None:
        """Undo one `hold` that returned True."""
        with self._lock:
            self._holders[name] -= 1
            if not self._holders[name]:
                del self._holders[name]
                sys.modules.pop(name, None)

    def is_installed(self, name: str) -> bool:
        """Return whether a top-level module is the process's own; namespace packages are not."""
        if name in getattr(sys, "stdlib_module_names", ()):  # not in Python 3.9
            return True
        specs = (
            finder.find_spec(name, self._path) for finder in sys.meta_path if finder is not self
        )
        return any(spec is not None and spec.loader is not None for spec in specs)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return a spec if the calling instance has the module."""
        owner = calling_owner()
        return ModuleSpec(name, self) if owner is not None and owner.has(name) else None

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Return the SharedName, after the calling instance has imported its module."""
        owner = calling_owner()
        if owner is not None:
            owner.find(spec.name)
        return sys.modules.get(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: the code of the instance's module has run already."""


_finder: Finder | None = None
_finder_lock = threading.Lock()


def finder() -> Finder:
    """Return the process's finder, which the first call installs."""
    global _finder
    with _finder_lock:
        if _finder is None:
            _finder = Finder()
        return _finder
