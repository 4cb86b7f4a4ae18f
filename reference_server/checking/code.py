"""Finds faults in a model's Python file by its syntax tree, without running the file."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from reference_server.backends.python_host import triton_python_backend_utils
from reference_server.backends.python_host.shared_names import UTILS
from reference_server.checking.config_text import close_name
from reference_server.checking.import_time import CodeFault, ImportTime, parsed, syntax_fault
from reference_server.checking.layout import misplaced_code_hint
from reference_server.core.portability import ROWS

_CLASS = "TritonPythonModel"
_SUFFIX = ".py"
#: The functions of `triton_python_backend_utils` that call the server.
_SERVER_CALLS = frozenset({"load_model", "unload_model", "is_model_ready"})
_REQUEST_CALLS = frozenset({"exec", "async_exec"})
#: For each method of a model: functions of that module and methods of requests that it must not
#: call, and the key of the fault's row in `ROWS`.
_STAGES = {
    "auto_complete_config": (_SERVER_CALLS, _REQUEST_CALLS, "completion-calls"),
    "initialize": (frozenset({"load_model"}), frozenset[str](), "load-threads"),
}


def code_faults(file: Path, *, is_decoupled: bool) -> Iterator[CodeFault]:
    """Yield the reasons why `file` cannot be a Python model, or does not work on tritonserver."""
    if file.suffix != _SUFFIX:
        yield CodeFault(0, f"Model name must end with '.py'. Model name is \"{file.name}\".")
        return
    if not file.is_file():
        hint = misplaced_code_hint(file)
        yield CodeFault(0, f"Python model file not found in '{file}'", hint=hint)
        return
    try:
        tree = parsed(file)
    except SyntaxError as error:
        yield syntax_fault(error)
        return
    except (OSError, ValueError) as error:
        yield CodeFault(0, f"{file} cannot be read: {error}")
        return
    imported = ImportTime(tree, file)
    yield from imported.faults
    if not imported.may_have(_CLASS):
        line, hint = _other_class(tree)
        yield CodeFault(line, f"module '{file.stem}' has no attribute '{_CLASS}'", hint=hint)
    yield from _value_faults(tree.body, _CLASS)
    model = _defined(tree)
    if model is not None:
        yield from _class_faults(model, file)
        if not is_decoupled:
            yield from _answer_fault(model, tree)
    yield from _wrong_uses(tree, imported.utils)
    yield from _unportable_calls(tree, model, imported.utils)
    yield from _text_faults(tree, file)


def completes_config(file: Path) -> bool:
    """Return True if the model's code, or code that it imports, may complete the configuration."""
    try:
        tree = parsed(file)
    except (OSError, SyntaxError, ValueError):
        return False
    model = _defined(tree)
    if model is None or model.bases:  # another file may define the class or its bases
        return ImportTime(tree, file).may_have(_CLASS)
    methods = (part.name for part in model.body if isinstance(part, ast.FunctionDef))
    return "auto_complete_config" in methods


def _defined(tree: ast.Module) -> ast.ClassDef | None:
    classes = (part for part in tree.body if isinstance(part, ast.ClassDef))
    return next((part for part in classes if part.name == _CLASS), None)


def _other_class(tree: ast.Module) -> tuple[int, str]:
    """Return the line of the class that is probably the model, and the fix; else 0 and ""."""
    classes = [part for part in tree.body if isinstance(part, ast.ClassDef)]
    for part in classes:
        methods = {entry.name for entry in part.body if isinstance(entry, ast.FunctionDef)}
        if {"execute", "initialize"} & methods or len(classes) == 1:
            return part.lineno, f"rename the class '{part.name}' to '{_CLASS}'"
    return 0, ""


# -- the methods that Triton calls


