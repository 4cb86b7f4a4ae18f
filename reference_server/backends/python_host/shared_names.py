"""Entries of `sys.modules` that stand for a different module in each model instance.

Libraries look modules up by name: dataclasses and typing read `sys.modules[cls.__module__]`,
pickle imports what defined a class, models themselves write `sys.modules[__name__]`. Several
instances have a module of the same name each, so the entry is a SharedName: it passes every
access on to the module of the instance that asks. Who asks is told by the call stack: the code of
an instance's modules runs with builtins that name their owner (see modules.py). Where none of that
is on the stack, as in the threads with which executors and queues pickle, it is told by the thread:
threads belong to the instance whose code has started them, and forked processes too. To others a
SharedName looks like an empty module.
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

#: The key in an instance's builtins under which their owner stands.
OWNER = "__model_modules__"
UTILS = "triton_python_backend_utils"


class Owner(Protocol):
    """The modules of one instance."""

    number: int

    @property
    def search_path(self) -> Sequence[str]:
        """The folders in which a process finds the instance's modules by their names."""

    def has(self, name: str) -> bool:
        """Whether the instance has a module of that name, imported or not."""

    def loaded(self, name: str) -> ModuleType | None:
        """The instance's module of that name, if it is imported."""

    def find(self, name: str) -> ModuleType | None:
        """The instance's module of that name, imported if it was not; None if there is none."""


def asking() -> Owner | None:
    """The owner of the innermost instance code on the calling thread's stack, or of the thread."""
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


#: The attribute of a thread that tells whose it is.
_INHERITED = "_model_modules"


def _let_threads_inherit() -> None:
    """From now on a thread belongs to the instance that starts it, through whatever library."""
    start = threading.Thread.start

    @functools.wraps(start)
    def start_for_owner(thread: threading.Thread) -> None:
        owner = asking()
        if owner is not None:
            # Weak: a thread that outlives the instance must not keep its modules.
            setattr(thread, _INHERITED, weakref.ref(owner))
        start(thread)

    threading.Thread.start = start_for_owner  # type: ignore[assignment, method-assign]


def _let_spawned_processes_inherit() -> None:
    """From now on a process that an instance spawns finds its modules, as a forked one does.

    It imports them once more, by their names: what it is to run comes pickled. As in Triton there
    is no main module: it would be the server's.
    """
    prepare = spawn.get_preparation_data

    @functools.wraps(prepare)
    def prepare_for_owner(name: str) -> dict[str, Any]:
        data: dict[str, Any] = prepare(name)
        owner = asking()
        if owner is not None:
            data["sys_path"] = [*data["sys_path"], *owner.search_path]
            for main in ("init_main_from_name", "init_main_from_path"):
                data.pop(main, None)
        return data

    spawn.get_preparation_data = prepare_for_owner


class SharedName(ModuleType):
    """Passes every access on to the module that the asking instance has under this name."""

    def __getattribute__(self, attribute: str) -> Any:  # noqa: ANN401 - a module's attribute
        # Whoever walks through all of sys.modules reads dunders, and should not import anything.
        module = _meant(self, imports=not attribute.startswith("__"))
        if module is None:
            return super().__getattribute__(attribute)
        value = getattr(module, attribute)
        # Shown a package's folders, importlib would load its modules for the whole process.
        return [] if attribute == "__path__" else value

    def __setattr__(self, attribute: str, value: object) -> None:
        if attribute == "__spec__" or isinstance(value, SharedName):
            return  # importlib's last touches to an import; the module that is meant has its own
        module = _meant(self)
        if module is None:
            super().__setattr__(attribute, value)
        else:
            setattr(module, attribute, value)

    def __delattr__(self, attribute: str) -> None:
        module = _meant(self)
        if module is None:
            super().__delattr__(attribute)
        else:
            delattr(module, attribute)

    def __dir__(self) -> list[str]:
        module = _meant(self)
        return [] if module is None else dir(module)


def _meant(shared: SharedName, *, imports: bool = True) -> ModuleType | None:
    owner = asking()
    if owner is None:
        return None
    name: str = ModuleType.__getattribute__(shared, "__name__")
    return owner.find(name) if imports else owner.loaded(name)


def _number_of_asking() -> int | None:
    owner = asking()
    return None if owner is None else owner.number


class Finder(MetaPathFinder, Loader):
    """Keeps the SharedNames, and finds modules that are imported by name on an instance's behalf.

    It stands last in `sys.meta_path`, so it is asked only for what nobody else finds. Any thread.
    """

    def __init__(self) -> None:
        #: Where the process has its own modules; what models add to sys.path later is not part.
        self._path = tuple(sys.path)
        self._lock = threading.Lock()
        self._holders: Counter[str] = Counter()
        sys.meta_path.append(self)
        forks.hold_for_forks(self._lock.acquire, self._lock.release)
        forks.count_children_by(_number_of_asking)
        _let_threads_inherit()
        _let_spawned_processes_inherit()

    def hold(self, name: str) -> bool:
        """Let `sys.modules[name]` be a SharedName until each `hold` has had its `release`.

        Does nothing and returns False if the process has a module of its own there.
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
        """Whether a top-level module belongs to the process. A folder without code does not."""
        if name in sys.stdlib_module_names:
            return True
        specs = (
            finder.find_spec(name, self._path) for finder in sys.meta_path if finder is not self
        )
        return any(spec is not None and spec.loader is not None for spec in specs)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find for an instance what it has itself."""
        owner = asking()
        return ModuleSpec(name, self) if owner is not None and owner.has(name) else None

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """The SharedName under which the asking instance now has its module."""
        owner = asking()
        if owner is not None:
            owner.find(spec.name)
        return sys.modules.get(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: the instance's module has run."""


_finder: Finder | None = None
_finder_lock = threading.Lock()


def finder() -> Finder:
    """The process's one finder, installed when the first instance needs it."""
    global _finder
    with _finder_lock:
        if _finder is None:
            _finder = Finder()
        return _finder
