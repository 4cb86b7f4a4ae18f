"""The modules of one model instance, which are private although the process is shared.

In Triton each instance is a process, so no instance sees the `helper.py` or the globals of another.
Here each instance has its own module table. The instance's code runs with its own builtins, whose
`__import__` searches that table. So import statements in an instance's files find the instance's
modules, at any time and on any thread. Modules that are installed in the process are searched first
and are shared; then come the version's folder and the model's folder, as in Triton's `sys.path`.

Not supported: a module that replaces itself in `sys.modules`.
"""

from __future__ import annotations

import builtins
import importlib
import itertools
import logging
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.abc import Loader
from importlib.machinery import (
    BYTECODE_SUFFIXES,
    EXTENSION_SUFFIXES,
    SOURCE_SUFFIXES,
    ExtensionFileLoader,
    FileFinder,
    ModuleSpec,
    SourceFileLoader,
    SourcelessFileLoader,
)
from importlib.util import module_from_spec, resolve_name
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from reference_server.backends.python_host.shared_names import (
    OWNER,
    SharedName,
    calling_owner,
    finder,
)
from reference_server.core import forks
from reference_server.core.portability import ignore

log = logging.getLogger(__name__)


class _SourceLoader(SourceFileLoader):
    """Compiles the current content of the file.

    Python trusts a `.pyc` file while the source keeps its size and its modification time in
    seconds, which is too coarse for an edited model that is loaded again.
    """

    def path_stats(self, path: str) -> NoReturn:
        raise OSError("bytecode cache disabled")


_LOADERS = (
    (ExtensionFileLoader, EXTENSION_SUFFIXES),
    (_SourceLoader, SOURCE_SUFFIXES),
    (SourcelessFileLoader, BYTECODE_SUFFIXES),
)

#: The numbers of all module tables of the process; no number is used twice.
_numbers = itertools.count()


