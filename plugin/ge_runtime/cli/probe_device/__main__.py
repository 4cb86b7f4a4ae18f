"""`python -m ge_runtime.cli.probe_device PROBE DEVICE FOLDER`: one probe, in this process alone.

Prints what came of it as one line of JSON, and only then gives back what the probe took: whoever
started it has the answer even if that never ends.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
from pathlib import Path

from ge_runtime.cli.probe_device.checks import PROBES
from ge_runtime.cli.probe_device.session import RESULT_MARK, Answer, ProbeSession, Unavailable
from ge_runtime.errors import RuntimeFault
from ge_runtime.npu.driver.return_codes import DriverFault


def main(name: str, device: str, folder: str, *arguments: str) -> None:
    """Run it. Ends the process."""
    sys.path[:] = filter(None, sys.path)  # the current folder is no place to import from
    session = ProbeSession(importlib.import_module("acl"), Path(folder), int(device))
    outcome, answer = "answered", Answer("")
    try:
        answer = PROBES[name](session, *arguments)
    except Unavailable as absent:
        answer = Answer(str(absent))
    except AssertionError as refusal:  # the simulator's way to say that a device might not tell
        answer = Answer(f"refused: {refusal}")
    except (DriverFault, RuntimeFault) as fault:
        outcome, answer = "failed", Answer(str(fault))
    except Exception as error:
        text = "".join(traceback.format_exception(error))
        outcome, answer = "failed", Answer(repr(error), {"traceback": text})
    told = json.dumps([outcome, answer.text, dict(answer.evidence)])
    print(f"{RESULT_MARK}{told}", flush=True)
    if outcome == "answered" and not answer.text.startswith("refused"):
        session.close()
    sys.stderr.flush()
    # Whatever is left goes with the process: its order of ending is the library's own affair.
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
