"""`python -m ge_runtime.cli.probe_device PROBE DEVICE FOLDER`: run one probe in this process.

Prints the result as one line of JSON before it releases the probe's resources, so that the parent
process has the answer even if the release hangs.
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from pathlib import Path

from ge_runtime.cli.probe_device.checks import PROBES
from ge_runtime.cli.probe_device.session import Answer, ProbeSession, Unavailable, print_result
from ge_runtime.errors import RuntimeFault
from ge_runtime.npu.driver.cann_values import DriverFault


def main(name: str, device: str, folder: str, *arguments: str) -> None:
    """Run the probe and end the process."""
    sys.path[:] = filter(None, sys.path)  # do not import from the current folder
    session = ProbeSession(importlib.import_module("acl"), Path(folder), int(device))
    outcome, answer, release = "answered", Answer(""), True
    try:
        answer = PROBES[name](session, *arguments)
    except Unavailable as absent:
        answer = Answer(str(absent))
    except AssertionError as refusal:  # the simulator refuses misuse that a device may not detect
        answer, release = Answer(f"refused: {refusal}"), False
    except (DriverFault, RuntimeFault) as fault:
        outcome, answer, release = "failed", Answer(str(fault)), False
    except Exception as error:
        text = "".join(traceback.format_exception(error))
        outcome, answer, release = "failed", Answer(repr(error), {"traceback": text}), False
    print_result(outcome, answer)
    if release:
        session.close()
    sys.stderr.flush()
    os._exit(0)  # skip the exit handlers of the libraries


if __name__ == "__main__":
    main(*sys.argv[1:])
