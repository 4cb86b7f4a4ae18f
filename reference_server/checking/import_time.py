"""Finds faults of code that runs while a model's file is imported, by the syntax tree."""

from __future__ import annotations

import ast
import builtins
import sys
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from reference_server.backends.python_host import triton_python_backend_utils
from reference_server.backends.python_host.model_code import HELD_BACK
from reference_server.backends.python_host.shared_names import UTILS
from reference_server.core.portability import ROWS

_BUILTINS = frozenset(dir(builtins)) | {
    *("__annotations__", "__builtins__", "__cached__", "__file__", "__module__", "__path__"),
    "__qualname__",
}
#: Functions and attributes by which code can define names that the syntax tree does not show.
_OPENING = frozenset({"exec", "eval", "globals", "locals", "vars", "modules", "_convert_"})
_UTILS_NAMES = frozenset(triton_python_backend_utils.__all__)


class CodeFault(NamedTuple):
    """A fault: its position (line 0: the whole file), text, certainty of failure, and fix.

    `file` is None for the model's own file.
    """

    line: int
    text: str
    is_certain: bool = True
    hint: str = ""
    column: int = 0
    file: Path | None = None


def parsed(file: Path) -> ast.Module:
    """Return the syntax tree of a file that can be compiled.

    Raises:
        SyntaxError: The file is no Python code.
        OSError, ValueError: The file cannot be read.
    """
    source = file.read_bytes()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # Some errors, such as `return` outside of functions, are found only by compiling.
        compile(source, str(file), "exec", dont_inherit=True)
        return ast.parse(source, str(file))


def syntax_fault(error: SyntaxError) -> CodeFault:
    """Return the fault of code that is no Python."""
    return CodeFault(error.lineno or 0, f"SyntaxError: {error.msg}", column=error.offset or 0)


