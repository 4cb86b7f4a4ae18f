"""The functions of `acl` itself, without models: init, finalize, versions, numbers and errors."""

from __future__ import annotations

import json
import os
from typing import Final

import numpy as np

from ascend_simulator import process
from ascend_simulator.calls import I32, STR, U32, bare, status, triple, value
from ascend_simulator.codes import DATA_TYPE_BYTES, Code, DataType, Refused
from ascend_simulator.interface.prof import DUMP_AND_PROFILER, Profiler, read_config
from ascend_simulator.models.dumps import DumpConfig, Dumps
from ascend_simulator.violations import declare, violate

UNRESET = declare(
    "device.set-without-reset", "Each set_device needs a reset_device before acl.finalize()."
)
LEAKS = declare("process.finalize-leaks", "All resources must be released before acl.finalize().")

_UNKNOWN_BYTES: Final = 8
"""Size of a type that CANN does not know. Such types include those of 4 and 6 bits."""
_VERSION: Final = (1, 16, 0)
_LEVELS: Final = ("DEBUG", "INFO", "WARNING", "ERROR")


@status("init", STR, optional=1)
def init(path: str = "") -> None:
    """Initialise `acl`; `path` names a JSON file.

    Reads err_msg_mode and dump, and checks whether there is a profiler section. Checks
    DUMP_AND_PROFILER. Refused: REPEAT_INITIALIZE if already initialised (the count is still
    raised, and `path` is not read); INVALID_FILE, PARSE_FILE, INVALID_DUMP_CONFIG; INVALID_PARAM
    for a configuration that differs from the one before acl.finalize().
    """
    now = process.current()
    with now.lock:
        if now.init_count:  # checked before the path is read
            now.init_count += 1
            raise Refused(Code.REPEAT_INITIALIZE, "init: already initialised")
        config = read_config(path, "init") if path else {}
        text = json.dumps(config, sort_keys=True)
        if config.get("dump") and config.get("profiler"):
            violate(DUMP_AND_PROFILER, f"init: {path}: found both, expected one")
        if now.config not in ("", text):
            raise Refused(
                Code.INVALID_PARAM,
                "init: the configuration differs from the one before acl.finalize()",
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
    """Finalize `acl`, for any init count. Checks LEAKS. Refused: REPEAT_FINALIZE."""
    now = process.current()
    with now.lock:
        if now.init_count == 0:
            raise Refused(Code.REPEAT_FINALIZE, "finalize: not initialised")
        _end(now)


@value("finalize_reference")
def finalize_reference() -> int:
    """Undo one init; the last undo finalizes. Checks LEAKS. Refused: REPEAT_FINALIZE."""
    now = process.current()
    with now.lock:
        if now.init_count == 0:
            raise Refused(Code.REPEAT_FINALIZE, "finalize_reference: not initialised")
        if now.init_count == 1:
            _end(now)
        else:
            now.init_count -= 1
        return now.init_count


@bare("get_soc_name", failed=None)
def get_soc_name() -> str:
    """Return the name of the simulated chip: AscendSimulator, unless the settings name another."""
    return process.current().settings.soc


@bare("get_recent_err_msg", failed=None, anytime=True)
def get_recent_err_msg() -> str | None:
    """Return the text of this thread's last refusal, and remove it; None without a text."""
    return process.current().take_error()


@triple("get_version")
def get_version() -> tuple[int, int, int]:
    """Return the interface version of CANN 8.5 (an inference)."""
    return _VERSION


@bare("app_log", I32, STR, failed=None, anytime=True)
def app_log(level: int, text: str) -> None:
    """Write a line of the program to CANN's log. Levels: 0 debug, 1 info, 2 warning, 3 error.

    The line is printed only if CANN's environment variables send the log to stdout.
    """
    if os.environ.get("ASCEND_SLOG_PRINT_TO_STDOUT") == "1" and 0 <= level < len(_LEVELS):
        least = os.environ.get("ASCEND_GLOBAL_LOG_LEVEL", "3")
        if not least.isdecimal() or level >= int(least):
            print(f"[{_LEVELS[level]}] APP({os.getpid()}): {text}", flush=True)


@bare("float16_to_float", U32)
def float16_to_float(bits: int) -> float:
    """Return the half precision number with these 16 bits."""
    return float(np.uint16(bits & 0xFFFF).view(np.float16))


@bare("float_to_float16", float)
def float_to_float16(number: float) -> int:
    """Return the 16 bits of the nearest half precision number."""
    with np.errstate(over="ignore"):
        return int(np.float16(number).view(np.uint16))


@bare("data_type_size", I32)
def data_type_size(data_type: int) -> int:
    """Return the bytes of one element: 8 for an unknown type, 0 for a type without a size."""
    if data_type in (DataType.ACL_DT_UNDEFINED, DataType.ACL_STRING):
        return 0
    return DATA_TYPE_BYTES.get(data_type, _UNKNOWN_BYTES)


def _end(now: process.Process) -> None:
    # Reset the count first, so that `acl` is finalized even if a check below raises.
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
        violate(LEAKS, f"finalize: not released: {', '.join(left)}")
    for device, sets in () if left else now.contexts.sets():
        violate(UNRESET, f"finalize: device {device}: found {sets} set_device without reset_device")
