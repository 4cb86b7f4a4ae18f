"""acl.mdl: sizes, loads and executions.

Other modules of the namespace: `descs`, `model_desc`, `gears`, `load_config` and `models.datasets`.
"""

from __future__ import annotations

from pathlib import Path

from ascend_simulator import process
from ascend_simulator.calls import STR, U32, U64, pair, status, value
from ascend_simulator.codes import Code, Refused
from ascend_simulator.interface import load_config
from ascend_simulator.interface.descs import from_memory
from ascend_simulator.interface.load_config import ConfigAttr, LoadType
from ascend_simulator.models import datasets, om
from ascend_simulator.models.datasets import lookup
from ascend_simulator.models.execution import execute_free_shapes, submit
from ascend_simulator.models.loaded import models
from ascend_simulator.models.regions import Given

# -- sizes ---------------------------------------------------------------------------------------


@pair("mdl.query_size", STR)
def query_size(path: str) -> tuple[int, int]:
    """Return the bytes of workspace and of weights. See `compiler.sizes`.

    The workspace is 0 with free shapes. Refused: RT_CONTEXT_NULL (an inference: the documents say
    that a context is "wanted").
    """
    process.current().context()
    return _sizes(om.read(path))


@pair("mdl.query_size_from_mem", U64, U64)
def query_size_from_mem(ptr: int, size: int) -> tuple[int, int]:
    """Return the sizes of a model in host memory, as query_size does."""
    process.current().context()
    return _sizes(from_memory(ptr, size, "query_size_from_mem"))


# -- loads ---------------------------------------------------------------------------------------


@value("mdl.load_from_file", STR)
def load_from_file(path: str) -> int:
    """Load a model into memory that the system allocates; return its id."""
    return models().load(om.read(path), file=Path(path).stem)


@value("mdl.load_from_mem", U64, U64)
def load_from_mem(ptr: int, size: int) -> int:
    """Load a model from host memory, which may be freed after the call; else as load_from_file."""
    return models().load(from_memory(ptr, size, "load_from_mem"))


@value("mdl.load_from_file_with_mem", STR, U64, U64, U64, U64)
def load_from_file_with_mem(
    path: str, work_ptr: int, work_size: int, weight_ptr: int, weight_size: int
) -> int:
    """Load a model into the caller's memory. For an address of 0 the system allocates that part."""
    return models().load(
        om.read(path),
        Given(work_ptr, work_size),
        Given(weight_ptr, weight_size),
        file=Path(path).stem,
    )


@value("mdl.load_from_mem_with_mem", U64, U64, U64, U64, U64, U64)
def load_from_mem_with_mem(
    ptr: int, size: int, work_ptr: int, work_size: int, weight_ptr: int, weight_size: int
) -> int:
    """Load a model from host memory as load_from_file_with_mem does from a file."""
    found = from_memory(ptr, size, "load_from_mem_with_mem")
    return models().load(found, Given(work_ptr, work_size), Given(weight_ptr, weight_size))


@value("mdl.load_with_config", U64)
def load_with_config(handle: int) -> int:
    """Load a model as the configuration says; return its id."""
    options = lookup(load_config.configs().load, handle, "load_with_config")
    kind = load_config.checked(options)
    from_file = kind in (LoadType.ACL_MDL_LOAD_FROM_FILE, LoadType.ACL_MDL_LOAD_FROM_FILE_WITH_MEM)
    found = (
        om.read(options[ConfigAttr.ACL_MDL_PATH_PTR])
        if from_file
        else from_memory(
            options[ConfigAttr.ACL_MDL_MEM_ADDR_PTR],
            options[ConfigAttr.ACL_MDL_MEM_SIZET],
            "load_with_config",
        )
    )
    file = Path(options[ConfigAttr.ACL_MDL_PATH_PTR]).stem if from_file else ""
    if kind in (LoadType.ACL_MDL_LOAD_FROM_FILE, LoadType.ACL_MDL_LOAD_FROM_MEM):
        return models().load(found, file=file)
    return models().load(
        found,
        Given(
            options.get(ConfigAttr.ACL_MDL_WORKSPACE_ADDR_PTR, 0),
            options.get(ConfigAttr.ACL_MDL_WORKSPACE_SIZET, 0),
        ),
        Given(
            options.get(ConfigAttr.ACL_MDL_WEIGHT_ADDR_PTR, 0),
            options.get(ConfigAttr.ACL_MDL_WEIGHT_SIZET, 0),
        ),
        lean=bool(options.get(ConfigAttr.ACL_MDL_WORKSPACE_MEM_OPTIMIZE)),
        file=file,
    )


