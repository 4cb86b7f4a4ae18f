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
    """Allow set_dump.

    Refused: REPEAT_INITIALIZE; DUMP_ALREADY_RUN if acl.init() configured a dump.
    """
    dumps = _dumps()
    if dumps.of_init:
        raise Refused(Code.DUMP_ALREADY_RUN, "init_dump: acl.init() has configured a dump")
    if dumps.initialised:
        raise Refused(Code.REPEAT_INITIALIZE, "init_dump: already initialised")
    dumps.initialised = True


@status("mdl.set_dump", STR)
def set_dump(path: str) -> None:
    """Dump models loaded from now on as the file says. The file replaces an earlier configuration.

    Violates DUMP_AND_PROFILER. Refused: DUMP_NOT_RUN without init_dump, INVALID_FILE, PARSE_FILE,
    INVALID_DUMP_CONFIG.
    """
    dumps = _dumps()
    if not dumps.initialised:
        raise Refused(Code.DUMP_NOT_RUN, "set_dump: found no earlier init_dump")
    config = DumpConfig.read(read_config(path, "set_dump"), f"set_dump: {path}")
    if config is not None and process.current().part(Profiler).is_running:
        violate(DUMP_AND_PROFILER, "set_dump: a profiler is running")
    dumps.config = config


@status("mdl.finalize_dump")
def finalize_dump() -> None:
    """Stop dumping models loaded from now on. Refused: DUMP_NOT_RUN."""
    dumps = _dumps()
    if not dumps.initialised:
        raise Refused(Code.DUMP_NOT_RUN, "finalize_dump: found no earlier init_dump")
    dumps.initialised, dumps.config = False, None


def _dumps() -> Dumps:
    return process.current().part(Dumps)
