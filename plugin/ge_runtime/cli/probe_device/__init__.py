"""`ge-runtime probe-device`: asks a device what no document says, and tells what it answered."""

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

from ge_runtime.cli.command import EXIT_NO, Command, whole
from ge_runtime.cli.doctor.trials import Outcome, try_import
from ge_runtime.cli.probe_device.checks import CHECKS, DeviceCheck
from ge_runtime.cli.probe_device.session import ProbeProcess
from ge_runtime.errors import DeviceFault
from ge_runtime.memory.plan import aligned_columns
from ge_runtime.npu.driver.atc import Atc

_WIDTH: Final = 100
_FORMAT: Final = 1

_DESCRIPTION: Final = """\
Ask an Ascend card what no document says, and what ge_runtime assumes meanwhile.

Each question is asked by a small program in a process of its own, with a tiny model that CANN's
compiler makes here. One that crashes or never ends is killed, and the others go on. It takes some
minutes, most of them atc's, and up to a GiB of device memory: best on a card that nobody else
uses. Nothing is changed.

With --json FILE everything that was seen is written down: please attach it to an issue, so that an
assumption becomes a fact.
"""

_EPILOG: Final = """\
examples:
  ge-runtime probe-device --json probed.json
  ge-runtime probe-device --only 3 --risky

Exit codes: 0 every question that was asked has an answer, 1 one has none, 2 there is no device or
no compiler.
"""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--device", type=int, default=0, metavar="N", help="which card (0)")
    add(
        "--only",
        type=whole,
        nargs="+",
        choices=[check.number for check in CHECKS],
        metavar="N",
        help="the questions to ask, by number (all)",
    )
    add("--risky", action="store_true", help="also ask what may make the card unusable for a while")
    add("--timeout", type=whole, default=300, metavar="S", help="seconds for each question (300)")
    add("--json", type=Path, metavar="FILE", help="write everything that was seen")


def _run(given: argparse.Namespace) -> int:
    facts = _device_facts(given.device)
    Atc.find()  # raises before the first question: nearly all need a model of its making
    if given.json is not None:
        given.json.touch()  # before minutes of questions whose answers would have no place
    soc = facts["soc"]
    print(_heading(soc), flush=True)
    chosen = [one for one in CHECKS if not given.only or one.number in given.only]
    results = []
    for result in run_checks(
        chosen, device=given.device, risky=given.risky, timeout_s=given.timeout
    ):
        results.append(result)
        print("\n".join(["", *_report_lines(result, soc)]), flush=True)
    if given.json is not None:
        about = {"acl": facts["file"], "compiler": Atc.find().identity}
        given.json.write_text(json.dumps(_results_json(results, soc, about), indent=2) + "\n")
    return 0 if all(one.outcome in ("answered", "skipped") for one in results) else EXIT_NO


COMMAND: Final = Command(
    name="probe-device",
    help="ask an Ascend card what no document says",
    description=_DESCRIPTION,
    epilog=_EPILOG,
    add_arguments=_add_arguments,
    run=_run,
)


@dataclass(frozen=True)
class CheckResult:
    """What came of a check."""

    check: DeviceCheck
    outcome: str
    """answered, failed (a call that had to succeed did not), hung, died, or skipped."""
    answer: str
    evidence: Mapping[str, Any]
    seconds: float


def run_checks(
    checks: Iterable[DeviceCheck], *, device: int, risky: bool, timeout_s: float
) -> Iterator[CheckResult]:
    """Make one after another."""
    with tempfile.TemporaryDirectory(prefix="ge_runtime_probe_") as folder:
        for check in checks:
            if check.risk and not risky:
                yield CheckResult(check, "skipped", f"needs --risky: {check.risk}", {}, 0.0)
                continue
            begin = time.monotonic()
            found = ProbeProcess(check.probe.__name__, device, Path(folder)).result(timeout_s)
            yield CheckResult(check, *found, time.monotonic() - begin)


def _device_facts(device: int) -> dict[str, Any]:
    """What `acl` tells in a process of its own. Raises DeviceFault if the device is not there."""
    trial = try_import("acl")
    if trial.outcome is not Outcome.DONE or not int(trial.facts["devices"]):
        error = trial.error or trial.facts.get("code", trial.outcome.value)
        raise DeviceFault(
            f"found no Ascend device to ask ({error}); `ge-runtime doctor --require npu` says why"
        )
    count = int(trial.facts["devices"])
    if not 0 <= device < count:
        raise DeviceFault(f"--device: found {device}, expected one of the {count}, from 0")
    return dict(trial.facts)


def _heading(soc: str) -> str:
    """What the answers are about."""
    simulated = " It is a simulator: its answers are those it was written with."
    return f"Asking {soc}.{simulated if _is_simulated(soc) else ''}"


def _report_lines(result: CheckResult, soc: str) -> list[str]:
    """A check with its answer and what was seen."""
    evidence = "; ".join(
        f"{name}: {value}" for name, value in result.evidence.items() if name != "traceback"
    )
    cells = [
        ("assumed", result.check.assumed),
        (_word(result, soc), result.answer),
        *([("seen", evidence)] if evidence else []),
    ]
    labels = aligned_columns([(label,) for label, _ in cells], "<")
    shown = _wrapped(f"{result.check.number:>2}  ", result.check.question)
    for label, (_, text) in zip(labels, cells, strict=True):
        shown += _wrapped(f"    {label:<{max(map(len, labels))}}  ", text)
    return shown


def _results_json(
    results: Sequence[CheckResult], soc: str, about: Mapping[str, object]
) -> dict[str, object]:
    """All of it. about: more that is known of the machine."""
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
    """Whether it is no device that answers."""
    return "Simulator" in soc


def _word(result: CheckResult, soc: str) -> str:
    who = "simulator" if _is_simulated(soc) else "device"
    return f"the {who}" if result.outcome == "answered" else result.outcome


def _wrapped(label: str, text: str) -> list[str]:
    return textwrap.wrap(
        " ".join(text.split()),
        _WIDTH,
        initial_indent=label,
        subsequent_indent=" " * len(label),
        break_on_hyphens=False,
    )
