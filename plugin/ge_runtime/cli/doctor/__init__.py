"""`ge-runtime doctor`: what is on a machine, what is missing, and what to do about it."""

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
    judge,
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
Show what is on this machine, what is missing, and what to do about it.

Looked at are Python and the engines' packages, memory and shared memory, Ascend's driver, device
files, CANN, pyACL and torch_npu, GE-PY where a model asks for it, and NVIDIA's driver and
libraries. Packages are imported, and graphs opened, in processes of their own: one that crashes or
hangs is a finding. No device memory is taken, and nothing is changed.

With MODEL_REPOSITORY, the models in it that have a graph are inspected too. They say what is
required, how much memory they plan, and how much shared memory their inputs and answers take.

State   ok          as it should be
        missing     not there, and needed by what is required
        wrong       there, and not as it should be
        unknown     it could not be found out
        not needed  not there, and not needed by what is required
"""

_EPILOG: Final = """\
examples:
  ge-runtime doctor model_repository
  ge-runtime doctor --require npu || exit 1
  ge-runtime doctor --json | jq '.findings[] | select(.state == "wrong") | .cure'

Exit codes: 0 nothing that is required is missing or wrong, 1 something is, 2 arguments or input
that cannot be used.
"""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("repository", type=Path, nargs="?", metavar="MODEL_REPOSITORY", help="folders of models")
    add(
        "--require",
        action="append",
        default=[],
        choices=REQUIRABLE,
        help="what the machine is for; may be given several times (what the models ask for, else "
        "cpu)",
    )
    add("--json", action="store_true", help="print it for programs")


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
    help="show what a machine lacks to serve, and the cure",
    description=_DESCRIPTION,
    epilog=_EPILOG,
    add_arguments=_add_arguments,
    run=_run,
)


def required_by(asked: Sequence[str], models: Sequence[Model]) -> frozenset[str]:
    """What is required: what was asked for, and what the models need; cpu if that is nothing."""
    needs = frozenset(asked).union(*(model.needs for model in models))
    return needs & {*NEEDS} or frozenset({"cpu"})


def examine(machine: Machine, models: Sequence[Model], required: frozenset[str]) -> list[Finding]:
    """All findings about a machine that is to serve these models."""
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
    return judge(findings, required)
