"""`ge-runtime probe-device`: asks a card the questions that CANN's documents leave open."""

from __future__ import annotations

import argparse
import json
import platform
import tempfile
import textwrap
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from ge_runtime.child_process import Outcome
from ge_runtime.cli.command import EXIT_NO, Command, whole
from ge_runtime.cli.doctor.machine import module_facts
from ge_runtime.cli.probe_device.checks import CHECKS, DeviceCheck
from ge_runtime.cli.probe_device.session import run_probe
from ge_runtime.errors import DeviceFault
from ge_runtime.memory.plan import aligned_columns
from ge_runtime.npu.driver.atc import Atc

_WIDTH: Final = 100
_FORMAT: Final = 1

_DESCRIPTION: Final = """\
Ask an Ascend card the questions that CANN's documents leave open. Each answer is printed with the
assumption that ge_runtime makes.

Each question is a small program in a child process, with a tiny model that CANN's compiler makes
during the run. A program that crashes or hangs is killed, and the next program starts. A run takes
some minutes, most of them in atc, and up to a GiB of device memory. Use a card that is otherwise
idle. Nothing is changed.

--json FILE writes all results: please attach the file to an issue.
"""

_EPILOG: Final = """\
examples:
  ge-runtime probe-device --json probed.json
  ge-runtime probe-device --only 3 --risky

Exit codes: 0 every question has an answer or was skipped, 1 a question has no answer, 2 no device
or no compiler was found.
"""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--device", type=int, default=0, metavar="N", help="number of the card (default: 0)")
    add(
        "--only",
        type=whole,
        nargs="+",
        choices=[check.number for check in CHECKS],
        metavar="N",
        help="numbers of the questions to ask (default: all)",
    )
    add("--risky", action="store_true", help="also ask questions that may require a card reset")
    add("--timeout", type=whole, default=300, metavar="S",
        help="seconds for each question (default: 300)")  # fmt: skip
    add("--json", type=Path, metavar="FILE", help="write all results to this file")


def _run(given: argparse.Namespace) -> int:
    facts = _device_facts(given.device)
    compiler = Atc.find()  # raises before the first question, as nearly all compile a model
    if given.json is not None:
        given.json.touch()  # raises before minutes of questions if the file cannot be written
    soc = facts["soc"]
    simulated = " It is a simulator: its answers are only assumptions."
    print(f"Asking {soc}.{simulated if _is_simulated(soc) else ''}", flush=True)
    checks = [check for check in CHECKS if not given.only or check.number in given.only]
    results = []
    for result in run_checks(
        checks, device=given.device, risky=given.risky, timeout_s=given.timeout
    ):
        results.append(result)
        print("\n".join(["", *_report_lines(result, soc)]), flush=True)
    if given.json is not None:
        about = {"acl": facts["file"], "compiler": compiler.identity}
        given.json.write_text(json.dumps(_results_json(results, soc, about), indent=2) + "\n")
    return 0 if all(each.outcome in ("answered", "skipped") for each in results) else EXIT_NO


COMMAND: Final = Command(
    name="probe-device",
    help="ask an Ascend card what CANN's documents leave open",
    description=_DESCRIPTION,
    epilog=_EPILOG,
    add_arguments=_add_arguments,
    run=_run,
)


@dataclass(frozen=True)
class CheckResult:
    """The result of one question."""

    check: DeviceCheck
    outcome: str
    """answered, failed (a call failed that had to succeed), hung, died, or skipped."""
    answer: str
    evidence: Mapping[str, Any]
    seconds: float


def run_checks(
    checks: Iterable[DeviceCheck], *, device: int, risky: bool, timeout_s: float
) -> Iterator[CheckResult]:
    """Ask the questions one after another, each in a child process."""
    with tempfile.TemporaryDirectory(prefix="ge_runtime_probe_") as folder:
        for check in checks:
            if check.risk and not risky:
                yield CheckResult(check, "skipped", f"needs --risky: {check.risk}", {}, 0.0)
                continue
            begin = time.monotonic()
            result = run_probe(check.probe.__name__, device, Path(folder), timeout_s)
            yield CheckResult(check, *result, time.monotonic() - begin)


def _device_facts(device: int) -> Mapping[str, str]:
    """Return the facts that a child process reads from `acl`. Raises DeviceFault."""
    result = module_facts("acl")
    if result.outcome is not Outcome.DONE or not int(result.facts["devices"]):
        error = result.error or result.facts.get("code", result.outcome.value)
        raise DeviceFault(
            f"found no Ascend device ({error}). `ge-runtime doctor --require npu` shows the cause"
        )
    count = int(result.facts["devices"])
    if not 0 <= device < count:
        raise DeviceFault(f"--device: found {device}, expected 0 to {count - 1}")
    return result.facts


def _report_lines(result: CheckResult, soc: str) -> list[str]:
    evidence = "; ".join(
        f"{name}: {value}" for name, value in result.evidence.items() if name != "traceback"
    )
    source = "the simulator" if _is_simulated(soc) else "the device"
    cells = [
        ("assumed", result.check.assumed),
        (source if result.outcome == "answered" else result.outcome, result.answer),
        *([("seen", evidence)] if evidence else []),
    ]
    labels = aligned_columns([(label,) for label, _ in cells], "<")
    width = max(map(len, labels))
    lines = _wrapped(f"{result.check.number:>2}  ", result.check.question)
    for label, (_, text) in zip(labels, cells, strict=True):
        lines += _wrapped(f"    {label:<{width}}  ", text)
    return lines


def _results_json(
    results: Sequence[CheckResult], soc: str, about: Mapping[str, object]
) -> dict[str, object]:
    return {
        "format": _FORMAT,
        "soc": soc,
        "simulated": _is_simulated(soc),
        "machine": {
            "system": platform.platform(),
            "python": platform.python_version(),
            "numpy": np.__version__,
            **about,
        },
        "questions": [
            {
                "number": each.check.number,
                "question": each.check.question,
                "assumed": each.check.assumed,
                "otherwise": each.check.otherwise,
                "outcome": each.outcome,
                "answered_by": soc,
                "answer": each.answer,
                "evidence": each.evidence,
                "seconds": round(each.seconds, 3),
            }
            for each in results
        ],
    }


def _is_simulated(soc: str) -> bool:
    return "Simulator" in soc


def _wrapped(label: str, text: str) -> list[str]:
    return textwrap.wrap(
        " ".join(text.split()),
        _WIDTH,
        initial_indent=label,
        subsequent_indent=" " * len(label),
        break_on_hyphens=False,
    )
