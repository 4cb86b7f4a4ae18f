"""`ge-runtime conformance`: whether a model's answers depend on who shared the batch."""

from __future__ import annotations

import argparse
import math
from functools import partial
from typing import Final

from ge_runtime.cli.command import EXIT_NO, Command, add_model, whole
from ge_runtime.cli.config_pbtxt import read_model_config
from ge_runtime.cli.inspect import inspect
from ge_runtime.errors import ConfigFault
from ge_runtime.testing.conformance import DEFAULT_ROUNDS, check
from ge_runtime.testing.model_under_test import PADDINGS

DEFAULT_SECONDS: Final = 5.0

_DESCRIPTION: Final = """\
Prove that no answer of a model depends on who shared its batch.

MODEL_DIR is a Triton model folder: config.pbtxt beside version folders with artifacts. Random
requests are made from config.pbtxt: rows and sizes small as a rule and often at a limit or a gear,
optional inputs left out at random. They are executed each alone, in random groups, and in the
groups that the runtime forms. Every answer is compared with that of a second, plain
implementation, which executes the graph on one request by itself: integers, BOOL and BYTES bit by
bit; FP32 and FP64 to 1e-5, FP16 to 4e-3, BF16 to 3e-2, each relative to the expected value plus 1,
or to what rounding does to that answer, which is measured where it is needed.

Rounding does not depend on the values of others, and leakage does: random groups are executed once
more, at the same shapes, with other values in all requests but one of each. Its answer must be the
same to the bit. Both are printed.

What must not matter is poison:
  - what tensors of requests hold past the ends of their rows: NaN, and the largest integers;
  - the runtime's memory, before each execution: bytes 0xFF (NaN) or 0x7F (huge integers);
  - padding, where masks, lengths or offsets tell the graph what is padding: the model is opened
    once more with padding of the highest value of each input's range.

A graph that ignores its mask fails, and so does one whose rows see each other. On failure the
smallest group of requests that still fails is shown.

A model's own code (prepare, derive) is not run: prepared tensors are made up like inputs.
"""

_EPILOG: Final = """\
Token ids must be of the model's vocabulary: say so with --range, or the graph fails.

--padding nan is for graphs that select by their mask (Where, masked_fill). A graph that multiplies
by its mask is sound too, but NaN times 0 is NaN.

examples:
  ge-runtime conformance model_repository/ge_classifier --range image=0:1
  ge-runtime conformance model_repository/text_encoder --range input_ids=0:30522 --rounds 100

Exit codes: 0 every answer is right, 1 one is not, 2 arguments or input that cannot be used.
"""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    add = parser.add_argument
    add(
        "--rounds",
        type=whole,
        default=DEFAULT_ROUNDS,
        metavar="N",
        help=f"random request batches ({DEFAULT_ROUNDS})",
    )
    add(
        "--seconds",
        type=_positive,
        default=DEFAULT_SECONDS,
        metavar="S",
        help=f"no further request batch is begun after them ({DEFAULT_SECONDS:g})",
    )
    add(
        "--seed",
        type=partial(whole, least=0),
        default=0,
        metavar="S",
        help="of the random request batches (0)",
    )
    add(
        "--range",
        action="append",
        default=[],
        type=_range,
        metavar="INPUT=LOW:HIGH",
        help="the values of an input's or prepared tensor's elements, HIGH excluded for integers "
        "(0:10 for integers, -1:1 for floats)",
    )
    add(
        "--tolerance",
        type=_tolerance,
        metavar="T",
        help="of all floats, relative to the expected value plus 1 (1e-5 or rounding, see above)",
    )
    add(
        "--padding",
        choices=PADDINGS,
        default=PADDINGS[0],
        help="of the second opening: the highest value of the range, NaN for floats, or no second "
        f"opening ({PADDINGS[0]})",
    )


def _run(given: argparse.Namespace) -> int:
    inspection = inspect(given.folder, given.version)
    if inspection.faults:
        raise ConfigFault(inspection.config.model, inspection.faults)
    report = check(
        inspection.version_dir,
        read_model_config(given.folder),
        derived=[spec.name for spec in inspection.config.derived],
        seed=given.seed,
        rounds=given.rounds,
        ranges=dict(given.range),
        tolerance=given.tolerance,
        padding=given.padding,
        seconds=given.seconds,
    )
    print(report)
    return 0 if report.passed else EXIT_NO


COMMAND: Final = Command(
    name="conformance",
    help="prove that no answer depends on who shared the batch",
    description=_DESCRIPTION,
    epilog=_EPILOG,
    add_arguments=_add_arguments,
    run=_run,
)


def _range(text: str) -> tuple[str, tuple[float, float]]:
    name, equals, bounds = text.rpartition("=")
    low, colon, high = bounds.partition(":")
    try:
        if equals and colon:
            return name.strip(), (float(low), float(high))
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(
        f"found {text!r}, expected an input and two numbers, e.g. input_ids=0:30000"
    )


def _positive(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not number > 0:
        raise argparse.ArgumentTypeError(f"found {text!r}, expected a number above 0")
    return number


def _tolerance(text: str) -> float:
    try:
        tolerance = float(text)
    except ValueError:
        tolerance = -1.0
    if not 0 <= tolerance < math.inf:
        raise argparse.ArgumentTypeError(f"found {text!r}, expected a number of at least 0")
    return tolerance