class ModelModules:
    """The modules that the files of a model version, or of a Python-based backend, import.

    Imports may come from any thread; imports of different models are serialized.

    Args:
        directory: The folder of the files.
        provided: Modules that need no file, by name.
        model_directory: The model's folder; by default the parent of `directory`.
    """

    def __init__(
        self,
        directory: Path,
        provided: Mapping[str, ModuleType],
        model_directory: Path | None = None,
    ) -> None:
        self.number = next(_numbers)
        #: Receives the key of a portability row that applies to the instance's code; may raise.
        self.report_row: Callable[[str], None] = ignore
        model_directory = model_directory or directory.parent
        self._directories = tuple(dict.fromkeys((str(directory), str(model_directory))))
        self._model_directory = model_directory.resolve()
        self._table = dict(provided)
        self._running: set[str] = set()
        self._foreign: set[str] = set()
        self._held_names: list[str] = []
        self._lock = threading.RLock()
        self._finder = finder()
        serialize_imports()
        self._builtins = ModuleType("builtins")
        vars(self._builtins).update(vars(builtins), __import__=self._import)
        vars(self._builtins)[OWNER] = self
        self._importlib = ModuleType("importlib")
        vars(self._importlib).update(
            import_module=self._import_module,
            reload=self._reload,
            __getattr__=lambda name: getattr(importlib, name),
        )

    def require(self, name: str) -> ModuleType:
        """Return a module. Raises ModuleNotFoundError, or the exception of the module's code."""
        parent, _, _ = name.rpartition(".")
        if parent:
            self.require(parent)
        module = self.find(name)
        if module is None:
            is_package = not parent or hasattr(self._table[parent], "__path__")
            reason = "" if is_package else f"; {parent!r} is not a package"
            raise ModuleNotFoundError(f"No module named {name!r}{reason}", name=name)
        return module

    def find(self, name: str) -> ModuleType | None:
        module = self._table.get(name)
        if module is None or name in self._running:
            with self._lock:  # waits for another thread that runs the module's code
                module = self._table.get(name)
                if module is None:
                    module = self._load(name)
        return module

    def has(self, name: str) -> bool:
        return name in self._table or self._spec(name) is not None

    def loaded(self, name: str) -> ModuleType | None:
        return self._table.get(name)

    def close(self) -> None:
        """Drop all modules. Call it once, when no code of the instance runs any more."""
        self._table.clear()
        while self._held_names:
            self._finder.release(self._held_names.pop())

    def _load(self, name: str) -> ModuleType | None:
        spec = self._spec(name)
        if spec is None or name in self._table:  # the package's code may have imported the module
            return self._table.get(name)
        package, _, child = name.rpartition(".")
        parent = self._table.get(package)
        module = module_from_spec(spec)
        # Functions take their builtins from here, so all code of the module imports through this
        # table, on any thread.
        vars(module)["__builtins__"] = vars(self._builtins)
        self._table[name] = module
        if self._finder.hold(name):
            self._held_names.append(name)
        if parent is not None:
            # Before the module's code runs, for modules that import each other.
            setattr(parent, child, module)
        self._running.add(name)
        try:
            _loader(module).exec_module(module)
        except BaseException:
            del self._table[name]
            if parent is not None:
                vars(parent).pop(child, None)
            raise
        finally:
            self._running.remove(name)
        return module

    def _spec(self, name: str) -> ModuleSpec | None:
        package, _, _ = name.rpartition(".")
        if not package:
            return _find_spec(name, self.search_path)
        return _find_spec(name, getattr(self.find(package), "__path__", ()))

    @property
    def search_path(self) -> Sequence[str]:
        """The folders of top-level modules; the model's code may have added some."""
        added = (
            entry
            for entry in sys.path
            if Path(entry).resolve().is_relative_to(self._model_directory)
        )
        return (*self._directories, *added)

    def _owns(self, root: str) -> bool:
        """Return whether a top-level name is a module of the instance, not of the process."""
        if root in self._table:
            return True
        if root in self._foreign:
            return False
        if not self._finder.is_installed(root) and self._spec(root) is not None:
            return True
        if isinstance(sys.modules.get(root), SharedName):
            # Only other instances have a module of that name.
            raise ModuleNotFoundError(f"No module named {root!r}", name=root)
        if root in sys.modules:  # cached, because each import statement calls this
            self._foreign.add(root)
        return False

    def _import(
        self,
        name: str,
        globals: Mapping[str, Any] | None = None,
        locals: Mapping[str, Any] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> ModuleType:
        """Replace the builtin `__import__`, with its parameters and result."""
        absolute = _absolute(name, globals or {}, level) if level else name
        if not self._owns(absolute.partition(".")[0]):
            wait_for_import(absolute.partition(".")[0])
            return self._own_view(builtins.__import__(name, globals, locals, fromlist or (), level))
        module = self.require(absolute)
        if fromlist:
            self._import_listed(module, fromlist)
            return module
        _, _, rest = name.partition(".")
        # `import a.b` binds `a`.
        return self.require(absolute.removesuffix(f".{rest}")) if rest else module

    def _own_view(self, module: ModuleType) -> ModuleType:
        """Return `module`, or the instance's own `importlib` or `builtins` instead."""
        if module is importlib:
            return self._importlib
        return self._builtins if module is builtins else module

    def _import_listed(self, module: ModuleType, names: Iterable[str]) -> None:
        """Import the modules among the `names` of a package."""
        if not hasattr(module, "__path__"):
            return
        for name in names:
            if name == "*":
                self._import_listed(module, getattr(module, "__all__", ()))
            elif not hasattr(module, name):
                self.find(f"{module.__name__}.{name}")

    def _import_module(self, name: str, package: str | None = None) -> ModuleType:
        absolute = resolve_name(name, package)
        if self._owns(absolute.partition(".")[0]):
            return self.require(absolute)
        return self._own_view(importlib.import_module(absolute))

    def _reload(self, module: ModuleType) -> ModuleType:
        if self._table.get(module.__name__) is not module:
            return importlib.reload(module)
        with self._lock:
            _loader(module).exec_module(module)
        return module


def _loader(module: ModuleType) -> Loader:
    assert module.__spec__ is not None
    assert module.__spec__.loader is not None
    return module.__spec__.loader


def _absolute(name: str, globals: Mapping[str, Any], level: int) -> str:
    package = globals.get("__package__")
    if not package:
        raise ImportError("attempted relative import with no known parent package")
    return resolve_name("." * level + name, package)


def _find_spec(name: str, directories: Iterable[str]) -> ModuleSpec | None:
    """Find a module's spec on disk. Folders without code are namespace packages."""
    portions: list[str] = []
    for directory in directories:
        spec = FileFinder(directory, *_LOADERS).find_spec(name)
        if spec is not None and spec.loader is not None:
            return spec
        if spec is not None:
            portions += spec.submodule_search_locations or ()
    if not portions:
        return None
    namespace = ModuleSpec(name, None, is_package=True)
    namespace.submodule_search_locations = portions
    return namespace


# -- serialization of imports by different models

# Python has one lock per module. If two threads enter a cycle of imports at different modules, each
# waits for the other. Python detects the deadlock and lets one thread continue with a partially
# initialized module ("cannot import name ... from partially initialized module"). Large packages
# that import their parts on first use have such cycles. In Triton each model has its own process,
# so that this cannot happen. Here one model imports at a time.

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
    # Python calls both functions for each import of a missing or incomplete module, whether by an
    # import statement, `importlib.import_module` or a lazy package.
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