class ImportTime(ast.NodeVisitor):
    """A module after its import: the names that it may define, and the faults of running it.

    A fault is certain unless a condition, a loop, a `with` or an exception handler surrounds it.
    Imported modules of the model's folder are checked as well.
    """

    def __init__(
        self, tree: ast.Module, file: Path, modules: dict[Path, ImportTime | None] | None = None
    ) -> None:
        self.faults: list[CodeFault] = []
        #: The names that the module may define.
        self.names: set[str] = set()
        #: True if the module may define other names, too.
        self.is_open = False
        #: The names of the module `triton_python_backend_utils` in the file.
        self.utils: set[str] = set()
        self._file = file
        self._modules = modules if modules is not None else {}
        self._modules[file] = None  # until its import has ended
        self._is_certain = True
        #: The names of the class bodies that surround the visited node.
        self._classes: list[set[str]] = []
        self._reads_annotations = True
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module == "__future__":
                self._reads_annotations &= all(each.name != "annotations" for each in node.names)
            elif isinstance(node, ast.Import):
                self.utils |= {each.asname or UTILS for each in node.names if each.name == UTILS}
            elif isinstance(node, ast.Global):
                self.names.update(node.names)
        self.visit(tree)
        self._modules[file] = self

    def may_have(self, name: str) -> bool:
        """Return True if the module may have the attribute `name`."""
        return self.is_open or not {name, "__getattr__"}.isdisjoint(self.names)

    # -- statements

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self._visit(*node.decorator_list, *node.args.defaults, *node.args.kw_defaults)
        if self._reads_annotations:
            given = node.args
            arguments = (*given.posonlyargs, *given.args, *given.kwonlyargs)
            for argument in (*arguments, given.vararg, given.kwarg):
                self._visit(argument and argument.annotation)
            self._visit(node.returns)
        self._define(node.name)

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._visit(*node.decorator_list, *node.bases, *node.keywords)
        self._classes.append(set())
        self._visit(*node.body)
        self._classes.pop()
        self._define(node.name)

    def visit_Assign(self, node: ast.Assign) -> None:
        self._visit(node.value, *node.targets)

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        self._visit(node.value, node.target)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        if isinstance(node.target, ast.Name):
            self._read(node.target)
        self._visit(node.value, node.target)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self._visit(node.value)
        if self._reads_annotations:
            self._visit(node.annotation)
        if node.value is not None:
            self._visit(node.target)

    def visit_If(self, node: ast.If) -> None:
        if is_never(node.test):
            self._visit(*node.orelse)
            return
        self._visit(node.test)
        self._visit_uncertain([*node.body, *node.orelse])

    def visit_While(self, node: ast.While) -> None:
        self._visit(node.test)
        self._visit_uncertain([*node.body, *node.orelse])

    def visit_For(self, node: ast.For | ast.AsyncFor) -> None:
        self._visit(node.iter, node.target)
        self._visit_uncertain([*node.body, *node.orelse])

    def visit_With(self, node: ast.With) -> None:
        self._visit(*node.items)
        self._visit_uncertain(node.body)

    def visit_Match(self, node: ast.Match) -> None:
        self._visit(node.subject)
        self._visit_uncertain(node.cases)

    def visit_Try(self, node: ast.Try) -> None:
        self._visit_uncertain([*node.body, *node.handlers, *node.orelse])
        self._visit(*node.finalbody)

    visit_TryStar = visit_Try  # type: ignore[assignment]  # `except*`

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        self._define(node.name or "")
        self.generic_visit(node)

    def visit_Raise(self, node: ast.Raise) -> None:
        self.generic_visit(node)
        if self._is_certain:
            self._add(node, f"`{ast.unparse(node)}` runs while the file is imported")

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            name = alias.name.split(".")[0]
            self._imported(node, self._folders(name), [name], name)
            self._define(alias.asname or name)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        names = [alias.name for alias in node.names]
        for alias in node.names:
            self._define(alias.asname or alias.name)
        self.is_open |= "*" in names
        if node.module == UTILS:
            for name in names:
                self._check_utils(node, name, "ImportError: cannot import name '{}' from '{}'")
        elif node.level == 0:
            parts = (node.module or "").split(".")
            self._imported(node, self._folders(parts[0]), parts, str(node.module), names)
        elif self._file.parent.name.isdecimal():  # otherwise the file belongs to a backend
            package = self._file.parent.name
            if node.level > 1:
                self._add(node, "ImportError: attempted relative import beyond top-level package")
            elif node.module is not None:
                parts = node.module.split(".")
                module = f"{package}.{node.module}"
                if not self._imported(node, [self._file.parent], parts, module, names):
                    self._add(node, f"ModuleNotFoundError: No module named '{module}'")
            elif not (self._file.parent / "__init__.py").exists():
                for name in names:
                    if not self._imported(node, [self._file.parent], [name], f"{package}.{name}"):
                        text = f"ImportError: cannot import name '{name}' from '{package}'"
                        self._add(node, text)

    # -- expressions

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Store):
            self._define(node.id)
        elif isinstance(node.ctx, ast.Load):
            self._read(node)
        elif self._is_certain and not self._classes:
            self.names.discard(node.id)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self.is_open |= node.attr in _OPENING
        owner = node.value
        is_read = isinstance(node.ctx, ast.Load)
        if is_read and isinstance(owner, ast.Name) and owner.id in self.utils:
            self._check_utils(
                node, node.attr, "AttributeError: module '{1}' has no attribute '{0}'"
            )
        self.generic_visit(node)

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self._visit(*node.args.defaults, *node.args.kw_defaults)

    def visit_GeneratorExp(self, node: ast.GeneratorExp) -> None:
        self._visit(node.generators[0].iter)  # the rest runs when it is iterated over

    def visit_ListComp(self, node: ast.ListComp | ast.SetComp | ast.DictComp) -> None:
        for part in node.generators:
            self._visit(part.iter, part.target, *part.ifs)
        elements = (node.key, node.value) if isinstance(node, ast.DictComp) else (node.elt,)
        self._visit_uncertain(elements)  # the iterable may be empty

    visit_SetComp = visit_DictComp = visit_ListComp

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        self._visit(node.values[0])
        self._visit_uncertain(node.values[1:])

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._visit(node.test)
        self._visit_uncertain([node.body, node.orelse])

    def visit_MatchAs(self, node: ast.MatchAs) -> None:
        self._define(node.name or "")
        self.generic_visit(node)

    # -- the state

    def _visit(self, *nodes: ast.AST | None) -> None:
        for node in nodes:
            if node is not None:
                self.visit(node)

    def _visit_uncertain(self, nodes: Iterable[ast.AST]) -> None:
        before, self._is_certain = self._is_certain, False
        self._visit(*nodes)
        self._is_certain = before

    def _define(self, name: str) -> None:
        (self._classes[-1] if self._classes else self.names).add(name)

    def _read(self, node: ast.Name) -> None:
        name = node.id
        self.is_open |= name in _OPENING
        known = any(name in names for names in (self.names, *self._classes, _BUILTINS))
        if not known and not self.is_open and self._is_certain:
            self._add(node, f"NameError: name '{name}' is not defined")
            self._define(name)  # reported once

    def _check_utils(self, node: ast.stmt | ast.expr, name: str, text: str) -> None:
        text = text.format(name, UTILS)
        if name in HELD_BACK:
            rule = f"{ROWS['import-names'].here}; read it in a function (import-names)"
            self._add(node, f"{text}: {rule}")
        elif name not in _UTILS_NAMES and not name.startswith("__") and name != "*":
            self._add(node, text)

    def _add(self, node: ast.stmt | ast.expr, text: str) -> None:
        self.faults.append(CodeFault(node.lineno, text, self._is_certain))

    # -- modules in the model's folder

    def _folders(self, name: str) -> Sequence[Path]:
        """Return the folders in which a module of the model may be."""
        if name in sys.stdlib_module_names or not self._file.parent.name.isdecimal():
            return ()
        return (self._file.parent, self._file.parent.parent)

    def _imported(
        self,
        node: ast.Import | ast.ImportFrom,
        folders: Sequence[Path],
        parts: Sequence[str],
        module: str,
        names: Sequence[str] = (),
    ) -> bool:
        """Follow the import of a module of the model; return False if it is not there."""
        for folder in folders:
            place = folder.joinpath(*parts)
            file = next(
                (each for each in (place / "__init__.py", Path(f"{place}.py")) if each.is_file()),
                None,
            )
            if file is not None:
                self._follow(node, file, module, names)
                return True
            if place.is_dir() or any(place.parent.glob(f"{place.name}.*.so")):
                return True
        return False

    def _follow(
        self, node: ast.Import | ast.ImportFrom, file: Path, module: str, names: Sequence[str]
    ) -> None:
        if file not in self._modules:
            self._modules[file] = None
            try:
                found = ImportTime(parsed(file), file, self._modules).faults
            except SyntaxError as error:
                found = [syntax_fault(error)]
            except (OSError, ValueError):
                return
            self.faults += [
                fault._replace(
                    is_certain=fault.is_certain and self._is_certain, file=fault.file or file
                )
                for fault in found
            ]
        imported = self._modules[file]
        for name in names:
            if imported is None or name == "*" or imported.may_have(name):
                continue
            places = (file.parent / name, file.parent / f"{name}.py")
            if file.name != "__init__.py" or not any(place.exists() for place in places):
                self._add(node, f"ImportError: cannot import name '{name}' from '{module}'")


def is_never(test: ast.expr) -> bool:
    """Return True if a condition is false while a model is imported."""
    if isinstance(test, ast.Constant):
        return not test.value
    text = ast.unparse(test)
    return text in ("TYPE_CHECKING", "typing.TYPE_CHECKING", "__name__ == '__main__'")
