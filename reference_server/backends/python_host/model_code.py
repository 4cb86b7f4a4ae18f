"""A model's file: its import with Triton's modules, `auto_complete_config`, and exception texts."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import FrameType, MappingProxyType, ModuleType, TracebackType
from typing import Any

from reference_server.backends.python_host import triton_python_backend_utils
from reference_server.backends.python_host.api.bls import InferenceTrace, ResponseIterator
from reference_server.backends.python_host.api.native import MODULE
from reference_server.backends.python_host.api.reports import Metric, MetricKind
from reference_server.backends.python_host.api.response import InferenceResponseSender
from reference_server.backends.python_host.api.server_access import bound_get_model_dir
from reference_server.backends.python_host.api.tensor import MemoryType
from reference_server.backends.python_host.coroutines import ThreadLoop
from reference_server.backends.python_host.modules import ModelModules
from reference_server.backends.python_host.shared_names import UTILS
from reference_server.backends.python_host.triton_python_backend_utils import ModelConfig
from reference_server.core.errors import internal
from reference_server.core.portability import ignore

_SUFFIX = ".py"


def no_advice(_: BaseException) -> str:
    """Return an empty hint for a model's exception."""
    return ""


def load(
    model_file: Path,
    own_names: Mapping[str, object] = MappingProxyType({}),
    advise: Callable[[BaseException], str] = no_advice,
    report_row: Callable[[str], None] = ignore,
) -> tuple[ModelModules, ModuleType]:
    """Import a model's file into a new module table. Blocks while its top-level code runs.

    Args:
        model_file: `<model>/<version>/<stem>.py`; both folders are searched for imports, and the
            module's name is `<version>.<stem>`. Or the file of a Python-based backend, in a folder
            whose name is not a number; that folder is searched, and the name is `<stem>`.
        own_names: The objects in Triton's modules that are bound to the instance, by name.
        advise: Returns a hint to append to the text of an exception.
        report_row: Receives the key of a portability row that applies to the code; may raise.

    Returns:
        The module table, which the caller closes, and the model's module.

    Raises:
        ServerError: The import failed; nothing is left behind.
    """
    if model_file.suffix != _SUFFIX:
        raise internal(f"Model name must end with '.py'. Model name is \"{model_file.name}\".")
    if not model_file.is_file():
        raise internal(f"Python model file not found in '{model_file}'")
    directory = model_file.parent
    is_versioned = directory.name.isdecimal()
    utils, native = _utils(), _native_names(directory, own_names)
    modules = ModelModules(
        directory,
        {UTILS: utils, MODULE: _native_module({**native, **own_names})},
        directory.parent if is_versioned else directory,
    )
    modules.report_row = report_row
    # `1.model`, as in Triton: tracebacks and pickles contain it; `from . import` relies on it.
    name = f"{directory.name}.{model_file.stem}" if is_versioned else model_file.stem
    try:
        module = modules.require(name)
    except BaseException as error:
        modules.close()
        raise internal(describe(error) + advise(error)) from error
    vars(utils).update(native)
    return modules, module


def _utils() -> ModuleType:
    """Return the module `triton_python_backend_utils` as a model's file sees it while it runs."""
    utils = triton_python_backend_utils
    module = ModuleType(UTILS, utils.__doc__)
    # Triton's stub imports the model's file before it adds the names of its C++ classes, in 2.51 as
    # in the newest sources (`Stub::StubSetup`).
    vars(module).update(
        {name: getattr(utils, name) for name in utils.__all__ if name not in HELD_BACK},
        __file__=utils.__file__,
    )
    return module


def _native_names(directory: Path, own_names: Mapping[str, object]) -> dict[str, object]:
    """Return the objects of one instance that are added after the model's file has run."""
    names = {name: getattr(triton_python_backend_utils, name) for name in HELD_BACK}
    names["get_model_dir"] = bound_get_model_dir(directory)
    return names | {name: own_names[name] for name in own_names if name in HELD_BACK}


#: The names that both of Triton's modules have.
_SHARED = (
    *("InferenceRequest", "InferenceResponse", "Logger", "MetricFamily", "PreferredMemory"),
    *("TRITONSERVER_MEMORY_CPU", "TRITONSERVER_MEMORY_GPU", "Tensor", "TritonError"),
    *("TritonModelException", "is_model_ready", "load_model", "unload_model"),
)