@value("mdl.bundle_load_from_file", STR)
def bundle_load_from_file(path: str) -> int:
    """Refuse the call: a simulated file contains one model."""
    om.read(path)
    raise Refused(
        Code.API_NOT_SUPPORT,
        f"bundle_load_from_file: {path}: found a single model, expected a bundle",
    )


@value("mdl.bundle_get_model_num", U32)
def bundle_get_model_num(bundle: int) -> int:
    """Refuse the call: bundles are not simulated."""
    raise _no_bundle("bundle_get_model_num", bundle)


@value("mdl.bundle_get_model_id", U32, U64)
def bundle_get_model_id(bundle: int, index: int) -> int:
    """Refuse the call: bundles are not simulated."""
    raise _no_bundle("bundle_get_model_id", bundle)


@status("mdl.bundle_unload", U32)
def bundle_unload(bundle: int) -> None:
    """Refuse the call: bundles are not simulated."""
    raise _no_bundle("bundle_unload", bundle)


@status("mdl.unload", U32)
def unload(model: int) -> None:
    """Unload a model; memory of the caller is not freed."""
    models().unload(model)


# -- executions ----------------------------------------------------------------------------------


@status("mdl.execute", U32, U64, U64)
def execute(model: int, inputs: int, outputs: int) -> None:
    """Execute on the context's default stream and wait. A device holds the GIL during the call."""
    _execute("execute", model, inputs, outputs, 0)


@status("mdl.execute_v2", U32, U64, U64, U64, U64)
def execute_v2(model: int, inputs: int, outputs: int, stream: int, config: int) -> None:
    """Execute on `stream` and wait."""
    lookup(load_config.configs().execute, config, "execute_v2")
    _execute("execute_v2", model, inputs, outputs, stream)


@status("mdl.execute_async", U32, U64, U64, U64)
def execute_async(model: int, inputs: int, outputs: int, stream: int) -> None:
    """Queue an execution on the stream. Refused: API_NOT_SUPPORT for a model with free shapes."""
    what = "execute_async"
    given, wanted = datasets.dataset(inputs, what), datasets.dataset(outputs, what)
    now = process.current()
    found = models().get(model, what)
    if found.manifest.family == "dynamic":
        text = f"{what}: {found.name}: a model with free shapes can only be executed "
        raise Refused(Code.API_NOT_SUPPORT, text + "synchronously")
    submit(now, found, given, wanted, now.stream(stream, what), waits=False)


def _execute(what: str, model: int, inputs: int, outputs: int, stream: int) -> None:
    given, wanted = datasets.dataset(inputs, what), datasets.dataset(outputs, what)
    now = process.current()
    found = models().get(model, what)
    home = now.stream(stream, what)
    if found.manifest.family == "dynamic":
        execute_free_shapes(now, found, given, wanted, home)
        return
    execution = submit(now, found, given, wanted, home, waits=True)
    now.streams.wait(home.record(), None)
    execution.result()  # raises this execution's failure, which does not count as the stream's


def _sizes(found: om.Om) -> tuple[int, int]:
    return found.manifest.work_bytes, found.manifest.weight_bytes


def _no_bundle(what: str, bundle: int) -> Refused:
    return Refused(Code.INVALID_BUNDLE_MODEL_ID, f"{what}: bundle {bundle}: not loaded")
