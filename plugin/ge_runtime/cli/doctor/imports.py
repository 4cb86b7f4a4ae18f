"""Import modules in child processes and read facts about them."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Final

from ge_runtime.cli.child_process import TIMEOUT_S, ChildResult, Outcome, run_command

# The code that runs after the import of each module. All values of `facts` are texts.
_FACTS: Final[Mapping[str, str]] = {
    "numpy": "facts = {}",
    "onnxruntime": """
import ctypes, pathlib
facts = {"providers": ", ".join(module.get_available_providers())}
if "CUDAExecutionProvider" in facts["providers"]:
    # The provider is listed if it was built. Loading its library shows whether CUDA is installed.
    folder = pathlib.Path(module.__file__).parent / "capi"
    getattr(module, "preload_dlls", lambda: None)()  # as the engine does
    try:
        for name in ("shared", "cuda"):
            file = folder / f"libonnxruntime_providers_{name}.so"
            ctypes.CDLL(str(file), mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        facts["cuda_error"] = str(error)
""",
    "torch": """
facts = {"cuda": str(module.version.cuda or "")}
if facts["cuda"]:
    facts["cuda_devices"] = str(module.cuda.device_count())
""",
    # init and get_device_count take no device memory. 100002: init was already called.
    "acl": """
facts = {"file": str(getattr(module, "__file__", "")), "soc": ""}
code = module.init()
count = 0
if code in (0, 100002):
    facts["soc"] = module.get_soc_name() or "unknown"
    count, code = module.rt.get_device_count()
    module.finalize()
facts.update(code=str(code), devices=str(count))
""",
    "torch_npu": "facts = {}",
    "ge": """
from ge_runtime.npu.driver.ge_py import GE_PY_MODULES, missing_names
modules = {name: importlib.import_module(each) for name, each in GE_PY_MODULES.items()}
facts = {"file": str(module.__file__), "lacking": ", ".join(missing_names(modules))}
""",
    "reference_server": """
from reference_server.core.profiles import NEWEST, V2_51
facts = {"default": f"tritonserver {NEWEST.version} ({NEWEST.name})", "proven": V2_51.name}
""",
}
CHECKED_MODULES: Final = tuple(_FACTS)

_MARK: Final = "imported: "
"""Start of the line with the facts; libraries may print other lines."""

_PROGRAM: Final = f"""
import importlib.util, json, os, sys
sys.path[:] = filter(None, sys.path)  # do not import from the current folder
facts = None
try:
    if importlib.util.find_spec(sys.argv[1]) is not None:
        module = importlib.import_module(sys.argv[1])
        exec(sys.argv[2])
except SystemExit as end:  # old torch_npu without CANN exits with code 0
    sys.exit(end.code or 1)
print("\\n{_MARK}" + json.dumps(facts), flush=True)
os._exit(0)  # skip the exit handlers of the libraries
"""


def module_facts(module: str, timeout_s: float = TIMEOUT_S) -> ChildResult:
    """Import one of CHECKED_MODULES in a child process and return its facts."""
    result = run_command([sys.executable, "-c", _PROGRAM, module, _FACTS[module]], timeout_s)
    if result.outcome is not Outcome.DONE:
        return ChildResult(result.outcome, error=result.error)
    marked = [line for line in result.stdout.splitlines() if line.startswith(_MARK)]
    if not marked:
        return ChildResult(
            Outcome.FAILED, error="the process ended during the import with exit code 0"
        )
    facts = json.loads(marked[-1].removeprefix(_MARK))
    return ChildResult(Outcome.ABSENT) if facts is None else ChildResult(Outcome.DONE, facts)
