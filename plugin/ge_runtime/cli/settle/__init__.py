"""`ge-runtime settle`: asks a device what no document says."""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ge_runtime.ascend.atc import Atc
from ge_runtime.cli.arguments import new_command, whole
from ge_runtime.cli.doctor.trials import Outcome, try_import
from ge_runtime.cli.settle.processes import Running
from ge_runtime.cli.settle.questions import QUESTIONS, Question
from ge_runtime.cli.settle.report import Result, as_json, heading, lines
from ge_runtime.errors import DeviceFault

if TYPE_CHECKING:
    from ge_runtime.cli.arguments import Subparsers

UNSETTLED: Final = 1
"""The exit code where a question that was asked has no answer."""

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
  ge-runtime settle --json settled.json
  ge-runtime settle --only 3 --risky

Exit codes: 0 every question that was asked has an answer, 1 one has none, 2 there is no device or
no compiler.
"""


def add_parser(subparsers: Subparsers) -> None:
    """Add `settle` to the commands."""
    parser = new_command(
        subparsers,
        "settle",
        help_="ask an Ascend card what no document says",
        description=_DESCRIPTION,
        epilog=_EPILOG,
    )
    add = parser.add_argument
    add("--device", type=int, default=0, metavar="N", help="which card (0)")
    add(
        "--only",
        type=whole,
        nargs="+",
        choices=[question.number for question in QUESTIONS],
        metavar="N",
        help="the questions to ask, by number (all)",
    )
    add("--risky", action="store_true", help="also ask what may make the card unusable for a while")
    add("--timeout", type=whole, default=300, metavar="S", help="seconds for each question (300)")
    add("--json", type=Path, metavar="FILE", help="write everything that was seen")
    parser.set_defaults(run=_run)


def _run(given: argparse.Namespace) -> int:
    facts = _device_facts(given.device)
    Atc.find()
    if given.json is not None:
        given.json.touch()  # before minutes of questions whose answers would have no place
    soc = facts["soc"]
    print(heading(soc), flush=True)
    chosen = [one for one in QUESTIONS if not given.only or one.number in given.only]
    results = []
    for result in ask(chosen, device=given.device, risky=given.risky, timeout_s=given.timeout):
        results.append(result)
        print("\n".join(["", *lines(result, soc)]), flush=True)
    if given.json is not None:
        about = {"acl": facts["file"], "compiler": Atc.find().identity}
        given.json.write_text(json.dumps(as_json(results, soc, about), indent=2) + "\n")
    return 0 if all(one.outcome in ("answered", "skipped") for one in results) else UNSETTLED


def ask(
    questions: Iterable[Question], *, device: int, risky: bool, timeout_s: float
) -> Iterator[Result]:
    """Ask one after another."""
    with tempfile.TemporaryDirectory(prefix="ge_runtime_settle_") as folder:
        for question in questions:
            if question.risk and not risky:
                yield Result(question, "skipped", f"needs --risky: {question.risk}", {}, 0.0)
                continue
            begin = time.monotonic()
            found = Running(question.probe.__name__, device, Path(folder)).result(timeout_s)
            yield Result(question, *found, time.monotonic() - begin)


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
