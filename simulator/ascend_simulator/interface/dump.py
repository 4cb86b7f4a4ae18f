"""acl.mdl.init_dump, set_dump and finalize_dump."""

from __future__ import annotations

from ascend_simulator import process
from ascend_simulator.calls import STR, status
from ascend_simulator.codes import Code, Refused
from ascend_simulator.interface.config_file import DUMP_AND_PROFILER, read_config
from ascend_simulator.interface.prof import Profiler
from ascend_simulator.models.dumps import DumpConfig, Dumps
from ascend_simulator.violations import violate


@status("mdl.init_dump")
def init_dump() -> None:
    """Dumps may be set. Refused: REPEAT_INITIALIZE; DUMP_ALREADY_RUN where acl.init() had one."""
    dumps = _dumps()
    if dumps.of_init:
        raise Refused(Code.DUMP_ALREADY_RUN, "init_dump: found a dump configured by acl.init()")
    if dumps.initialised:
        raise Refused(Code.REPEAT_INITIALIZE, "init_dump: found it initialised")
    dumps.initialised = True


@status("mdl.set_dump", STR)
def set_dump(path: str) -> None:
    """Models that are loaded from now on are dumped as the file says; it replaces what was set.

    Refused: DUMP_NOT_RUN without init_dump, INVALID_FILE, PARSE_FILE, INVALID_DUMP_CONFIG. Violates
    DUMP_AND_PROFILER.
    """
    dumps = _dumps()
    if not dumps.initialised:
        raise Refused(Code.DUMP_NOT_RUN, "set_dump: found no init_dump before")
    config = DumpConfig.read(read_config(path, "set_dump"), f"set_dump: {path}")
    if config is not None and process.current().part(Profiler).is_running:
        violate(DUMP_AND_PROFILER, "set_dump: found a profiler that runs")
    dumps.config = config


@status("mdl.finalize_dump")
def finalize_dump() -> None:
    """No model that is loaded from now on is dumped. Refused: DUMP_NOT_RUN."""
    dumps = _dumps()
    if not dumps.initialised:
        raise Refused(Code.DUMP_NOT_RUN, "finalize_dump: found no init_dump before")
    dumps.initialised, dumps.config = False, None


def _dumps() -> Dumps:
    return process.current().part(Dumps)