#: The names that `triton_python_backend_utils` does not have while a model's file runs.
HELD_BACK = frozenset({*_SHARED, "get_model_dir"})


def _native_module(names: Mapping[str, object]) -> ModuleType:
    """Return the module `c_python_backend_utils` of an instance; `names` are its own objects.

    Models seldom import it. It has C++ classes that `triton_python_backend_utils` does not export,
    such as the class of an iterator.
    """
    module = ModuleType(MODULE)
    vars(module).update(
        {name: names[name] for name in _SHARED},
        InferenceResponseSender=InferenceResponseSender,
        InferenceTrace=InferenceTrace,
        MemoryType=MemoryType,
        Metric=Metric,
        MetricKind=MetricKind,
        ResponseIterator=names.get("ResponseIterator", ResponseIterator),
        **MetricKind.__members__,
    )
    return module


def auto_complete(
    model_file: Path,
    version_directory: Path,
    model_name: str,
    config: dict[str, Any],
    advise: Callable[[BaseException], str] = no_advice,
) -> str:
    """Return the JSON of `config` completed by the model's `auto_complete_config`, if it has one.

    The file is imported for this call only, so that its state does not reach an instance. Blocks as
    long as the model does.

    Raises:
        ServerError: The model raised an exception, or the function did not return a ModelConfig
            whose values JSON can hold.
    """
    loop = ThreadLoop()
    loop.begin()
    try:
        return _auto_complete(model_file, version_directory, model_name, config, advise)
    finally:
        loop.end()


def _auto_complete(
    model_file: Path,
    version_directory: Path,
    model_name: str,
    config: dict[str, Any],
    advise: Callable[[BaseException], str],
) -> str:
    modules, module = load(
        model_file, {"get_model_dir": bound_get_model_dir(version_directory)}, advise=advise
    )
    given = json.dumps(config)
    try:
        model = module.TritonPythonModel
        if not hasattr(model, "auto_complete_config"):
            return given
        completed = model.auto_complete_config(ModelConfig(given))
        if isinstance(completed, ModelConfig):
            # The attribute, as in Triton: a subclass may define another `as_dict`.
            return json.dumps(completed._model_config)
    except BaseException as error:
        raise internal(describe(error) + advise(error)) from error
    finally:
        modules.close()
    raise internal(
        f"auto_complete_config function in model '{model_name}' must return a valid "
        "pb.ModelConfig object."
    )


# -- the text of an exception

_SERVER = "reference_server."
_IMPORT_MACHINERY = "<frozen importlib"


def describe(error: BaseException) -> str:
    """Return Triton's text of an exception: `<Type>: <message>` and a line per frame.

    Call it in the frame that caught `error`. The text lists the frames that were called from there,
    the innermost first. It leaves out frames of the server (in Triton they are C++) and of the
    import system. As in Triton, the list follows the callers of the frame that raised, so an
    exception from another thread has that thread's frames.
    """
    failure: BaseException | None = None
    try:
        message = str(error) or "<EMPTY MESSAGE>"
    except BaseException as raised_by_str:
        failure = raised_by_str
        message = "<MESSAGE UNAVAILABLE DUE TO ANOTHER EXCEPTION>"
    text = f"{type(error).__name__}: {message}"
    if lines := "".join(map(_line, _frames(error.__traceback__))):
        text += f"\n\nAt:\n{lines}"
    if failure is not None:
        text += f"\nMESSAGE UNAVAILABLE DUE TO EXCEPTION: {describe(failure)}"
    return text


def _line(frame: FrameType) -> str:
    return f"  {frame.f_code.co_filename}({frame.f_lineno}): {frame.f_code.co_name}\n"


def _frames(traceback: TracebackType | None) -> Iterator[FrameType]:
    if traceback is None:
        return
    catcher = traceback.tb_frame
    while traceback.tb_next is not None:
        traceback = traceback.tb_next
    # Follows callers instead of the traceback, as pybind11 does.
    frame: FrameType | None = traceback.tb_frame
    while frame is not None and frame is not catcher:
        if not _is_ours(frame):
            yield frame
        frame = frame.f_back


def _is_ours(frame: FrameType) -> bool:
    module: object = frame.f_globals.get("__name__")
    return frame.f_code.co_filename.startswith(_IMPORT_MACHINERY) or (
        isinstance(module, str) and module.startswith(_SERVER)
    )
