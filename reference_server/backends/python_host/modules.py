"""The modules of one model instance, private to it although the process is shared.

In Triton every instance is a process: two of them see neither each other's `helper.py` nor each
other's globals. Here each instance has a module table of its own, and the code in it runs with
builtins of its own, whose `__import__` looks into that table. So import statements anywhere in an
instance's files, whenever and on whatever thread they run, find the instance's modules. What is
installed in the process comes first and is shared; then come the version's directory and the
model's, as on Triton's `sys.path`.

One thing is not supported: a module that puts another object in its place in `sys.modules`.
"""

from __future__ import annotations

import builtins
import importlib
import itertools
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
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

from reference_server.backends.python_host.import_turns import take_turns, wait_for_turn
from reference_server.backends.python_host.shared_names import OWNER, SharedName, finder


class _SourceLoader(SourceFileLoader):
    """Compiles what is in the file now.

    A `.pyc` file is trusted for as long as the source keeps its size and the second of its last
    change, which is too long for whoever edits a model and loads it again.
    """

    def path_stats(self, path: str) -> NoReturn:
        raise OSError("neither read nor write a .pyc file")


_LOADERS = (
    (ExtensionFileLoader, EXTENSION_SUFFIXES),
    (_SourceLoader, SOURCE_SUFFIXES),
    (SourcelessFileLoader, BYTECODE_SUFFIXES),
)

#: Tell the tables of a process apart, those that are gone included.
_numbers = itertools.count()


class ModelModules:
    """What the files of one version of a model, or of a Python-based backend, import.

    They lie in `directory`, the others below `model_directory`: if not given, that is its parent.

    `provided` are modules that need no file. Imports may come from any thread and take turns.
    `close` it once, when no code of the instance runs any more.
    """

    def __init__(
        self,
        directory: Path,
        provided: Mapping[str, ModuleType],
        model_directory: Path | None = None,
    ) -> None:
        self.number = next(_numbers)
        model_directory = model_directory or directory.parent
        self._directories = tuple(dict.fromkeys((str(directory), str(model_directory))))
        self._model_directory = model_directory.resolve()
        self._table = dict(provided)
        self._running: set[str] = set()
        self._foreign: set[str] = set()
        self._held: list[str] = []
        self._lock = threading.RLock()
        self._finder = finder()
        take_turns()
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
        """The module of that name. Raises ModuleNotFoundError, or what the module's code raises."""
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
        """The module of that name, imported now if it was not; None if there is no such file."""
        module = self._table.get(name)
        if module is None or name in self._running:
            with self._lock:  # where another thread runs the module's code, wait for its end
                module = self._table.get(name)
                if module is None:
                    module = self._load(name)
        return module

    def has(self, name: str) -> bool:
        """Whether there is a module of that name, imported or not."""
        return name in self._table or self._spec(name) is not None

    def loaded(self, name: str) -> ModuleType | None:
        """The module of that name, if it is imported already or about to be."""
        return self._table.get(name)

    def close(self) -> None:
        """Forget all modules."""
        self._table.clear()
        while self._held:
            self._finder.release(self._held.pop())

    def _load(self, name: str) -> ModuleType | None:
        spec = self._spec(name)
        if spec is None or name in self._table:  # its package's code has imported it just now
            return self._table.get(name)
        package, _, child = name.rpartition(".")
        parent = self._table.get(package)
        module = module_from_spec(spec)
        # Functions take their builtins from here: so all code of the module imports by this table,
        # also when another thread calls it later.
        vars(module)["__builtins__"] = vars(self._builtins)
        self._table[name] = module
        if self._finder.hold(name):
            self._held.append(name)
        if parent is not None:
            # Before its code runs: modules that import each other find it there meanwhile.
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
        """Where top-level modules are; the model's code may have added folders of its own."""
        added = (
            entry
            for entry in sys.path
            if Path(entry).resolve().is_relative_to(self._model_directory)
        )
        return (*self._directories, *added)

    def _owns(self, root: str) -> bool:
        """Whether a top-level name means a module of the instance rather than of the process."""
        if root in self._table:
            return True
        if root in self._foreign:
            return False
        if not self._finder.is_installed(root) and self._spec(root) is not None:
            return True
        if isinstance(sys.modules.get(root), SharedName):
            # Other instances have a module of that name, and this one must not see it.
            raise ModuleNotFoundError(f"No module named {root!r}", name=root)
        if root in sys.modules:  # asked at each import statement: the folders are searched once
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
        """What import statements call: the builtin function's parameters and result."""
        absolute = _absolute(name, globals or {}, level) if level else name
        if not self._owns(absolute.partition(".")[0]):
            wait_for_turn(absolute.partition(".")[0])
            return self._own_view(builtins.__import__(name, globals, locals, fromlist or (), level))
        module = self.require(absolute)
        if fromlist:
            self._import_listed(module, fromlist)
            return module
        _, _, rest = name.partition(".")
        # `import a.b` gives `a`.
        return self.require(absolute.removesuffix(f".{rest}")) if rest else module

    def _own_view(self, module: ModuleType) -> ModuleType:
        """The instance's own module in place of those that every instance has for itself."""
        if module is importlib:
            return self._importlib
        return self._builtins if module is builtins else module

    def _import_listed(self, module: ModuleType, names: Iterable[str]) -> None:
        """Import those `names` of a package that are its modules."""
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
    """The module's spec, looked up on the disk each time; folders without code are namespaces."""
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
