"""Finds faults in a model's file by its syntax tree. The file is not run."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from reference_server.backends.python_host.model_code import HELD_BACK
from reference_server.backends.python_host.shared_names import UTILS
from reference_server.checking.layout import misplaced_code_hint
from reference_server.core.portability import ROWS

_CLASS = "TritonPythonModel"
_SUFFIX = ".py"
#: The functions of the module that call the server.
_SERVER_CALLS = frozenset({"load_model", "unload_model", "is_model_ready"})
_REQUEST_CALLS = frozenset({"exec", "async_exec"})


class CodeFault(NamedTuple):
    """A fault: its position (line 0: the whole file), text, certainty of failure, and cure."""

    line: int
    text: str
    is_certain: bool = True
    hint: str = ""
    column: int = 0


def code_faults(file: Path) -> Iterator[CodeFault]:
    """Yield the reasons why `file` cannot be a Python model, or does not work on tritonserver."""
    if file.suffix != _SUFFIX:
        yield CodeFault(0, f"Model name must end with '.py'. Model name is \"{file.name}\".")
        return
    if not file.is_file():
        hint = misplaced_code_hint(file)
        yield CodeFault(0, f"Python model file not found in '{file}'", hint=hint)
        return
    try:
        tree = _parsed(file)
    except SyntaxError as error:
        line, column = error.lineno or 0, error.offset or 0
        yield CodeFault(line, f"SyntaxError: {error.msg}", column=column)
        return
    except (OSError, ValueError) as error:
        yield CodeFault(0, f"{file} cannot be read: {error}")
        return
    visitor = _ImportTime(tree)
    yield from visitor.faults
    if _CLASS not in _names(tree):
        line, hint = _other_class(tree)
        yield CodeFault(line, f"module '{file.stem}' has no attribute '{_CLASS}'", hint=hint)
    model = _defined(tree)
    if model is not None:
        yield from _class_faults(model, file)
    yield from _unportable_calls(tree, model, visitor.modules)


def completes_config(file: Path) -> bool:
    """Return True if the model may complete its configuration, by its code or its imports."""
    try:
        tree = _parsed(file)
    except (OSError, SyntaxError, ValueError):
        return False
    model = _defined(tree)
    if model is None or model.bases:  # it may be defined elsewhere, or in part
        return _CLASS in _names(tree)
    methods = (part.name for part in model.body if isinstance(part, ast.FunctionDef))
    return "auto_complete_config" in methods


def _parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_bytes(), str(file))


def _defined(tree: ast.Module) -> ast.ClassDef | None:
    classes = (part for part in tree.body if isinstance(part, ast.ClassDef))
    return next((part for part in classes if part.name == _CLASS), None)


def _other_class(tree: ast.Module) -> tuple[int, str]:
    """Return the line of the class that is probably meant as the model, and the cure."""
    classes = [part for part in tree.body if isinstance(part, ast.ClassDef)]
    for part in classes:
        methods = {entry.name for entry in part.body if isinstance(entry, ast.FunctionDef)}
        if {"execute", "initialize"} & methods or len(classes) == 1:
            return part.lineno, f"rename the class '{part.name}' to '{_CLASS}'"
    return 0, ""


def _names(tree: ast.Module) -> set[str]:
    """Return all names that the module may define; includes the class name after `import *`."""
    found: set[str] = set()
    for part in ast.walk(tree):
        if isinstance(part, ast.ClassDef | ast.FunctionDef):
            found.add(part.name)
        elif isinstance(part, ast.ImportFrom | ast.Import):
            names = [alias.asname or alias.name for alias in part.names]
            found.update([*names, _CLASS] if "*" in names else names)
        elif isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
            found.add(part.id)
    return found


# -- names that are read while the file is imported


class _ImportTime(ast.NodeVisitor):
    """Visits the code that runs at import, and collects reads of names that are added later.

    A fault is certain unless a condition or an exception handler surrounds it.
    """

    def __init__(self, tree: ast.Module) -> None:
        self.faults: list[CodeFault] = []
        #: The names of the module `triton_python_backend_utils` in the file.
        self.modules = {
            alias.asname or alias.name
            for part in ast.walk(tree)
            if isinstance(part, ast.Import)
            for alias in part.names
            if alias.name == UTILS
        }
        self._is_certain = True
        self._reads_annotations = not any(
            isinstance(part, ast.ImportFrom)
            and part.module == "__future__"
            and any(alias.name == "annotations" for alias in part.names)
            for part in tree.body
        )
        self.visit(tree)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        for part in (*node.decorator_list, *node.args.defaults, *node.args.kw_defaults):
            self._visit(part)
        if self._reads_annotations:
            arguments = node.args
            for argument in (
                *(*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs),
                *(arguments.vararg, arguments.kwarg),
            ):
                self._visit(argument and argument.annotation)
            self._visit(node.returns)

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Lambda(self, node: ast.Lambda) -> None:
        for part in (*node.args.defaults, *node.args.kw_defaults):
            self._visit(part)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self._visit(node.value)
        if self._reads_annotations:
            self._visit(node.annotation)

    def visit_If(self, node: ast.If) -> None:
        if "TYPE_CHECKING" in ast.unparse(node.test):
            self._visit_uncertain(node.orelse)
            return
        self._visit(node.test)
        self._visit_uncertain([*node.body, *node.orelse])

    def visit_Try(self, node: ast.Try) -> None:
        self._visit_uncertain([*node.body, *node.handlers, *node.orelse])
        for part in node.finalbody:
            self.visit(part)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        for alias in node.names:
            if node.module == UTILS and alias.name in HELD_BACK:
                self._add(node, f"ImportError: cannot import name '{alias.name}' from '{UTILS}'")

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if (
            isinstance(node.value, ast.Name)
            and node.value.id in self.modules
            and node.attr in HELD_BACK
            and isinstance(node.ctx, ast.Load)
        ):
            self._add(node, f"AttributeError: module '{UTILS}' has no attribute '{node.attr}'")
        self.generic_visit(node)

    def _visit(self, node: ast.AST | None) -> None:
        if node is not None:
            self.visit(node)

    def _visit_uncertain(self, nodes: Sequence[ast.AST]) -> None:
        before, self._is_certain = self._is_certain, False
        for node in nodes:
            self.visit(node)
        self._is_certain = before

    def _add(self, node: ast.stmt | ast.expr, text: str) -> None:
        text = f"{text}: {ROWS['import-names'].here}; read it in a function (import-names)"
        self.faults.append(CodeFault(node.lineno, text, self._is_certain))


# -- the methods that Triton calls


def _class_faults(model: ast.ClassDef, file: Path) -> Iterator[CodeFault]:
    """Yield the methods that cannot be called as Triton does."""
    methods = {
        part.name: part
        for part in model.body
        if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    if model.bases or model.keywords or model.decorator_list:
        return  # other methods may be inherited or added
    for name, values in (("__init__", 1), ("initialize", 2)):
        if name in methods:
            yield from _arity_fault(methods[name], values, is_bound=True)
    if "auto_complete_config" in methods:
        yield from _arity_fault(methods["auto_complete_config"], 1, is_bound=False)
    if "execute" in methods:  # the model is loaded, and every request fails
        for fault in _arity_fault(methods["execute"], 2, is_bound=True):
            yield fault._replace(is_certain=False)
    assigned = {
        target.id
        for part in model.body
        if isinstance(part, ast.Assign)
        for target in part.targets
        if isinstance(target, ast.Name)
    }
    if "execute" not in methods.keys() | assigned:
        text = f"Python model {file} does not implement `execute` method: every request fails"
        yield CodeFault(model.lineno, text, is_certain=False)


def _arity_fault(
    method: ast.FunctionDef | ast.AsyncFunctionDef, values: int, *, is_bound: bool
) -> Iterator[CodeFault]:
    """Yield the fault of a method that does not accept `values` positional values.

    `is_bound` is True if the first value is the object itself.
    """
    decorators = [ast.unparse(part) for part in method.decorator_list]
    if decorators == ["classmethod"]:
        values += not is_bound
    elif decorators == ["staticmethod"]:
        values -= is_bound
    elif decorators:
        return
    arguments = method.args
    names = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args)]
    required = names[: len(names) - len(arguments.defaults)]
    keywords = [
        argument.arg
        for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
        if default is None
    ]
    missing, kind = required[values:], "positional"
    if not missing:
        missing, kind = keywords, "keyword-only"
    called = f"TypeError: {_CLASS}.{method.name}()"
    if len(names) < values and arguments.vararg is None:
        least = len(required)
        most = len(names)
        takes = f"{most}" if least == most else f"from {least} to {most}"
        plural = "" if most == 1 else "s"
        given = "was" if values == 1 else "were"
        yield CodeFault(
            method.lineno,
            f"{called} takes {takes} positional argument{plural} but {values} {given} given",
        )
    elif missing:
        plural = "" if len(missing) == 1 else "s"
        yield CodeFault(
            method.lineno,
            f"{called} missing {len(missing)} required {kind} argument{plural}: {_listed(missing)}",
        )


def _listed(names: list[str]) -> str:
    """Return names as in Python's error texts: `'a'`, `'a' and 'b'`, `'a', 'b', and 'c'`."""
    quoted = [f"'{name}'" for name in names]
    if len(quoted) < 3:
        return " and ".join(quoted)
    return f"{', '.join(quoted[:-1])}, and {quoted[-1]}"


