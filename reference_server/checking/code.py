"""Check a model's code without running it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from reference_server.checking.places import Place

_CLASS = "TritonPythonModel"
_SUFFIX = ".py"


def code_faults(file: Path) -> Iterator[tuple[Place, str]]:
    """Yield the reasons why `file` cannot be a Python model, and their places."""
    if file.suffix != _SUFFIX:
        yield Place(file), f"Model name must end with '.py'. Model name is \"{file.name}\"."
        return
    if not file.is_file():
        yield Place(file), f"Python model file not found in '{file}'"
        return
    try:
        tree = _parsed(file)
    except SyntaxError as error:
        yield Place(file, error.lineno or 0), f"SyntaxError: {error.msg}"
        return
    except (OSError, ValueError) as error:
        yield Place(file), f"{file} cannot be read: {error}"
        return
    if _CLASS not in _names(tree):
        yield Place(file), f"module '{file.stem}' has no attribute '{_CLASS}'"


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