def _class_faults(model: ast.ClassDef, file: Path) -> Iterator[CodeFault]:
    """Yield the faults of methods that cannot be called as Triton calls them."""
    if model.keywords or model.decorator_list:
        return  # a metaclass or a decorator may change the methods
    methods = {
        part.name: part
        for part in model.body
        if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    abstract = [name for name, part in methods.items() if _is_abstract(part)]
    if abstract and any(ast.unparse(base) in ("ABC", "abc.ABC") for base in model.bases):
        plural = "" if len(abstract) == 1 else "s"
        names = ", ".join(sorted(abstract))
        text = f"TypeError: Can't instantiate abstract class {_CLASS} with abstract method"
        yield CodeFault(model.lineno, f"{text}{plural} {names}")
    for name, values in (("__init__", 1), ("initialize", 2)):
        if name in methods:
            yield from _arity_fault(methods[name], values, is_bound=True)
            yield from _raise_fault(methods[name])
    yield from _value_faults(model.body, "initialize")
    if "auto_complete_config" in methods:
        method = methods["auto_complete_config"]
        arity = list(_arity_fault(method, 1, is_bound=False))
        yield from arity or _raise_fault(method) or _result_fault(method, file)
    if "execute" in methods:  # the model is loaded, and every request fails
        for fault in _arity_fault(methods["execute"], 2, is_bound=True):
            yield fault._replace(is_certain=False)
    assigned = {name for part in model.body for name in _targets(part)}
    if not model.bases and "execute" not in methods.keys() | assigned:
        text = f"Python model {file} does not implement `execute` method: every request fails"
        yield CodeFault(model.lineno, text, is_certain=False)


def _is_abstract(method: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    names = (ast.unparse(part) for part in method.decorator_list)
    return any(name in ("abstractmethod", "abc.abstractmethod") for name in names)


def _targets(statement: ast.stmt) -> Iterator[str]:
    """Yield the names that an assignment sets."""
    for target in statement.targets if isinstance(statement, ast.Assign) else ():
        if isinstance(target, ast.Name):
            yield target.id


def _value_faults(body: Sequence[ast.stmt], name: str) -> Iterator[CodeFault]:
    """Yield a fault if Triton calls `name`, and its only value cannot be called."""
    setting = [part for part in body if name in {*_targets(part), *_bound(part)}]
    if len(setting) != 1:
        return
    (part,) = setting
    kind = "module" if isinstance(part, ast.Import) else ""
    if isinstance(part, ast.Assign) and isinstance(part.value, ast.Constant):
        kind = type(part.value.value).__name__
    if kind:
        yield CodeFault(part.lineno, f"TypeError: '{kind}' object is not callable")


def _bound(statement: ast.stmt) -> Iterator[str]:
    """Yield the names that a statement binds, other than by an assignment."""
    if isinstance(statement, ast.Import | ast.ImportFrom):
        yield from (alias.asname or alias.name for alias in statement.names)
    elif isinstance(statement, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        yield statement.name
    elif not isinstance(statement, ast.Assign):
        stored = (part for part in ast.walk(statement) if isinstance(part, ast.Name))
        yield from (part.id for part in stored if isinstance(part.ctx, ast.Store))


def _raise_fault(method: ast.FunctionDef | ast.AsyncFunctionDef) -> list[CodeFault]:
    """Return the fault of a function that raises an exception at each call."""
    if _is_lazy(method):
        return []
    for statement in method.body:
        if isinstance(statement, ast.Raise):
            return [CodeFault(statement.lineno, f"each call runs `{ast.unparse(statement)}`")]
        if any(isinstance(part, ast.Return) for part in ast.walk(statement)):
            break
    return []


def _is_lazy(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Return True for a coroutine or a generator, whose body a call does not run."""
    yields = (isinstance(part, ast.Yield | ast.YieldFrom) for part in _own_parts(function))
    return isinstance(function, ast.AsyncFunctionDef) or any(yields)


def _own_parts(function: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a function, except the nodes of nested functions and classes."""
    for part in ast.iter_child_nodes(function):
        inner = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
        if not isinstance(part, inner):
            yield part
            yield from _own_parts(part)


def _result_fault(method: ast.FunctionDef | ast.AsyncFunctionDef, file: Path) -> list[CodeFault]:
    """Return the fault of an `auto_complete_config` that never returns a ModelConfig."""
    results = [part.value for part in _own_parts(method) if isinstance(part, ast.Return)]
    if not _is_lazy(method) and not all(each is None or _is_not_config(each) for each in results):
        return []
    name = file.parent.parent.name if file.parent.name.isdecimal() else file.parent.name
    text = f"auto_complete_config function in model '{name}' must return a valid"
    return [CodeFault(method.lineno, f"{text} pb.ModelConfig object.")]


def _answer_fault(model: ast.ClassDef, tree: ast.Module) -> Iterator[CodeFault]:
    """Yield the fault of an `execute` that neither returns nor sends responses."""
    names = {part.attr for part in ast.walk(tree) if isinstance(part, ast.Attribute)}
    for method in model.body:
        if not isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if method.name != "execute" or method.decorator_list or "get_response_sender" in names:
            continue
        parts = list(_own_parts(method))
        ends = any(isinstance(part, ast.Raise | ast.Yield | ast.YieldFrom) for part in parts)
        if not (ends or any(isinstance(part, ast.Return) and part.value for part in parts)):
            text = "Expected a list in the execute return, found type '<class 'NoneType'>'."
            hint = "return a list with one response for each request"
            yield CodeFault(method.lineno, text, is_certain=False, hint=hint)


def _is_not_config(value: ast.expr) -> bool:
    """Return True if an expression is certainly not a ModelConfig."""
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
        return value.func.attr == "as_dict"
    return isinstance(value, ast.Constant | ast.Dict | ast.List | ast.Tuple | ast.JoinedStr)


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


def _wrong_uses(tree: ast.Module, modules: set[str]) -> Iterator[CodeFault]:
    """Yield the faults of functions that use Triton's module: unknown names, wrong arguments.

    Names that the file itself sets are known. In a file that tests for attributes, for example by
    `hasattr`, no name is a fault.
    """
    functions = [
        part for part in ast.walk(tree) if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    inside = {part for function in functions for part in _own_parts(function)}
    uses = [
        part
        for part in ast.walk(tree)
        if isinstance(part, ast.Attribute)
        and isinstance(part.value, ast.Name)
        and part.value.id in modules
    ]
    given = {part.attr for part in uses if not isinstance(part.ctx, ast.Load)}
    known = set(triton_python_backend_utils.__all__) | given
    words = {part.id for part in ast.walk(tree) if isinstance(part, ast.Name)}
    if not words & {"hasattr", "getattr", "setattr", "vars", "AttributeError"}:
        for use in uses:
            if use in inside and use.attr not in known and not use.attr.startswith("_"):
                text = f"AttributeError: module '{UTILS}' has no attribute '{use.attr}'"
                hint = close_name(use.attr, known)
                column = use.value.col_offset + 1
                yield CodeFault(use.lineno, text, is_certain=False, hint=hint, column=column)
    for call, method in _method_calls(tree):
        if method in uses and method.attr in known - given and (text := _call_error(call, method)):
            yield CodeFault(call.lineno, text, is_certain=False, column=call.col_offset + 1)


def _call_error(call: ast.Call, method: ast.Attribute) -> str:
    """Return the error if the arguments of a call of Triton's module do not fit, or ""."""
    names = [each.arg for each in call.keywords]
    if None in names or any(isinstance(each, ast.Starred) for each in call.args):
        return ""
    try:
        signature = inspect.signature(getattr(triton_python_backend_utils, method.attr))
    except (TypeError, ValueError):  # no function
        return ""
    try:
        signature.bind(*call.args, **dict.fromkeys(filter(None, names)))
    except TypeError as error:
        return f"TypeError: {method.attr}(): {error}"
    return ""


def _unportable_calls(
    tree: ast.Module, model: ast.ClassDef | None, modules: set[str]
) -> Iterator[CodeFault]:
    """Yield calls that tritonserver 2.51 does not support."""
    for call, method in _method_calls(tree):
        if method.attr == "triton_dtype":
            yield CodeFault(call.lineno, ROWS["triton-dtype"].text, is_certain=False)
    for part in () if model is None else model.body:
        if isinstance(part, ast.FunctionDef) and part.name in _STAGES:
            calls, requests, key = _STAGES[part.name]
            for call, method in _method_calls(part):
                owner = method.value
                is_module = isinstance(owner, ast.Name) and owner.id in modules
                if method.attr in requests or (method.attr in calls and is_module):
                    yield CodeFault(call.lineno, ROWS[key].text, is_certain=False)


# -- text beyond ASCII

#: The largest file whose content is read.
_LARGEST = 1 << 20


def _text_faults(tree: ast.Module, file: Path) -> Iterator[CodeFault]:
    """Yield calls that print text beyond ASCII, or read such text in the default encoding."""
    constants = list(_texts(tree))
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        name = call.func.id if isinstance(call.func, ast.Name) else ""
        if name == "print" and not all(text.isascii() for text in _texts(call)):
            yield CodeFault(call.lineno, ROWS["stdout-encoding"].text, is_certain=False)
        if not _uses_default_encoding(call):
            continue
        folders = dict.fromkeys((file.parent, file.parent.parent))
        for path in sorted(path for folder in folders for path in folder.iterdir()):
            if any(path.name in text for text in constants) and _is_beyond_ascii(path):
                text = f"{ROWS['ascii-files'].text}: {path.name}"
                yield CodeFault(call.lineno, text, is_certain=False)


def _texts(tree: ast.AST) -> Iterator[str]:
    for part in ast.walk(tree):
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            yield part.value


def _uses_default_encoding(call: ast.Call) -> bool:
    """Return True if a call opens or reads a text file without naming its encoding."""
    keywords = {each.arg: each.value for each in call.keywords}
    if "encoding" in keywords:
        return False
    if isinstance(call.func, ast.Attribute) and call.func.attr == "read_text":
        return not call.args
    if not (isinstance(call.func, ast.Name) and call.func.id == "open"):
        return False
    mode = call.args[1] if call.args[1:] else keywords.get("mode", ast.Constant("r"))
    is_binary = isinstance(mode, ast.Constant) and "b" in str(mode.value)
    return isinstance(mode, ast.Constant) and not is_binary and len(call.args) < 4


def _is_beyond_ascii(path: Path) -> bool:
    """Return True for a small file whose content is UTF-8 but not ASCII."""
    try:
        if path.stat().st_size > _LARGEST:
            return False
        content = path.read_bytes()
        content.decode()
    except (OSError, ValueError):
        return False
    return not content.isascii()


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
        tree = parsed(file)
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
