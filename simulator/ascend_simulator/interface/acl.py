"""The functions of `acl` itself that are not about models: init, finalize, names and errors."""

from __future__ import annotations

import json
import os
from typing import Final

import numpy as np

from ascend_simulator import process
from ascend_simulator.calls import I32, STR, U32, bare, status, triple, value
from ascend_simulator.codes import Code, Refused
from ascend_simulator.enumerations import DATA_TYPE_BYTES, DataType
from ascend_simulator.interface.config_file import DUMP_AND_PROFILER, read_config
from ascend_simulator.interface.prof import Profiler
from ascend_simulator.models.dumps import DumpConfig, Dumps
from ascend_simulator.violations import declare, violate

UNRESET = declare(
    "device.set-without-reset", "Each set_device has its reset_device before acl.finalize()."
)
LEAKS = declare("process.finalize-leaks", "Everything is released before acl.finalize().")

_UNKNOWN_BYTES: Final = 8
"""The size of a type that CANN does not know, those of 4 and 6 bits among them."""
_VERSION: Final = (1, 16, 0)
_LEVELS: Final = ("DEBUG", "INFO", "WARNING", "ERROR")


@status("init", STR, optional=1)
def init(path: str = "") -> None:
    """Begin; `path` names a JSON file. Reads err_msg_mode, dump and whether there is a profiler.

    Refused: REPEAT_INITIALIZE where it is initialised, which raises the count all the same, and
    looks at no path; INVALID_FILE, PARSE_FILE, INVALID_DUMP_CONFIG; after a finalize INVALID_PARAM
    for another configuration. Violates DUMP_AND_PROFILER.
    """
    now = process.current()
    with now.lock:
        if now.init_count:  # whatever the path is
            now.init_count += 1
            raise Refused(Code.REPEAT_INITIALIZE, "init: found it initialised")
        config = read_config(path, "init") if path else {}
        text = json.dumps(config, sort_keys=True)
        if config.get("dump") and config.get("profiler"):
            violate(DUMP_AND_PROFILER, f"init: {path}: found both")
        if now.config not in ("", text):
            raise Refused(
                Code.INVALID_PARAM, "init: found another configuration than before acl.finalize()"
            )
        dumps = now.part(Dumps)
        dumps.config = DumpConfig.read(config, f"init: {path}")
        dumps.of_init = dumps.config is not None
        now.part(Profiler).of_init = bool(config.get("profiler"))
        now.config = text
        now.error_per_process = str(config.get("err_msg_mode", "0")) == "1"
        now.init_count = 1
        now.update_all_clear()


@status("finalize")
def finalize() -> None:
    """End, whatever the count is. Violates LEAKS. Refused: REPEAT_FINALIZE."""
    now = process.current()
    with now.lock:
        if now.init_count == 0:
            raise Refused(Code.REPEAT_FINALIZE, "finalize: found nothing initialised")
        _end(now)


@value("finalize_reference")
def finalize_reference() -> int:
    """Undo one init; ends with the last. Violates LEAKS. Refused: REPEAT_FINALIZE."""
    now = process.current()
    with now.lock:
        if now.init_count == 0:
            raise Refused(Code.REPEAT_FINALIZE, "finalize_reference: found nothing initialised")
        if now.init_count == 1:
            _end(now)
        else:
            now.init_count -= 1
        return now.init_count


@bare("get_soc_name", failed=None)
def get_soc_name() -> str:
    """The name of the simulated chip: AscendSimulator, unless the settings say another."""
    return process.current().settings.soc


@bare("get_recent_err_msg", failed=None, anytime=True)
def get_recent_err_msg() -> str | None:
    """The text of the last refusal of this thread, once; then None."""
    return process.current().take_error()


@triple("get_version")
def get_version() -> tuple[int, int, int]:
    """The version of the interface, as CANN 8.5 has it (an inference)."""
    return _VERSION


@bare("app_log", I32, STR, failed=None, anytime=True)
def app_log(level: int, text: str) -> None:
    """A line of the program for CANN's log: 0 debug, 1 info, 2 warning, 3 error.

    It is printed where CANN's variables have its log on stdout, and else goes nowhere.
    """
    if os.environ.get("ASCEND_SLOG_PRINT_TO_STDOUT") == "1" and 0 <= level < len(_LEVELS):
        least = os.environ.get("ASCEND_GLOBAL_LOG_LEVEL", "3")
        if not least.isdecimal() or level >= int(least):
            print(f"[{_LEVELS[level]}] APP({os.getpid()}): {text}", flush=True)


@bare("float16_to_float", U32)
def float16_to_float(bits: int) -> float:
    """The number that 16 bits are."""
    return float(np.uint16(bits & 0xFFFF).view(np.float16))


@bare("float_to_float16", float)
def float_to_float16(number: float) -> int:
    """The 16 bits of the nearest half precision number."""
    with np.errstate(over="ignore"):
        return int(np.float16(number).view(np.uint16))


@bare("data_type_size", I32)
def data_type_size(data_type: int) -> int:
    """Bytes of one element; 8 for an unknown type, and 0 for what has none."""
    if data_type in (DataType.ACL_DT_UNDEFINED, DataType.ACL_STRING):
        return 0
    return DATA_TYPE_BYTES.get(data_type, _UNKNOWN_BYTES)


def _end(now: process.Process) -> None:
    # First, so that it has ended whatever is found below.
    now.init_count = 0
    now.update_all_clear()
    dumps = now.part(Dumps)
    if dumps.of_init:
        dumps.config, dumps.of_init = None, False
    now.part(Profiler).of_init = False
    now.memory.check_host_writes()
    now.streams.rethrow()
    left = now.live()
    if left:
        violate(LEAKS, f"finalize: found {', '.join(left)}")
    for device, sets in () if left else now.contexts.sets():
        violate(UNRESET, f"finalize: device {device}: found {sets} set_device without reset_device")
