"""`ge-runtime doctor`: checks a machine and says how to fix what is missing or wrong."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from ge_runtime.cli.command import EXIT_NO, Command
from ge_runtime.cli.doctor.ascend_checks import (
    check_cann,
    check_compiler,
    check_driver,
    check_simulator,
    is_simulated,
)
from ge_runtime.cli.doctor.findings import (
    NEEDS,
    REQUIRABLE,
    Finding,
    as_json,
    faults_of,
    mark_not_needed,
    report_lines,
)
from ge_runtime.cli.doctor.machine import Machine, read_machine
from ge_runtime.cli.doctor.package_checks import (
    check_engines,
    check_ge_py,
    check_python,
    check_server,
    check_torch_npu,
)
from ge_runtime.cli.doctor.serving_checks import (
    Model,
    check_memory,
    check_models,
    check_nvidia,
    check_service,
    check_shared_memory,
    read_models,
)

_DESCRIPTION: Final = """\
Check this machine, and print what is missing or wrong and how to fix it.

Checked are Python and the engines' packages, memory and shared memory, Ascend's driver, device
files, CANN, pyACL and torch_npu, GE-PY if a model uses it, and NVIDIA's driver and libraries.
Packages are imported and graphs are opened in child processes, so a crash or a hang becomes a
finding. The command takes no device memory and changes nothing.

With MODEL_REPOSITORY, every model with a graph is inspected too. The models determine what is
required, how much memory is planned, and how much shared memory their inputs and outputs need.

State   ok          as expected
        missing     absent, and required
        wrong       present, but not as expected
        unknown     it could not be determined
        not needed  absent, and not required
"""

_EPILOG: Final = """\
examples:
  ge-runtime doctor model_repository
  ge-runtime doctor --require npu || exit 1
  ge-runtime doctor --json | jq '.findings[] | select(.state == "wrong") | .cure'

Exit codes: 0 nothing required is missing or wrong, 1 something is, 2 invalid arguments or input.
"""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("repository", type=Path, nargs="?", metavar="MODEL_REPOSITORY", help="folder of models")
    add(
        "--require",
        action="append",
        default=[],
        choices=REQUIRABLE,
        help="what the machine must support; may be repeated (default: what the models need, "
        "otherwise cpu)",
    )
    add("--json", action="store_true", help="print JSON")


def _run(given: argparse.Namespace) -> int:
    models = [] if given.repository is None else read_models(given.repository)
    required = required_by(given.require, models)
    findings = examine(read_machine(), models, required)
    faults = faults_of(findings, required)
    if given.json:
        print(json.dumps(as_json(findings, required, faults), indent=2))
    else:
        print("\n".join(report_lines(findings, required, faults)))
    return EXIT_NO if faults else 0


COMMAND: Final = Command(
    name="doctor",
    help="check what a machine lacks for serving, and how to fix it",
    description=_DESCRIPTION,
    epilog=_EPILOG,
    add_arguments=_add_arguments,
    run=_run,
)


def required_by(requested: Sequence[str], models: Sequence[Model]) -> frozenset[str]:
    """Return the values of --require and the needs of the models; cpu if both are empty."""
    needs = frozenset(requested).union(*(model.needs for model in models))
    return needs & {*NEEDS} or frozenset({"cpu"})


def examine(machine: Machine, models: Sequence[Model], required: frozenset[str]) -> list[Finding]:
    """Return all findings about a machine that is to serve these models."""
    simulated = is_simulated(machine)
    findings = [
        *check_python(machine),
        *check_engines(machine),
        *check_server(machine),
        *check_models(models),
        *check_memory(machine, models),
        check_shared_memory(machine, models),
        check_service(machine),
        *([] if simulated else check_driver(machine)),
        *(check_simulator(machine) if simulated else check_cann(machine)),
        *check_compiler(machine),
        *check_torch_npu(machine),
        *(check_ge_py(machine) if "ge_session" in required else []),
        *check_nvidia(machine),
    ]
    return mark_not_needed(findings, required)
