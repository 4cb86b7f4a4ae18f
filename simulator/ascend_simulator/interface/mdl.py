"""acl.mdl: sizes, loads and executions, and the handles with options of loads and executions.

Other modules of the namespace: `bundles`, `descs`, `gears` and `models.datasets`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from pathlib import Path
from typing import Any, Final, TypeAlias

from ascend_simulator import process
from ascend_simulator.calls import STR, U32, U64, bare, pair, status, value
from ascend_simulator.codes import Code, Refused
from ascend_simulator.interface.bundles import bundles
from ascend_simulator.interface.descs import from_memory
from ascend_simulator.models import datasets, om
from ascend_simulator.models.datasets import lookup, remove
from ascend_simulator.models.execution import execute_free_shapes, submit
from ascend_simulator.models.loaded import models
from ascend_simulator.models.regions import Given
from ascend_simulator.resources import Handles, HandleTables

Option: TypeAlias = Any  # an int or a str, by attribute
Options: TypeAlias = dict[int, Option]


class ConfigAttr(IntEnum):
    """aclmdlConfigAttr, the known attributes."""

    ACL_MDL_PRIORITY_INT32 = 0
    ACL_MDL_LOAD_TYPE_SIZET = 1
    ACL_MDL_PATH_PTR = 2
    ACL_MDL_MEM_ADDR_PTR = 3
    ACL_MDL_MEM_SIZET = 4
    ACL_MDL_WEIGHT_ADDR_PTR = 5
    ACL_MDL_WEIGHT_SIZET = 6
    ACL_MDL_WORKSPACE_ADDR_PTR = 7
    ACL_MDL_WORKSPACE_SIZET = 8
    ACL_MDL_INPUTQ_NUM_SIZET = 9
    ACL_MDL_INPUTQ_ADDR_PTR = 10
    ACL_MDL_OUTPUTQ_NUM_SIZET = 11
    ACL_MDL_OUTPUTQ_ADDR_PTR = 12
    ACL_MDL_WORKSPACE_MEM_OPTIMIZE = 13
    ACL_MDL_WEIGHT_PATH_PTR = 14
    ACL_MDL_MEM_MALLOC_POLICY_SIZET = 25
    ACL_MDL_WITHOUT_GRAPH_INT32 = 28
    ACL_MDL_NPU_PERF_MODE = 29


class LoadType(IntEnum):
    """The load types of ACL_MDL_LOAD_TYPE_SIZET."""

    ACL_MDL_LOAD_FROM_FILE = 1
    ACL_MDL_LOAD_FROM_FILE_WITH_MEM = 2
    ACL_MDL_LOAD_FROM_MEM = 3
    ACL_MDL_LOAD_FROM_MEM_WITH_MEM = 4
    ACL_MDL_LOAD_FROM_FILE_WITH_Q = 5
    ACL_MDL_LOAD_FROM_MEM_WITH_Q = 6


class ExecAttr(IntEnum):
    """aclmdlExecConfigAttr, the attributes that GE accepts. The headers have more."""

    ACL_MDL_STREAM_SYNC_TIMEOUT = 0
    ACL_MDL_EVENT_SYNC_TIMEOUT = 1


_CONFIG_ATTRS: Final = frozenset(map(int, ConfigAttr))
_EXEC_ATTRS: Final = frozenset(map(int, ExecAttr))
_MANDATORY: Final[Mapping[int, tuple[ConfigAttr, ...]]] = {
    LoadType.ACL_MDL_LOAD_FROM_FILE: (ConfigAttr.ACL_MDL_PATH_PTR,),
    LoadType.ACL_MDL_LOAD_FROM_FILE_WITH_MEM: (ConfigAttr.ACL_MDL_PATH_PTR,),
    LoadType.ACL_MDL_LOAD_FROM_MEM: (ConfigAttr.ACL_MDL_MEM_ADDR_PTR, ConfigAttr.ACL_MDL_MEM_SIZET),
    LoadType.ACL_MDL_LOAD_FROM_MEM_WITH_MEM: (
        ConfigAttr.ACL_MDL_MEM_ADDR_PTR,
        ConfigAttr.ACL_MDL_MEM_SIZET,
    ),
}
"""The options that each load type requires. The system allocates memory that is not given."""
_LIMITS: Final[Mapping[int, range]] = {
    ConfigAttr.ACL_MDL_PRIORITY_INT32: range(8),
    ConfigAttr.ACL_MDL_LOAD_TYPE_SIZET: range(min(LoadType), max(LoadType) + 1),
    ConfigAttr.ACL_MDL_WORKSPACE_MEM_OPTIMIZE: range(2),
}
_REFUSED: Final[Mapping[int, str]] = {
    ConfigAttr.ACL_MDL_WEIGHT_PATH_PTR: "weights outside the file are not simulated",
    ConfigAttr.ACL_MDL_MEM_MALLOC_POLICY_SIZET: "GE's table lacks it",
    ConfigAttr.ACL_MDL_NPU_PERF_MODE: "GE's table lacks it",
    ConfigAttr.ACL_MDL_WITHOUT_GRAPH_INT32: "pyACL passes 8 bytes where 4 are checked",
}


class Configs(HandleTables):
    """The handles of load and execution configurations: a `Part` of the process."""

    def __init__(self) -> None:
        self.load: Final[Handles[Options]] = Handles("load configuration")
        self.execute: Final[Handles[Options]] = Handles("execution configuration")


def configs() -> Configs:
    """Return the configurations of the process."""
    return process.current().part(Configs)


def checked(options: Options) -> LoadType:
    """Return the load type of these options.

    Raises Refused: INVALID_PARAM if an option is missing, API_NOT_SUPPORT for queues, which are not
    simulated.
    """
    kind = options.get(ConfigAttr.ACL_MDL_LOAD_TYPE_SIZET)
    if kind is None:
        raise Refused(Code.INVALID_PARAM, "load_with_config: ACL_MDL_LOAD_TYPE_SIZET is missing")
    if kind not in _MANDATORY:
        text = f"load_with_config: {LoadType(kind).name}: queues are not simulated"
        raise Refused(Code.API_NOT_SUPPORT, text)
    for attr in _MANDATORY[kind]:
        if not options.get(attr):
            text = f"load_with_config: {LoadType(kind).name}: {attr.name} is missing"
            raise Refused(Code.INVALID_PARAM, text)
    return LoadType(kind)


def option(given: object) -> Option:
    """Return an option's value: address, number or path. Raises TypeError for other types."""
    return given if isinstance(given, str) else U64(given)