def _unportable_calls(
    tree: ast.Module, model: ast.ClassDef | None, modules: set[str]
) -> Iterator[CodeFault]:
    """Yield calls that tritonserver 2.51 does not support."""
    for call, method in _method_calls(tree):
        if method.attr == "triton_dtype":
            yield CodeFault(call.lineno, ROWS["triton-dtype"].text, is_certain=False)
    for part in () if model is None else model.body:
        if isinstance(part, ast.FunctionDef) and part.name == "auto_complete_config":
            for call, method in _method_calls(part):
                owner = method.value
                is_module = isinstance(owner, ast.Name) and owner.id in modules
                if method.attr in _REQUEST_CALLS or (method.attr in _SERVER_CALLS and is_module):
                    yield CodeFault(call.lineno, ROWS["completion-calls"].text, is_certain=False)


def _method_calls(tree: ast.AST) -> Iterator[tuple[ast.Call, ast.Attribute]]:
    """Yield the calls of the form `owner.method(...)`, and the called attribute of each."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            yield node, node.func


# -- tensors that the code names


class TensorUse(NamedTuple):
    """A literal name of one of the model's inputs or outputs in its code."""

    name: str
    is_input: bool
    line: int
    column: int


def tensor_uses(file: Path) -> Iterator[TensorUse]:
    """Yield the first use of each input and output that the code names literally.

    Outputs of models that create requests are left out, because their tensors may be inputs of
    other models.
    """
    try:
        tree = _parsed(file)
    except (OSError, SyntaxError, ValueError):
        return
    calls = [(call, method.attr) for call, method in _method_calls(tree)]
    sends = any(name == "InferenceRequest" for _, name in calls)
    seen: set[tuple[str, bool]] = set()
    for call, function in calls:
        is_input = function == "get_input_tensor_by_name"
        if not is_input and (sends or function != "Tensor"):
            continue
        given = [*call.args[is_input : is_input + 1]]
        given += [each.value for each in call.keywords if each.arg == "name"]
        for name in given:
            if isinstance(name, ast.Constant) and isinstance(name.value, str):
                key = (name.value, is_input)
                if key not in seen:
                    seen.add(key)
                    yield TensorUse(*key, name.lineno, name.col_offset + 1)