@bare("mdl.create_config_handle")
def create_config_handle() -> int:
    """Create an empty load configuration."""
    return configs().load.add({})


@status("mdl.set_config_opt", U64, U32, option)
def set_config_opt(handle: int, attr: int, value: Option) -> None:
    """Set one option. Refused: INVALID_PARAM for an unknown option or an invalid value."""
    options = lookup(configs().load, handle, "set_config_opt")
    what = f"set_config_opt: attribute {attr}"
    if attr not in _CONFIG_ATTRS:
        raise Refused(Code.INVALID_PARAM, f"{what}: unknown")
    if attr in _REFUSED:
        raise Refused(Code.INVALID_PARAM, f"{what}: {_REFUSED[attr]}")
    if isinstance(value, str) != (attr == ConfigAttr.ACL_MDL_PATH_PTR):
        raise Refused(Code.INVALID_PARAM, f"{what}: found {value!r}, a value of the wrong type")
    if attr in _LIMITS and value not in _LIMITS[attr]:
        limits = _LIMITS[attr]
        found = f"found {value}, expected {limits[0]} to {limits[-1]}"
        raise Refused(Code.INVALID_PARAM, f"{what}: {found}")
    options[attr] = value


@status("mdl.destroy_config_handle", U64)
def destroy_config_handle(handle: int) -> None:
    """Destroy the configuration; models loaded with it stay loaded."""
    remove(configs().load, handle, "destroy_config_handle")


@bare("mdl.create_exec_config_handle")
def create_exec_config_handle() -> int:
    """Create an empty execution configuration."""
    return configs().execute.add({})


@status("mdl.set_exec_config_opt", U64, U32, U64)
def set_exec_config_opt(handle: int, attr: int, value: int) -> None:
    """Set one option. Time limits have no effect in the simulator."""
    options = lookup(configs().execute, handle, "set_exec_config_opt")
    if attr not in _EXEC_ATTRS:
        raise Refused(Code.INVALID_PARAM, f"set_exec_config_opt: attribute {attr}: unknown")
    options[attr] = value


@status("mdl.destroy_exec_config_handle", U64)
def destroy_exec_config_handle(handle: int) -> None:
    """Destroy the configuration."""
    remove(configs().execute, handle, "destroy_exec_config_handle")


# -- sizes ---------------------------------------------------------------------------------------


@pair("mdl.query_size", STR)
def query_size(path: str) -> tuple[int, int]:
    """Return the bytes of workspace and of weights. See `compiler.inference`.

    The workspace is 0 with free shapes. Refused: RT_CONTEXT_NULL (inferred: the documents say that
    a context is "wanted").
    """
    process.current().context()
    return _sizes(om.read(path))


@pair("mdl.query_size_from_mem", U64, U64)
def query_size_from_mem(ptr: int, size: int) -> tuple[int, int]:
    """Return the sizes of a model in host memory, like query_size."""
    process.current().context()
    return _sizes(from_memory(ptr, size, "query_size_from_mem"))


# -- loads ---------------------------------------------------------------------------------------


@value("mdl.load_from_file", STR)
def load_from_file(path: str) -> int:
    """Load a model into memory that the system allocates; return its id."""
    return models().load(om.read(path), file=Path(path).stem)


@value("mdl.load_from_mem", U64, U64)
def load_from_mem(ptr: int, size: int) -> int:
    """Load a model like load_from_file, from host memory, which may be freed after the call."""
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
    """Load a model like load_from_file_with_mem, from host memory."""
    found = from_memory(ptr, size, "load_from_mem_with_mem")
    return models().load(found, Given(work_ptr, work_size), Given(weight_ptr, weight_size))


@value("mdl.load_with_config", U64)
def load_with_config(handle: int) -> int:
    """Load a model with the options of a configuration; return the model's id."""
    options = lookup(configs().load, handle, "load_with_config")
    kind = checked(options)
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


@status("mdl.unload", U32)
def unload(model: int) -> None:
    """Unload a model; memory of the caller is not freed.

    Refused: INVALID_PARAM for a model of a bundle.
    """
    if bundles().contain(model):
        raise Refused(Code.INVALID_PARAM, f"unload: model {model}: expected bundle_unload")
    models().unload(model)


# -- executions ----------------------------------------------------------------------------------


@status("mdl.execute", U32, U64, U64)
def execute(model: int, inputs: int, outputs: int) -> None:
    """Execute on the context's default stream and wait. A device holds the GIL during the call."""
    _execute("execute", model, inputs, outputs, 0)


@status("mdl.execute_v2", U32, U64, U64, U64, U64)
def execute_v2(model: int, inputs: int, outputs: int, stream: int, config: int) -> None:
    """Execute on `stream` and wait."""
    lookup(configs().execute, config, "execute_v2")
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
    execution.result()  # raises the execution's failure, which is not a failure of the stream


def _sizes(found: om.Om) -> tuple[int, int]:
    return found.manifest.work_bytes, found.manifest.weight_bytes
